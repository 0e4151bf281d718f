"""A driver process of the conformance suite: `pipeline_driver.py WAY FOLDER BROKEN` runs FOLDER/pipeline.json.

way `script`: `.remote()` calls as in a script that knows no EGS; `hinted`: the same with hints on the functions; `run`:
egs_ray.run. Prints one line for its bench.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import psutil
import ray
from ray._private.state import actors, state
from ray.dag import MultiOutputNode

from egs_core.testing.conformance import body
from egs_core.testing.conformance.pipeline import Pipeline
from egs_core.testing.wire_site import look_behind
from tests.conformance.ray.killing import kill_board
from tests.conformance.ray.pipeline_tasks import describe, remote_functions

LIMIT_S = 150.0


class Hidden:
    """References where nobody looks for them."""

    def __init__(self, refs: list[Any]) -> None:
        self.refs = refs


def main(way: str, folder: str, broken: str) -> None:
    pipeline = msgspec.json.decode(Path(folder, "pipeline.json").read_bytes(), type=Pipeline)
    path = {"worker": "without", "uninstalled": "packages"}.get(broken)  # of workers; else they have the tests' own
    environment = {"env_vars": {"PYTHONPATH": os.path.join(folder, path)}} if path else None
    ray.init(log_to_driver=False, runtime_env=environment)
    if broken in ("engine", "process"):
        threading.Thread(target=_break_on_signal, args=(folder, broken), daemon=True).start()
    values: dict[str, str] = {}
    error = ""
    try:
        got = _run(pipeline, folder, hinted=not broken) if way == "run" else _submit(pipeline, folder, broken, way)
        values = dict(zip(pipeline.leaves, got, strict=True))
    except ray.exceptions.RayError as failure:
        error = describe(failure)
    submitted = _submitted(pipeline) if way == "script" else []
    print("RESULT", json.dumps({"values": values, "error": error, "submitted": submitted}), flush=True)


def _submit(pipeline: Pipeline, folder: str, broken: str, way: str) -> list[str]:
    functions, refs = remote_functions(pipeline, folder, hinted=way == "hinted"), dict[str, Any]()
    for task in pipeline.tasks:
        parents = [refs[parent] for parent in task.after]
        if broken == "graph":
            refs[task.name] = _with_hidden_parents(functions[task.name]).remote(Hidden(parents))
        else:
            refs[task.name] = functions[task.name].remote(*parents)
    return list(ray.get([refs[name] for name in pipeline.leaves], timeout=LIMIT_S))


def _run(pipeline: Pipeline, folder: str, *, hinted: bool) -> list[str]:
    import egs_ray

    functions, nodes = remote_functions(pipeline, folder, hinted=hinted), dict[str, Any]()
    for task in pipeline.tasks:
        nodes[task.name] = functions[task.name].bind(*(nodes[parent] for parent in task.after))
    run = egs_ray.run(MultiOutputNode([nodes[name] for name in pipeline.leaves]), name=pipeline.name)
    return list(run.get(LIMIT_S))


def _with_hidden_parents(remote: Any) -> Any:
    inner = remote._function

    def hiding(hidden: Any) -> Any:
        return inner(*ray.get(hidden.refs))

    hiding.__name__ = hiding.__qualname__ = inner.__name__
    return ray.remote(**remote._default_options)(hiding)


def _break_on_signal(folder: str, how: str) -> None:
    from egs_ray import install

    while not Path(folder, f"signal-{how}").exists():
        time.sleep(0.01)
    gate: Any = getattr(install.interceptor, "_gate", None)
    if how == "engine":

        def broken(*_: Any) -> Any:
            raise RuntimeError("injected")

        look_behind(gate.site, lambda engine: setattr(engine, "handle", broken))
    else:
        kill_board(gate.tickets._promises)
    body.signal(folder, f"{how}.done")


def _submitted(pipeline: Pipeline) -> list[str]:
    """What Ray got of this driver, and what runs for it beside Ray's own processes."""
    deadline = time.monotonic() + 120.0
    while len(rows := _rows()) < len(pipeline.tasks) and time.monotonic() < deadline:
        time.sleep(0.05)
    children = [child for child in psutil.Process().children(recursive=True) if "ray" not in child.name()]
    return [*rows, f"{len(actors(job_id=ray.JobID.from_hex(_job())))} actors", f"{len(children)} child processes"]


def _rows() -> list[str]:
    found = []
    for task in state._get_all_task_events():
        info = task.task_info
        if task.job_id.hex() == _job() and task.attempt_number == 0 and info.type != 3:
            needs = dict(sorted(info.required_resources.items()))
            found.append(f"{info.type} {info.name} {needs} {info.runtime_env_info.serialized_runtime_env}")
    return sorted(found)


def _job() -> str:
    return str(ray.get_runtime_context().get_job_id())


if __name__ == "__main__":
    main(*sys.argv[1:])
