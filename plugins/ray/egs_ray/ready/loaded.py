"""What the worker processes of a cluster import before their first task: a worker of each node is asked by a task, for
Ray tells it nowhere else. It takes a driver, so it is a program of its own: `python -m egs_ray.ready.loaded HOST:PORT`.
"""

# mypy: disable-error-code="untyped-decorator"
# Ray's types are not followed (see pyproject.toml), so its decorators have none.

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from threading import Event

import msgspec

from egs_core.errors import listed

OPTION = "--worker-preload-modules"
"""With which a raylet that has such modules starts each worker (Ray's `default_worker.py`)."""
MOST_NODES = 16
ANSWER_S, MOST_S, LOOK_S = 20.0, 60.0, 0.1
OWN = ("EGS_", "RAY_RUNTIME_ENV_HOOK")
"""What the names of variables begin with that would have EGS look at this driver."""
NOTHING = "what stands ready there has nothing loaded"


def told_of(address: str, stop: Event) -> list[str]:
    """Lines for the user; none where no worker has answered, or this host has no node. Ends soon after `stop`."""
    command = [sys.executable, "-W", "ignore", "-m", "egs_ray.ready.loaded", address]
    plain = {name: value for name, value in os.environ.items() if not name.startswith(OWN)}
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, env=plain, stdin=quiet, stdout=subprocess.PIPE, stderr=quiet) as asking:
        try:
            for _ in range(int(MOST_S / LOOK_S)):
                if asking.poll() is not None or stop.wait(LOOK_S):
                    break
        finally:
            asking.kill()
        found = asking.stdout.read() if asking.stdout is not None else b""
    try:
        return lines_of(msgspec.json.decode(found, type=dict[str, str | None]))
    except msgspec.DecodeError:
        return []


def lines_of(told: Mapping[str, str | None]) -> list[str]:
    """told: by node the modules that its workers import, "" for none, None where a worker cannot tell.

    >>> lines_of({"0a1b2c3d4e": "torch", "5f6a7b8c9d": ""})[1]
    'node 5f6a7b8c was started without RAY_preload_python_modules: what stands ready there has nothing loaded'
    """
    named = sorted({modules for modules in told.values() if modules})
    without = [node[:8] for node, modules in told.items() if modules == ""]
    lines = [f"they import {' or '.join(named)}, as Ray was told"] if named else []
    if without:
        those = f"{'node' if len(without) == 1 else 'nodes'} {listed(without)}" if named else "Ray"
        was = "were" if named and len(without) > 1 else "was"
        lines.append(f"{those} {was} started without RAY_preload_python_modules: {NOTHING}")
    return lines


def own_modules() -> str | None:
    """In a worker: what this one was told to import."""
    with open(sys.argv[0], encoding="utf-8") as program:
        if OPTION not in program.read():
            return None  # another version of Ray has another way
    return next((word.partition("=")[2] for word in sys.argv if word.startswith(OPTION)), "")


def main(address: str) -> None:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    task = ray.remote(num_cpus=0, max_retries=0)(own_modules)
    nodes = [str(node["NodeID"]) for node in ray.nodes() if node["Alive"]][:MOST_NODES]
    asked = {
        task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(): node
        for node in nodes
    }
    answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=ANSWER_S)
    told = {asked[one]: ray.get(one) for one in answered}
    sys.stdout.write(msgspec.json.encode(told).decode())


if __name__ == "__main__":
    main(*sys.argv[1:])
