"""The demo's pipeline as Kubeflow's own pods, for `benchmarks.kubernetes`: compiled by kfp, whole or split by EGS.

A pod for each task and one for its driver, which Argo starts when what the task waits for has ended; a training that
is split is a DAG of three tasks with a driver of its own. What a phase takes is what the demo's takes
(`egs_kubeflow.demo`) times a seeded log-normal factor, the same where it is a task of its own and a part of one.
"""

from __future__ import annotations

import random
import re
from functools import cache

from benchmarks.kubernetes_world import Run, Task, ranked
from egs_core.graph.analysis import topological_order
from egs_kubeflow.convert.pipeline import Converted, convert
from egs_kubeflow.demo import times
from egs_kubeflow.demo.pipelines import hints, native

DRIVER_S = 0.2
PHASES = {
    "load": {"load": times.LOAD_S},
    "prepare": {"prepare": times.PREPARE_S},
    "train": {"before": times.DECODE_S, "gpu": times.FIT_S, "after": times.WRITE_S},
    "train-before": {"before": times.DECODE_S},
    "train-gpu": {"gpu": times.FIT_S},
    "train-after": {"after": times.WRITE_S},
    "evaluate": {"gpu": times.EVALUATE_S},
    "report": {"report": times.REPORT_S},
}
"""By component, what a task of it does, and how many seconds each takes; what is called gpu uses it."""


@cache
def compiled(split: bool) -> Converted:
    """As kfp has compiled it."""
    return convert(hints.digits if split else native.digits)


def digits(run: str, split: bool, factor: float = 1.0, sigma: float = 0.3) -> Run:
    """Its pods: drivers come before what they start. run: another one takes another time, and has an image of its own
    for what needs a GPU. factor: each takes so many times as long."""
    found = compiled(split)
    tasks: list[Task] = []
    executors: dict[int, int] = {}
    dags: dict[str, int] = {}

    def driver(path: str, parents: tuple[int, ...]) -> int:
        tasks.append(Task(parents, 0, 0.0, factor * DRIVER_S, path=path, is_driver=True))
        return len(tasks) - 1

    first = driver("root", ())
    for number in topological_order(found.graph):
        facts, path = found.facts[number], found.graph.ids[number]
        parents = tuple(executors[parent] for parent in found.graph.parents[number]) or (first,)
        group, _, name = path.rpartition(".")
        if group and group not in dags:
            dags[group] = driver(group, parents)
            parents = (dags[group],)
        phases = PHASES[re.sub(r"-\d+$", "", name)]
        took = {
            phase: factor * seconds * random.Random(f"{run}/{group or path}/{phase}").lognormvariate(0.0, sigma)
            for phase, seconds in phases.items()
        }
        gpus = round(facts.needs.gpus or 0)
        tasks.append(
            Task(
                (driver(path, parents),),
                gpus,
                factor * sum(phases.values()),
                sum(took.values()),
                used_s=took.get("gpu", 0.0),
                path=path,
                image=f"train:{run}" if gpus else "",
            )
        )
        executors[number] = len(tasks) - 1
    return ranked(tasks)
