"""The one error type that user input can cause, and how it is worded."""

from __future__ import annotations

import re
from collections.abc import Sequence

SHOWN_DIGITS = 8
LONG_ID = re.compile(r"[0-9a-f]{32,}")


def listed(names: Sequence[str], most: int = 12) -> str:
    """The first of them, and how many more there are: what a message can name. "none" for none.

    >>> listed(["load", "fit", "test"], 2)
    'load, fit and 1 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more if names else "none"


def counted(number: float, noun: str) -> str:
    """So many of something, as text.

    >>> counted(1.0, "GPU"), counted(0.5, "GPU"), counted(1200000, "task")
    ('1 GPU', '0.5 GPUs', '1,200,000 tasks')
    """
    written = f"{number:,}" if isinstance(number, int) else f"{number:g}"
    return f"{written} {noun}" + ("" if number == 1 else "s")


def labelled(name: str, framework_id: str) -> str:
    """What a message calls a task whose id is only a number of its framework.

    >>> labelled("fit", "92a781a6c0ffee00")
    'fit-92a781a6'
    >>> labelled("Counter", "ffffffffffffffff92a781a6c0ffee00")
    'Counter-92a781a6'
    """
    return f"{name}-{framework_id.removeprefix('f' * 16)[:8]}"


def node_words(name: str) -> str:
    """What a message calls a node: its name, of a framework's long id in hexadecimal digits the beginning.

    >>> node_words("gpu01.example.org"), node_words("3f" * 28)
    ('gpu01.example.org', '3f3f3f3f')
    """
    return name[:SHOWN_DIGITS] if LONG_ID.fullmatch(name) else name


class EgsError(Exception):
    """Something EGS cannot do for a reason that the user can mend; the command line ends with exit code 2."""


class InputError(EgsError):
    """Bad input: names the place (file, path inside it, option) and what to do about it.

    >>> str(InputError("pipe.json: tasks[3].parents", "unknown task 'loda'", "did you mean 'load'?"))
    "pipe.json: tasks[3].parents: unknown task 'loda' (did you mean 'load'?)"
    """

    def __init__(self, place: str, problem: str, hint: str = "") -> None:
        self.place, self.problem, self.hint = place, problem, hint
        super().__init__(f"{place}: {problem}" + (f" ({hint})" if hint else ""))
