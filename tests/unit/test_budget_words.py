"""What people read of budgets of GPU hours."""

from __future__ import annotations

import pytest

from egs_core.cli.site import budget_line
from egs_core.client.messages import BudgetView


@pytest.mark.parametrize(
    ("used", "most", "words"), [(0.01705, 0.01, "0.017 of 0.01"), (503.5, 500.0, "503.5 of 500"), (0.0, 2.0, "0 of 2")]
)
def test_what_is_used_up_is_more_than_there_is_also_in_words(used: float, most: float, words: str) -> None:
    """`egs queue`'s line of a small budget: one place would say that nothing was used, and that all was."""
    view = BudgetView(
        queue="play",
        gpu_hours=most,
        used=used,
        period="2026-11",
        begins_at=0.0,
        ends_at=1.0,
        zone="UTC",
        warn_at=0.8,
        then="stop",
        state="used up",
    )
    assert budget_line(view).startswith(f"queue play: {words} GPU hours of 2026-11, used up: ")
