"""`egs.work` on a real Ray: what tasks tell is in the run log, of a graph and of a script, and `egs cost` rates it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import ray
from ray.dag import MultiOutputNode

import egs_core as egs
import egs_ray
from egs_core.cli import app
from egs_core.runlog.io import read_run
from egs_core.runlog.records import Ended, TaskAdded, Work
from tests.conformance.ray import run_tasks as t

if TYPE_CHECKING:
    import subprocess

Script = Callable[..., "subprocess.CompletedProcess[str]"]


@ray.remote(max_retries=0)
@egs.task(gpus=1, cpus=0.1, name="fit")
def fit(tokens: int) -> int:
    egs.work(tokens=tokens)
    with egs.gpu():
        egs.work(tokens=tokens)
    return tokens


@ray.remote(num_cpus=0.1, max_retries=0)
def decode(images: int) -> int:
    egs.work(images=images)
    return images


def step(tokens: int) -> int:
    egs.work(tokens=tokens)
    return tokens


def told_in(log: Path) -> list[tuple[str, dict[str, float]]]:
    """What each task has told, by name; each of them is one that the log knows, and that has ended."""
    records = read_run(log).records
    names = {(record.workload, record.task): record.name for record in records if isinstance(record, TaskAdded)}
    ended = {(record.workload, record.task) for record in records if isinstance(record, Ended)}
    works = [record for record in records if isinstance(record, Work)]
    assert {(one.workload, one.task) for one in works} <= ended
    found = ((names[one.workload, one.task].rpartition(".")[2], one.amounts) for one in works)
    return sorted(found, key=lambda one: (one[0], sum(one[1].values())))


@pytest.mark.usefixtures("ray_address")
def test_tasks_of_a_graph_tell_of_their_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From a CPU task, from both sides of a GPU block, and from a GPU step of `egs.phases`; once each."""
    stepped: Any = ray.remote(max_retries=0)(
        egs.task(gpus=1, cpus=0.1)(egs.phases(step, egs.on_gpu(step), name="steps"))
    )
    nodes = [fit.bind(100), fit.bind(200), decode.bind(5), stepped.bind(7)]
    with t.session(tmp_path) as session:
        run = egs_ray.run(MultiOutputNode(nodes), session=session, name="told")
        assert run.get(t.LIMIT_S) == [100, 200, 5, 7]
    log = tmp_path / "run.jsonl"
    told = [
        ("decode", {"images": 5.0}),
        ("fit", {"tokens": 200.0}),
        ("fit", {"tokens": 400.0}),
        ("steps", {"tokens": 14.0}),
    ]
    assert told_in(log) == told
    assert app.run(["cost", str(log), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["per_unit"]
    assert {(row["task"], row["unit"]): (row["amount"], row["tasks"]) for row in rows} == {
        ("decode", "images"): (5.0, 1),
        ("fit", "tokens"): (600.0, 2),
        ("steps", "tokens"): (14.0, 1),
    }
    assert all(row["gpu_min"]["value"] > 0 for row in rows if row["unit"] == "tokens")


SCRIPT = """
import time
import ray, egs_core as egs
import egs_ray.install as hook

@ray.remote(num_gpus=1)
@egs.task(gpus=1)
def hinted(tokens):
    with egs.gpu():
        egs.work(tokens=tokens)

@ray.remote(num_gpus=1)
def plain(tokens):
    egs.work(tokens=tokens)

@ray.remote(num_gpus=1)
class Trainer:
    def fit(self, tokens):
        egs.work(tokens=tokens)

ray.init(log_to_driver=False)
ray.get([hinted.remote(3), hinted.remote(4), plain.remote(5)])
trainer = Trainer.remote()
ray.get([trainer.fit.remote(tokens) for tokens in (6, 7)])
deadline = time.monotonic() + 120
while not any({"tokens": 13.0} in one.worked.values() for one in list(hook.interceptor._desk._workers.values())):
    assert time.monotonic() < deadline
    time.sleep(0.05)
"""


def test_tasks_of_a_script_tell_of_their_work(run_script: Script, tmp_path: Path) -> None:
    """Under the hook in mode on, with hints and without, and in methods of an actor, which lives to the end."""
    done = run_script(SCRIPT, EGS_MODE="on")
    assert done.returncode == 0, done.stderr
    assert told_in(tmp_path / "log.jsonl") == [
        ("Trainer", {"tokens": 13.0}),
        ("hinted", {"tokens": 3.0}),
        ("hinted", {"tokens": 4.0}),
        ("plain", {"tokens": 5.0}),
    ]
