"""The pages as HTML, in the style of EGS's report; no script, and nothing is fetched."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources

from egs_airflow.view.run import Kept, Row, RunView
from egs_airflow.view.wastage import Wastage
from egs_core.audit.accounts import GpuTime
from egs_core.audit.build import Audit
from egs_core.audit.waits import ExplainedWait
from egs_core.report import units
from egs_core.report.html import Markup, tag

RELOAD_S = 15
MOST_ROWS = 300
MOST_ACCOUNTS = 20
OVER = ("success", "failed")

STYLE = """
main { padding-top: 18px; }
h2 { margin-top: 28px; }
thead th { overflow-wrap: normal; }
.cards { grid-template-columns: repeat(auto-fit, minmax(200px, 1fr)); }
.value { white-space: normal; }
td.text, th.text { text-align: left; white-space: normal; min-width: 18em; }
.state { display: inline-block; padding: 0 8px; border: 1px solid var(--line); border-radius: 99px; font-size: .8rem; }
"""
"""Beside the report's own: these pages are shown in a frame, and say much in words."""

Cell = object


def run_page(view: RunView) -> str:
    """Plan and waits of one run."""
    on = view.mode == "on"
    weights = "EGS's, by longest remaining path" if on else "Airflow's own: mode on is not for this DAG"
    known = f"{view.learned} of {view.tasks} tasks"
    facts = [("run", view.run_id), ("mode", view.mode), ("weights", weights), ("durations known", known)]
    body = [
        _top(view.dag_id, [*facts, ("slots kept", view.slots)] if view.slots else facts),
        tag(
            "div",
            *(
                _card("not ready" if state == "none" else state, units.number(count))
                for state, count in view.counts.items()
            ),
            class_="cards",
        ),
        tag("h2", "What runs, and what goes next"),
        _plan(view.rows, on)
        if view.rows
        else tag("p", f"All tasks of this run have ended ({view.state}).", class_="note"),
        _kept(view.kept),
    ]
    return _html(f"EGS: {view.dag_id}", body, reload=view.state not in OVER)


def wastage_page(wastage: Wastage) -> str:
    """What slots were used for, of all that the asker may see."""
    audited, hours = wastage.audited, units.number(wastage.hours)
    if audited is None:
        said = f"{wastage.runs} runs are too many for a page: use `egs audit`" if wastage.runs else "No task has run"
        return message_page("What was wasted", f"{said} in the last {hours} hours.")
    body = [
        _top(
            "What was wasted",
            [("last", f"{hours} hours"), ("runs", units.number(wastage.runs)), ("of", "DAGs you may see")],
        ),
        tag("div", *_figures(audited, wastage.kept_s), class_="cards"),
        _accounts("By DAG run", audited.by_job, audited.unit),
        _accounts("By task", audited.by_task, audited.unit),
        _waits(audited.waits),
        tag("h2", "What is not known"),
        tag("ul", *(tag("li", note) for note in audited.unknown), class_="note"),
        tag("p", "What EGS would have saved: `egs audit --airflow URL` simulates it.", class_="note"),
    ]
    return _html("EGS: what was wasted", body)


def message_page(title: str, text: str) -> str:
    """A page that says one thing."""
    return _html(f"EGS: {title}", [_top(title, []), tag("p", text)])


# --- the plan ---------------------------------------------------------------------------------------------------------


def _plan(rows: Sequence[Row], on: bool) -> Markup:
    heads = ["State", "Weight", *([] if on else ["EGS's weight"]), "Expected", "Path from here", "Pool"]
    body = [_plan_row(row, on) for row in rows[:MOST_ROWS]]
    more = None
    if len(rows) > MOST_ROWS:
        more = tag("p", f"and {units.number(len(rows) - MOST_ROWS)} more", class_="note")
    note = "Expected times are learned; those in brackets are not known, and count as the median of the others."
    return tag("div", _table("Plan", ["Task", *heads], "Why it waits", body), more, tag("p", note, class_="note"))


def _plan_row(row: Row, on: bool) -> Markup:
    expected = units.seconds(row.expected_s) if row.learned else f"({units.seconds(row.expected_s)})"
    slots = f"{row.task.pool} ({row.task.slots})" if row.task.slots != 1 else row.task.pool
    return _row(
        row.task.label,
        [
            tag("span", row.task.state or "not ready", class_="state"),
            units.number(row.task.weight),
            *([] if on else [units.number(row.egs_weight)]),
            expected,
            units.seconds(row.path_s),
            slots,
        ],
        row.why,
    )


def _kept(kept: Sequence[Kept]) -> Markup | None:
    if not kept:
        return None
    reasons = {"successor": "the task before it had just freed them", "reservation": "it needs several, and had waited"}
    rows = [
        _row(one.task, [one.pool, units.number(one.slots), units.seconds(one.seconds)], reasons.get(one.reason, ""))
        for one in kept
    ]
    table = _table("Kept slots", ["For", "Pool", "Slots", "Time"], "Why", rows)
    return tag("section", tag("h2", "Slots that were kept"), table)


# --- wastage ----------------------------------------------------------------------------------------------------------


def _figures(audited: Audit, kept_s: float) -> list[Markup]:
    unit, total = f"{audited.unit}·s", audited.total
    return [
        _card("Wasted", units.share(audited.wastage_by_volume)),
        _card("Offered", units.amount(audited.offered_s, unit)),
        _card("Queued", units.amount(total.queued_s, unit)),
        _card("Held", units.amount(total.held_s, unit)),
        _card("Used", units.amount(total.used_s, unit)),
        _card("Cold starts", units.amount(total.cold_s, unit)),
        _card("Kept by EGS", units.amount(kept_s, "slot·s")),
        _card("Tasks", units.number(audited.tasks)),
    ]


def _accounts(title: str, accounts: Sequence[GpuTime], unit: str) -> Markup:
    if not accounts:
        return tag("p", f"{title}: no task held a {unit}.", class_="note")
    heads = ["", "Tasks", *(f"{name}, {unit}·s" for name in ("Queued", "Held", "Used", "Cold starts", "Idle"))]
    figures = [(one.runs, one.queued_s, one.held_s, one.used_s, one.cold_s, one.idle_s) for one in accounts]
    rows = [
        _row(one.name, [units.number(figure) for figure in row])
        for one, row in list(zip(accounts, figures, strict=True))[:MOST_ACCOUNTS]
    ]
    note = "Queued: a task has its slots, and its executor has not started it yet."
    return tag("section", tag("h2", title), _table(title, heads, "", rows), tag("p", note, class_="note"))


def _waits(waits: Sequence[ExplainedWait]) -> Markup | None:
    if not waits:
        return None
    rows = [
        _row(wait.name, [units.short(wait.workload, 32), units.seconds(wait.wait_s)], wait.reason) for wait in waits
    ]
    table = _table("The longest waits", ["Task", "Run", "Waited"], "Why", rows)
    return tag("section", tag("h2", "The longest waits"), table)


# --- parts ------------------------------------------------------------------------------------------------------------


def _top(title: str, facts: Sequence[tuple[str, str]]) -> Markup:
    chips = [tag("li", name, " ", tag("strong", value)) for name, value in facts]
    return tag("header", tag("p", "EGS", class_="eyebrow"), tag("h1", title), tag("ul", *chips, class_="chips"))


def _card(name: str, value: str) -> Markup:
    return tag("div", tag("h2", name), tag("p", value, class_="value"), class_="card")


def _table(caption: str, heads: Sequence[str], words: str, rows: Sequence[Markup]) -> Markup:
    """A table; words: the head of its last column, which is text; "" for none."""
    last = tag("th", words, scope="col", class_="text") if words else None
    head = tag("tr", *(tag("th", text, scope="col") for text in heads), last)
    table = tag("table", tag("caption", caption, class_="unseen"), tag("thead", head), tag("tbody", *rows))
    return tag("div", table, class_="scroll", tabindex=0, role="region", aria_label=caption)


def _row(name: str, cells: Sequence[Cell], words: str | None = None) -> Markup:
    last = None if words is None else tag("td", words, class_="text")
    return tag("tr", tag("th", name, scope="row"), *(tag("td", cell) for cell in cells), last)


def _html(title: str, body: Sequence[Markup | None], reload: bool = False) -> str:
    style = (resources.files("egs_core.report") / "page.css").read_text(encoding="utf-8")
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", http_equiv="refresh", content=RELOAD_S) if reload else None,
        tag("title", title),
        Markup(f"<style>{style}{STYLE}</style>"),
    )
    return f"<!doctype html>\n{tag('html', head, tag('body', tag('main', *body)), lang='en')}\n"
