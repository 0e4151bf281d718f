"""Pages that show run logs as the dashboard shows a site: of a run that is over, or as far as it has come. Pure.

    run log ─► records ─► where each task stands ─► one page a run, one page a workload with its graph

Addresses are relative to `home`, the secret path that the command has made. The pages change nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from egs_core.cost.ledger import NONE, Amounts, Ledger
from egs_core.cost.prices import Prices
from egs_core.cost.uses import uses_of
from egs_core.report import units
from egs_core.report.compare import cards, shown_runs
from egs_core.report.graph_picture import MOST, Box, critical, grouped, picture
from egs_core.report.html import Markup, linked_head, tag
from egs_core.runlog.flow import build_flow
from egs_core.runlog.io import Run
from egs_core.runlog.labels import labels_of, relabelled, term_words
from egs_core.runlog.standing import Standing, standing
from egs_core.runlog.steps import Floats

MOST_ROWS = 200
LONG_ID = 30  # letters
BINS, CHART_W, CHART_H = 240, 960.0, 120.0
OPEN = ("pending", "waiting", "running")
TeamOf = Callable[[str], str]


class Workload(msgspec.Struct, frozen=True):
    """key: as the log has it; critical: ids of its critical path, first first; critical_s: how long that takes."""

    key: str
    name: str
    queue: str
    tasks: dict[str, Standing]
    critical: list[str]
    critical_s: float

    @property
    def state(self) -> str:
        """One word for all of its tasks."""
        states = {task.state for task in self.tasks.values()}
        for state in ("failed", "running", "waiting"):
            if state in states:
                return state
        return "pending" if states == {"pending"} else "waiting" if "pending" in states else "done"


class Seen(msgspec.Struct, frozen=True):
    """A run as its pages show it. chart: averages over time of capacity, useful and wasted GPUs; costs: by team;
    labels: what readers call tasks."""

    title: str
    facts: str
    is_over: bool
    now_s: float
    begin_s: float
    cards: list[tuple[str, str]]
    chart: tuple[Floats, Floats, Floats] | None
    workloads: list[Workload]
    devices: list[tuple[str, ...]]
    loaded: list[tuple[str, ...]]
    costs: dict[str, Amounts]
    currency: str
    labels: dict[str, str]


def seen(run: Run, prices: Prices | None = None, team_of: TeamOf = str) -> Seen:
    """Raises InputError where prices are given and a node has none."""
    shown = shown_runs([run])[0]
    stand, labels = standing(run.records), labels_of(run.records)
    spans = shown.line.workloads
    named = Counter(span.name for span in spans.values())
    workloads = []
    for key, tasks in stand.tasks.items():
        boxes = boxes_of(tasks, stand.now_s)
        chain = critical(boxes)
        length = sum(box.seconds for box in boxes if box.key in set(chain))
        name, queue = (spans[key].name, spans[key].queue) if key in spans else (key, "")
        name = name if named[name] < 2 else key
        workloads.append(Workload(key, name, queue, tasks, chain, length))
    ledger = Ledger(prices)
    for use in uses_of(run.header, run.records, team_of):
        ledger.add(use)
    begin, end = shown.line.window
    flow, edges = build_flow(shown.line, "gpu"), np.linspace(begin, max(end, begin + 1e-6), BINS + 1)
    capacity = flow.capacity.averages(edges)
    header = run.header
    facts = [header.driver, header.mode and f"mode {header.mode}", "emulated GPUs" if header.emulated_gpus else ""]
    return Seen(
        title=shown.title,
        facts=" · ".join(filter(None, facts)),
        is_over=bool(workloads) and not any(t.state in OPEN for w in workloads for t in w.tasks.values()),
        now_s=stand.now_s,
        begin_s=begin,
        cards=[(card.name, card.value) for card in cards(None, shown)],
        chart=(capacity, flow.useful.averages(edges), flow.wasted.averages(edges)) if capacity.max() > 0 else None,
        workloads=workloads,
        devices=[
            (
                f"{d.node or 'node'}, GPU {d.device}",
                units.number(d.phases),
                units.share(d.utilisation_nominal),
                units.share(d.utilisation_useful),
            )
            for d in shown.metrics.devices
            if d.phases
        ],
        loaded=[
            (
                labels.get(one.task, one.task),
                one.workload,
                units.short(one.node, 24),
                units.seconds(one.since_s - begin),
                one.state,
            )
            for one in sorted(stand.loaded, key=lambda one: (one.state not in ("loading", "warm"), one.since_s))
        ],
        costs=ledger.by["team"],
        currency=prices.currency if prices is not None else "",
        labels=labels,
    )


def boxes_of(tasks: dict[str, Standing], now_s: float) -> list[Box]:
    """What has not run is believed to take as long as the middle one of its name did, else as that of all."""
    ran: dict[str, list[float]] = {}
    for task in tasks.values():
        if task.state == "succeeded":
            ran.setdefault(task.name, []).append(task.ran_s)
    every = sorted(s for found in ran.values() for s in found)
    usual = every[len(every) // 2] if every else 1.0
    found = []
    for task in tasks.values():
        known = sorted(ran.get(task.name, ()))
        believed = known[len(known) // 2] if known else usual
        seconds = task.duration_s(now_s) if task.ended_s is not None else max(believed, task.duration_s(now_s))
        found.append(Box(task.task, task.name, task.state, task.parents, seconds))
    return found


# --- pages ------------------------------------------------------------------------------------------------------------


def run_page(home: str, runs: Sequence[Seen], number: int, version: str) -> str:
    """The page of one of the runs. version: of the logs as they are shown, which the page's script asks for again."""
    one = runs[number]
    tasks = [(workload, task) for workload in one.workloads for task in workload.tasks.values()]
    running = [task for task in tasks if task[1].state == "running"]
    waiting = [task for task in tasks if task[1].state == "waiting"]
    waited = sorted((t for t in tasks if t[1].waited_s > 0), key=lambda t: -t[1].waited_s)
    by_state = Counter(task.state for _, task in tasks)
    status = f"{'over' if one.is_over else 'runs'} after {units.seconds(one.now_s - one.begin_s)}; " + ", ".join(
        f"{count} {state}" for state, count in by_state.most_common()
    )
    sections = [
        _table("Workloads", WORKLOADS, [_workload_row(f"{home}/run/{number}", n, w) for w, n in _numbered(one)]),
        None if one.is_over else _table("Running", RUNNING, [_running_row(w, t, one) for w, t in running]),
        None if one.is_over else _table("Waiting", WAITING, [_waiting_row(w, t, one) for w, t in waiting]),
        _table("What waited longest", WAITED, [_waited_row(w, t, one) for w, t in waited[:10]]),
        _table("Loaded ahead", LOADED, one.loaded),
        _table("GPUs", DEVICES, one.devices),
        _costs(one),
    ]
    body = [
        tag("header", tag("h1", "EGS: ", one.title), tag("p", status, id="status")),
        tag("p", one.facts, class_="note") if one.facts else None,
        _others(home, runs, number),
        tag(
            "div",
            *(tag("div", tag("h2", name), tag("p", value), class_="card") for name, value in one.cards),
            class_="cards",
        ),
        _chart(one),
        *sections,
    ]
    return _page(home, one.title, version, one.is_over, body)


def workload_page(home: str, runs: Sequence[Seen], number: int, which: int, version: str) -> str:
    """The page of a workload: its graph, and its tasks with why each waits or waited."""
    one, workload = runs[number], runs[number].workloads[which]
    boxes = boxes_of(workload.tasks, one.now_s)
    is_grouped, called = len(boxes) > MOST, _called(workload)
    drawn = grouped(boxes) if is_grouped else [msgspec.structs.replace(box, name=called[box.key]) for box in boxes]
    words = f"{len(boxes)} tasks, {'those of a name in one box, ' if is_grouped else ''}from left to right"
    if len(drawn) > MOST:
        words += f"; the first {MOST} of {len(drawn)} boxes"
    label = f"Graph of {workload.name}: {words}. The table below has the same."
    chain = " → ".join(units.short(called[key]) for key in workload.critical[:40])
    body = [
        tag("header", tag("h1", workload.name), tag("p", workload.state, id="status")),
        tag("p", tag("a", f"EGS: {one.title}", href=f"{home}/run/{number}")),
        tag("h2", "Graph", id="h-graph"),
        tag("p", f"{words}; in bold the critical path, the chain that takes the longest.", class_="note"),
        tag("div", picture(drawn, label), class_="scroll", tabindex=0, role="region", aria_labelledby="h-graph"),
        tag("h2", "Critical path"),
        tag("p", f"{units.seconds(workload.critical_s)}: {chain}", " …" if len(workload.critical) > 40 else None),
        _table("Tasks", TASKS, [_task_row(t, one, workload) for t in sorted(workload.tasks.values(), key=_when)]),
    ]
    return _page(home, workload.name, version, one.is_over, body)


def _when(task: Standing) -> float:
    """In the order in which they started, or began to wait; what has not come last."""
    at = task.started_s if task.started_s is not None else task.since_s
    return float("inf") if at is None else at


def _called(workload: Workload) -> dict[str, str]:
    """What a reader calls each task: its name; where several have that, its id, unless that is a long number."""
    count = Counter(task.name for task in workload.tasks.values())
    return {
        key: task.name if count[task.name] < 2 or len(key) > LONG_ID else key for key, task in workload.tasks.items()
    }


WORKLOADS = ("Workload", "State", "Tasks", "Done", "Running", "Waiting", "Critical path", "Queue")
RUNNING = ("Task", "Workload", "For", "Where", "Waited before")
WAITING = ("Task", "Workload", "Waits", "Why")
WAITED = ("Task", "Workload", "Waited", "Why", "Let start by")
LOADED = ("Task", "Workload", "Node", "Since", "State")
DEVICES = ("GPU", "Phases", "Held", "Useful")
TASKS = ("Task", "State", "Waited", "Ran", "Where", "Why it waits, or waited last", "Let start by")


def _numbered(one: Seen) -> list[tuple[Workload, int]]:
    return [(workload, n) for n, workload in enumerate(one.workloads)]


def _workload_row(home: str, number: int, workload: Workload) -> tuple[object, ...]:
    counts = Counter(task.state for task in workload.tasks.values())
    done = len(workload.tasks) - sum(counts[state] for state in OPEN)
    return (
        tag("a", workload.name, href=f"{home}/workload/{number}"),
        workload.state,
        str(len(workload.tasks)),
        str(done),
        str(counts["running"]),
        str(counts["waiting"] + counts["pending"]),
        units.seconds(workload.critical_s),
        workload.queue,
    )


def _running_row(workload: Workload, task: Standing, one: Seen) -> tuple[str, ...]:
    running_s = one.now_s - (task.since_s or 0.0)
    return (
        one.labels.get(task.task, task.task),
        workload.name,
        units.seconds(running_s),
        _where(task),
        units.seconds(task.waited_s),
    )


def _waiting_row(workload: Workload, task: Standing, one: Seen) -> tuple[str, ...]:
    why = relabelled(task.why, one.labels) or "nothing in the log says why"
    return one.labels.get(task.task, task.task), workload.name, units.seconds(one.now_s - (task.since_s or 0.0)), why


def _waited_row(workload: Workload, task: Standing, one: Seen) -> tuple[str, ...]:
    name = one.labels.get(task.task, task.task)
    return name, workload.name, units.seconds(task.waited_s), _why(task, one), term_words(task.decided)


def _why(task: Standing, one: Seen) -> str:
    return "" if task.why == task.decided else relabelled(task.why, one.labels)


def _task_row(task: Standing, one: Seen, workload: Workload) -> tuple[str, ...]:
    why = _why(task, one)
    if task.state == "pending":
        missing = [
            one.labels.get(p, p) for p in task.parents if p in workload.tasks and workload.tasks[p].state in OPEN
        ]
        why = f"waits for {', '.join(missing[:5])}{' …' if len(missing) > 5 else ''}" if missing else why
    label = one.labels.get(task.task, task.task)
    name = f"{label} (critical path)" if task.task in workload.critical else label
    waits = task.waited_s + (one.now_s - (task.since_s or 0.0) if task.state == "waiting" else 0.0)
    ran = units.seconds(task.duration_s(one.now_s))
    return name, task.state, units.seconds(waits), ran, _where(task), why, term_words(task.decided)


def _where(task: Standing) -> str:
    devices = f"GPU {', '.join(map(str, task.devices))}" if task.devices else ""
    return ", ".join(part for part in (units.short(task.node, 24), devices) if part)


def _costs(one: Seen) -> Markup | None:
    rows = [
        (
            "no team" if name == NONE else name,
            f"{found.gpu_h_held:.3g}",
            f"{found.gpu_h_used:.3g}",
            f"{found.gpu_h_wasted:.3g}",
            "" if found.cost is None else f"{found.cost:.2f} {one.currency}",
            "" if found.cost_wasted is None else f"{found.cost_wasted:.2f} {one.currency}",
        )
        for name, found in one.costs.items()
    ]
    heads = ("Team", "GPU hours held", "Used", "Wasted", "Cost", "Of that not used")
    return _table("Cost so far" if one.currency else "GPU hours so far", heads, rows)


def _others(home: str, runs: Sequence[Seen], number: int) -> Markup | None:
    if len(runs) == 1:
        return tag("nav", tag("a", "The report of this run", href=f"{home}/report"), aria_label="Runs")
    links = [
        tag("a", run.title, href=f"{home}/run/{n}", aria_current="page" if n == number else None)
        for n, run in enumerate(runs)
    ]
    return tag("nav", *links, tag("a", "All of them side by side", href=f"{home}/report"), aria_label="Runs")


def _chart(one: Seen) -> Markup | None:
    """Useful and wasted GPUs over the time of the run, as shares of what there is."""
    if one.chart is None:
        return None
    capacity, useful, wasted = one.chart
    most = float(capacity.max())
    label = "GPUs over time: useful work below, wasted above it; the line is what there is"
    shapes = [
        tag("path", d=_area(np.zeros_like(useful), useful, most), class_="useful"),
        tag("path", d=_area(useful, useful + wasted, most), class_="wasted"),
        tag("path", d=_line(capacity, most), class_="capacity"),
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
    legend = tag(
        "p",
        tag("span", class_="swatch useful"),
        " useful work ",
        tag("span", class_="swatch wasted"),
        " wasted: idle, or held and not used, while work waits for it; the line: all GPUs",
        class_="note",
    )
    took = units.seconds(one.now_s - one.begin_s)
    return tag("section", tag("h2", "GPUs over time"), svg, tag("p", "0 s", tag("span", took), class_="axis"), legend)


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


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[object]]) -> Markup | None:
    """Nothing for no rows; a column in which nothing stands is left out."""
    used = [n for n in range(len(heads)) if any(row[n] for row in rows)]
    heads, rows = [heads[n] for n in used], [[row[n] for n in used] for row in rows]
    if not rows:
        return None
    ident = "h-" + title.replace(" ", "-")
    more = len(rows) - MOST_ROWS
    body = [
        tag(
            "tr",
            tag("th", row[0], scope="row"),
            *(tag("td", cell, class_="long" if len(str(cell)) > 30 else None) for cell in row[1:]),
        )
        for row in rows[:MOST_ROWS]
    ]
    table = tag(
        "table",
        tag("caption", title, class_="unseen"),
        tag("thead", tag("tr", *(tag("th", head, scope="col") for head in heads))),
        tag("tbody", *body),
    )
    return tag(
        "section",
        tag("h2", title, id=ident),
        tag("div", table, class_="scroll", tabindex=0, role="region", aria_labelledby=ident),
        tag("p", f"and {more} more", class_="note") if more > 0 else None,
    )


def _page(home: str, title: str, version: str, is_over: bool, body: Sequence[object]) -> str:
    follow = None
    if not is_over:
        box = tag("input", type="checkbox", id="follow", checked=True)
        follow = tag("p", tag("label", box, " show by itself what is new"), class_="note")
    head = linked_head(title, f"{home}/page.css", "" if is_over else f"{home}/log.js")
    page = tag("body", tag("main", *body[:1], follow, *body[1:]), data_version=version, data_home=home, class_="log")
    return f"<!doctype html>\n{tag('html', head, page, lang='en')}\n"
