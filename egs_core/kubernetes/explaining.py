"""Why pods wait, written into a few of them at a time: beside, as no gate waits for that. `telling` has the words."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any

from egs_core.kubernetes import telling
from egs_core.kubernetes.cluster import ApiError, Cluster
from egs_core.kubernetes.opening import tell_why
from egs_core.kubernetes.pods import Pod
from egs_core.kubernetes.session import ClusterSession
from egs_core.kubernetes.writing import Writers


class Explaining:
    """See the module. put: hears a pod as it is then; may_go_on: asked before each write; note: hears what an
    administrator should know, by what it is about."""

    def __init__(
        self,
        cluster: Cluster,
        put: Callable[[dict[str, Any]], None],
        may_go_on: Callable[[], bool],
        note: Callable[[str, str], None],
    ) -> None:
        self._cluster, self._put, self._may_go_on, self._note = cluster, put, may_go_on, note
        self._teller = telling.Teller()

    def look(
        self,
        pods: Mapping[str, Pod],
        session: ClusterSession | None,
        writers: Writers[Any],
        now: float,
        awaited: Collection[str] = (),
    ) -> None:
        """Of pods that are served, by uid, those that are due. now: Unix time; awaited: as of `telling.texts`."""
        due = self._teller.due(pods.values(), now) if session is not None and writers.is_free else []
        if not due or session is None:
            return
        members = Counter((pod.run, pod.gang) for pod in pods.values() if pod.gang)
        order, until = session.order(), time.monotonic() + telling.ASKED_S
        texts = telling.texts(
            due, order, members, lambda uid: session.why(uid) if time.monotonic() < until else None, now, awaited
        )
        said = [(pods[uid], text) for uid, text in texts.items()]
        writers.beside(lambda: self._write(said, now))

    def _write(self, texts: list[tuple[Pod, str]], now: float) -> None:
        for pod, text in texts:
            if not self._may_go_on():
                return
            try:
                self._put(tell_why(self._cluster, pod, text, now))
            except ApiError as error:
                if error.status not in (404, 409):
                    self._note("why", f"{pod.namespace}/{pod.name}: {error}")
                    self._teller.refused(now)
                    return
