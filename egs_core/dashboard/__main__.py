"""`python -m egs_core.dashboard HANDLE SOCKET PORT [--secure] [--behind-proxy]`, as `egs serve` starts it: HANDLE is of
the listening socket that it has made, SOCKET the server's own, PORT that of its address. Ends as soon as its stdin
does: then the server is gone."""

from __future__ import annotations

import os
import socket
import sys
import threading
from pathlib import Path

import uvicorn

from egs_core.dashboard.app import make_app
from egs_core.dashboard.asking import Asking
from egs_core.dashboard.measured import measured
from egs_core.json_log import uvicorn_options


def main(arguments: list[str]) -> None:
    handle, site, port, *options = arguments
    threading.Thread(target=_end_with_the_server, daemon=True).start()
    is_secure, behind_proxy = "--secure" in options, "--behind-proxy" in options
    app = make_app(Asking(Path(site)), measured, int(port), is_secure=is_secure, behind_proxy=behind_proxy)
    config = uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        lifespan="off",
        proxy_headers=False,
        server_header=False,
        access_log=False,
        log_level="warning",
        timeout_graceful_shutdown=1,
        **uvicorn_options(),
    )
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=int(handle))])


def _end_with_the_server() -> None:
    """At once: it has nothing to save, and streams that are open would last."""
    while os.read(0, 1024):
        pass
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
