"""`egs advise`: from the history and profiles where there is no site server, and from run logs of frameworks."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from egs_core.cli.app import run as egs
from egs_core.graph.columns import Shape
from egs_core.history.opened import open_history
from egs_core.history.rows import HistoryRow
from egs_core.profiling.tiers import GIB, Measured
from egs_core.runlog.io import write_run
from egs_core.runlog.records import Ended, Header, Started, TaskAdded, WorkloadSubmitted

pytestmark = pytest.mark.usefixtures("alone")
Out = pytest.CaptureFixture[str]
ON_GPU = Shape(1000, 1000)


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No server, and a history of its own."""
    for name in ("EGS_URL", "EGS_HISTORY"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "run").mkdir()
    monkeypatch.setenv("EGS_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))


@pytest.fixture
def flavors(tmp_path: Path) -> str:
    file = tmp_path / "flavors.yaml"
    file.write_text("flavors: [{name: a100, gpu_hour: 3.0}, {name: t4, gpu_hour: 0.5}, {name: v100, gpu_hour: 1.2}]")
    return str(file)


def test_each_task_has_its_advice_and_what_is_not_known_of_it(flavors: str, capfd: Out) -> None:
    """Rows of a pipeline and a profile of a command: tasks with most GPU time first, with reasons, a flavor that was
    never tried, and what is missing; CPU tasks are left out. The same as JSON, and of one task alone."""
    store = open_history()
    rows = [("A100-SXM4-80GB", 100.0)] * 3 + [("T4", 150.0)] * 3
    store.record([HistoryRow("dag", "train", 0, ON_GPU, seconds, flavor) for flavor, seconds in rows])
    store.record([HistoryRow("dag", "embed", 0, ON_GPU, 9.0), HistoryRow("dag", "load", 0, Shape(1000), 9.0)])
    profiled = Measured("T4", 3.0, peak_bytes=4 * GIB, busy=0.12, memory_bytes=16 * GIB, ended_at=1.0)
    store.record_profile("serve.py", [(1.0, msgspec.json.encode(profiled).decode())])
    store.close()
    assert egs(["advise", "--flavors", flavors]) == 0
    assert capfd.readouterr().out.splitlines() == [
        "train of dag (6 runs, 0.208 GPU hours): ask for T4: the cheapest of those that take at most 2 times as long "
        "as the fastest: 2.5 min, 100 s on A100-SXM4-80GB; it costs 75% less than A100-SXM4-80GB",
        "  risk low",
        "  never tried on v100, and nothing says how long it takes there",
        "  not known: how much of a GPU's memory it uses, so whether a part of one, or one with less, would do",
        "embed of dag (1 run, 0.0025 GPU hours): no advice",
        "  not known: on which flavor it was in 1 run (9 s in the middle)",
        "serve.py (1 run, 0.000833 GPU hours): ask for T4, a part of 0.3 of it: it was measured on T4 alone",
        "  risk some: measured once on T4; on a part of a GPU others slow it down, and nothing keeps their memory "
        "apart, but a MIG slice",
        "  never tried on A100-SXM4-80GB: about 2 s, for 0.00167, as 1 task that ran on both tell",
        "  never tried on v100, and nothing says how long it takes there",
        "  not known: how long it takes on anything but T4",
        "a server's GPUs tell their flavor; of a trial without GPUs, egs serve --emulated-gpus a100=1,t4=2 says it",
    ]
    assert egs(["advise", "--flavors", flavors, "--task", "tr*", "--json"]) == 0
    (one,) = json.loads(capfd.readouterr().out)["tasks"]
    assert (one["pipeline"], one["task"], one["flavor"], one["gpus"]) == ("dag", "train", "T4", 1.0)
    assert one["advice"]["saving"] == pytest.approx(0.75)
    assert [other["flavor"] for other in one["untried"]] == ["v100"]


def test_memory_that_a_file_states_counts(tmp_path: Path, capfd: Out) -> None:
    """A profile that filled its GPU: what is larger is named as the way out."""
    file = tmp_path / "memory.yaml"
    file.write_text("flavors: [{name: a100, memory: 80GiB}, {name: t4, memory: 16GiB}]")
    store = open_history()
    full = [Measured(flavor, 3.0, peak_bytes=15 * GIB, ended_at=1.0) for flavor in ("T4", "A100-SXM4-80GB")]
    store.record_profile("serve.py", [(1.0, msgspec.json.encode(one).decode()) for one in full])
    store.close()
    assert egs(["advise", "--flavors", str(file), "--json"]) == 0
    (one,) = json.loads(capfd.readouterr().out)["tasks"]
    assert (one["flavor"], one["advice"]["fallback"]) == ("T4", "A100-SXM4-80GB")
    assert "its memory is nearly full (15.0 of 16.0 GiB)" in one["advice"]["risks"][0]


def log_of(path: Path, driver: str, seconds: float, node: str, reason: str = "") -> str:
    records = [
        WorkloadSubmitted(0.0, "w", "dag"),
        TaskAdded(0.0, "w", "1", "train", phases=(("gpu", 1.0, 1.0, 0),)),
        Started(0.0, "w", "1", node=node, gpus=1.0),
        Ended(seconds, "w", "1", outcome="failed" if reason else "succeeded", reason=reason),
    ]
    write_run(path, Header(driver=driver, started_at=1.7e9), records)
    return str(path)


@pytest.mark.parametrize("driver", ["airflow", "kubeflow", "ray"])
def test_run_logs_of_any_framework_with_the_flavors_of_their_nodes(driver: str, tmp_path: Path, capfd: Out) -> None:
    """Nothing of the user's history counts then; without a file of prices no flavor is known, with it that of each
    node; a flavor on which memory was not enough is not advised."""
    store = open_history()
    store.record([HistoryRow("other", "other", 0, ON_GPU, 1.0, "T4")])
    store.close()
    logs = [log_of(tmp_path / "a.jsonl", driver, 90.0, "big"), log_of(tmp_path / "b.jsonl", driver, 100.0, "small")]
    prices = tmp_path / "prices.yaml"
    prices.write_text(
        "flavors:\n"
        "  - {name: a100, prices: [{since: 2020-01-01, on_demand: 3.0}]}\n"
        "  - {name: t4, prices: [{since: 2020-01-01, on_demand: 0.5}]}\n"
        "nodes: [{name: big, flavor: a100}, {name: small, flavor: t4}]\n"
    )
    assert egs(["advise", *logs, "--json"]) == 0
    (one,) = json.loads(capfd.readouterr().out)["tasks"]
    assert (one["task"], one["runs"], one["flavor"]) == ("train", 2, "")
    assert egs(["advise", *logs]) == 0
    assert capfd.readouterr().out.endswith(
        "which flavor nodes are of, where their run log does not tell, the file of --prices says\n"
    )
    assert egs(["advise", *logs, "--prices", str(prices), "--json"]) == 0
    (one,) = json.loads(capfd.readouterr().out)["tasks"]
    assert (one["flavor"], one["advice"]["saving"]) == ("t4", pytest.approx(1 - 0.5 * 100 / (3.0 * 90)))
    died = log_of(tmp_path / "c.jsonl", driver, 1000.0, "small", "out of GPU memory: CUDA out of memory")
    killed = log_of(tmp_path / "d.jsonl", driver, 1000.0, "big", "out of main memory: OOMKilled")
    assert egs(["advise", *logs, died, killed, "--prices", str(prices)]) == 0
    shown = capfd.readouterr().out
    head = "train of dag (2 runs, 0.0528 GPU hours; 0.556 more in 2 attempts that did not succeed)"
    assert f"{head}: ask for a100" in shown
    assert "the file of --prices says" not in shown
    assert "its memory was not enough on t4: 1 run" in shown
    assert "its main memory was not enough: 1 run, whose need nobody stated" in shown
    assert egs(["why", died, "train"]) == 0
    assert "started at once; failed: out of GPU memory: CUDA out of memory" in capfd.readouterr().out


def test_nothing_is_known_yet(capfd: Out) -> None:
    assert egs(["advise"]) == 0
    assert capfd.readouterr().out.startswith("no run on GPUs is known: runs with EGS leave what they took")
    assert egs(["advise", "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == {"tasks": []}


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (["no.jsonl"], "no.jsonl"),
        (["--server"], "--server: no EGS server here"),
        (["--deadline", "soon"], "--deadline"),
        (["--task", "trian"], "--task: no task 'trian' ran on GPUs (did you mean 'train'?)"),
        (["--flavors", "no.yaml"], "no.yaml"),
        (["--model", "model.onnx"], "model.onnx: only programs of torch.export can be tried"),
        (["--model", "model.pt2", "--task", "train"], "--model: is about a model, not about tasks"),
        (["--history", "sqlite:////proc/version"], "cannot be read"),
    ],
)
def test_what_a_user_can_mend_is_one_line(line: list[str], text: str, capfd: Out) -> None:
    store = open_history()
    store.record([HistoryRow("dag", "train", 0, ON_GPU, 1.0, "T4")])
    store.close()
    assert egs(["advise", *line]) == 2
    error = capfd.readouterr().err
    assert text in error
    assert len(error.splitlines()) == 1
