"""How far the engine's makespans are from the best that a solver finds: OR-tools' CP-SAT, seeded with egs's plan.

    EGS_DATA=DIR python -m benchmarks.single_dags_incumbent --largest 120 --seconds 20 --json FILE --plot FILE.png

Apart from `single_dags`, as it takes a time limit for each instance and number of slots. Exact durations, instant
network, equal slots. The solver sees durations in whole milliseconds, rounded up, so its order is replayed on the real
ones; the incumbent is the better of that replay and the engine's own plan. The solver's bound is proven in its own
model and only taken where it exceeds ours after the rounding has been taken off it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.plots import drawn, figure_of
from benchmarks.single_dags import one_cpu_each
from benchmarks.single_dags_figures import geometric_mean
from benchmarks.single_dags_instances import Instance, load_instances
from benchmarks.single_dags_peers import Case
from egs_core.errors import InputError
from egs_core.graph.analysis import topological_order
from egs_core.graph.bounds import makespan_bound
from egs_core.runlog import records as r
from egs_core.sim import SimConfig, simulate

TICKS = 1000  # a second, in the solver
SLOTS = (4, 8, 16, 32)
WORKERS = 8  # with fewer the solver leaves most of its strategies out, also where there are fewer cores


class Found(msgspec.Struct):
    """What CP-SAT says: starts by task in ticks, its bound in seconds, whether it has proven its plan."""

    starts: list[int]
    bound_s: float
    is_proven: bool


class Row(msgspec.Struct):
    """One instance on so many slots; makespans and bound in seconds."""

    instance: str
    slots: int
    tasks: int
    bound_s: float
    egs_s: float
    incumbent_s: float
    proven: bool

    @property
    def is_open(self) -> bool:
        """Whether there was anything to find: the engine's plan is above the bound."""
        return self.egs_s > self.bound_s * (1 + 1e-9)


def ticks_of(seconds: Sequence[float]) -> list[int]:
    """Whole ticks, rounded up: a plan in ticks is never shorter than the same order in seconds."""
    return [math.ceil(s * TICKS - 1e-9) for s in seconds]


def engine_plan(instance: Instance, slots: int) -> tuple[float, list[float]]:
    """The engine's makespan and the start of each task, by its place in the graph."""
    result = simulate([one_cpu_each(instance.workload)], SimConfig(slots=slots))
    place = {task: number for number, task in enumerate(instance.workload.graph.ids)}
    starts = [0.0] * len(place)
    for record in result.records:
        if isinstance(record, r.Started):
            starts[place[record.task]] = record.t
    return result.makespan_s, starts


def solve(case: Case, slots: int, hint: Sequence[int], limit_s: float, workers: int) -> Found | None:
    """CP-SAT's best plan from the hinted starts; None when it has found none in time."""
    cp_model: Any = import_module("ortools.sat.python.cp_model")
    model, length = cp_model.CpModel(), ticks_of(case.seconds)
    horizon = max(start + own for start, own in zip(hint, length, strict=True))
    starts = [model.new_int_var(0, horizon, f"s{task}") for task in range(len(length))]
    spans = [
        model.new_fixed_size_interval_var(start, own, f"i{task}")
        for task, (start, own) in enumerate(zip(starts, length, strict=True))
    ]
    end = model.new_int_var(0, horizon, "end")
    model.add_cumulative(spans, [1] * len(spans), slots)
    for task, parents in enumerate(case.graph.parents):
        model.add(end >= starts[task] + length[task])
        for parent in parents:
            model.add(starts[task] >= starts[parent] + length[parent])
    for start, hinted in zip(starts, hint, strict=True):
        model.add_hint(start, hinted)
    model.minimize(end)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = limit_s
    solver.parameters.num_workers = workers
    solver.parameters.random_seed = 1
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    rounding_s = len(length) / TICKS  # no path has more than all tasks, each rounded by less than a tick
    bound_s = max(solver.best_objective_bound / TICKS - rounding_s, 0.0)
    return Found([solver.value(start) for start in starts], bound_s, status == cp_model.OPTIMAL)


def replayed(case: Case, slots: int, starts: Sequence[float]) -> float:
    """Makespan when tasks begin in the order of these starts, each as soon as a slot and its parents allow."""
    step = {task: at for at, task in enumerate(topological_order(case.graph))}  # orders tasks that take no time
    free, ends = [0.0] * slots, [0.0] * len(starts)
    for task in sorted(range(len(starts)), key=lambda t: (starts[t], step[t])):
        slot = min(range(slots), key=free.__getitem__)
        begin = max([free[slot], *(ends[parent] for parent in case.graph.parents[task])])
        free[slot] = ends[task] = begin + case.seconds[task]
    return max(ends, default=0.0)


def hinted(case: Case, slots: int, starts: Sequence[float]) -> list[int]:
    """The engine's order in ticks: a plan that the solver can take over as it is."""
    length = ticks_of(case.seconds)
    step = {task: at for at, task in enumerate(topological_order(case.graph))}
    free, ends, hint = [0] * slots, [0] * len(length), [0] * len(length)
    for task in sorted(range(len(length)), key=lambda t: (starts[t], step[t])):
        slot = min(range(slots), key=free.__getitem__)
        hint[task] = max([free[slot], *(ends[parent] for parent in case.graph.parents[task])])
        free[slot] = ends[task] = hint[task] + length[task]
    return hint


def measure(instances: Sequence[Instance], slots: Sequence[int], limit_s: float, workers: int) -> list[Row]:
    """Every instance on every number of slots; the solver is asked only where the engine is above the bound."""
    rows = []
    for instance in instances:
        case = Case.of(instance.workload.graph)
        for number in slots:
            egs_s, starts = engine_plan(instance, number)
            bound_s = makespan_bound(case.graph, number, case.seconds)
            row = Row(instance.name, number, case.graph.n_tasks, bound_s, egs_s, egs_s, True)
            if row.is_open:
                found = solve(case, number, hinted(case, number, starts), limit_s, workers)
                row.proven = found is not None and found.is_proven
                if found is not None:
                    row.incumbent_s = min(egs_s, replayed(case, number, found.starts))
                    row.bound_s = min(max(bound_s, found.bound_s), row.incumbent_s)
            rows.append(row)
            print(f"{row}", file=sys.stderr)
    return rows


def summarise(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """By slots: geometric means of makespan over bound, and where something was left to find."""
    out: list[dict[str, Any]] = []
    for slots in sorted({row.slots for row in rows}):
        group = [row for row in rows if row.slots == slots and row.bound_s]
        behind = [row for row in group if row.incumbent_s < row.egs_s * (1 - 1e-9)]
        worst = max(group, key=lambda row: row.egs_s / row.incumbent_s)
        out.append(
            {
                "slots": slots,
                "instances": len(group),
                "egs/bound": geometric_mean([row.egs_s / row.bound_s for row in group]),
                "incumbent/bound": geometric_mean([row.incumbent_s / row.bound_s for row in group]),
                "egs/incumbent": geometric_mean([row.egs_s / row.incumbent_s for row in group]),
                "at the bound": sum(not row.is_open for row in group),
                "proven": sum(row.proven for row in group),
                "beaten": len(behind),
                "worst": worst.egs_s / worst.incumbent_s - 1,
                "where": worst.instance if behind else "",
            }
        )
    return out


def plot(rows: Sequence[Row], path: Path) -> None:
    """Each instance that is above its bound: the engine's gap and what is left of it under the incumbent."""
    shown = sorted((row for row in rows if row.is_open), key=lambda row: row.egs_s / row.bound_s)
    figure = figure_of(9, 1.6 + 0.24 * len(shown))
    axes = figure.subplots()
    places = range(len(shown))
    axes.plot(
        [100 * (row.egs_s / row.bound_s - 1) for row in shown], places, "o", label="egs", markersize=9, mfc="none"
    )
    axes.plot([100 * (row.incumbent_s / row.bound_s - 1) for row in shown], places, "o", label="CP-SAT", markersize=4)
    axes.set_yticks(range(len(shown)), [f"{row.instance}, {row.slots} slots" for row in shown], fontsize="small")
    axes.set(xlabel="makespan over the bound, %", title="egs and CP-SAT's incumbent, exact durations")
    axes.grid(axis="both", alpha=0.3)
    axes.legend(loc="lower right")
    drawn(figure, path)


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="python -m benchmarks.single_dags_incumbent")
    p.add_argument("--data", default=os.environ.get("EGS_DATA"), help="folder with workflows/ (default: EGS_DATA)")
    p.add_argument("--largest", type=int, default=320, help="leave out instances with more tasks (default 320)")
    p.add_argument("--slots", type=int, nargs="+", default=list(SLOTS))
    p.add_argument("--seconds", type=float, default=20.0, help="of the solver, an instance and number of slots")
    p.add_argument("--workers", type=int, default=WORKERS, help=f"threads of the solver (default {WORKERS})")
    p.add_argument("--json", metavar="FILE", help="the result as JSON; - prints it instead of the table")
    p.add_argument("--plot", type=Path, metavar="FILE.png")
    return p


def main() -> int:
    arguments = parser().parse_args()
    if find_spec("ortools") is None:  # in no extra: it holds protobuf below the version that others here need
        print("skipped: no incumbent without OR-tools: pip install ortools", file=sys.stderr)
        if arguments.json == "-":
            print(json.dumps({"suite": "incumbent", "skipped": "OR-tools is not installed"}))
        return 0
    try:
        rows = measure(
            load_instances(arguments.data, arguments.largest), arguments.slots, arguments.seconds, arguments.workers
        )
        if arguments.plot:
            plot(rows, arguments.plot)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    result = {"suite": "incumbent", "rows": summarise(rows), "runs": msgspec.to_builtins(rows)}
    if arguments.json and arguments.json != "-":
        Path(arguments.json).write_text(json.dumps(result, indent=1) + "\n")
    if arguments.json == "-":
        print(json.dumps(result))
    else:
        for line in result["rows"]:
            print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
