"""Pages that show run logs as the dashboard shows a site: of a run that is over, or as far as it has come. Pure.

    run log ─► records ─► where each task stands ─► one page a run, one page a workload with its graph

Addresses are relative to `home`, the secret path that the command has made. The pages change nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np

from egs_core.cost.ledger import Amounts, Ledger
from egs_core.cost.prices import Prices
from egs_core.cost.uses import uses_of
from egs_core.dashboard.parts import BINS, card_row, chart, costs_table, table
from egs_core.dashboard.workloads import OPEN, Workload, graph_parts, workload_of
from egs_core.report import units
from egs_core.report.compare import cards, device_name, shown_runs
from egs_core.report.html import Markup, linked_head, tag
from egs_core.runlog.flow import build_flow
from egs_core.runlog.intervals import LET_GO, STARTING, Wait
from egs_core.runlog.io import Run
from egs_core.runlog.labels import labels_of, relabelled, term_words
from egs_core.runlog.standing import FOR, Stand, Standing, standing
from egs_core.runlog.steps import Floats

OPEN_WAITS = ("pending", "waiting")
TeamOf = Callable[[str], str]


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
    _put_down(stand, shown.line.waits)
    spans = shown.line.workloads
    named = Counter(span.name for span in spans.values())
    workloads = []
    for key, tasks in stand.tasks.items():
        name, queue = (spans[key].name, spans[key].queue) if key in spans else (key, "")
        name = name if named[name] < 2 else key
        workloads.append(workload_of(key, name, queue, tasks, stand.now_s))
    ledger = Ledger(prices)
    for use in uses_of(run.header, run.records, team_of):
        ledger.add(use)
    is_over = bool(workloads) and not any(t.state in OPEN for w in workloads for t in w.tasks.values())
    begin, end = shown.line.window
    now_s = end if is_over else stand.now_s  # what nodes offered after a run's end is not of the run
    flow, edges = build_flow(shown.line, "gpu"), np.linspace(begin, max(now_s, begin + 1e-6), BINS + 1)
    capacity = flow.capacity.averages(edges)
    header = run.header
    facts = [header.driver, header.mode and f"mode {header.mode}", "emulated GPUs" if header.emulated_gpus else ""]
    return Seen(
        title=shown.title,
        facts=" · ".join(filter(None, facts)),
        is_over=is_over,
        now_s=now_s,
        begin_s=begin,
        cards=[(card.name, card.value) for card in cards(None, shown)],
        chart=(capacity, flow.useful.averages(edges), flow.wasted.averages(edges)) if capacity.max() > 0 else None,
        workloads=workloads,
        devices=[
            (
                device_name(d, 24),
                units.number(d.phases),
                units.share(d.utilisation_nominal),
                units.share(d.utilisation_useful),
            )
            for d in shown.metrics.devices
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


def _put_down(stand: Stand, waits: Iterable[Wait]) -> None:
    """Why a task that waits no longer has waited: the reason of most of its longest wait, as `egs why` and `egs audit`
    have it; what was told last is often the one second before its start. Reasons of ends are left as they are."""
    for wait in sorted((wait for wait in waits if wait.started), key=lambda wait: wait.wait_s):
        task = stand.tasks[wait.workload][wait.task]
        words = {STARTING: LET_GO, **wait.told}
        if task.state not in OPEN_WAITS and task.why.partition(FOR)[0] in words.values() and wait.kind in words:
            task.why = words[wait.kind]


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
        table("Workloads", WORKLOADS, [_workload_row(f"{home}/run/{number}", n, w) for w, n in _numbered(one)]),
        None if one.is_over else table("Running", RUNNING, [_running_row(w, t, one) for w, t in running]),
        None if one.is_over else table("Waiting", WAITING, [_waiting_row(w, t, one) for w, t in waiting]),
        table("What waited longest", WAITED, [_waited_row(w, t, one) for w, t in waited[:10]]),
        table("Loaded ahead", LOADED, one.loaded),
        table("GPUs", DEVICES, one.devices),
        costs_table(one.costs, one.currency),
    ]
    body = [
        tag("header", tag("h1", "EGS: ", one.title), tag("p", status, id="status")),
        tag("p", one.facts, class_="note") if one.facts else None,
        _others(home, runs, number),
        card_row(one.cards),
        _chart(one),
        *sections,
    ]
    return _page(home, one.title, version, one.is_over, body)


def workload_page(home: str, runs: Sequence[Seen], number: int, which: int, version: str) -> str:
    """The page of a workload: its graph, and its tasks with why each waits or waited."""
    one, workload = runs[number], runs[number].workloads[which]
    body = [
        tag("header", tag("h1", workload.name), tag("p", workload.state, id="status")),
        tag("p", tag("a", f"EGS: {one.title}", href=f"{home}/run/{number}")),
        *graph_parts(workload, one.now_s),
        table("Tasks", TASKS, [_task_row(t, one, workload) for t in sorted(workload.tasks.values(), key=_when)]),
    ]
    return _page(home, workload.name, version, one.is_over, body)


def _when(task: Standing) -> float:
    """In the order in which they started, or began to wait; what has not come last."""
    at = task.started_s if task.started_s is not None else task.since_s
    return float("inf") if at is None else at


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
        workload.takes,
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
    label = "GPUs over time: useful work below, wasted above it; the line is what there is"
    legend = "wasted: idle, or held and not used, while work waits for it; the line: all GPUs"
    return chart("GPUs over time", label, *one.chart, ("0 s", units.seconds(one.now_s - one.begin_s)), legend)


def _page(home: str, title: str, version: str, is_over: bool, body: Sequence[object]) -> str:
    follow = None
    if not is_over:
        box = tag("input", type="checkbox", id="follow", checked=True)
        follow = tag("p", tag("label", box, " show by itself what is new"), class_="note")
    head = linked_head(title, f"{home}/page.css", *([] if is_over else [f"{home}/log.js"]))
    page = tag("body", tag("main", *body[:1], follow, *body[1:]), data_version=version, data_home=home, class_="log")
    return f"<!doctype html>\n{tag('html', head, page, lang='en')}\n"
