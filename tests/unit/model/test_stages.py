"""A split as a workload: stages without a cycle, nothing lost of bytes and seconds, and the engine runs it."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egs_core.cli.app import run
from egs_core.graph.load import load_workload
from egs_core.graph.validate import validate
from egs_core.model import Instance
from egs_core.model.loss import busy_s, used_bytes
from egs_core.model.stages import stages_of, workload_of
from tests.unit.model.instances import instance_of, instances

DIAMOND = instance_of(
    [100, 200, 300, 400], [1.0, 2.0, 3.0, 4.0], [(0, 1, 10), (0, 2, 20), (1, 3, 30), (2, 3, 40)], [(1000, 1.0)] * 2
)


def test_the_stages_of_a_diamond() -> None:
    """Worked out by hand: a and b are one stage of the first device, d is another behind c, and what c and b hand on
    are files."""
    workload = workload_of(DIAMOND, [0, 0, 1, 0], "request", "net")
    assert [task.id for task in workload.tasks] == ["gpu0.0", "gpu1.1", "gpu0.2"]
    assert [task.parents for task in workload.tasks] == [(), ("gpu0.0",), ("gpu0.0", "gpu1.1")]
    assert [task.phases[0].duration_s for task in workload.tasks] == [3.0, 3.0, 4.0]
    assert [task.phases[0].gpu_memory for task in workload.tasks] == [300, 300, 400]
    assert {file.id: file.size_bytes for file in workload.files} == {
        "gpu0.0 to gpu1.1": 20,
        "gpu0.0 to gpu0.2": 30,
        "gpu1.1 to gpu0.2": 40,
    }
    assert workload.tasks[2].inputs == ("gpu0.0 to gpu0.2", "gpu1.1 to gpu0.2")
    assert workload.tasks[0].outputs == ("gpu0.0 to gpu1.1", "gpu0.0 to gpu0.2")


def test_a_model_that_serves_is_a_gang() -> None:
    """A task for each device in use, of one gang, with the memory of all of its operators."""
    workload = workload_of(DIAMOND, [0, 0, 1, 0], "stream", "net")
    assert [(task.id, task.gang, task.phases[0].gpu_memory) for task in workload.tasks] == [
        ("gpu0", "net", 700),
        ("gpu1", "net", 300),
    ]
    validate(workload.to_graph())


@given(instances(), st.randoms(use_true_random=False))
def test_nothing_is_lost(instance: Instance, rng: random.Random) -> None:
    """Of any split: a graph without a cycle, in which each device's stages have its bytes and seconds together, and
    every edge is inside a stage or goes to a higher level."""
    width = len(instance.devices.devices)
    assignment = [rng.randrange(width) for _ in instance.operators.ids]
    workload = workload_of(instance, assignment, "request", "net")
    validate(workload.to_graph())
    stages = stages_of(instance, assignment)
    assert all(stages[i] == stages[j] or stages[i][0] < stages[j][0] for i, j, _ in instance.operators.edges)
    for d, device in enumerate(instance.devices.devices):
        mine = [task.phases[0] for task in workload.tasks if task.id.rpartition(".")[0] == device.name]
        assert sum(phase.gpu_memory for phase in mine) == used_bytes(instance, assignment)[d]
        assert sum(phase.duration_s or 0.0 for phase in mine) == pytest.approx(busy_s(instance, assignment)[d])


def test_the_engine_runs_what_the_command_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--workload OUT`, then `egs simulate OUT`: a chain over two devices takes its four seconds."""
    nodes = [{"id": f"layer{i}", "bytes": "2GiB", "seconds": 1.0} for i in range(4)]
    edges = [{"from": f"layer{i}", "to": f"layer{i + 1}", "bytes": 1000} for i in range(3)]
    (tmp_path / "model.json").write_text(json.dumps({"nodes": nodes, "edges": edges}))
    devices = "devices: [{name: a, memory: 5GiB}, {name: b, memory: 5GiB}]\nlink_bytes_s: 1000\n"
    (tmp_path / "devices.yaml").write_text(devices)
    command = ["split-model", str(tmp_path / "model.json"), "--devices", str(tmp_path / "devices.yaml"), "--json"]
    assert run([*command, "--workload", str(tmp_path / "stages.json")]) == 0
    latency_s = json.loads(capsys.readouterr().out)["latency_s"]
    simulated = [
        "simulate",
        str(tmp_path / "stages.json"),
        "--cpus",
        "2",
        "--gpus",
        "1",
        "--nodes",
        "2",
        "--bandwidth",
        "1000",
    ]
    assert run([*simulated, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert latency_s == pytest.approx(5.0)  # four operators, and one transfer
    assert found["makespan_s"] == pytest.approx(4.0)  # nothing to transfer: the second stage goes where its input is
    assert run([*command, "--workload", str(tmp_path / "gone" / "stages.json")]) == 2
    assert "--workload: " in capsys.readouterr().err


def test_a_gang_is_read_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is written for a stream is a workload of two tasks; nothing is written where the model does not fit."""
    (tmp_path / "model.json").write_text(
        json.dumps({"nodes": [{"id": name, "bytes": 100, "seconds": 1.0} for name in "ab"]})
    )
    devices, written = tmp_path / "devices.yaml", tmp_path / "gang.json"
    command = ["split-model", str(tmp_path / "model.json"), "--devices", str(devices), "--objective", "stream"]
    text = "devices: [{{name: x, memory: {0}}}, {{name: y, memory: {0}}}]\nlink_bytes_s: 1000\n"
    devices.write_text(text.format(50))
    assert run([*command, "--workload", str(written)]) == 1
    assert not written.exists()
    devices.write_text(text.format(150))
    assert run([*command, "--workload", str(written)]) == 0
    capsys.readouterr()
    loaded = load_workload(written)
    assert (loaded.graph.ids, {options.gang for options in loaded.graph.options.values()}) == (["x", "y"], {"model"})
