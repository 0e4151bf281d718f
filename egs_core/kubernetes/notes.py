"""What an administrator should know, each thing said once, until it is another or no longer so.

    note("volume team/models", "it is not bound")    said
    note("volume team/models", "it is not bound")    not again
    note("volume team/models", "")                   it is no longer so, and would be said again

What it is about, and what is said, may be texts that tenants write: names of claims, of images. So a bounded number of
them is remembered, and a digest of each: what is said is whole, and texts that differ at their ends are two.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

MOST = 1000
"""So many notes are remembered, those that were heard last."""
LONGEST = 10_000
"""So many letters a line has at the most."""


class Notes:
    """See the module. say: hears one line of each."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._said: dict[bytes, bytes] = {}  # digests: by what it is about, of what was heard; the last ones behind

    def note(self, about: str, problem: str) -> None:
        """problem: "" where all is well."""
        what = _digest(about)
        before = self._said.pop(what, None)
        if not problem:
            return
        now = self._said[what] = _digest(problem)
        if len(self._said) > MOST:
            del self._said[next(iter(self._said))]
        if before != now:
            line = f"{about}: {problem}"
            self._say(line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…")


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
