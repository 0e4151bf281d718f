"""Values made of texts that anybody may write, each made once: as long as its text is short (`kept`), or as long as all
of them together are (`kept_within`). So what is kept is bounded by the texts' lengths, not by their number alone."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from functools import lru_cache
from typing import Any, TypeVar, cast

KEPT, KEPT_LENGTH = 16_384, 4096
"""So many different texts are read once only, but longer ones each time."""
Value = TypeVar("Value")
Made = TypeVar("Made", bound=Callable[..., object])


def kept(made: Callable[[str], Value]) -> Callable[[str], Value]:
    """The same, but for what it has made of a short text already."""
    cached = lru_cache(maxsize=KEPT)(made)
    return lambda text: (cached if len(text) <= KEPT_LENGTH else made)(text)


def length_of(texts: Iterable[str]) -> int:
    """Of all of them, and no less than one: also what is empty takes its room."""
    return 1 + sum(map(len, texts))


def kept_within(entries: int, letters: int, length: Callable[[Any], int]) -> Callable[[Made], Made]:
    """The same, but for the last so many values that it has made. When what they were made of comes to more letters,
    each of it once, all are made anew. length: of what is given first, in letters."""

    def bounded(made: Made) -> Made:
        cached = lru_cache(maxsize=entries)(made)
        seen: set[Hashable] = set()
        total = 0

        def found(of: Hashable, *more: Hashable) -> object:
            nonlocal total
            if of not in seen:
                total += length(of)
                if total > letters:
                    cached.cache_clear()
                    seen.clear()
                    total = length(of)
                seen.add(of)
            return cached(of, *more)

        return cast(Made, found)

    return bounded
