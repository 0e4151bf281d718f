"""Which volume claims may be mounted to read ahead, without harm to whoever else uses them.

A volume of one node at a time would keep its task waiting while a preload has it elsewhere, and one that is not bound
yet would be made where the preload is. So those alone that many nodes may have at once.
"""

from __future__ import annotations

from collections.abc import Callable

from egs_core.kubernetes.cluster import VOLUME_CLAIMS, ApiError, Cluster
from egs_core.kubernetes.objects import Object, part, text

MANY = frozenset(("ReadOnlyMany", "ReadWriteMany"))
ASKED_S = 600.0
"""So long an answer holds."""


class Volumes:
    """See the module. allowed: `NAMESPACE/CLAIM` of each that an administrator has named; note: hears of those that are
    not read, by what it is about. Times are Unix times."""

    def __init__(self, cluster: Cluster, allowed: tuple[str, ...], note: Callable[[str, str], None]) -> None:
        self._cluster, self._allowed, self._note = cluster, allowed, note
        self._known: dict[str, tuple[float, str]] = {}  # until when an answer holds, and why not

    def may_be_read(self, namespace: str, claim: str, now: float) -> bool:
        """Asked of the API server once in ten minutes."""
        named = f"{namespace}/{claim}"
        until, why_not = self._known.get(named, (0.0, ""))
        if until <= now:
            why_not = self._why_not(named, namespace, claim)
            self._known = {key: one for key, one in self._known.items() if one[0] > now}
            self._known[named] = now + ASKED_S, why_not
            self._note(f"volume {named}", f"{why_not}: its files are not read ahead" if why_not else "")
        return not why_not

    def _why_not(self, named: str, namespace: str, claim: str) -> str:
        if named not in self._allowed:
            return f"no --preload-volume {named} names it"
        try:
            return why_not(self._cluster.get(VOLUME_CLAIMS, claim, namespace))
        except ApiError as error:
            return str(error)


def why_not(raw: Object) -> str:
    """Why a volume claim is not mounted to read ahead; "" where it may be."""
    spec, status = part(raw, "spec"), part(raw, "status")
    modes = status.get("accessModes") or ()
    if text(status, "phase") != "Bound":
        return "it is not bound"
    if text(spec, "volumeMode") == "Block":
        return "it is a device"
    if not modes or not MANY.issuperset(map(str, modes)):
        return f"its access modes {', '.join(map(str, modes))} are not all of many nodes ({', '.join(sorted(MANY))})"
    return ""
