"""A site server in this process, behind a real Unix socket: for clients of drivers."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import uvicorn

from egs_core.engine.specs import QueueSpec
from egs_core.server.access import Access, PeerProtocol
from egs_core.server.app import Site, make_app
from egs_core.server.sharing import Sharing
from egs_core.server.store import SqlStore
from egs_core.server.writer import Turns, Writer
from tests.unit.server.real_site import wait_for
from tests.unit.server.site_world import OFFER


class OwnServer:
    """url: for clients. folder: short, as sockets want their paths."""

    def __init__(self, folder: Path, queues: tuple[QueueSpec, ...] = ()) -> None:
        self._store = SqlStore(folder, time.time())
        turns = Turns(self._store, OFFER)
        self.site = Site(lambda changed: Writer(turns, changed), Access(self._store), sharing=Sharing(queues))
        config = uvicorn.Config(make_app(self.site), http=PeerProtocol, ws="none", loop="uvloop", log_level="warning")
        self._server = uvicorn.Server(config)
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.bind(str(folder / "s"))
        self._listening.listen(16)
        self.url = f"unix://{folder / 's'}"
        self._thread = threading.Thread(target=lambda: self._server.run(sockets=[self._listening]), daemon=True)
        self._thread.start()
        wait_for(lambda: self._server.started, "it serves")

    def close(self) -> None:
        self.site.wake_all()
        self._server.should_exit = True
        self._thread.join(30)
        self._listening.close()
        self._store.close()
