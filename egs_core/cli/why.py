"""`egs why FILE TASK…`: why a task waited. FILE is a run log (what happened) or a workload (what would happen).

`egs why RUN`: why a run of the site server waits.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Annotated, Any, TypeGuard

import msgspec
import typer

from egs_core.cli import simulated as shared
from egs_core.cli.reading import Histories, is_runlog, read_believed, read_workload
from egs_core.cli.site import NUMBER, show_why, the_site
from egs_core.client.http import Refused
from egs_core.client.places import find_address
from egs_core.engine import POLICIES
from egs_core.engine.messages import Reason
from egs_core.engine.order.queue import ONLY_CANDIDATE
from egs_core.engine.state.lifecycle import HELD, PENDING, READY
from egs_core.errors import EgsError, InputError, counted, listed, node_words
from egs_core.graph.columns import KIND_NAMES
from egs_core.graph.places import did_you_mean
from egs_core.runlog import records as r
from egs_core.runlog.intervals import Wait
from egs_core.runlog.io import read_run
from egs_core.runlog.labels import labels_of, relabelled
from egs_core.runlog.standing import standing
from egs_core.runlog.timeline import build_timeline
from egs_core.sim.simulator import Simulation

SHOWN = 5
MOST_NAMED = 20  # tasks that one name stands for
_HOW = {"failed": "failed", "aborted": "was aborted", "skipped": "was skipped"}
Waits = dict[tuple[str, str, int, int], Wait]  # by workload, task, phase, attempt


def why(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE|RUN",
            help="A run log, or a workload file to simulate; without TASK a run of the site server, by number or name.",
        ),
    ],
    tasks: Annotated[
        list[str] | None,
        typer.Argument(metavar="TASK...", help="Ids or names of tasks, or the end of one behind a dot or a slash."),
    ] = None,
    slots: Annotated[int | None, typer.Option(help=shared.SLOTS_HELP)] = None,
    cpus: Annotated[float | None, typer.Option(help=shared.CPUS_HELP)] = None,
    gpus: Annotated[int | None, typer.Option(help=shared.GPUS_HELP)] = None,
    nodes: Annotated[int | None, typer.Option(help=shared.NODES_HELP)] = None,
    policy: Annotated[str, typer.Option(help=f"Policy of the simulation: one of {', '.join(POLICIES)}.")] = "egs",
    at: Annotated[float | None, typer.Option(help="Explain only the state at this second of the simulation.")] = None,
    history: Histories = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Explain why a task of a run waited: for what in each phase, how long, and what then let it start."""
    if not tasks:
        if not NUMBER.fullmatch(str(file)) and (find_address() is None or _is_pipeline(file)):
            _need_a_task(file)
        try:
            show_why(the_site(), str(file), as_json)
        except Refused as refusal:
            is_no_file = refusal.status == 404 and not (NUMBER.fullmatch(str(file)) or file.exists())
            raise EgsError(f"{refusal}{'; and there is no such file' if is_no_file else ''}") from None
        return
    labels: dict[str, str] = {}
    left: dict[str, int] = {}
    if is_runlog(file):
        if slots is not None or cpus is not None or at is not None:
            raise InputError(str(file), "is a run log", "--slots, --cpus and --at are for a workload to simulate")
        records = read_run(file).records
        labels = labels_of(records)
        tasks, left = named_tasks(records, tasks, str(file))
        answers = waits_in_log(records, tasks, str(file))
    else:
        read = read_believed(file, history)  # a file that is missing is said first, not that no cluster is given for it
        config = shared.cluster_config(slots, cpus, gpus, nodes)
        config = msgspec.structs.replace(config, policy=shared.known_policy(policy), records=False)
        workload, _ = shared.with_assumed_durations(shared.with_applied_limits(read.workload), read.predictor)
        tasks = shared.tasks_called(workload.graph, tasks, str(file))
        simulation = Simulation([workload], config)
        answers = reasons_at(simulation, tasks, at) if at is not None else waits_in_simulation(simulation, tasks)
    if as_json:
        typer.echo(json.dumps({"file": str(file), "tasks": answers}))
    else:
        for answer in answers:
            typer.echo(relabelled("\n".join(_lines(answer)), labels))
        for name, number in left.items():
            typer.echo(f"and {number} more named {name}, which waited less")


def _is_pipeline(file: Path) -> bool:
    """Whether it is a run log or a workload: a run of the site server may have the name of any other file here."""
    if not file.is_file() or is_runlog(file):
        return file.is_file()
    try:
        read_workload(file)
    except EgsError:
        return False
    return True


def _need_a_task(file: Path) -> None:
    """Raises InputError for a file, with the tasks that it has, and for what is neither a file nor a run."""
    if not file.exists():
        raise InputError(str(file), "no such file, and no number of a run", "egs why FILE TASK, or egs why RUN")
    if not is_runlog(file):
        workload, _ = read_workload(file)
        raise InputError(str(file), "name a task of it", f"it has {listed(workload.graph.ids)}")
    records = read_run(file).records
    labels = labels_of(records)
    tasks = {(key, one.task): one.waited_s for key, those in standing(records).tasks.items() for one in those.values()}
    known = dict.fromkeys(labels.get(task, task) for _, task in sorted(tasks, key=lambda one: -tasks[one]))
    raise InputError(str(file), "name a task of it", f"the longest waits had {listed(list(known), SHOWN)}")


# --- from a simulation ------------------------------------------------------------------------------------------------


def reasons_at(simulation: Simulation, tasks: list[str], at_s: float) -> list[dict[str, Any]]:
    """What the engine says of each task at one moment."""
    if not 0 <= at_s < float("inf"):
        raise InputError("--at", f"must be a number of seconds, 0 or more, not {at_s:g}")
    simulation.advance(simulation.workloads[0].arrival_s + at_s)
    if not simulation.state.workloads:
        raise InputError("--at", "the workload has not arrived yet")
    return [
        {"task": task, "at_s": at_s, **_reason(simulation.engine.explain(_number(simulation, task)))} for task in tasks
    ]


def waits_in_simulation(simulation: Simulation, tasks: list[str]) -> list[dict[str, Any]]:
    """For each task every phase: when it was ready, when it started, and what it waited for at first."""
    reasons: dict[int, Reason] = {}  # by phase
    state = simulation.state
    while simulation.step():
        for task in tasks if state.workloads else ():
            number = _number(simulation, task)
            phase = state.cursor[number]
            if state.status[phase] in (READY, HELD) and phase not in reasons:
                reasons[phase] = simulation.engine.explain(number)
    out = []
    for task in tasks:
        phases = state.phases_of(_number(simulation, task))
        rows = [_row_of(simulation, p, reasons.get(p)) for p in phases if state.status[p] != PENDING]
        out.append({"task": task, "phases": rows})
    return out


def _row_of(simulation: Simulation, phase: int, reason: Reason | None) -> dict[str, Any]:
    state = simulation.state
    task, ready, started = state.task_of[phase], state.ready_at[phase], state.started_at[phase]
    has_started = state.status[phase] not in (READY, HELD)
    parents = state.parents[task] if state.is_first_phase(phase) else ()
    last = max(parents, key=simulation.ended_at, default=None)
    return {
        "phase": phase - state.first_phase[task],
        "kind": KIND_NAMES[state.kind[phase]],
        "ready_s": ready,
        "after": None if last is None else state.task_ids[last],
        "started_s": started if has_started else None,
        "waited_s": started - ready if has_started else None,
        "reason": None if reason is None else _reason(reason),
    }


def _number(simulation: Simulation, task: str) -> int:
    index = simulation.workloads[0].graph.ids.index(task)
    return simulation.engine.task_number(simulation.ids[0], index)


def _reason(reason: Reason) -> dict[str, Any]:
    return {
        "status": reason.status,
        "kind": reason.kind,
        "text": reason.text,
        "waiting_for": list(reason.waiting_for),
    }


# --- from a run log ---------------------------------------------------------------------------------------------------


def named_tasks(records: list[r.Record], words: list[str], place: str) -> tuple[list[str], dict[str, int]]:
    """The ids of the tasks that are meant, by id, label or name, or by the end of a name where no two end so: of the
    tasks of one name those that waited longest, and by name how many more there are. Raises InputError."""
    known = list(dict.fromkeys(x.task for x in records if _tells_of_a_task(x)))
    labels = labels_of(records)
    names = {x.task: x.name for x in records if isinstance(x, r.TaskAdded)}
    own_names = {x.task: x.label for x in records if isinstance(x, r.TaskAdded) if x.label}
    found: list[str] = []
    left: dict[str, int] = {}
    for word in words:
        same = (
            [task for task in known if word in (task, labels.get(task))]
            or [task for task in known if word == own_names.get(task)]
            or [task for task in known if word == names.get(task)]
            or _ending_in(word, {task: names.get(task) or labels.get(task, task) for task in known}, place)
            or _ending_in(word, {task: labels.get(task, task) for task in known}, place)
        )
        if not same:
            there = list(
                dict.fromkeys([*(labels.get(task, task) for task in known), *own_names.values(), *names.values()])
            )
            hint = _skipped_around(word, records) or did_you_mean(word, there) or f"its tasks: {listed(there)}"
            raise InputError(place, f"has no task {word!r}", hint)
        if len(same) > 1:
            waited_s: dict[str, float] = defaultdict(float)
            for wait in build_timeline(records).waits:
                waited_s[wait.task] += wait.wait_s
            same.sort(key=lambda task: -waited_s[task])
        if len(same) > MOST_NAMED:
            left[word] = len(same) - MOST_NAMED
        found += same[:MOST_NAMED]
    return list(dict.fromkeys(found)), left


def _tells_of_a_task(x: r.Record) -> TypeGuard[r.TaskAdded | r.Started | r.Ended]:
    """Also the end of a branch that was skipped, which is no task of its own."""
    return isinstance(x, (r.TaskAdded, r.Started)) or (isinstance(x, r.Ended) and x.outcome == "skipped")


def _ending_in(word: str, called: dict[str, str], place: str) -> list[str]:
    """Tasks, by id in `called`, whose names end in a group's name and then the word. Raises InputError where several
    names do."""
    same = [task for task, name in called.items() if name.endswith((f".{word}", f"/{word}"))]
    if len(meant := list(dict.fromkeys(called[task] for task in same))) > 1:
        raise InputError(place, f"has {len(meant)} tasks called {word!r}", f"say which: {listed(meant)}")
    return same


def _skipped_around(word: str, records: list[r.Record]) -> str:
    """That a branch or group in which the task would be, by its name, was skipped; of what is in it a log says no more.
    "" where none was."""
    skipped = [x for x in records if isinstance(x, r.Ended) and x.outcome == "skipped"]
    around = next((x for x in skipped if word.startswith((f"{x.task}.", f"{x.task}/"))), None)
    return "" if around is None else f"{around.task} was skipped at {around.t:,.3f} s: {around.reason}".rstrip(": ")


def waits_in_log(records: list[r.Record], tasks: list[str], place: str) -> list[dict[str, Any]]:
    """The same from what was recorded, one entry a workload that has such a task; and which tasks started meanwhile.
    tasks: ids, labels or names."""
    tasks, _ = named_tasks(records, tasks, place)
    waits = {(x.workload, x.task, x.phase, x.attempt): x for x in build_timeline(records).waits}
    starts = sorted((x for x in records if isinstance(x, r.Started)), key=lambda x: x.t)
    out = []
    for task in tasks:
        workloads = dict.fromkeys(x.workload for x in records if _tells_of_a_task(x) and x.task == task)
        for workload in workloads:
            own = [x for x in records if getattr(x, "workload", "") == workload and getattr(x, "task", "") == task]
            answer: dict[str, Any] = {"task": task, "workload": workload, "phases": _phases_in_log(own, starts, waits)}
            if not answer["phases"]:
                answer["text"] = _never_ready(records, own, workload)
                answer["ended"] = next((x.outcome for x in own if isinstance(x, r.Ended)), "")
            out.append(answer)
    return out


def _never_ready(records: list[r.Record], own: list[r.Record], workload: str) -> str:
    """What is known of a task that the log has neither ready nor started."""
    if (over := next((x for x in own if isinstance(x, r.Ended)), None)) is not None:
        why = over.reason or (_why_skipped(records, own, workload) if over.outcome == "skipped" else "")
        return f"it was {over.outcome} at {over.t:,.3f} s" + (f": {why}" if why else "")
    if let_go := _granted_at([x for x in own if isinstance(x, r.Granted)]):
        return let_go
    added = next((x for x in own if isinstance(x, r.TaskAdded)), None)
    ended = {x.task for x in records if isinstance(x, r.Ended) and x.workload == workload}
    if added is not None and (left := [parent for parent in added.parents if parent not in ended]):
        return f"it comes after {listed(left)}, of which the log has no end"
    needed = max((phase[2] for phase in added.phases), default=0.0) if added is not None else 0.0
    most = max((x.gpus for x in records if isinstance(x, r.Capacity)), default=0)
    if needed > most:
        return f"it needs {counted(needed, 'GPU')} on one node, and the largest had {most}"
    return "its framework has told of no start, and nothing that it waited for"


def _why_skipped(records: list[r.Record], own: list[r.Record], workload: str) -> str:
    """What the ends before it say of why a task was skipped, where the log has no reason of its own."""
    parents = next((x.parents for x in own if isinstance(x, r.TaskAdded)), ())
    ends = {x.task: x.outcome for x in records if isinstance(x, r.Ended) and x.workload == workload}
    lost = [f"{one}, before it, {_HOW[ends[one]]}" for one in parents if ends.get(one) in _HOW]
    if lost:
        return listed(lost, SHOWN)
    after = f"{listed(parents, SHOWN)} had ended; " if parents and all(one in ends for one in parents) else ""
    return f"{after}its framework left it out, as what is in a branch that is not taken; the log says no more"


def _phases_in_log(own: list[r.Record], starts: list[r.Started], waits: Waits) -> list[dict[str, Any]]:
    """One row for each attempt at a phase that became ready. ended: how, where a reason for its end is known."""
    rows: dict[tuple[int, int], dict[str, Any]] = {}
    added = next((x for x in own if isinstance(x, r.TaskAdded)), None)
    for x in sorted((x for x in own if isinstance(x, (r.Ready, r.Started))), key=lambda x: x.t):
        row = rows.setdefault((x.phase, x.attempt), _row(x, added))
        if isinstance(x, r.Started):
            row["started_s"], row["waited_s"] = x.t, x.t - row["ready_s"]
            between = [s.task for s in starts if row["ready_s"] <= s.t < x.t and s.node == x.node and s.task != x.task]
            row["reason"] = _reason_in_log(own, x, between if x.node else [], waits) if row["waited_s"] > 0 else None
            row["expected"] = _expected(own, x)
        else:
            row["reason"] = _reason_in_log(own, x, [], waits)  # until it starts
    for end in (x for x in own if isinstance(x, r.Ended)):
        row = rows.get((end.phase, end.attempt), {})
        if row and (end.reason or row["started_s"] is None or end.outcome == "skipped"):
            row["ended"] = f"{end.outcome}: {end.reason}" if end.reason else end.outcome
    return list(rows.values())


def _row(x: r.Ready | r.Started, added: r.TaskAdded | None) -> dict[str, Any]:
    kinds = [phase[0] if any(phase[1:3]) else "" for phase in added.phases] if added is not None else []
    kind = (
        kinds[x.phase] if 0 <= x.phase < len(kinds) else ""
    )  # "": what it needs is not its own, as in a group's place
    row = {"phase": x.phase, "attempt": x.attempt, "kind": kind, "ready_s": x.t, "started_s": None, "waited_s": None}
    return row | {"reason": None, "expected": "", "ended": ""}


def _reason_in_log(own: list[r.Record], x: r.Ready | r.Started, between: list[str], waits: Waits) -> dict[str, Any]:
    """Why it waited until it started; of what has become ready only, why it waits."""
    until_s = x.t if isinstance(x, r.Started) else float("inf")
    holds = [held for held in own if isinstance(held, r.Held) and held.phase == x.phase and held.t <= until_s]
    grants = [one for one in own if isinstance(one, r.Granted) and (one.phase, one.attempt) == (x.phase, x.attempt)]
    said = "; ".join(dict.fromkeys(held.reason for held in holds if held.reason))
    first = ""
    if between and isinstance(x, r.Started):
        ahead, there = ", ".join(between[:SHOWN]), node_words(x.node)
        first = f"{counted(len(between), 'phase')} started before it on {there}, first {ahead}"
    let_go = _granted(grants) if isinstance(x, r.Started) else _granted_at(grants)
    text = "; ".join(part for part in (said, first, let_go) if part)
    if not text and isinstance(x, r.Started):
        text = "nothing in the log says why: no engine decided, and nothing started before it"
    wait = waits.get((x.workload, x.task, x.phase, x.attempt))
    kind = (wait.kind if wait is not None else "") or ("capacity" if between else "")
    waiting_for = list(holds[-1].waiting_for) if holds and holds[-1].waiting_for else between[:SHOWN]
    return {"status": "ready", "kind": kind, "text": text, "waiting_for": waiting_for}


def _expected(own: list[r.Record], started: r.Started) -> str:
    """What was believed of its length when it was let start; "" where no engine decided."""
    grants = [x for x in own if isinstance(x, r.Granted) and (x.phase, x.attempt) == (started.phase, started.attempt)]
    if not grants:
        return ""
    p50_s, p95_s = grants[-1].estimate_p50_s, grants[-1].estimate_p95_s
    if p50_s is None:
        return "nobody knew how long it takes: no history, no hint"
    if not p50_s:
        return ""
    return f"expected to take {p50_s:,.3f} s" + (f", up to {p95_s:,.3f} s" if p95_s and p95_s > p50_s else "")


def _granted_at(grants: list[r.Granted]) -> str:
    return f"it was let go at {grants[-1].t:,.3f} s, and the log ends before its start" if grants else ""


def _granted(grants: list[r.Granted]) -> str:
    if not grants or not grants[-1].reason:
        return ""
    if grants[-1].reason == ONLY_CANDIDATE:
        return "nothing else could have started then"
    return f"it started ahead of the next by {grants[-1].reason}"


# --- for people -------------------------------------------------------------------------------------------------------


def _lines(answer: dict[str, Any]) -> list[str]:
    if "at_s" in answer:
        kind = f" ({answer['kind']})" if answer["kind"] else ""
        return [f"{answer['task']} at {answer['at_s']:,.3f} s: {answer['status']}{kind}: {answer['text']}"]
    where = f" of {answer['workload']}" if answer.get("workload") else ""
    starts = [phase["started_s"] for phase in answer["phases"] if phase["started_s"] is not None]
    where += f", started at {min(starts):,.3f} s" if starts and answer.get("workload") else ""
    lines = [f"{answer['task']}{where}"]
    if not answer["phases"]:
        text = answer.get("text")
        if answer.get("ended"):
            return [*lines, f"  {text}"]
        return [*lines, f"  not ready, as far as the log goes: {text}" if text else "  never became ready"]
    return lines + [f"  {_phase_line(phase)}" for phase in answer["phases"]]


def _phase_line(phase: dict[str, Any]) -> str:
    after = f" when {phase['after']} ended" if phase.get("after") else ""
    again = f", attempt {phase['attempt']}" if phase.get("attempt", 1) > 1 else ""
    which = f"{phase['kind']} phase {phase['phase']}".lstrip()
    begin = f"{which}{again}: ready at {phase['ready_s']:,.3f} s{after}"
    if phase["started_s"] is None:
        text = phase["reason"]["text"] if phase["reason"] else ""
        told = "; ".join(part for part in (text, phase.get("ended", "")) if part)
        return f"{begin}, never started: {told or 'the log ends before'}"
    expected = f"; {phase['expected']}" if phase.get("expected") else ""
    expected += f"; {phase['ended']}" if phase.get("ended") else ""
    if not phase["waited_s"] or phase["waited_s"] <= 0:
        return f"{begin}, started at once{expected}"
    reason = phase["reason"]
    kind = f" ({reason['kind']})" if reason and reason["kind"] else ""
    told = f"{kind}: {reason['text']}" if reason else ""
    return f"{begin}, waited {phase['waited_s']:,.3f} s{told}{expected}"
