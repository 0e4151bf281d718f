"""Replay and demo on Kubeflow without a run: what workload files become, what cannot become a pipeline, the bound."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kfp", reason="kfp is not installed")

from kfp import components

from egs_core.adapter import DemoRequest, ReplayRequest, ReplayWorkload
from egs_core.cli import app
from egs_core.errors import EgsError, InputError
from egs_core.graph.analysis import critical_path
from egs_core.graph.columns import Graph
from egs_core.graph.model import Workload
from egs_core.runlog.records import ColdStart, Started, Used
from egs_kubeflow import compat
from egs_kubeflow.adapter import ADAPTER
from egs_kubeflow.convert.documents import Documents, dump_documents
from egs_kubeflow.convert.pipeline import convert
from egs_kubeflow.demo import alone, times, work
from egs_kubeflow.demo.bound import demo_graph, ideal_bound_s
from egs_kubeflow.demo.run import VARIANTS, demo
from egs_kubeflow.replay.marking import marking, own_folder, play
from egs_kubeflow.replay.notes import inside, read_notes, zero_of
from egs_kubeflow.replay.parts import parts_of, place_of
from egs_kubeflow.replay.pipeline import pipeline_of
from egs_kubeflow.replay.run import MOST_TASKS, replay

ON_GPU: dict[str, Any] = {"kind": "gpu", "gpus": 1, "cpus": 0, "duration_s": 3.0}
TRAIN: dict[str, Any] = {"name": "train", "parents": ["load it"], "warm_key": "model", "warmup_s": 4.0}
TASKS: list[dict[str, Any]] = [
    {"id": "load it", "phases": [{"duration_s": 2.0, "cpus": 1.5}], "priority": 2, "max_wait_s": 60.0},
    {"id": "train/0", **TRAIN, "phases": [{"duration_s": 2.0}, ON_GPU, {"duration_s": 1.0}]},
    {"id": "train/1", **TRAIN, "phases": [{"duration_s": 4.0, "cpus": 2}, ON_GPU, {"duration_s": 1.0}]},
    {"id": "last", "parents": ["train/0", "train/1"], "phases": [ON_GPU]},
]


def workload(*tasks: dict[str, Any], name: str = "w", submit_s: float = 0.0) -> ReplayWorkload:
    return ReplayWorkload(name, Workload.model_validate({"id": name, "tasks": tasks}).to_graph(), submit_s)


def made(policy: str, *workloads: ReplayWorkload, time_scale: float = 1.0) -> Documents:
    parts = [parts_of(one.graph, time_scale, policy == "egs") for one in workloads]
    return pipeline_of(workloads, parts, time_scale)


def held(documents: Documents) -> dict[str, tuple[int, int, float | None]]:
    """CPUs in thousandths, GPUs, and expected seconds of each task that runs, by its path."""
    graph = convert(documents).graph
    found = {}
    for task, task_id in enumerate(graph.ids):
        phase = graph.phase_offsets[task]
        shape = graph.shapes[graph.phase_shape[phase]]
        found[task_id] = shape.cpu_milli, shape.gpu_milli // 1000, graph.phase_duration_s[phase]
    return found


def edges(graph: Graph) -> set[tuple[str, str]]:
    return {(graph.ids[parent], graph.ids[task]) for task, above in enumerate(graph.parents) for parent in above}


def test_natively_a_task_is_one_that_holds_all_it_ever_needs() -> None:
    """The largest of all phases, from start to end; nothing is expected of it. kfp itself reads the pipeline."""
    documents = made("native", workload(*TASKS))
    assert held(documents) == {
        "w0.t0": (1500, 0, None),
        "w0.t1": (1000, 1, None),
        "w0.t2": (2000, 1, None),
        "w0.t3": (1, 1, None),
    }
    assert edges(convert(documents).graph) == {
        ("w0.t0", "w0.t1"),
        ("w0.t0", "w0.t2"),
        ("w0.t1", "w0.t3"),
        ("w0.t2", "w0.t3"),
    }
    assert components.load_component_from_text(dump_documents(documents)).name == "replay"


def test_with_egs_a_task_of_both_kinds_is_one_a_phase() -> None:
    """Each with what it needs and what tasks of its name usually take; they load where the GPU is."""
    documents = made("egs", workload(*TASKS), time_scale=2.0)
    assert held(documents) == {
        "w0.t0": (1500, 0, 4.0),
        "w0.t1-0": (1000, 0, 6.0),
        "w0.t1-1": (1, 1, 6.0),
        "w0.t1-2": (1000, 0, 2.0),
        "w0.t2-0": (2000, 0, 6.0),
        "w0.t2-1": (1, 1, 6.0),
        "w0.t2-2": (1000, 0, 2.0),
        "w0.t3": (1, 1, 6.0),
    }
    graph = convert(documents).graph
    assert {("w0.t0", "w0.t1-0"), ("w0.t1-0", "w0.t1-1"), ("w0.t1-2", "w0.t3")} < edges(graph)
    options = graph.options_of(graph.ids.index("w0.t0"))
    assert (options.priority, options.max_wait_s) == (2, 120.0)
    loads = {part.name: part.load_s for part in parts_of(workload(*TASKS).graph, 2.0, with_egs=True) if part.load_s}
    assert loads == {"t1-1": 8.0, "t2-1": 8.0}


def test_workloads_wait_until_they_are_due() -> None:
    """In the order of time, whatever that of the files; those of one moment behind one wait, the first behind none."""
    one = [{"id": "x", "phases": [{"duration_s": 1.0}]}]
    times_s = (7.0, 2.0, 4.0, 4.0)
    given = [workload(*one, name=f"n{number}", submit_s=at) for number, at in enumerate(times_s)]
    tasks = made("native", *given, time_scale=0.5).pipeline["root"]["dag"]["tasks"]
    assert {name: task["dependentTasks"] for name, task in tasks.items()} == {
        "w1": [],
        "arrive-2": [],
        "w2": ["arrive-2"],
        "w3": ["arrive-2"],
        "arrive-0": ["arrive-2"],
        "w0": ["arrive-0"],
    }
    due = {n: t["inputs"]["parameters"]["due_s"]["runtimeValue"]["constant"] for n, t in tasks.items() if "arr" in n}
    assert due == {"arrive-2": 1.0, "arrive-0": 2.5}


def test_components_are_shared_by_tasks_of_one_code() -> None:
    """A thousand equal tasks are one component, so that reading them takes no time to speak of."""
    many = [{"id": str(number), "name": "n", "phases": [{"duration_s": 1.0}]} for number in range(1000)]
    documents = made("egs", workload(*many))
    assert set(documents.pipeline["components"]) == {"comp-play", "comp-arrive", "comp-w0"}
    assert len(documents.pipeline["components"]["comp-w0"]["dag"]["tasks"]) == 1000


def test_places() -> None:
    """A kfp task's path says what of the files it is; what waits for arrivals is nothing of theirs."""
    assert (place_of("w0.t12"), place_of("w3.t1-2"), place_of("arrive-1")) == ((0, 12, 0), (3, 1, 2), None)


@pytest.mark.parametrize(
    ("change", "options", "problem"),
    [
        (
            {"gang": "g", "phases": [{"duration_s": 1}]},
            {},
            r"task 'x': is in gang 'g': locally, tasks start one by one \(use --on sim\)",
        ),
        ({"phases": [{"kind": "gpu", "gpus": 0.5, "duration_s": 1}]}, {}, "task 'x': needs a share of a GPU"),
        ({"phases": [{"duration_s": 1, "cpus": 9}]}, {}, "task 'x': needs 9 CPUs, there are 4"),
        ({"phases": [{}]}, {}, "task 'x': its duration is unknown"),
        (
            {"phases": [{"duration_s": 1}]},
            {"--cpus": "300"},
            "--cpus: 300 are more than this machine has",
        ),
    ],
)
def test_what_cannot_be_replayed_is_one_line(
    change: dict[str, Any],
    options: dict[str, str],
    problem: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit code 2, the place and what to do; nothing is written."""
    path, log = tmp_path / "w.json", tmp_path / "log.jsonl"
    path.write_text(json.dumps({"format": "egs-workload", "version": 1, "id": "w", "tasks": [{"id": "x", **change}]}))
    words = [word for option in options.items() for word in option]
    assert app.run(["replay", str(path), "--on", "kubeflow", "--runlog", str(log), *words]) == 2
    assert re.search(problem, capsys.readouterr().err)
    assert not log.exists()


def test_without_kfp_nothing_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line that says what to install, for both."""
    monkeypatch.setattr(compat, "kfp_version", lambda: "")
    request = ReplayRequest((workload(*TASKS),), "egs", 4, 2, 1.0, tmp_path / "log.jsonl")
    with pytest.raises(InputError, match="kfp is not installed here"):
        ADAPTER.replay(request)
    with pytest.raises(InputError, match="kfp is not installed here"):
        ADAPTER.demo(DemoRequest(("egs",), tmp_path))


def test_more_tasks_than_processes_can_be_started_for(tmp_path: Path) -> None:
    """The limit is said before anything runs."""
    many = [{"id": str(number), "phases": [{"duration_s": 1.0}]} for number in range(MOST_TASKS + 1)]
    with pytest.raises(InputError, match=f"{MOST_TASKS + 1} tasks are too many for a process each"):
        replay(ReplayRequest((workload(*many),), "egs", 4, 2, 1.0, tmp_path / "log.jsonl"))


# --- what tasks note --------------------------------------------------------------------------------------------------


def as_task(monkeypatch: pytest.MonkeyPatch, root: Path, name: str) -> None:
    """From now on this process looks to itself like the task of that name."""
    told = {"inputs": {}, "outputs": {"outputFile": f"{root}/run/{name}/executor_output.json"}}
    monkeypatch.setattr("sys.argv", ["-m", "--executor_input", json.dumps(told), "--function_to_execute", "play"])


def test_a_task_notes_under_its_own_name_what_it_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its phases and its load on the run log's clock, under the task's name in it; a name may be any text."""
    as_task(monkeypatch, tmp_path, "w0.t%2F1")
    begin = time.time()
    play([("cpu", 0.01), ("gpu", 0.02)], load_s=0.01)
    (note,) = read_notes(tmp_path)
    assert (note.task, [kind for kind, _, _ in note.stretches]) == ("w0.t/1", ["cold", "cpu", "gpu"])
    assert note.start <= begin < note.end
    starts = {"w0.t/1": Started(5.0, "w", "train", 1)}
    zero = zero_of([note], starts)
    assert zero == note.start - 5.0
    cold, used = inside([note], starts, zero)
    assert isinstance(cold, ColdStart)
    assert isinstance(used, Used)
    assert (used.workload, used.task, used.phase) == ("w", "train", 1)
    assert 0.02 <= used.end_t - used.t < 1.0
    assert cold.end_t <= used.t


def test_a_task_that_fails_notes_itself_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it had done until then: nothing, here."""
    as_task(monkeypatch, tmp_path, "t")
    with pytest.raises(ZeroDivisionError), marking() as mark, mark.cold():
        1 / 0  # noqa: B018  # that it fails is all
    assert [len(note.stretches) for note in read_notes(tmp_path)] == [0]
    assert own_folder(["--executor_input", '{"outputs": {"outputFile": "/r/n/t/o.json"}}']) == Path("/r/n/t")


# --- the demo ---------------------------------------------------------------------------------------------------------


def test_whole_and_split_trainings_give_the_same_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every weight is the same; training improves on the model that it starts from; each part notes itself."""
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    as_task(monkeypatch, tmp_path, "t")
    images, start, training, test, whole, table, weights, model = (str(tmp_path / name) for name in "abcdefgh")
    work.load(images, start, 0, 0.0)
    work.prepare(images, training, test, 0.0)
    work.write(work.fit(work.decode(training, start, 4, 0.0), start, 4, 0.0), whole, 0.0)
    work.decode_to(training, start, table, 4, 0.0)
    work.fit_to(table, start, weights, 4, 0.0)
    work.write_to(weights, model, 0.0)
    assert Path(whole).read_bytes() == Path(model).read_bytes()
    before, after = (work.evaluate(test, path, 0.0) for path in (start, model))
    assert 0.7 < float(before.split()[0]) < float(after.split()[0])
    told = json.loads(work.report([before, after], 0.0))
    assert told == {"best": 1, "scores": [before, after]}
    assert len(read_notes(tmp_path)) == 2 + 3 + 3 + 2 + 1


def test_the_bound_is_under_no_path_and_no_device() -> None:
    """No less than the longest path, and than what the GPUs have to do, each with what must come before and after."""
    work_s = (times.STEPS + times.CANDIDATES) * times.FIT_S + (times.CANDIDATES + 1) * times.EVALUATE_S
    before_s = times.LOAD_S + times.PREPARE_S + times.DECODE_S
    path_s, _ = critical_path(demo_graph())
    assert ideal_bound_s() >= max(path_s, before_s + work_s / times.GPUS + times.REPORT_S)
    assert ideal_bound_s(0.5) == pytest.approx(ideal_bound_s() / 2)


def test_an_unknown_variant_and_a_run_that_fails_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variants that there are; the last words of the process in which kfp's own runner was to run."""
    assert ADAPTER.demo_variants == tuple(VARIANTS)
    with pytest.raises(InputError, match="unknown variant 'slow'"):
        demo(DemoRequest(("slow",), tmp_path))
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'no module named kfp'\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(broken))
    with pytest.raises(EgsError, match=r"^kfp's own runner has failed: no module named kfp$"):
        alone.run_alone(tmp_path, 1.0)
