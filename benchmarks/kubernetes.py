"""Pipelines as pods of a full cluster: on the scheduler alone, with Kueue, with EGS, with both, by completion times.

    EGS_TEST_KUBECONFIG=FILE python -m benchmarks.kubernetes [--suite forms] [--runs 24] [--rounds 2] [--gpus 4]
        [--times 1] [--pull 0] [--limit 1800] [--sides native,kueue,egs,egs-kueue] [--json]

A real API server with its scheduler, and Kueue where it is installed; nodes and their kubelet are made up here, so pods
run for as long as they should and no container does. All runs are there at once. What makes their pods stands in for a
pipeline's own controller: a pod for each task whose parents have ended. It labels them with the rank and duration that
a compiler would have known: the median; what a task takes is that times a seeded log-normal factor (sigma 0.3).

Suites: forms: a run is one of four, each with CPU tasks and tasks of one GPU. digits: each is the demo's pipeline as
Kubeflow's own pods, drivers too (`kubernetes_digits`), as kfp has compiled it. mixed: both in turn.

    chain    prepare ─► fit ─► fit ─► fit ─► report        wide    prepare ─► 8 fits side by side ─► report
    deep     6 fits in a row ─► report                     large   prepare ─► 20 short fits and a long one ─► merge

Sides: native, kueue: no labels of EGS; egs: behind its gate; egs-kueue: in the queue, whose Workloads EGS raises. Each
may have `-split` (digits: a training in three tasks, of which one holds a GPU), and egs, egs-split `-preload` (images
are loaded ahead; --pull: so many seconds takes one that a node lacks). The order of submission changes with the round,
sides take turns. An inversion: a GPU pod gets its node while another one of its run has waited for longer than a second
and has more than 1.1 times as much of the run behind it. Idle: the share of the GPUs' time until the last run's end
that nothing used; wasted: the share of the time in which pods held them. Kueue admits a few pods a second where it has
little processor: more seconds a task (--times) and fewer GPUs a node (--gpus) measure the order, and not that. A side
that has not ended after --limit seconds is given up, and it is said what each pod waits for.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import random
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.kubernetes_world import LIMIT_S, READY_S, Outcome, Run, Side, Task, World, ranked
from egs_core.errors import InputError
from egs_core.kubernetes.cluster import Cluster
from egs_core.kubernetes.controller import Controller
from egs_core.kubernetes.settings import Settings

ON = ("native", "kueue", "egs", "egs-kueue")
SIDES = (*ON, *(f"{on}-split" for on in ON), "egs-preload", "egs-split-preload")
SUITES = ("forms", "digits", "mixed")
SIGMA, SEED = 0.3, 1
FORMS = ("chain", "wide", "deep", "large")


def run_of(form: str, rng: random.Random, times: float = 1.0) -> Run:
    """One run. Tasks come after their parents. times: each takes so many times as long."""
    tasks: list[Task] = []

    def add(parents: Sequence[int], gpus: int, median_s: float) -> int:
        predicted = times * median_s * rng.uniform(0.7, 1.3)
        tasks.append(Task(tuple(parents), gpus, predicted, predicted * rng.lognormvariate(0.0, SIGMA)))
        return len(tasks) - 1

    if form == "chain":
        last = add((), 0, 1.0)
        for _ in range(3):
            last = add((last,), 1, 2.0)
        add((last,), 0, 0.5)
    elif form == "deep":
        last = add((), 1, 2.0)
        for _ in range(5):
            last = add((last,), 1, 2.0)
        add((last,), 0, 0.5)
    elif form == "wide":
        first = add((), 0, 1.0)
        add([add((first,), 1, 2.5) for _ in range(8)], 0, 0.5)
    else:
        first = add((), 0, 1.0)
        short = [add((first,), 1, 1.5) for _ in range(20)]
        add([*short, add((first,), 1, 8.0)], 0, 1.0)
    return ranked(tasks)


def suite(runs: int, number: int, times: float = 1.0, kind: str = "forms", split: bool = False) -> list[Run]:
    """The runs of a round, in the order in which they are submitted: the same on each side, but for what is split."""
    rng = random.Random(SEED + number)
    forms = itertools.cycle(FORMS)
    found: list[Run] = []
    for at in range(runs):
        if kind == "forms" or (kind == "mixed" and at % 2):
            found.append(run_of(next(forms), rng, times))
        else:
            from benchmarks.kubernetes_digits import digits  # needs kfp, which the other suite does not

            found.append(digits(f"{number}-{at}", split, times, SIGMA))
    rng.shuffle(found)
    return found


def side_of(name: str) -> Side:
    """What is in it."""
    parts = name.split("-")
    return Side(*(part in parts for part in ("egs", "kueue", "split", "preload")))


def _control(kubeconfig: Path, name: str, pull_s: float, leads: Event, ended: Event) -> None:
    """A controller of EGS, as the cluster's administrator, until that is so. pull_s: images are loaded ahead, each of
    which takes so long; 0: none is. leads: set when it goes round."""
    settings = Settings((name,), lease_namespace=name, identity="bench", preloads=pull_s > 0, pull_s=pull_s)
    found = Controller(Cluster(kubeconfig), settings, lambda line: print(f"egs: {line}", file=sys.stderr))
    thread = threading.Thread(target=found.run, daemon=True)
    thread.start()
    while not (found.is_healthy or ended.wait(0.1)):
        pass
    leads.set()
    ended.wait()
    found.stop()
    thread.join(60)
    print(f"egs: {time.process_time():.1f} s of processor time", file=sys.stderr)


@contextmanager
def _ordered(kubeconfig: Path, world: World, side: Side, pull_s: float) -> Iterator[None]:
    """With a controller in a process of its own, where the side has one: it leads before the first pod is there."""
    if not side.egs:
        yield
        return
    spawned = multiprocessing.get_context("spawn")
    leads, ended = spawned.Event(), spawned.Event()
    process = spawned.Process(target=_control, args=(kubeconfig, world.name, pull_s, leads, ended))
    process.start()
    try:
        if not leads.wait(READY_S):
            raise SystemExit(f"no controller leads after {READY_S:.0f} s")
        yield
    finally:
        ended.set()
        process.join(90)


def measure(
    kubeconfig: Path, name: str, runs: Sequence[Run], number: int, gpus: int, pull_s: float, limit_s: float
) -> Outcome:
    """One side in one round. gpus: of a node."""
    outcome, side = Outcome(name, number), side_of(name)
    world = World(kubeconfig, side, runs, outcome, gpus, pull_s, limit_s)
    try:
        world.set_up()
        with _ordered(kubeconfig, world, side, pull_s if side.preload else 0.0):
            world.run()
    finally:
        world.tear_down()
    return outcome


def summarise(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """A row a side: means of the rounds, and of the ratios within a round to the native one and to Kueue alone."""
    rows = []
    for side in dict.fromkeys(one.side for one in outcomes):
        mine = [one for one in outcomes if one.side == side]
        row = {
            "side": side,
            "rounds": len(mine),
            "mean_completion_s": statistics.fmean(one.mean_s for one in mine),
            "makespan_s": statistics.fmean(one.makespan_s for one in mine),
            "inversions": sum(one.inversions for one in mine),
            "gpu_pods": sum(one.gpu_pods for one in mine),
            "idle": statistics.fmean(one.idle for one in mine),
            "wasted": statistics.fmean(1 - one.used_s / one.held_s if one.held_s else 0.0 for one in mine),
        }
        for other in ("native", "kueue"):
            against = {one.round: one.mean_s for one in outcomes if one.side == other}
            if against:
                row[f"{other}_over"] = statistics.fmean(against[one.round] / one.mean_s for one in mine)
        rows.append(row)
    return rows


def show(rows: Sequence[dict[str, Any]]) -> None:
    table = Table(box=None, pad_edge=False)
    heads = (
        "side",
        "mean completion s",
        "native over it",
        "Kueue over it",
        "makespan s",
        "idle",
        "wasted",
        "inversions",
        "GPU pods",
    )
    for head in heads:
        table.add_column(head, justify="left" if head == "side" else "right")
    for row in rows:
        ratios = [f"{row[name]:.2f}" if name in row else "" for name in ("native_over", "kueue_over")]
        table.add_row(
            row["side"], f"{row['mean_completion_s']:.1f}", *ratios, f"{row['makespan_s']:.1f}", f"{row['idle']:.0%}",
            f"{row['wasted']:.0%}", str(row["inversions"]), str(row["gpu_pods"]),
        )  # fmt: skip
    Console().print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--gpus", type=int, default=4, help="of each of the two nodes")
    parser.add_argument("--times", type=float, default=1.0, help="so many times as long takes each task")
    parser.add_argument("--pull", type=float, default=0.0, help="seconds that an image of a GPU task takes to pull")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds in which a side has to end")
    parser.add_argument("--suite", choices=SUITES, default="forms")
    parser.add_argument("--sides", default=",".join(ON))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    sides = options.sides.split(",")
    if unknown := [one for one in sides if one not in SIDES]:
        raise InputError("--sides", f"{unknown[0]!r} is none of {', '.join(SIDES)}")
    if not options.pull and (loaded := [one for one in sides if "preload" in one]):
        raise InputError("--sides", f"{loaded[0]} loads images ahead, and they take no time", "give --pull SECONDS")
    file = os.environ.get("EGS_TEST_KUBECONFIG", "")
    if not file:
        raise InputError("EGS_TEST_KUBECONFIG", "names no kubeconfig of a cluster for tests")
    outcomes = []
    for number in range(options.rounds):
        turn = number % len(sides)
        for side in (*sides[turn:], *sides[:turn]):
            runs = suite(options.runs, number, options.times, options.suite, "split" in side)
            outcomes.append(measure(Path(file), side, runs, number, options.gpus, options.pull, options.limit))
            found = outcomes[-1]
            print(f"round {number} {side}: mean {found.mean_s:.1f} s, all {found.makespan_s:.1f} s", file=sys.stderr)
    rows = summarise(sorted(outcomes, key=lambda one: sides.index(one.side)))
    if options.json:
        print(json.dumps({"suite": options.suite, "runs": options.runs, "rows": rows}))
    else:
        show(rows)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except InputError as error:
        sys.exit(str(error))
