"""What the API server lists of one kind, kept up to date by a watch in a thread of its own.

A watch that ends, breaks or is told that its version is gone (410) is followed by a list: what was missed in between is
in it. A watch that says nothing for too long counts as broken; it has a time-out, and so has every request.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from egs_core.kubernetes.cluster import ApiError, Cluster, Kind

AGAIN_S = 1.0
MOST_AGAIN_S = 30.0
FORBIDDEN = "ApiError: 403"
"""How `Mirror.problem` begins where the API server lets nobody read the kind."""


class Mirror:
    """See the module. made: an object's value; changed: told after each change, from the thread. labels: a selector;
    what leaves it is gone. optional: a kind that is not in the cluster, not readable, or cannot be listed yet counts
    as an empty list. What could be read once is believed for half a minute longer: an API server that has just started
    knows neither rights nor kinds, and says that there are none. A value that is equal to the one before stays that
    very object."""

    def __init__(
        self,
        cluster: Cluster,
        kind: Kind,
        made: Callable[[dict[str, Any]], Any],
        changed: Callable[[], None],
        *,
        labels: str = "",
        optional: bool = False,
        watch_s: int = 240,
    ) -> None:
        self._cluster, self._kind, self._made, self._changed = cluster, kind, made, changed
        self._labels, self._optional, self._watch_s = labels, optional, watch_s
        self._lock = threading.Lock()
        self._items: dict[str, Any] = {}
        self._versions: dict[str, int] = {}
        self._listed = threading.Event()
        self._ended = threading.Event()
        self.lists = 0
        self._was_read = False
        self.problem = ""
        self._thread = threading.Thread(target=self._run, name=f"egs-{kind.plural}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()

    @property
    def is_listed(self) -> bool:
        """Whether there was one list at least."""
        return self._listed.is_set()

    def items(self) -> dict[str, Any]:
        """By uid; a copy."""
        with self._lock:
            return dict(self._items)

    def get(self, uid: str) -> Any:
        """None: it is not there."""
        with self._lock:
            return self._items.get(uid)

    def put(self, raw: dict[str, Any]) -> None:
        """What a patch has answered: it may be behind what was watched, or the object may be gone."""
        self._put(raw, is_new=False)

    def _put(self, raw: dict[str, Any], *, is_new: bool) -> None:
        uid, version, value = raw["metadata"]["uid"], _version(raw), self._made(raw)
        with self._lock:
            if (is_new or uid in self._items) and version >= self._versions.get(uid, 0):
                self._items[uid], self._versions[uid] = _same(self._items.get(uid), value), version

    # --- the thread ---

    def _run(self) -> None:
        wait_s = AGAIN_S
        while not self._ended.is_set():
            try:
                self._follow(self._list())
                wait_s = AGAIN_S
            except Exception as error:  # whatever it is: list again
                self.problem = f"{type(error).__name__}: {error}"[:300]
                is_refused = isinstance(error, ApiError) and error.status in (403, 404)
                is_absent = self._optional and is_refused and (not self._was_read or wait_s >= MOST_AGAIN_S)
                if is_absent or (self._optional and not self.is_listed):
                    self._take([])
                gone = isinstance(error, ApiError) and error.status == 410
                self._ended.wait(0.0 if gone else MOST_AGAIN_S if is_absent else wait_s)
                wait_s = AGAIN_S if gone else min(MOST_AGAIN_S, 2 * wait_s)

    def _list(self) -> str:
        found, version = self._cluster.list(self._kind, labels=self._labels)
        self._take(found)
        self._was_read = True
        self.problem = ""
        return version

    def _take(self, found: list[dict[str, Any]]) -> None:
        values = {one["metadata"]["uid"]: self._made(one) for one in found}
        with self._lock:
            before = self._items
            self._items = {uid: _same(before.get(uid), value) for uid, value in values.items()}
            self._versions = {one["metadata"]["uid"]: _version(one) for one in found}
        self.lists += 1
        self._listed.set()
        self._changed()

    def _follow(self, version: str) -> None:
        """Until the watch ends by itself."""
        started = time.monotonic()
        while not self._ended.is_set():
            for event in self._cluster.watch(self._kind, version, labels=self._labels, timeout_s=self._watch_s):
                version = self._take_event(event) or version
                if self._ended.is_set():
                    return
            if time.monotonic() - started > 10 * self._watch_s:
                return  # a list now and then: nothing may be missed for ever

    def _take_event(self, event: dict[str, Any]) -> str:
        raw = event["object"]
        uid = (raw.get("metadata") or {}).get("uid")
        if event["type"] == "DELETED":
            with self._lock:
                self._items.pop(str(uid), None)
                self._versions.pop(str(uid), None)
        elif event["type"] != "BOOKMARK" and uid:
            self._put(raw, is_new=True)
        self._changed()
        return str((raw.get("metadata") or {}).get("resourceVersion") or "")


def _same(before: Any, value: Any) -> Any:
    return before if before == value else value


def _version(raw: dict[str, Any]) -> int:
    """Of one object they are numbers that grow, since Kubernetes 1.35 by promise; 0 where it is none."""
    stated = str(raw["metadata"].get("resourceVersion") or "")
    return int(stated) if stated.isdecimal() else 0
