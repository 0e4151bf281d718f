"""The suite of `benchmarks.kubernetes`, which itself needs a cluster: its runs, and what is computed of them."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("kubernetes", reason="the client of Kubernetes is not installed")

from benchmarks import kubernetes_scaling
from benchmarks.kubernetes import FORMS, SIDES, run_of, side_of, suite, summarise
from benchmarks.kubernetes_world import Outcome, Side, Task, World, is_inverted, pod_of_task, ranked
from egs_core.kubernetes.coming import to_come
from egs_core.kubernetes.paths import Traces
from egs_core.kubernetes.pods import pod_of
from egs_core.kubernetes.workflows import workflow_of
from tests.unit.kubernetes.emulated_api import LIMIT_S, EmulatedApi


@pytest.mark.parametrize("form", FORMS)
def test_a_run_is_a_graph_with_one_end(form: str) -> None:
    """Parents come before, all but the last task have a child, and ranks fall along every edge."""
    run = run_of(form, random.Random(3))
    assert all(parent < number for number, task in enumerate(run) for parent in task.parents)
    assert {parent for task in run for parent in task.parents} == set(range(len(run) - 1))
    for task in run:
        assert all(run[parent].rank_s >= run[parent].predicted_s + task.rank_s for parent in task.parents)
    assert sum(task.gpus for task in run) == {"chain": 3, "deep": 6, "wide": 8, "large": 21}[form]


def test_sides_of_a_round_have_the_same_runs_and_rounds_have_others() -> None:
    """Else they could not be compared."""
    assert suite(12, 0) == suite(12, 0) != suite(12, 1)
    assert len(suite(12, 0)) == 12


def test_an_inversion_is_one_that_goes_before_a_longer_path() -> None:
    """Of those that have waited; a tenth more is none."""
    run = ranked([Task((), 1, 1.0, 1.0), Task((), 1, 5.0, 5.0), Task((), 1, 1.05, 1.0)])
    assert is_inverted(run, 0, [1])
    assert not is_inverted(run, 0, [2])
    assert not is_inverted(run, 1, [0, 2])
    assert not is_inverted(run, 0, [])


def test_sides_are_compared_within_a_round() -> None:
    """A slow round counts as much as a fast one."""
    found = [
        Outcome("native", 0, [2.0, 4.0]),
        Outcome("native", 1, [20.0, 40.0]),
        Outcome("egs", 0, [1.0, 2.0], 1, 5),
        Outcome("egs", 1, [20.0, 40.0], 2, 5),
    ]
    native, egs = summarise(found)
    assert (native["native_over"], egs["native_over"]) == (1.0, 1.5)
    assert (egs["makespan_s"], egs["inversions"], egs["gpu_pods"]) == (21.0, 3, 10)


def test_the_demo_as_pods_has_the_ranks_that_are_compiled_into_it() -> None:
    """Of a run that is split, whatever the labels say that `egs kubeflow compile` writes: what is behind each task, but
    for what it believes of the report. The whole one does the same work in fewer pods, and holds GPUs for longer."""
    digits = pytest.importorskip("benchmarks.kubernetes_digits", reason="kfp is not installed")
    from egs_kubeflow.rewrite.expected import expect

    split, whole = digits.digits("0", True), digits.digits("0", False)
    found = digits.compiled(True)
    ours = {task.path: task.rank_s for task in split if not task.is_driver}
    theirs = dict(zip(found.graph.ids, (one.rank_s for one in expect(found, None)), strict=True))
    behind = [name for name in theirs if name.startswith(("train", "evaluate"))]
    assert len(behind) == 34
    assert {round(theirs[name] - ours[name], 6) for name in behind} == {round(theirs["report"] - ours["report"], 6)}
    done = [sum(task.takes_s for task in run if not task.is_driver) for run in (split, whole)]
    used = [sum(task.used_s or 0.0 for task in run) for run in (split, whole)]
    held = [sum(task.takes_s for task in run if task.gpus) for run in (split, whole)]
    assert done[0] == pytest.approx(done[1])
    assert used[0] == pytest.approx(used[1]) == held[0] < held[1]
    for run in (split, whole):
        assert all(parent < number for number, task in enumerate(run) for parent in task.parents)
        assert {parent for task in run for parent in task.parents} == set(range(len(run) - 1))


def test_pods_of_a_side_are_what_its_controllers_would_get() -> None:
    """Gated for EGS, queued for Kueue, whose Workloads need no gate of ours; a driver is nobody's."""
    step = Task((), 1, 2.0, 3.0, 9.0, path="train", image="train:1")
    driver = Task((), 0, 0.0, 0.1, path="train", is_driver=True)
    gated = pod_of(pod_of_task(step, 3, 0, side_of("egs-split-preload"), "here"))
    assert (gated.is_gated, gated.is_ours, gated.run, gated.queue) == (True, True, "/digits/digits-3", "")
    queued = pod_of(pod_of_task(step, 3, 0, side_of("egs-kueue"), "here"))
    assert (queued.is_gated, queued.is_ours, queued.queue) == (False, True, "egs-bench")
    for side in SIDES:
        assert not pod_of(pod_of_task(driver, 3, 0, side_of(side), "here")).is_ours
        assert pod_of(pod_of_task(step, 3, 0, side_of(side), "here")).shape.gpu_milli == 1000
    assert side_of("egs-split-preload") == Side(egs=True, split=True, preload=True)


def test_a_mixed_suite_has_the_same_forms_whether_or_not_the_others_are_split() -> None:
    """Else split would be compared with another work."""
    pytest.importorskip("benchmarks.kubernetes_digits", reason="kfp is not installed")
    whole, split = (suite(6, 0, kind="mixed", split=split) for split in (False, True))
    assert [run for run in whole if not run[0].path] == [run for run in split if not run[0].path]
    assert [len(run) for run in whole if run[0].path] == [39] * 3
    assert [len(run) for run in split if run[0].path] == [84] * 3


CHAIN = ranked([Task((), 0, 0.1, 0.1), Task((0,), 1, 0.1, 0.1), Task((1,), 0, 0.1, 0.1)])


@contextmanager
def emulated(folder: Path, limit_s: float = LIMIT_S) -> Iterator[tuple[EmulatedApi, World]]:
    """A world of two runs, whose pods nothing gives a node."""
    api = EmulatedApi(folder)
    try:
        world = World(api.kubeconfig, Side(), [CHAIN, CHAIN], Outcome("native", 0), 4, limit_s=limit_s)
        api.add("serviceaccounts", {"metadata": {"name": "default", "namespace": world.name}})
        world.set_up()
        try:
            yield api, world
        finally:
            world.tear_down()
    finally:
        api.close()


def test_a_pod_that_is_refused_for_a_moment_is_made_all_the_same(tmp_path: Path) -> None:
    """As Kueue's webhook is late where it has little processor. A run without it would never end, and nobody would say
    why; the same where what its kubelet says is not taken, or taken and not answered."""
    over = threading.Event()
    with emulated(tmp_path) as (api, world):

        def schedule() -> None:
            while not over.wait(0.02):
                for name, raw in api.all("pods").items():
                    if not raw["spec"].get("nodeName"):
                        api.bind(name, f"{world.name}-0")

        api.refused, api.conflicts, api.lost = 3, 2, 2
        thread = threading.Thread(target=schedule)
        thread.start()
        try:
            world.run()
        finally:
            over.set()
            thread.join()
        assert {raw["status"]["phase"] for raw in api.all("pods").values()} == {"Succeeded"}
        assert len(api.all("pods")) == 2 * len(CHAIN)
        assert world.again >= 3


def test_a_side_that_does_not_end_says_what_each_pod_waits_for(tmp_path: Path) -> None:
    """After the seconds that it has."""
    with emulated(tmp_path, 1.0) as (_, world), pytest.raises(SystemExit) as given_up:
        world.run()
    assert str(given_up.value) == "native: 0 of 2 runs have ended after 1 s; without a node: pod-0-0, pod-1-0"


def test_looks_of_two_checkouts_are_measured_by_turns() -> None:
    """Here of this one twice: both sides look, after changes too, and are compared."""
    here = Path(__file__).resolve().parents[3]
    asked = ["--pods", "40", "--nodes", "4", "--changes", "0,8", "--looks", "2", "--against", str(here)]
    command = [sys.executable, "-m", "benchmarks.kubernetes_looks", *asked]
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    found = json.loads(done.stdout)
    for changes in ("0 changes", "8 changes"):
        assert found[changes]["of_the_other"] > 0
        assert all(found[changes][side]["least_ms"] > 0 for side in ("here", "against"))


def test_the_controller_foresees_the_pipeline_of_the_scaling_benchmark() -> None:
    """While its first step runs, the trainings are in sight with what their pods will ask for, and where."""
    steps, select = kubernetes_scaling.pipeline(3, 90, 60, 5), {"pool": "gpu"}
    raw = kubernetes_scaling.workflow(steps, select)
    raw["metadata"] |= {"namespace": "team", "uid": "u"}
    first, *made = (kubernetes_scaling.pod_of_step(steps, one, select, "egs") for one in steps)
    first["metadata"] |= {"namespace": "team", "uid": "first"}
    first["spec"] |= {"nodeName": "n", "schedulingGates": []}
    traces = Traces()
    traces.applied({"first": pod_of(first)}, [workflow_of(raw)])
    found = to_come(traces.runs(), 1000.0)
    asked = [pod_of(one) for one in made[:3]]
    assert [(one.shape, json.loads(one.where), one.devices) for one in found] == [
        (one.shape, json.loads(one.where), one.devices) for one in asked
    ]
    assert {(one.ready_at, one.takes_s) for one in found} == {(1090.0, 60.0)}
    assert pod_of(first).rank_s == 155.0
