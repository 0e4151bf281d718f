"""Clusters from a YAML file: what is read, what is refused with its line, and `egs simulate` on one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from egs_core.cli.app import run
from egs_core.cluster_file import parse_cluster
from egs_core.engine.specs import FlavorSpec
from egs_core.errors import InputError
from egs_core.sim.config import SimNode

GIB = 1 << 30
CLUSTER = """
flavors:
  - {name: v100, gpu_hour: 3.6, cpu_hour: 0.36}
  - {name: k80, gpu_hour: 0.36, speed: 0.25}
nodes:
  - name: fast
    flavor: v100
    cpus: 16
    gpus: 1
    memory: 64GiB
    gpu_memory: 16GiB
    topology: {rack: r1, zone: a}
  - {name: slow, count: 2, flavor: k80, cpus: 8, gpus: 1}
"""


def test_nodes_and_flavors_are_read() -> None:
    """Sizes in bytes, groups in order, and one node for each of a count."""
    found = parse_cluster(CLUSTER)
    topology = (("rack", "r1"), ("zone", "a"))
    fast = SimNode("fast", 16.0, 1, 64 * GIB, 16 * GIB, flavor="v100", topology=topology)
    slow = [SimNode(f"slow-{i}", 8.0, 1, flavor="k80") for i in range(2)]
    assert found.nodes == (fast, *slow)
    assert found.flavors == (FlavorSpec("v100", 3.6, 0.36), FlavorSpec("k80", 0.36, speed=0.25))


@pytest.mark.parametrize(
    ("text", "place", "problem"),
    [
        ("nodes: []", "cluster line 1: nodes", "at least one entry"),
        ("- a", "cluster", "needs a list of nodes"),
        ("nodes:\n - {name: a, cpus: 1, gpu: 1}", "cluster line 2: nodes[0].gpu", "unknown field"),
        ("nodes:\n - {name: a, cpus: -1}", "cluster line 2: nodes[0].cpus", "must be 0 or more"),
        ("nodes:\n - {name: a, cpus: 1}\n - {name: a, cpus: 1}", "cluster", "a second node 'a'"),
        ("nodes:\n - {name: a, cpus: 1, memory: much}", "cluster line 2: nodes[0].memory", "size"),
        (
            "flavors: [{name: a, speed: 0}]\nnodes: [{name: a, cpus: 1}]",
            "cluster line 1: flavors[0].speed",
            "must be more than 0",
        ),
        (
            "flavors: [{name: a100}]\nnodes:\n - {name: a, cpus: 1, flavor: a10}",
            "cluster line 3",
            "unknown flavor 'a10'",
        ),
        ("nodes: [", "cluster line 1", "is no YAML"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(text: str, place: str, problem: str) -> None:
    """One error, with the place and the problem."""
    with pytest.raises(InputError) as caught:
        parse_cluster(text)
    assert caught.value.place == place
    assert problem in caught.value.problem


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """A workload of three GPU tasks, one of which may run on a K80 only, and the cluster."""
    phases = [{"kind": "gpu", "cpus": 0, "gpus": 1, "duration_s": 10}]
    tasks = [{"id": i, "phases": phases} for i in "ab"] + [{"id": "c", "phases": phases, "flavors": ["k80"]}]
    workload = {"format": "egs-workload", "version": 1, "id": "w", "tasks": tasks}
    (tmp_path / "w.json").write_text(json.dumps(workload))
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    return str(tmp_path / "w.json"), str(tmp_path / "cluster.yaml")


@pytest.mark.parametrize(("objective", "jct_s", "cost"), [("finish", 40.0, 0.024), ("greedy", 40.0, 0.018)])
def test_simulate_runs_on_it(
    files: tuple[str, str], objective: str, jct_s: float, cost: float, capsys: pytest.CaptureFixture[str]
) -> None:
    """Times and prices follow from where each task ran: by `finish` both free tasks go to the V100, one after the other
    (10 s at 3.60 an hour each), and the third takes 40 s of a K80 at 0.36; `greedy` has the second on a K80 at once."""
    workload, cluster = files
    assert run(["simulate", workload, "--cluster", cluster, "--objective", objective, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["mean_jct_s"] == jct_s
    assert found["cost"] == pytest.approx(cost)
    assert run(["simulate", workload, "--cluster", cluster]) == 0
    assert "cost" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "problem"),
    [(("--slots", "3"), "--cluster: cannot be combined"), (("--objective", "cheap"), "unknown 'cheap'")],
)
def test_what_cannot_be_is_one_line(
    files: tuple[str, str], more: tuple[str, ...], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A cluster beside --slots, or an unknown objective: exit code 2 and the reason."""
    workload, cluster = files
    assert run(["simulate", workload, "--cluster", cluster, *more]) == 2
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize(("more", "jct_s"), [((), 27.0), (("--no-split",), 27.0)])
def test_a_workload_may_say_how_long_it_takes_on_which_flavor(
    tmp_path: Path, more: tuple[str, ...], jct_s: float, capsys: pytest.CaptureFixture[str]
) -> None:
    """2 s on a CPU, then 25 s on a K80 that would take 60 s of the V100: with and without split it goes to the K80."""
    on_gpu = {"kind": "gpu", "gpus": 1, "duration_s": 60, "flavor_duration_s": {"v100": 60, "k80": 25}}
    tasks = [{"id": "a", "phases": [{"duration_s": 2}, on_gpu]}]
    (tmp_path / "w.json").write_text(json.dumps({"format": "egs-workload", "version": 1, "id": "w", "tasks": tasks}))
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    command = ["simulate", str(tmp_path / "w.json"), "--cluster", str(tmp_path / "cluster.yaml"), "--json", *more]
    assert run(command) == 0
    assert json.loads(capsys.readouterr().out)["mean_jct_s"] == jct_s
