"""Which of several processes runs which tests, and what happens to the rest when one of them dies."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    import pytest
    from xdist.remote import Producer


class Together(LoadScopeScheduling):  # type: ignore[misc]  # xdist ships no types
    """Tests of one piece, as `piece_of` names it by their ids, run in one process, one after the other.

    Beyond what xdist does when a process dies: the test that it ran is tried again only where it has a second try
    (`--reruns`), and a new process that has all that is left begins with it.
    """

    def __init__(self, config: pytest.Config, log: Producer, piece_of: Callable[[str], str]) -> None:
        self._split_scope = piece_of
        super().__init__(config, log)

    def schedule(self) -> None:
        """A process runs no test before it knows the next one, or that there is none. One that takes another's place is
        told of one piece only by xdist, which may be one test."""
        is_begun = self.collection is not None
        super().schedule()
        for node in self.nodes if is_begun else ():
            self._reschedule(node)

    def remove_node(self, node: Any) -> str | None:
        """What a process has left goes to others; the test in which it died, if any, is returned."""
        left = {piece: tests for piece, tests in self.assigned_work.pop(node).items() if not all(tests.values())}
        if not left:
            return None
        first = next(iter(left.values()))
        died: str = next(test for test, is_done in first.items() if not is_done)
        first[died] = True
        self.workqueue.update((piece, tests) for piece, tests in left.items() if not all(tests.values()))
        return died

    def mark_test_pending(self, item: str) -> None:
        """The second try of a test in which a process died; pytest-rerunfailures asks for it."""
        self.workqueue.setdefault(self._split_scope(item), {})[item] = False
