"""Single DAGs: how close each order comes to the lower bound on the makespan, one workload alone on equal slots.

    EGS_DATA=DIR python -m benchmarks.single_dags --slots 4,8,16,32 --json FILE --plot FILE.png

Instances are the WfFormat files in DIR/workflows and DIR/workflows-generated (DIR: --data, else EGS_DATA), named as
they are; without them, or beside them with --generated, graphs from wfcommons' generators, seeded. Every task takes one
slot. The bound is the better of LB2 and the pigeonhole bound; it knows no network. Sides:

    egs, egs-plain        the shipped order, with and without the look-ahead (the ablation)
    fifo, sjf, heft, …    the engine's other policies
    saga-heft, saga-cpop, dask-order, b-level    plans of others, replayed here (`single_dags_peers`), exact only

exact: the engine is told the trace's durations. predicted: what a predictor says that has seen all other instances and
of this one what has ended so far in the run: durations of phases that have ended, sizes of files that are written.
blind: nothing.
"""

from __future__ import annotations

import argparse
import logging
import os
import pickle
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from benchmarks.plots import drawing_library, is_printed
from benchmarks.single_dags_figures import (
    NETWORKS,
    OWN,
    Run,
    claims_of,
    plot,
    show,
    summarise,
    worst_of,
)
from benchmarks.single_dags_instances import Instance, differs_from_named, load_instances
from benchmarks.single_dags_peers import PEERS, SAGA, Case, missing_peers, plan_of, replay
from egs_core.engine import EngineConfig
from egs_core.errors import InputError
from egs_core.graph.bounds import lower_bound, makespan_bound
from egs_core.graph.columns import Shape
from egs_core.graph.load import LoadedWorkload
from egs_core.predict import Predictor
from egs_core.predict.live import LiveBeliefs
from egs_core.sim import Durations, SimConfig, SimNode, simulate

KNOWS_NOTHING = frozenset({"fifo", "airflow-downstream", "random"})  # the same whatever the engine is told
PIPELINE = "w1"  # one for all: what a category is called is all that instances share
DISAGREE = 1e-6  # of a makespan: a peer's own figure and its replay may differ by rounding


class Options(msgspec.Struct, frozen=True):
    """placements: budget of the look-ahead. saga_largest: tasks up to which SAGA plans (milliseconds a task)."""

    slots: tuple[int, ...] = (4, 8, 16, 32)
    networks: tuple[str, ...] = ("instant",)
    durations: tuple[str, ...] = tuple(d.value for d in Durations)
    placements: int = EngineConfig().search_placements
    peers: bool = True
    saga_largest: int = 500


def measure(instances: Sequence[Instance], options: Options) -> list[Run]:
    """Every instance on every number of slots and network, under every side."""
    runs: list[Run] = []
    peers = [peer for peer in PEERS if options.peers and peer not in missing_peers()]
    for number, instance in enumerate(instances):
        started = time.perf_counter()
        case = Case.of(instance.workload.graph)
        is_asked = Durations.PREDICTED in options.durations
        learned = pickle.dumps(learned_without(instances, number) if is_asked else Predictor())
        for slots in options.slots:
            bounds = makespan_bound(case.graph, slots, case.seconds), lower_bound(case.graph, slots, case.seconds)
            for network in options.networks:
                found = own_sides(instance.workload, slots, network, learned, options)
                if Durations.EXACT in options.durations:
                    found += peer_sides(peers, case, slots, network, options)
                for durations, side, makespan, wall in found:
                    ratio, lb2_ratio = (makespan / bound if bound else 1.0 for bound in bounds)
                    runs.append(Run(instance.name, network, durations, slots, side, makespan, ratio, lb2_ratio, wall))
        took = time.perf_counter() - started
        print(f"{instance.name}: {case.graph.n_tasks} tasks, {took:.1f} s", file=sys.stderr)
    return runs


Found = tuple[str, str, float, float]  # durations, side, makespan, wall seconds


def own_sides(workload: LoadedWorkload, slots: int, network: str, learned: bytes, options: Options) -> list[Found]:
    """The engine under each policy and each kind of knowledge. learned: a pickled predictor; each run has a copy."""
    found: list[Found] = []
    single = one_cpu_each(workload)
    for side, policy in OWN.items():
        makespan = wall = 0.0
        for number, durations in enumerate(options.durations):
            if not number or policy not in KNOWS_NOTHING:
                config = SimConfig(
                    nodes=tuple(SimNode(f"m{i}", 1.0) for i in range(slots)) if NETWORKS[network] else (),
                    slots=0 if NETWORKS[network] else slots,
                    policy=policy,
                    durations=Durations(durations),
                    bandwidth_bytes_per_s=NETWORKS[network],
                    search_placements=options.placements if side == "egs" else 0,
                    records=False,
                )
                beliefs = LiveBeliefs(pickle.loads(learned), single.graph, PIPELINE)
                started = time.perf_counter()
                makespan = simulate([single], config, beliefs.believe, learner=beliefs.learn).makespan_s
                wall = time.perf_counter() - started
            found.append((durations, side, makespan, wall))
    return found


def one_cpu_each(workload: LoadedWorkload) -> LoadedWorkload:
    """Every task takes one slot, also where slots are nodes."""
    graph = msgspec.structs.replace(workload.graph, shapes=[Shape()], phase_shape=[0] * workload.graph.n_phases)
    return msgspec.structs.replace(workload, graph=graph)


def peer_sides(peers: Sequence[str], case: Case, slots: int, network: str, options: Options) -> list[Found]:
    """Each peer's plan, replayed. RuntimeError when its own figure is not what its plan gives."""
    found: list[Found] = []
    bandwidth = NETWORKS[network]
    for peer in peers:
        if peer in SAGA and case.graph.n_tasks > options.saga_largest:
            continue
        started = time.perf_counter()
        plan = plan_of(peer, case, slots, bandwidth)
        wall = time.perf_counter() - started
        again = replay(case, plan.machines, bandwidth, "beside" if peer in SAGA else "held")
        if abs(again - plan.makespan_s) > DISAGREE * max(plan.makespan_s, 1e-3):
            raise RuntimeError(f"{peer} says {plan.makespan_s} s, its plan takes {again} s")
        found.append((Durations.EXACT, peer, replay(case, plan.machines, bandwidth, "held"), wall))
    return found


def learned_without(instances: Sequence[Instance], left_out: int) -> Predictor:
    """What all other instances teach, in their order; tasks of one category share a signature."""
    predictor = Predictor()
    for number, instance in enumerate(instances):
        if number != left_out:
            graph = one_cpu_each(instance.workload).graph
            beliefs = LiveBeliefs(predictor, graph, PIPELINE)
            for task, seconds in enumerate(graph.phase_duration_s):
                if seconds is not None:
                    beliefs.observe(task, seconds)
    return predictor


def result_of(instances: Sequence[Instance], options: Options) -> dict[str, Any]:
    """Everything as one JSON object."""
    started = time.perf_counter()
    runs = measure(instances, options)
    rows = summarise(runs)
    return {
        "suite": "single_dags",
        "options": msgspec.to_builtins(options),
        "instances": {i.name: i.workload.graph.n_tasks for i in instances},
        "not_as_named": differs_from_named(instances),
        "missing": missing_peers() if options.peers else {},
        "rows": rows,
        "claims": claims_of(rows),
        "worst": worst_of(runs),
        "runs": msgspec.to_builtins(runs),
        "seconds": round(time.perf_counter() - started, 1),
    }


# --- the command ---


def options_of(arguments: argparse.Namespace) -> Options:
    """InputError for what is no number of slots, network or kind of knowledge."""
    try:
        slots = tuple(int(part) for part in arguments.slots.split(","))
    except ValueError:
        slots = (0,)
    if min(slots) < 1:
        raise InputError("--slots", f"{arguments.slots!r} is no list of whole numbers above 0", "--slots 4,8,16,32")
    networks = _known("--networks", arguments.networks, list(NETWORKS))
    durations = _known("--durations", arguments.durations, [d.value for d in Durations])
    return Options(slots, networks, durations, arguments.placements, not arguments.no_peers, arguments.saga_largest)


def _known(place: str, text: str, known: Sequence[str]) -> tuple[str, ...]:
    words = tuple(text.split(","))
    for word in words:
        if word not in known:
            raise InputError(place, f"unknown {word!r}", f"of {', '.join(known)}")
    return words


def parser() -> argparse.ArgumentParser:
    defaults = Options()
    p = argparse.ArgumentParser(prog="python -m benchmarks.single_dags", description=(__doc__ or "").splitlines()[0])
    p.add_argument("--data", default=os.environ.get("EGS_DATA"), help="folder with workflows/ (default: EGS_DATA)")
    p.add_argument("--generated", action="store_true", help="graphs of wfcommons' generators too, beside the data")
    p.add_argument("--largest", type=int, default=2000, help="leave out instances with more tasks (default 2000)")
    p.add_argument("--slots", default=",".join(map(str, defaults.slots)))
    p.add_argument("--networks", default=",".join(defaults.networks), help=f"of {', '.join(NETWORKS)}")
    p.add_argument("--durations", default=",".join(defaults.durations))
    p.add_argument("--placements", type=int, default=defaults.placements, help="budget of the look-ahead")
    p.add_argument("--no-peers", action="store_true", help="only the engine's own policies")
    p.add_argument("--saga-largest", type=int, default=defaults.saga_largest, help="tasks up to which SAGA plans")
    p.add_argument("--json", nargs="?", const="-", metavar="FILE", help="the result as JSON, to stdout or a file")
    p.add_argument("--plot", type=Path, metavar="FILE.png")
    return p


def main() -> int:
    arguments = parser().parse_args()
    logging.disable(logging.WARNING)  # SAGA warns of every graph with several sources
    try:
        options = options_of(arguments)
        if arguments.plot:
            drawing_library()  # before the long part
        result = result_of(load_instances(arguments.data, arguments.largest, arguments.generated), options)
        if arguments.plot:
            plot(result, arguments.plot)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    if not is_printed(result, arguments.json):
        show(result, Console(width=240))
    return 0


if __name__ == "__main__":
    sys.exit(main())
