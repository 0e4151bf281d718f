"""What is kept of texts that anybody may write: within so many values, and within so many letters."""

from __future__ import annotations

import tracemalloc

from egs_core.kubernetes import devices, selectors
from egs_core.kubernetes.pods import Facts
from egs_core.kubernetes.texts import kept_within, length_of


def test_values_are_made_once_within_so_many_letters() -> None:
    """Of ten letters: the third text of four is too much, so all are made anew from then on."""
    made: list[str] = []

    @kept_within(100, 10, len)
    def twice(text: str, times: int = 2) -> str:
        made.append(text)
        return text * times

    assert [twice("aaaa"), twice("aaaa"), twice("aaaa", 3)] == ["a" * 8, "a" * 8, "a" * 12]
    assert made == ["aaaa", "aaaa"]
    for text in ("bbbb", "aaaa", "cccc", "cccc", "aaaa", "x" * 99, "x" * 99):
        assert twice(text) == text * 2
    assert made[2:] == ["bbbb", "cccc", "aaaa", "x" * 99]


def test_empty_texts_take_room_too() -> None:
    """Else what is given beside them could come without end."""
    assert length_of(()) == length_of(("",)) == 1
    assert length_of(("ab", "c")) == 4


def test_long_selectors_without_end_take_little_memory() -> None:
    """Each another one, and the longest that is read: what is kept of them is bounded by their lengths."""
    facts = Facts("gpu.nvidia.com", {}, {})
    tracemalloc.start()
    try:
        for number in range(60):
            text = f"[{'1,' * 4500} {number}] == 1"
            assert selectors.MOST_BYTES > len(text) > 9000
            assert not devices._are_met((text,), facts)
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size < 80 << 20
