"""What `egs serve` sets for its whole process."""

from __future__ import annotations

import gc

from egs_core.server.serving import collect_seldom


def test_what_a_server_keeps_is_not_looked_through_again_and_again() -> None:
    """Half a million objects that stay, as those of tasks that wait: Python's collector looks at young ones alone."""
    seen: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            seen.append(info["generation"])

    before = gc.get_threshold()
    gc.callbacks.append(note)
    try:
        collect_seldom()
        kept = [[number] for number in range(500_000)]
    finally:
        gc.callbacks.remove(note)
        gc.set_threshold(*before)
    assert len(kept) == 500_000
    assert set(seen) == {0, 1}
