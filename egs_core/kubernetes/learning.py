"""What pods and pulls of images took, kept in a ConfigMap of the controller's namespace, where a later leader finds it.

    its first step as leader    read, once
    each RENEW_S                what was learned since counts
    each WRITE_S, and its end   pipelines of which something was learned are written, if nobody has written since

Pods that have ended and are still listed teach a new leader again, those of Argo while their Workflow goes on; so what
was not written is lost only with them.
Without the ConfigMap, or the right to it, durations are learned all the same, and forgotten with the controller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from egs_core.kubernetes import names
from egs_core.kubernetes.cluster import CONFIG_MAPS, ApiError, Cluster
from egs_core.kubernetes.learned import PULLS, Learned, Learnt
from egs_core.kubernetes.objects import part
from egs_core.kubernetes.pods import Pod

RENEW_S = 10.0
WRITE_S = 120.0
REFUSED_S, AWAY_S = 600.0, 10.0
"""So long after the API server said no, or nothing, it is asked again."""
ABOUT, KEEPING = "durations", "keeping durations"
TRIES = 2


class Learning:
    """See the module. namespace: of the ConfigMap; note: hears what an administrator should know, by what it is about,
    and "" when it is no longer so. Times are Unix times. Its methods are for one thread."""

    def __init__(self, cluster: Cluster, namespace: str, note: Callable[[str, str], None]) -> None:
        self._cluster, self._namespace, self._note = cluster, namespace, note
        self._learned = Learned()
        self._version: str | None = None  # None: it is not read; "": it is not there
        self._read_at = self._renew_at = float("-inf")
        self._write_at = float("inf")

    def learnt(self, now: float) -> Learnt:
        """What counts now."""
        if self._version is None and now >= self._read_at:
            self._read(now)
        if now >= self._renew_at:
            self._renew_at = now + RENEW_S
            self._learned.renew()
        return self._learned.learnt

    def hear(self, pods: Iterable[Pod], now: float) -> None:
        """These have succeeded."""
        self._learned.take(pods)
        if not self._learned.has_news:
            self._write_at = float("inf")
        elif now >= self._write_at:
            self._write_at = now + WRITE_S
            self._write(now)
        else:
            self._write_at = min(self._write_at, now + WRITE_S)

    def pulled(self, image: str, seconds: float, uid: str, now: float) -> None:
        """A node took so long to pull it. uid: of the pod for which."""
        self._learned.take_pull(image, now, seconds, uid)

    def pulls_s(self, images: Iterable[str]) -> dict[str, float]:
        """How long they take to be pulled, of those of which that counts by now."""
        known = self._learned.learnt.get(PULLS)
        found = {image: known.likely(image) for image in images} if known is not None else {}
        return {image: likely.seconds for image, likely in found.items() if likely is not None}

    def rest(self, now: float, *, leads: bool) -> None:
        """It does not lead, or soon will not: what another writes meanwhile is read when it does again."""
        if leads and self._learned.has_news:
            self._write(now)
        self._version, self._read_at = None, float("-inf")

    def _read(self, now: float) -> None:
        try:
            found = self._cluster.get(CONFIG_MAPS, names.DURATIONS, self._namespace)
        except ApiError as error:
            self._version = "" if error.status == 404 else None
            self._read_at = now + self._again_s(ABOUT, error, "what earlier runs took is not known")
            return
        texts = part(found, "data")
        unreadable = self._learned.read({str(key): str(text) for key, text in texts.items()})
        self._version, self._renew_at = str(found["metadata"]["resourceVersion"]), now
        said = f"{', '.join(unreadable[:3])} of ConfigMap {names.DURATIONS} cannot be read: nothing is known of it"
        self._note(ABOUT, said if unreadable else "")

    def _write(self, now: float) -> None:
        """Once more where another has written meanwhile, or has deleted it: then it is read before."""
        for _ in range(TRIES):
            if self._version is None:
                self._read(now)
            if self._version is None:
                self._learned.news()  # what is too much is forgotten, wherever it is kept
                break
            try:
                self._put(self._version)
                break
            except ApiError as error:
                self._version = None
                if error.status not in (404, 409):
                    again_s = self._again_s(KEEPING, error, "what runs take is forgotten with this controller")
                    self._write_at = self._read_at = now + again_s
                    break

    def _put(self, version: str) -> None:
        """Write what has changed, into what has this version; "": make it, with everything."""
        news = self._learned.news()
        meta = {"name": names.DURATIONS, "namespace": self._namespace}
        if version:
            body = {"metadata": {"resourceVersion": version}, "data": news}
            made = self._cluster.patch(CONFIG_MAPS, names.DURATIONS, body, self._namespace)
        else:
            about = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta}
            made = self._cluster.create(CONFIG_MAPS, {**about, "data": self._learned.texts()}, self._namespace)
        self._version = str(made["metadata"]["resourceVersion"])
        self._learned.kept()
        self._note(KEEPING, "")

    def _again_s(self, about: str, error: ApiError, so: str) -> float:
        """After so long it is tried again. A refusal is said; a server that is away for a moment is nothing to speak
        of."""
        is_refused = 400 <= error.status < 500 and error.status not in (404, 429)
        if is_refused:
            self._note(about, f"{error}: {so}")
        return REFUSED_S if is_refused else AWAY_S
