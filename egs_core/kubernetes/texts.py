"""Values made of texts that anybody may write, each made once, as long as its text is short: what is kept of all of
them together is bounded then, too."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

KEPT, KEPT_LENGTH = 16_384, 4096
"""So many different texts are read once only, but longer ones each time."""
Value = TypeVar("Value")


def kept(made: Callable[[str], Value]) -> Callable[[str], Value]:
    """The same, but for what it has made of a short text already."""
    cached = lru_cache(maxsize=KEPT)(made)
    return lambda text: (cached if len(text) <= KEPT_LENGTH else made)(text)
