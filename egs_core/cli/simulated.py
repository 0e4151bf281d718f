"""What `simulate`, `plan` and `why` share: the simulated cluster, beliefs about durations, and the ideal bound."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

import msgspec

from egs_core.cluster_file import load_cluster
from egs_core.engine import POLICIES
from egs_core.errors import InputError, listed
from egs_core.graph.analysis import heads, tails, task_durations
from egs_core.graph.bounds import compute_bound
from egs_core.graph.columns import Graph, Shape
from egs_core.graph.load import LoadedWorkload
from egs_core.graph.places import did_you_mean
from egs_core.notices import warn_once
from egs_core.predict import Features, Predictor, signature_of
from egs_core.sim import Durations, SimConfig, SimNode

SLOTS_HELP = "Number of equal slots; every phase takes one, whatever it requests."
CPUS_HELP = "CPUs of a node; phases take what they request."
GPUS_HELP = "GPUs of a node."
NODES_HELP = "Number of such nodes."


def cluster_config(
    slots: int | None, cpus: float | None, gpus: int | None, nodes: int | None, file: Path | None = None
) -> SimConfig:
    """The cluster part of a simulation from a command's options. InputError for what is no cluster."""
    if file is not None:
        if (slots, cpus, gpus, nodes) != (None, None, None, None):
            raise InputError("--cluster", "cannot be combined with other sizes", "the file says what nodes there are")
        described = load_cluster(file)
        return SimConfig(nodes=described.nodes, flavors=described.flavors)
    if slots is not None:
        if cpus is not None or gpus is not None or nodes is not None:
            raise InputError(
                "--slots", "cannot be combined with other sizes", "either --slots, or --cpus with --gpus and --nodes"
            )
        if slots < 1:
            raise InputError("--slots", f"must be at least 1, not {slots}")
        return SimConfig(slots=slots)
    if cpus is None:
        raise InputError("--slots", "no cluster is given", "--slots M, or --cpus C with --gpus G and --nodes N")
    count = 1 if nodes is None else nodes
    if not (math.isfinite(cpus) and 0 < cpus <= 1e6):
        raise InputError("--cpus", f"must be above 0 and at most 1000000, not {cpus:g}")
    if not 0 <= (gpus or 0) <= 10_000:
        raise InputError("--gpus", f"must be 0 to 10000, not {gpus}")
    if not 1 <= count <= 10_000:
        raise InputError("--nodes", f"must be 1 to 10000, not {count}")
    return SimConfig(nodes=tuple(SimNode(f"node{i}", cpus, gpus or 0) for i in range(count)))


def known_policy(name: str, also: Sequence[str] = ()) -> str:
    """The name itself; InputError for one that is no policy."""
    known = [*POLICIES, *also]
    if name not in known:
        suggestion = did_you_mean(name, known)
        hint = f"{suggestion} known: {', '.join(known)}".strip()
        raise InputError("--policy", f"unknown policy {name!r}", hint)
    return name


def tasks_called(graph: Graph, wanted: Sequence[str], place: str) -> list[str]:
    """Ids of the tasks that are meant: by id, by name, or by the end of an id that names the loop, condition or group
    around it, too. Raises InputError with a suggestion for one that is not there, and for what several are called."""
    found: list[str] = []
    for word in wanted:
        meant = [one for one in graph.ids if one == word]
        meant = meant or [one for one, name in zip(graph.ids, graph.names, strict=True) if name == word]
        meant = meant or [one for one in graph.ids if one.endswith(f".{word}")]
        if not meant:
            hint = did_you_mean(word, [*graph.ids, *graph.names]) or f"its tasks: {listed(graph.ids)}"
            raise InputError(place, f"has no task {word!r}", hint)
        if len(meant) > 1:
            raise InputError(place, f"has {len(meant)} tasks called {word!r}", f"say which: {listed(meant)}")
        found += meant
    return list(dict.fromkeys(found))


def estimate_of(predictor: Predictor, workload: LoadedWorkload, phase: int) -> tuple[float, float]:
    """Median and 95th percentile that the predictor believes a phase will take."""
    graph = workload.graph
    task = _task_of(graph, phase)
    shape = graph.shapes[graph.phase_shape[phase]]
    signature = signature_of(workload.name, graph.names[task], phase - graph.phase_offsets[task], shape)
    estimate = predictor.estimate(
        signature, graph.phase_kind[phase], features=Features(input_bytes=input_bytes(graph, task))
    )
    return estimate.p50_s, estimate.p95_s


def input_bytes(graph: Graph, task: int) -> int:
    """What a task reads, as far as the workload says; -1 unknown."""
    files = graph.inputs.get(task)
    return sum(graph.file_sizes[file] for file in files) if files else -1


def _task_of(graph: Graph, phase: int) -> int:
    return bisect_right(graph.phase_offsets, phase) - 1


def with_assumed_durations(workload: LoadedWorkload, predictor: Predictor | None = None) -> tuple[LoadedWorkload, int]:
    """The workload with a prior for every unknown duration, and how many there were. predictor: what is known."""
    graph = workload.graph
    unknown = [p for p, seconds in enumerate(graph.phase_duration_s) if seconds is None]
    if not unknown:
        return workload, 0
    seconds, predictor = list(graph.phase_duration_s), predictor or Predictor()
    for phase in unknown:
        seconds[phase] = estimate_of(predictor, workload, phase)[0]
    return msgspec.structs.replace(workload, graph=msgspec.structs.replace(graph, phase_duration_s=seconds)), len(
        unknown
    )


def with_applied_limits(workload: LoadedWorkload, *, has_prices: bool = False) -> LoadedWorkload:
    """The workload without the limits that cannot be applied, one warning for each kind: nothing measures whether a
    task is idle, and without prices nothing costs anything."""
    options = workload.graph.options
    if any(one.idle_timeout_s is not None for one in options.values()):
        warn_once("idle_timeout_s is not applied: nothing measures yet whether a task is idle; use max_runtime_s")
        applied = {task: msgspec.structs.replace(one, idle_timeout_s=None) for task, one in options.items()}
        workload = msgspec.structs.replace(workload, graph=msgspec.structs.replace(workload.graph, options=applied))
    costs = [workload.max_cost, *(one.max_cost for one in options.values())]
    if not has_prices and any(cost is not None for cost in costs):
        warn_once(
            "max_cost is not applied: the simulated hardware has no prices; see egs simulate --gpu-price, --cluster"
        )
    return workload


def lower_bound_s(workloads: Sequence[LoadedWorkload], config: SimConfig) -> float:
    """LB2 from the first arrival, over the slots, or over CPUs and over GPUs apart, whichever is larger.

    The items are phases: each with what must come before and after it, its workload's arrival included.
    """
    first = min((w.arrival_s for w in workloads), default=0.0)
    items = [item for w in workloads for item in _phase_items(w.graph, w.arrival_s - first)]
    if config.slots:
        return _bound(items, [1000] * len(items), config.slots * 1000)
    cpu_milli = round(sum(node.cpus for node in config.nodes) * 1000)
    gpu_milli = sum(node.gpus for node in config.nodes) * 1000
    bounds = [_bound(items, [shape.cpu_milli for *_, shape in items], cpu_milli)]
    if gpu_milli:
        bounds.append(_bound(items, [shape.gpu_milli for *_, shape in items], gpu_milli))
    return max(bounds)


_Item = tuple[float, float, float, Shape]  # head, seconds, tail, shape


def _phase_items(graph: Graph, arrival_s: float) -> list[_Item]:
    seconds = task_durations(graph)
    head, tail = heads(graph, seconds), tails(graph, seconds)
    items: list[_Item] = []
    for task in range(graph.n_tasks):
        before, after = arrival_s + head[task], seconds[task] + tail[task]
        for phase in graph.phases_of(task):
            own = graph.phase_duration_s[phase] or 0.0
            after -= own
            items.append((before, own, max(after, 0.0), graph.shapes[graph.phase_shape[phase]]))
            before += own
    return items


def _bound(items: Sequence[_Item], milli: Sequence[int], capacity_milli: int) -> float:
    """LB2 where each item holds `milli` thousandths of one of `capacity_milli`."""
    head, own, tail = [item[0] for item in items], [item[1] for item in items], [item[2] for item in items]
    work = [seconds * held for seconds, held in zip(own, milli, strict=True)]
    return compute_bound(head, tail, work, max(capacity_milli, 1), durations_s=own).seconds


DURATIONS = ", ".join(d.value for d in Durations)


def known_durations(name: str) -> Durations:
    """InputError for an unknown word."""
    try:
        return Durations(name)
    except ValueError:
        raise InputError("--durations", f"unknown {name!r}", f"one of {DURATIONS}") from None
