"""The figures of `benchmarks.predictors` as one SVG: losses as shares of the baseline's, and what P90 covers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from egs_core.report.html import Markup, join, tag

WIDTH, BAR, GAP, LEFT, RIGHT, TOP = 900, 16, 14, 180, 130, 46
COLOURS = {"baseline": "#9aa5b1", "predictor": "#6baed6", "no features": "#e6862e", "boosted": "#7f7f7f"}


def plot(rows: Sequence[dict[str, Any]]) -> str:
    """One bar for each row of the whole series, from 0 to the largest share; a line where the baseline is."""
    whole = [row for row in rows if row["part"] == "all"]
    panels = []
    y = TOP
    for key, title in (("pinball_0.5", "pinball loss of the median"), ("pinball_0.9", "pinball loss of P90")):
        panel, y = _panel(whole, key, f"{title}, % of the baseline's", y)
        panels.append(panel)
    head = tag("text", "Predicted durations, in arrival order", x=LEFT, y=24, font_size=16, font_weight="bold")
    shown = tag(
        "svg",
        tag("rect", width=WIDTH, height=y, fill="white"),
        head,
        *panels,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH} {y}",
        font_family="sans-serif",
        font_size=12,
    )
    return f"{shown}\n"


def _panel(rows: Sequence[dict[str, Any]], key: str, title: str, top: int) -> tuple[Markup, int]:
    """The bars of one loss, and where the next panel begins."""
    shares = [100 + row[f"{key}_change_percent"] for row in rows]
    scale = (WIDTH - LEFT - RIGHT) / max(100.0, *shares)
    marks = [tag("text", title, x=LEFT, y=top + 12, font_weight="bold")]
    y, data = top + 20, ""
    for row, share in zip(rows, shares, strict=True):
        if row["data"] != data:
            data = row["data"]
            y += GAP if row is not rows[0] else 0
            marks.append(tag("text", data, x=8, y=y + BAR - 4, font_weight="bold"))
        marks.append(_bar(row, key, share, scale, y))
        y += BAR + 2
    line = LEFT + 100 * scale
    marks.append(tag("line", x1=line, x2=line, y1=top + 18, y2=y, stroke="black", stroke_dasharray="3 3"))
    return join(marks), y + 2 * GAP


def _bar(row: dict[str, Any], key: str, share: float, scale: float, y: int) -> Markup:
    label = f"{row['method']}: {share:.0f} %"
    if key == "pinball_0.9":
        label += f" (covers {100 * row['coverage_0.9']:.1f} %)"
    inside = share * scale > 250
    return join(
        (
            tag("rect", x=LEFT, y=y, width=round(share * scale, 1), height=BAR, fill=COLOURS[row["method"]]),
            tag("text", label, x=LEFT + 6 if inside else round(LEFT + share * scale + 6, 1), y=y + BAR - 4),
        )
    )
