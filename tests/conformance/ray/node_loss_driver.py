"""A driver that runs one of the graphs below, then another one: `node_loss_driver.py WAY FOLDER GRAPH`.

way `native`: `.remote()` calls; `run`: egs_ray.run. Each task leaves a line in FOLDER/marks. Prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.dag import MultiOutputNode

import egs_core as egs

LIMIT_S = 200.0
BYTES = 1_000_000  # too many for a value to travel with its reference: it lies on its node

Task = tuple[str, dict[str, Any], tuple[str, ...], tuple[str, ...]]  # name, options, parents, signals

GPU: dict[str, Any] = {"num_gpus": 1, "num_cpus": 0.1}
CPU: dict[str, Any] = {"num_cpus": 0.1}

GRAPHS: dict[str, list[Task]] = {
    # `use` needs the value of `warm`, whose node is gone by then, and with it that of `make`.
    "values": [
        ("make", GPU, (), ()),
        ("warm", GPU, ("make",), ()),
        ("gate", CPU, (), ("go",)),
        ("use", GPU, ("warm", "gate"), ()),
    ],
    # Two run, others wait behind them.
    "load": [
        *[(f"first{i}", GPU, (), ("go",)) for i in range(2)],
        *[(f"crowd{i}", GPU, (), ()) for i in range(6)],
        ("next", GPU, ("first0",), ()),
        ("last", CPU, ("next", "first1", "crowd0"), ()),
    ],
    "after": [("a", GPU, (), ()), ("b", GPU, (), ()), ("c", CPU, ("a", "b"), ())],
}


def function(name: str, folder: str, signals: tuple[str, ...], *, phased: bool) -> Callable[..., Any]:
    """Adds up what it gets."""

    def work(*values: Any) -> Any:
        node = ray.get_runtime_context().get_node_id()

        def mark(what: str) -> None:
            with Path(folder, "marks").open("a") as marks:
                marks.write(json.dumps({"task": name, "node": node, "what": what}) + "\n")

        mark("begin")
        while not all(Path(folder, signal).exists() for signal in signals):
            time.sleep(0.02)
        mark("end")
        return np.full(BYTES // 8, 1.0 + sum(float(value[0]) for value in values))

    def decode(*values: Any) -> Any:
        return values

    def fit(values: Any) -> Any:
        return work(*values)

    work.__name__ = name
    if phased:
        return egs.phases(decode, egs.on_gpu(fit), name=name)
    return work


def remotes(graph: str, folder: str, way: str) -> dict[str, Any]:
    made = {}
    for name, options, _, signals in GRAPHS[graph]:
        hinted = way == "run" and "num_gpus" in options
        task = function(name, folder, signals, phased=hinted and name in ("first0", "next"))
        if hinted and name in ("warm", "first1", "crowd0"):
            task = egs.task(preload=[egs.modules("wave")], expect=0.2)(task)
        made[name] = ray.remote(**options, max_retries=3)(task)
    return made


def run(graph: str, folder: str, way: str) -> list[float]:
    functions, made = remotes(graph, folder, way), dict[str, Any]()
    for name, _, parents, _ in GRAPHS[graph]:
        bind = functions[name].bind if way == "run" else functions[name].remote
        made[name] = bind(*(made[parent] for parent in parents))
    needed = {parent for _, _, parents, _ in GRAPHS[graph] for parent in parents}
    leaves = [value for name, value in made.items() if name not in needed]
    if way == "native":
        made.clear()
        return [float(value[0]) for value in ray.get(leaves, timeout=LIMIT_S)]
    import egs_ray

    return [float(value[0]) for value in egs_ray.run(MultiOutputNode(leaves), name=graph).get(LIMIT_S)]


def main(way: str, folder: str, graph: str) -> None:
    ray.init(log_to_driver=False)
    found: dict[str, Any] = {}
    for each in (graph, "after"):
        began = time.time()
        try:
            found[each] = run(each, folder, way)
        except Exception as error:
            found[each] = f"{type(error).__name__}: {error}"
        found[f"{each}_s"] = time.time() - began
    print("RESULT", json.dumps(found), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
