"""How true the simulator is: workloads replayed on a real Ray beside their simulation.

    EGS_DATA=… python -m benchmarks.fidelity --json

    workload ──┬─► replay on Ray (`egs replay --on ray`, policy egs) ──► makespan ─┐
               └─► simulation, same graph, capacity, policy, beliefs ──► makespan ─┴─► error

Half of the replays are single workflows without GPUs, half short streams of workflows with GPU phases and warm-ups
(SYNTHETIC, by the rule in `benchmarks.overlay`): files of EGS_DATA, else graphs from wfcommons' generators. All times
of a workload are multiplied by one factor, the same for both, so that its simulation lasts about 20 s; what is shorter
than 0.3 s then counts as 0.3 s. The simulated engine believes what the real one is told: the median of each code.

A real framework takes time that no workload file names. The simulation is given it as five numbers, seconds that are
added to every phase of a task that runs as it is, to every phase of one that EGS starts phase by phase, to every
warm-up, and to a whole workload, whose first processes start on a Ray that has none: one number for single workflows,
one for streams. The first three are measured on chains side by side, the last two on two rehearsals of each kind; none
of these are among those compared, and the error without any of it is printed too. Targets: error at most 5 % (median)
and 10 % (95th percentile). --check: exit code 1 when they are missed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.overlay import load_graphs, make_stream, make_templates
from benchmarks.single_dags_instances import load_instances
from egs_core.adapter import ReplayRequest, ReplayWorkload
from egs_core.engine.specs import usual_process_slots
from egs_core.errors import InputError
from egs_core.graph.columns import CPU, GPU, Graph, Shape, TaskOptions
from egs_core.graph.load import LoadedWorkload
from egs_core.replayed import check, seconds_of
from egs_core.runlog import records as r
from egs_core.runlog.io import read_run
from egs_core.sim import Durations, SimConfig, SimNode, simulate
from egs_ray.cluster import preload_slots
from egs_ray.replay.run import replay
from egs_ray.replay.tasks import codes_of, expected

CPUS, GPUS = 4, 2
AIM_S, LEAST_S = 20.0, 0.3
LEAST_TASKS, SINGLE_TASKS, STREAM_TASKS = 8, 110, 45  # what can be done in about 20 s, at 0.3 s at least a phase
GENERATED_TASKS = 150  # the generators make none smaller than about this
STREAM_LENGTH, STREAM_LOAD, RULE_SEED = 2, 1.0, 1
CHAIN, CHAIN_S = 12, 0.3
TARGET_MEDIAN, TARGET_P95 = 0.05, 0.10
FITTING_STEPS = 6
REHEARSALS, REHEARSAL_SEED = 2, 1000
Case = tuple[str, list[LoadedWorkload]]


class Costs(msgspec.Struct, frozen=True):
    """Seconds that Ray and EGS add: to a phase of a task that runs as it is, to a phase of one that does not, to a
    warm-up, and to a single workflow or a stream as a whole, because its first processes have to start."""

    plain_phase_s: float = 0.0
    phase_s: float = 0.0
    warmup_s: float = 0.0
    single_start_s: float = 0.0
    stream_start_s: float = 0.0


# --- the workloads ----------------------------------------------------------------------------------------------------


def make_cases(count: int) -> Iterator[Case]:
    """Single workflows and streams in turn, each one different, fitted to their length."""
    singles, streams = single_workflows(count // 2), gpu_streams(count - count // 2)
    for number in range(count):
        name, given = next(streams) if number % 2 == 0 else next(singles)
        yield name, fitted(given)


def rehearsals() -> tuple[list[Case], list[Case]]:
    """Single workflows and streams that no comparison has: what a start costs is measured on them."""
    singles, streams = (make(REHEARSALS, REHEARSAL_SEED) for make in (single_workflows, gpu_streams))
    return [(name, fitted(given)) for name, given in singles], [(name, fitted(given)) for name, given in streams]


def single_workflows(count: int, seed: int = 0) -> Iterator[Case]:
    """Workflows without GPUs; when there are fewer than asked for, they come again with other durations (each task's
    times a factor, log-normal, sigma 0.2, seeded), as all do with a seed."""
    folder = os.environ.get("EGS_DATA")
    instances = load_instances(folder, SINGLE_TASKS if folder else GENERATED_TASKS)
    found = [instance for instance in instances if instance.workload.graph.n_tasks >= LEAST_TASKS]
    for number in range(count):
        instance, turn = found[number % len(found)], seed + number // len(found)
        graph = on_capacity(instance.workload.graph)
        name = instance.name if not turn else f"{instance.name}, varied {turn}"
        yield name, [msgspec.structs.replace(instance.workload, id="w0", graph=varied(graph, turn), arrival_s=0.0)]


def varied(graph: Graph, seed: int) -> Graph:
    """Other durations of the same kind; seed 0: the graph itself."""
    factors = np.random.default_rng(seed).lognormal(0.0, 0.2, graph.n_phases) if seed else np.ones(graph.n_phases)
    seconds = [(s or 0.0) * float(f) for s, f in zip(graph.phase_duration_s, factors, strict=True)]
    return msgspec.structs.replace(graph, phase_duration_s=list(seconds))


def gpu_streams(count: int, seed: int = 0) -> Iterator[Case]:
    """Workflows with GPU phases and warm-ups that arrive at random."""
    templates = make_templates(load_graphs(), RULE_SEED)
    small = [template for template in templates if template.graph.n_tasks <= STREAM_TASKS] or templates
    for number in range(seed + 1, seed + count + 1):
        stream = make_stream(small, STREAM_LENGTH, GPUS, STREAM_LOAD, number)
        first_s = stream[0].arrival_s
        yield (
            f"stream {number}",
            [
                msgspec.structs.replace(w, id=f"w{i}", arrival_s=w.arrival_s - first_s, graph=on_capacity(w.graph))
                for i, w in enumerate(stream)
            ],
        )


def on_capacity(graph: Graph) -> Graph:
    """No phase asks for more than there is, and none for memory: as in a replay."""
    shapes = [Shape(min(s.cpu_milli, CPUS * 1000), min(s.gpu_milli, GPUS * 1000)) for s in graph.shapes]
    return msgspec.structs.replace(graph, shapes=shapes)


def fitted(given: list[LoadedWorkload]) -> list[LoadedWorkload]:
    """All times by one factor, found by simulation, so that the makespan is near `AIM_S`."""
    factor = AIM_S / simulated_s(given, Costs())
    scaled = given
    for _ in range(FITTING_STEPS):
        scaled = [scaled_by(workload, factor) for workload in given]
        factor *= AIM_S / simulated_s(scaled, Costs())
    return scaled


def scaled_by(workload: LoadedWorkload, factor: float) -> LoadedWorkload:
    """Durations, warm-ups and arrival times the factor; no phase shorter than `LEAST_S`."""
    graph = workload.graph
    seconds: list[float | None] = [max(LEAST_S, (s or 0.0) * factor) for s in graph.phase_duration_s]
    options = {
        task: msgspec.structs.replace(option, warmup_s=option.warmup_s * factor, warm_memory_bytes=0)
        for task, option in graph.options.items()
    }
    changed = msgspec.structs.replace(graph, phase_duration_s=seconds, options=options)
    return msgspec.structs.replace(workload, graph=changed, arrival_s=workload.arrival_s * factor)


# --- the simulation ---------------------------------------------------------------------------------------------------


def simulated_s(workloads: Sequence[LoadedWorkload], costs: Costs) -> float:
    """The makespan in the simulator, with what the framework adds."""
    node = SimNode(
        "local", CPUS, GPUS, preload_slots=preload_slots(), process_slots=usual_process_slots(CPUS, GPUS, None)
    )
    config = SimConfig((node,), durations=Durations.PREDICTED, records=False)
    later = [with_costs(workload, costs) for workload in workloads]
    start_s = costs.single_start_s if len(workloads) == 1 else costs.stream_start_s
    return start_s + simulate(later, config, estimator_of(workloads)).makespan_s


def with_costs(workload: LoadedWorkload, costs: Costs) -> LoadedWorkload:
    """The workload as it takes place on the framework."""
    graph = workload.graph
    seconds = list(graph.phase_duration_s)
    for task in range(graph.n_tasks):
        phases = graph.phases_of(task)
        plain = not graph.options_of(task).warm_key and all(graph.phase_kind[p] == CPU for p in phases)
        for p in phases:
            seconds[p] = (seconds[p] or 0.0) + (costs.plain_phase_s if plain else costs.phase_s)
    options = {
        t: msgspec.structs.replace(o, warmup_s=o.warmup_s + costs.warmup_s if o.warm_key else 0.0)
        for t, o in graph.options.items()
    }
    return msgspec.structs.replace(
        workload, graph=msgspec.structs.replace(graph, phase_duration_s=seconds, options=options)
    )


def estimator_of(workloads: Sequence[LoadedWorkload]) -> Callable[[LoadedWorkload, int], tuple[float, float]]:
    """What a replay tells its engine: of each phase the median of the tasks that share its code, within a workload."""
    believed = {workload.id: believed_of(workload.graph) for workload in workloads}
    return lambda workload, phase: (believed[workload.id][phase], believed[workload.id][phase])


def believed_of(graph: Graph) -> list[float]:
    codes = codes_of(graph, 1.0)
    lists = defaultdict(list)
    for task, code in enumerate(codes):
        lists[code].append(seconds_of(graph, task, 1.0))
    medians = {code: expected(code, seconds) for code, seconds in lists.items()}
    out: list[float] = []
    for task, code in enumerate(codes):
        phases, parts = graph.phases_of(task), medians[code]
        kinds = [graph.phase_kind[p] for p in phases]
        split = parts if kinds == [CPU, GPU, CPU] else [parts[0]] if len(phases) == 1 else None
        out += split or [graph.phase_duration_s[p] or 0.0 for p in phases]
    return out


# --- the real thing ---------------------------------------------------------------------------------------------------


def real_run(workloads: Sequence[LoadedWorkload]) -> list[r.Record]:
    """The run log of a replay on a Ray of its own."""
    given = tuple(ReplayWorkload(w.id, w.graph, w.arrival_s) for w in workloads)
    for workload in given:
        check(workload, CPUS, GPUS)
    with tempfile.TemporaryDirectory(prefix="egs-fidelity-") as folder:
        path = Path(folder) / "run.jsonl"
        replay(ReplayRequest(given, "egs", CPUS, GPUS, 1.0, path))
        return list(read_run(path).records)


def lengths_of(records: Sequence[r.Record]) -> dict[str, float]:
    """Of each workload, seconds from its first start of a phase to its last end."""
    started: dict[str, float] = {}
    ended: dict[str, float] = {}
    for record in records:
        if isinstance(record, r.Started):
            started[record.workload] = min(started.get(record.workload, record.t), record.t)
        elif isinstance(record, r.Ended):
            ended[record.workload] = max(ended.get(record.workload, record.t), record.t)
    return {name: ended[name] - at for name, at in started.items()}


def makespan_of(records: Sequence[r.Record]) -> float:
    began = min(record.t for record in records if isinstance(record, r.WorkloadSubmitted))
    return max(record.t for record in records if isinstance(record, r.Ended)) - began


def calibrate() -> Costs:
    """What Ray and EGS add here and now."""
    costs = calibrate_phases()
    singles, streams = rehearsals()
    return msgspec.structs.replace(
        costs, single_start_s=start_of(singles, costs), stream_start_s=start_of(streams, costs)
    )


def calibrate_phases() -> Costs:
    """To phases and warm-ups: chains as many as there is room for, one kind after the other."""
    room_s = 2 * CHAIN * CHAIN_S + 2.0
    plain = chains("plain", CPUS, (CPU, Shape(1000), CHAIN_S), 0.0)
    gpu = chains("gpu", GPUS, (GPU, Shape(1000, 1000), CHAIN_S), room_s)
    warm = chains("warm", 1, (CPU, Shape(1000), CHAIN_S), 2 * room_s, keys=True)
    records = real_run([plain, gpu, warm])
    found = lengths_of(records)
    plain_s, phase_s = (max(0.0, found[name] / CHAIN - CHAIN_S) for name in ("plain", "gpu"))
    return Costs(plain_s, phase_s, statistics.median(loads_of(records)))


def start_of(cases: Sequence[Case], costs: Costs) -> float:
    """What these took beyond their simulation with the other costs: the median."""
    beyond = [makespan_of(real_run(workloads)) - simulated_s(workloads, costs) for _, workloads in cases]
    return max(0.0, statistics.median(beyond))


def loads_of(records: Sequence[r.Record]) -> list[float]:
    """Seconds from each preload's decision to its warm process."""
    began = {(one.workload, one.task): one.t for one in records if isinstance(one, r.PreloadStarted)}
    warm = [one for one in records if isinstance(one, r.PreloadEnded) and one.outcome == "warm"]
    return [one.t - began[one.workload, one.task] for one in warm] or [0.0]


def chains(
    name: str, count: int, phase: tuple[int, Shape, float], arrival_s: float, keys: bool = False
) -> LoadedWorkload:
    """So many chains; with keys, each task needs a process that has loaded what no other needs, in no time."""
    graph = Graph()
    for number in range(count * CHAIN):
        options = TaskOptions(warm_key=f"{name}{number}", warmup_s=0.0) if keys else None
        parents = (number - count,) if number >= count else ()
        graph.add_task(f"{number}", parents, (phase,), f"{name}{number}" if keys else name, options)
    return LoadedWorkload(name, name, "", "", arrival_s, graph)


# --- the comparison ---------------------------------------------------------------------------------------------------


def compare(name: str, workloads: list[LoadedWorkload], costs: Costs) -> dict[str, Any]:
    """One workload, real and simulated."""
    began = time.perf_counter()
    real_s = makespan_of(real_run(workloads))
    sim_s, bare_s = simulated_s(workloads, costs), simulated_s(workloads, Costs())
    return {
        "workload": name,
        "tasks": sum(w.graph.n_tasks for w in workloads),
        "ray s": round(real_s, 2),
        "simulated s": round(sim_s, 2),
        "error": round((sim_s - real_s) / real_s, 4),
        "error without costs": round((bare_s - real_s) / real_s, 4),
        "wall s": round(time.perf_counter() - began, 1),
    }


def summary_of(rows: Sequence[dict[str, Any]], costs: Costs) -> dict[str, Any]:
    """Median and 95th percentile of the errors' sizes, with the costs and without."""
    out: dict[str, Any] = {"replays": len(rows), "cpus": CPUS, "gpus": GPUS, "emulated_gpus": True}
    out["costs"] = {name: round(value, 4) for name, value in msgspec.structs.asdict(costs).items()}
    for name, column in (("error", "error"), ("bare_error", "error without costs")):
        sizes = [abs(row[column]) for row in rows]
        out |= {f"{name}_median": statistics.median(sizes), f"{name}_p95": float(np.percentile(sizes, 95))}
    out["target_met"] = out["error_median"] <= TARGET_MEDIAN and out["error_p95"] <= TARGET_P95
    return {**out, "rows": list(rows)}


def measure(count: int) -> dict[str, Any]:
    """Calibrate, then replay and simulate one workload after the other."""
    costs = calibrate()
    print(f"calibrated: {msgspec.structs.asdict(costs)}", file=sys.stderr)
    rows: list[dict[str, Any]] = []
    for name, workloads in make_cases(count):
        rows.append(compare(name, workloads, costs))
        row = rows[-1]
        print(
            f"{len(rows)}/{count} {name}: Ray {row['ray s']:.1f} s, simulated {row['simulated s']:.1f} s "
            f"({row['error']:+.1%}; without costs {row['error without costs']:+.1%}), {row['wall s']:.0f} s",
            file=sys.stderr,
        )
    return summary_of(rows, costs)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fidelity", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--limit", type=int, default=20, help="replays")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--check", action="store_true", help="exit code 1 when a target is missed")
    arguments = parser.parse_args()
    if arguments.limit < 1:
        parser.error("--limit: at least one replay")
    try:
        found = measure(arguments.limit)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(found, indent=None if arguments.json else 2))
    return 1 if arguments.check and not found["target_met"] else 0


if __name__ == "__main__":
    sys.exit(main())
