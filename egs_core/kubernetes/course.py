"""What a controller says of its own course: whether it leads, when that is known and when it changes; and its end.

cluster https://10.0.0.1:6443, all namespaces: waits for gpu01-4711, which leads
cluster https://10.0.0.1:6443, all namespaces: leads
has ended; gates that it has opened: 12; 3 pods behind theirs: until a controller leads, or their release-by times
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from egs_core.errors import counted, listed
from egs_core.kubernetes.leader import Leader


class Course:
    """See the module. host: of the API server; namespaces: that are served; none named: all. tell: hears the lines."""

    def __init__(self, host: str, namespaces: Sequence[str], leader: Leader, tell: Callable[[str], None]) -> None:
        where = f"namespaces {listed(namespaces)}" if namespaces else "all namespaces"
        self._where, self._leader, self._tell = f"cluster {host}, {where}: ", leader, tell
        self._role = ""

    def look(self) -> None:
        """Say whether it leads, if that is another answer than before. Why nobody does is not said here."""
        holder = self._leader.holder
        role = "leads" if self._leader.leads else f"waits for {holder}, which leads" if self._is_behind else self._role
        if role != self._role:
            self._tell(f"{self._where}{role}")
            self._role = role

    def end(self, opened: int, gated: int) -> None:
        """opened: how many gates it has opened; gated: how many of the pods that it serves are behind theirs."""
        rest = f"; {counted(gated, 'pod')} behind theirs: until a controller leads, or their release-by times"
        self._tell(f"has ended; gates that it has opened: {opened:,}{rest if gated else ''}")

    @property
    def _is_behind(self) -> bool:
        return self._leader.holder not in ("", self._leader.identity) and not self._leader.problem
