"""What an administrator should know, each thing said once, until it is another or no longer so.

    note("volume team/models", "it is not bound")    said
    note("volume team/models", "it is not bound")    not again
    note("volume team/models", "")                   it is no longer so, and would be said again

What it is about, and what is said, may be texts that tenants write: names of claims, of images. So a bounded number of
them is remembered, and no more of each than its beginning.
"""

from __future__ import annotations

from collections.abc import Callable

MOST, LONGEST = 1000, 1000
"""So many notes are remembered, those that were heard last, and so many letters of each."""


class Notes:
    """See the module. say: hears one line of each."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._said: dict[str, str] = {}  # by what it is about, what was heard last behind

    def note(self, about: str, problem: str) -> None:
        """problem: "" where all is well."""
        about, problem = about[:LONGEST], problem[:LONGEST]
        before = self._said.pop(about, "")
        if not problem:
            return
        self._said[about] = problem
        if len(self._said) > MOST:
            del self._said[next(iter(self._said))]
        if before != problem:
            self._say(f"{about}: {problem}")
