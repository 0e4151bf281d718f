"""A controller in a thread, on an emulated API server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from egs_core.kubernetes.cluster import Cluster
from egs_core.kubernetes.controller import Controller
from egs_core.kubernetes.settings import Settings
from tests.unit.kubernetes.emulated_api import LIMIT_S, EmulatedApi


@contextmanager
def controlled(
    api: EmulatedApi, name: str = "one", says: str = "", said: list[str] | None = None, **settings: object
) -> Iterator[Controller]:
    """One that says nothing, or lines with this in them; said: what it says is put in."""
    said = [] if said is None else said
    found = Controller(Cluster(api.kubeconfig), Settings(identity=name, **settings), said.append, watch_s=5)  # type: ignore[arg-type]  # of one test each
    thread = threading.Thread(target=found.run, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        found.stop()
        thread.join(LIMIT_S)
        assert not thread.is_alive()
        assert [line for line in said if not says or says not in line] == []
