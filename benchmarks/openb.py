"""The cluster and the pods of the packing suite: the openb trace from EGS_DATA, or a SYNTHETIC one, stated below."""

from __future__ import annotations

import csv
import os
import random
from collections.abc import Sequence
from pathlib import Path

from egs_core.engine import messages as m
from egs_core.errors import InputError
from egs_core.graph.columns import Shape

MIB, GIB = 1 << 20, 1 << 30
# SYNTHETIC: nodes of (CPUs, GiB, GPUs): how many; pods of (CPUs, GiB, GPUs): weight. Loosely a shared training cluster.
SYNTHETIC_NODES = {(96, 384, 8): 60, (96, 512, 2): 40, (64, 256, 4): 10, (16, 120, 2): 10}
SYNTHETIC_PODS = {
    (4, 16, 0.25): 15,
    (8, 32, 0.5): 15,
    (4, 8, 0.8): 12,
    (12, 48, 1.0): 30,
    (4, 24, 1.0): 8,
    (20, 64, 1.0): 5,
    (64, 256, 8.0): 2,
    (32, 128, 4.0): 1,
    (12, 24, 0.0): 12,
}


def read_problem(pods_file: str | None = None) -> tuple[list[m.NodeAdded], list[Shape], str]:
    """Nodes, pods, and where they are from. Raises InputError for files that are not there or not of the format."""
    folder = os.environ.get("EGS_DATA")
    if not folder:
        if pods_file:
            raise InputError("--pods", "needs the trace's nodes too", "set EGS_DATA to the folder of the data")
        return *synthetic_problem(), "SYNTHETIC cluster and mix of pods"
    gpu = Path(folder) / "gpu"
    path = Path(pods_file) if pods_file else gpu / "openb_pods.csv"
    return read_nodes(gpu / "openb_node_list_all_node.csv"), read_pods(path), f"openb, {path.name}"


def read_nodes(path: Path) -> list[m.NodeAdded]:
    """The trace's nodes that have GPUs; their models are left out."""
    nodes = []
    for row in _rows(path, ("sn", "cpu_milli", "memory_mib", "gpu")):
        if gpus := int(row["gpu"]):
            nodes.append(m.NodeAdded(row["sn"], int(row["cpu_milli"]) / 1000, gpus, int(row["memory_mib"]) * MIB))
    return nodes


def read_pods(path: Path) -> list[Shape]:
    """What each pod of the trace asks for."""
    rows = _rows(path, ("cpu_milli", "memory_mib", "num_gpu", "gpu_milli"))
    return [
        Shape(int(row["cpu_milli"]), int(row["gpu_milli"]) * int(row["num_gpu"]), int(row["memory_mib"]) * MIB)
        for row in rows
    ]


def _rows(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    try:
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
    except OSError as error:
        raise InputError(
            str(path), error.strerror or "cannot be read", "EGS_DATA names the folder of the data"
        ) from None
    if not rows or not set(columns) <= set(rows[0]):
        raise InputError(str(path), f"needs the columns {', '.join(columns)}")
    return rows


def synthetic_problem() -> tuple[list[m.NodeAdded], list[Shape]]:
    """See `SYNTHETIC_NODES` and `SYNTHETIC_PODS`; kinds of nodes are mixed."""
    kinds = [kind for kind, count in SYNTHETIC_NODES.items() for _ in range(count)]
    random.Random(0).shuffle(kinds)
    nodes = [m.NodeAdded(f"n{i}", cpus, gpus, gib * GIB) for i, (cpus, gib, gpus) in enumerate(kinds)]
    pods = [
        Shape(cpus * 1000, round(gpus * 1000), gib * GIB)
        for (cpus, gib, gpus), weight in SYNTHETIC_PODS.items()
        for _ in range(weight)
    ]
    return nodes, pods


def arrivals(pods: Sequence[Shape], gpus: int, up_to: float, rng: random.Random) -> list[Shape]:
    """All pods once, shuffled, then pods drawn with replacement, until `up_to` times the GPUs are asked for."""
    left = round(gpus * 1000 * up_to)
    once = rng.sample(pods, len(pods))
    out: list[Shape] = []
    while True:
        pod = once.pop() if once else rng.choice(pods)
        left -= pod.gpu_milli
        if left < 0:
            return out
        out.append(pod)
