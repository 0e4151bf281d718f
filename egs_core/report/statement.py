"""A statement of what GPUs cost, as one page: sums, and tables by team, pipeline and user. Nothing is fetched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from egs_core.budgets import money
from egs_core.report import units
from egs_core.report.html import Markup, page_head, tag
from egs_core.units import two_places

MOST_ROWS = 200
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
BAR = ".share { display: inline-block; height: 8px; border-radius: 2px; background: var(--useful); }"
HEADS = "thead th { white-space: nowrap; }"
WORDS = {
    "Held": "From the start of what holds a GPU to its end.",
    "Used": "Held, less cold starts and less the time in which the GPU is known not to have worked.",
    "Wasted": "Held and not used.",
    "Cost": "Of all that was held, at the price of its hardware and day.",
}


class Line(msgspec.Struct, frozen=True):
    """One name's sums: GPU hours, and money, None without prices."""

    name: str
    held_h: float
    used_h: float
    wasted_h: float
    cost: float | None = None
    cost_wasted: float | None = None


class Statement(msgspec.Struct, frozen=True):
    """month: as 2026-11, "" for all there is; tables: by what, and the lines, the largest first; sources: what it was
    made of; notes: what is to be known besides."""

    month: str
    currency: str
    total: Line
    tables: tuple[tuple[str, tuple[Line, ...]], ...]
    sources: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    written: str = ""


def statement_page(statement: Statement) -> str:
    """The page as HTML."""
    total, currency = statement.total, statement.currency
    sums = f"{_hours(total.held_h)} GPU hours" if total.cost is None else money(total.cost, currency)
    title = f"{statement.month or 'All there is'}: {sums}"
    chips = [*statement.sources, f"written {statement.written}" if statement.written else ""]
    body = tag(
        "main",
        tag(
            "header",
            tag("p", "EGS statement", class_="eyebrow"),
            tag("h1", title),
            tag("ul", *[tag("li", units.short(one)) for one in chips if one], class_="chips"),
            tag("div", *_cards(total, currency), class_="cards"),
        ),
        *[_section(kind, lines, total) for kind, lines in statement.tables],
        _notes(statement.notes),
        tag("section", tag("details", tag("summary", "What the words mean"), tag("dl", *_words(total)))),
    )
    head = page_head(f"EGS statement: {title}", POLICY, BAR + HEADS)
    return f"<!doctype html>\n{tag('html', head, tag('body', body), lang='en')}\n"


def _cards(total: Line, currency: str) -> list[Markup]:
    shown = [
        ("Held", f"{_hours(total.held_h)} h"),
        ("Used", f"{_hours(total.used_h)} h"),
        ("Wasted", f"{_hours(total.wasted_h)} h"),
    ]
    if total.cost is not None:
        shown = [("Cost", _money(total.cost)), ("Of that wasted", _money(total.cost_wasted)), *shown]
    if currency and total.cost is not None:
        shown = [(f"{name}, {currency}" if name in ("Cost", "Of that wasted") else name, text) for name, text in shown]
    return [tag("div", tag("h2", name), tag("p", text, class_="value"), class_="card") for name, text in shown]


def _section(kind: str, lines: Sequence[Line], total: Line) -> Markup:
    has_money = total.cost is not None
    heads = ["Held h", "Used h", "Wasted h", *(["Cost", "Cost wasted"] if has_money else []), "Share"]
    if has_money:
        lines = sorted(lines, key=lambda line: -(line.cost or 0.0))
    shown = list(lines[:MOST_ROWS])
    if rest := lines[MOST_ROWS:]:
        shown.append(_sum(f"({len(rest)} more)", rest))
    rows = [_row(line, total, has_money=has_money) for line in shown]
    caption = f"By {kind}"
    table = tag(
        "table",
        tag("caption", caption, class_="unseen"),
        tag("thead", tag("tr", tag("td"), *(tag("th", text, scope="col") for text in heads))),
        tag("tbody", *rows),
    )
    scrolling = tag("div", table, class_="scroll", tabindex=0, role="region", aria_label=caption)
    return tag("section", tag("h2", caption), scrolling)


def _row(line: Line, total: Line, *, has_money: bool) -> Markup:
    whole, part = (total.cost, line.cost) if has_money else (total.held_h, line.held_h)
    share = min(1.0, (part or 0.0) / whole) if whole else 0.0
    bar = tag("span", class_="share", style=f"width: {share * 60:.1f}px", aria_hidden="true")
    values: list[object] = [_hours(line.held_h), _hours(line.used_h), _hours(line.wasted_h)]
    values += [_money(line.cost), _money(line.cost_wasted)] if has_money else []
    cells = [tag("td", value) for value in values]
    return tag("tr", tag("th", units.short(line.name), scope="row"), *cells, tag("td", bar, f" {share:.1%}"))


def _sum(name: str, lines: Iterable[Line]) -> Line:
    every = list(lines)
    costs = [(one.cost or 0.0, one.cost_wasted or 0.0) for one in every]
    has_money = any(one.cost is not None for one in every)
    return Line(
        name,
        sum(one.held_h for one in every),
        sum(one.used_h for one in every),
        sum(one.wasted_h for one in every),
        sum(cost for cost, _ in costs) if has_money else None,
        sum(wasted for _, wasted in costs) if has_money else None,
    )


def _notes(notes: Sequence[str]) -> Markup | None:
    if not notes:
        return None
    return tag("section", tag("h2", "Notes"), tag("ul", *[tag("li", note) for note in notes]))


def _words(total: Line) -> list[Markup]:
    shown = [(term, text) for term, text in WORDS.items() if term != "Cost" or total.cost is not None]
    return [part for term, text in shown for part in (tag("dt", term), tag("dd", text))]


def _hours(hours: float) -> str:
    return two_places(hours)


def _money(amount: float | None) -> str:
    return "-" if amount is None else two_places(amount)
