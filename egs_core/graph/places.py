"""How a place in a file is written, and which known word a wrong one was meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_LONGEST_SUGGESTION = 200
_NEAR_CANDIDATES = 5000  # difflib is quadratic in text length; a suggestion is a courtesy


def join(place: str, inside: str) -> str:
    """`file: path inside it`, or the one that there is.

    >>> join("a.json", "tasks[3]"), join("", "tasks[3]")
    ('a.json: tasks[3]', 'tasks[3]')
    """
    return f"{place}: {inside}" if place and inside else place or inside


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint that names the nearest known word, or nothing when none is near."""
    if len(word) > _LONGEST_SUGGESTION:
        return ""
    near: list[str] = []
    for candidate, _ in zip(_near_in_length(word, known), range(_NEAR_CANDIDATES), strict=False):
        near.append(candidate)
    found = difflib.get_close_matches(word, near, n=1)
    return f"did you mean {found[0]!r}?" if found else ""


def hint_of(error: Mapping[str, Any], known: Iterable[str]) -> str:
    """For a field that is not known here: the nearest one that there is, or that it belongs to another part."""
    if error["type"] != "extra_forbidden":
        return ""
    name, names = str(error["loc"][-1]), list(dict.fromkeys(known))
    longer = [one for one in names if one == f"{name}s"] or [one for one in names if one.startswith(f"{name}_")]
    if longer and name not in names:  # `gpus` for `gpus_per_node`
        return f"did you mean {longer[0]!r}?"
    if name in names:
        return f"{name!r} belongs to another part of the file"
    return did_you_mean(name, names)


def _near_in_length(word: str, known: Iterable[str]) -> Iterator[str]:
    """Same first letter counts as near, and so does anything in a small graph, as long as the length is similar."""
    return (k for i, k in enumerate(known) if abs(len(k) - len(word)) <= 3 and (i < 1000 or k[:3] == word[:3]))
