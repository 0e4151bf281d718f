"""Parts of pages that show a run log or a site: tables, GPUs over time, GPU hours. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from egs_core.cost.ledger import NONE, Amounts
from egs_core.report.html import Markup, tag
from egs_core.runlog.steps import Floats
from egs_core.units import two_places

MOST_ROWS = 200
Parts = dict[str, tuple[Markup, ...]]
"""Of a page, by their names."""
LONG = 30  # letters, of a cell that wants room
BINS, CHART_W, CHART_H = 240, 960.0, 120.0


def costs_table(costs: Mapping[str, Amounts], currency: str) -> Markup | None:
    """GPU hours by team, and money where a currency is told."""
    rows = [
        (
            "no team" if name == NONE else name,
            two_places(found.gpu_h_held),
            two_places(found.gpu_h_used),
            two_places(found.gpu_h_wasted),
            "" if found.cost is None else f"{found.cost:.2f} {currency}",
            "" if found.cost_wasted is None else f"{found.cost_wasted:.2f} {currency}",
        )
        for name, found in costs.items()
    ]
    heads = ("Team", "GPU hours held", "Used", "Not used", "Cost", "Of that not used")
    return table("Cost so far" if currency else "GPU hours so far", heads, rows)


def chart(
    title: str, label: str, capacity: Floats, useful: Floats, wasted: Floats, ends: tuple[str, str], legend: str
) -> Markup:
    """GPUs over time: averages in equal stretches. label: for a screen reader; ends: of the axis; legend: what wasted
    is."""
    most = max(float(capacity.max()), float((useful + wasted).max()), 1e-9)
    shapes = [
        tag("path", d=_area(np.zeros_like(useful), useful, most), class_="useful"),
        tag("path", d=_area(useful, useful + wasted, most), class_="wasted"),
        tag("path", d=_line(capacity, most), class_="capacity") if capacity.max() > 0 else None,
    ]
    svg = tag(
        "svg",
        tag("title", label),
        *shapes,
        viewBox=f"0 0 {CHART_W:g} {CHART_H:g}",
        preserveAspectRatio="none",
        role="img",
        aria_label=label,
        class_="flow",
    )
    words = tag(
        "p",
        tag("span", class_="swatch useful"),
        " useful work ",
        tag("span", class_="swatch wasted"),
        f" {legend}",
        class_="note",
    )
    return tag("section", tag("h2", title), svg, tag("p", ends[0], tag("span", ends[1]), class_="axis"), words)


def _area(low: Floats, high: Floats, most: float) -> str:
    there = [f"{_x(n)},{_y(v, most)} {_x(n + 1)},{_y(v, most)}" for n, v in enumerate(high)]
    back = [f"{_x(n + 1)},{_y(v, most)} {_x(n)},{_y(v, most)}" for n, v in reversed(list(enumerate(low)))]
    return f"M{' L'.join([*there, *back])}Z"


def _line(values: Floats, most: float) -> str:
    return f"M{' L'.join(f'{_x(n)},{_y(v, most)} {_x(n + 1)},{_y(v, most)}' for n, v in enumerate(values))}"


def _x(n: int) -> str:
    return f"{CHART_W * n / BINS:g}"


def _y(value: float, most: float) -> str:
    return f"{1 + (CHART_H - 2) * (1 - float(value) / most):.1f}"


def table(title: str, heads: Sequence[str], rows: Sequence[Sequence[object]], count: int = 0) -> Markup | None:
    """Nothing for no rows; a column in which nothing stands is left out. count: of rows that there are, where not all
    are given."""
    used = [n for n in range(len(heads)) if any(row[n] for row in rows)]
    heads, rows = [heads[n] for n in used], [[row[n] for n in used] for row in rows]
    if not rows:
        return None
    ident = "h-" + title.replace(" ", "-")
    more = max(count, len(rows)) - MOST_ROWS
    body = [
        tag(
            "tr",
            tag("th", row[0], scope="row"),
            *(tag("td", cell, class_="long" if _is_long(cell) else None) for cell in row[1:]),
        )
        for row in rows[:MOST_ROWS]
    ]
    found = tag(
        "table",
        tag("caption", title, class_="unseen"),
        tag("thead", tag("tr", *(tag("th", head, scope="col") for head in heads))),
        tag("tbody", *body),
    )
    return tag(
        "section",
        tag("h2", title, id=ident),
        tag("div", found, class_="scroll", tabindex=0, role="region", aria_labelledby=ident),
        tag("p", f"and {more:,} more", class_="note") if more > 0 else None,
    )


def _is_long(cell: object) -> bool:
    return not isinstance(cell, Markup) and len(str(cell)) > LONG


def moment(at: float | None) -> Markup | str:
    """The time since this second of 1970, which the page's script keeps up to date; "" where it is not known."""
    return "" if at is None else tag("time", data_since=f"{at:.0f}")


def coming(at: float | None) -> Markup | str:
    """The same of a moment to come: in so long."""
    return "" if at is None else tag("time", data_at=f"{at:.0f}")


def card_row(found: Iterable[tuple[str, str]]) -> Markup:
    """Headline figures, each with its name."""
    return tag(
        "div", *(tag("div", tag("h2", name), tag("p", value), class_="card") for name, value in found), class_="cards"
    )


def kept(part: Markup | None) -> tuple[Markup, ...]:
    return () if part is None else (part,)
