"""What is loaded ahead for a pipeline's tasks, when, and the step inside a pipeline that does it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl, kubernetes

import egs_kubeflow
from egs_core.graph.columns import Shape
from egs_core.hints import files, modules
from egs_core.history import HistoryRow
from egs_core.predict import Predictor
from egs_kubeflow.convert.documents import documents_of
from egs_kubeflow.manifests.plan import Plan, plan_preloads
from egs_kubeflow.rewrite.pipeline import rewrite
from egs_kubeflow.rewrite.preloads import WARM_UP
from egs_kubeflow.rewrite.profile import PreloadRules, Profile
from tests.unit.kubeflow.made_site import SITE, decode, gpu, hinted, made_up, train

WITH_STEPS = SITE.model_copy(update={"preload": PreloadRules(step=True, deadline=600)})


def plan_of(pipeline: Any, history: Predictor | None = None, profile: Profile = SITE) -> Plan:
    """The plan for a pipeline, written for the site."""
    written = rewrite(documents_of(pipeline), profile, history)
    return plan_preloads(written.documents, profile.preload, history, "pipeline")


def test_a_preload_begins_so_early_that_it_is_done_when_its_task_is_due() -> None:
    """`train` is due at 360 s, hints have a spread, so at the earliest a while before; its image takes 100 s: after the
    start of `decode-2`, which takes 300 s. `serve` is 50 s behind the two, too little: it is counted from before."""
    fit, serve = plan_of(made_up).preloads
    assert (fit.task, fit.also, fit.after) == ("train", ("train-2",), "decode-2")
    assert fit.needed_s == 360.0
    assert 0 < fit.delay_s < 300.0 - 100.0
    assert not fit.is_guess
    assert (serve.task, serve.after) == ("serve", "decode-2")
    assert fit.delay_s < serve.delay_s < 300.0 + 50.0 - 100.0
    assert (fit.late_s, serve.late_s) == (0.0, 0.0)
    assert (fit.preload.modules, fit.preload.image) == (("torch",), "trainer:1")


def test_what_was_learned_counts_before_hints() -> None:
    """Twenty runs in which `decode-2` took 1000 s, give or take nothing: the image is pulled that much later."""
    history = Predictor()
    history.learn([HistoryRow("made-up", "decode-2", 0, Shape(1000), 1000.0)] * 20)
    hint, learned = plan_of(made_up).preloads[0], plan_of(made_up, history).preloads[0]
    assert learned.needed_s == pytest.approx(1060.0, abs=5)
    assert learned.after == "decode-2"
    assert hint.delay_s + 500 < learned.delay_s < 900.0


def test_a_preload_that_comes_too_late_says_by_how_much() -> None:
    """Nothing is known of the 10 s before a task: its image is pulled from the start of the run, 90 s too late."""

    @dsl.pipeline(name="late")
    def late() -> None:
        gpu(train(x=decode().output))

    (planned,) = plan_of(late).preloads
    assert (planned.after, planned.delay_s, planned.is_guess) == ("", 0.0, True)
    assert planned.late_s == pytest.approx(planned.takes_s - planned.needed_s)
    assert planned.late_s > 80


def test_what_is_not_worth_it_or_not_known_is_not_preloaded() -> None:
    """CPU steps without a hint, what begins with the run, the same as that, places and images of the run only."""

    @dsl.pipeline(name="some")
    def some(where: dict, tag: str) -> None:  # type: ignore[type-arg]  # kfp's type
        root = gpu(train(x=1))
        gpu(train(x=root.output))
        decode(x=root.output)
        kubernetes.add_node_selector_json(gpu(decode(x=root.output)), node_selector_json=where)
        gpu(train(x=root.output)).set_accelerator_limit(99)
        gpu(decode(x=root.output)).set_container_image(tag)

    plan = plan_of(some)
    assert plan.preloads == ()
    assert sorted(plan.notes) == [
        "decode-2: is not preloaded: where it runs is known at run time only",
        "decode-3: is not preloaded: its image is known at run time only",
        "train-2: is not preloaded: train, which begins with the run, loads the same there",
        "train-3: is not preloaded: nothing says on which nodes it runs",
    ]


def test_a_hint_makes_a_step_without_a_gpu_worth_it() -> None:
    """Its files and modules are read where it runs; a branch that may not be taken is marked."""

    @dsl.pipeline(name="hinted")
    def pipeline(x: int = 1) -> None:
        first = decode()
        with dsl.If(x == 1):
            hinted(train(x=first.output), preload=(modules("json"), files("/model.pt")))

    (planned,) = plan_of(pipeline).preloads
    assert (planned.task, planned.may_be_skipped) == ("condition-1.train", True)
    assert planned.preload.place["nodeSelector"] == {"labels": {"pool": "cpu"}}
    assert json.loads(planned.preload.command[-1]) == {"modules": ["json"], "files": ["/model.pt"]}


def test_the_hints_of_a_component_reach_the_plan() -> None:
    """`@egs_kubeflow.component(preload=…)`: modules and files, through the compiled pipeline."""

    @egs_kubeflow.component(base_image="trainer:1", gpus=1, preload=[modules("torch"), files("model.pt")])
    def own(x: int) -> int:
        return x

    @dsl.pipeline(name="own")
    def pipeline() -> None:
        own(x=decode().output)

    (planned,) = plan_of(pipeline).preloads
    assert (planned.preload.modules, planned.preload.files) == (("torch",), ("model.pt",))


def test_what_cannot_be_loaded_costs_a_line(tmp_path: Path) -> None:
    """The program that runs in a preload's container: a module that ends the interpreter, a file that is not there."""
    (tmp_path / "ends.py").write_text("raise SystemExit(3)")
    (tmp_path / "there").write_text("x")
    wanted = json.dumps({"modules": ["json", "ends", "no.such"], "files": ["there", "missing"]})
    done = subprocess.run(
        [sys.executable, "-c", WARM_UP, wanted], cwd=tmp_path, capture_output=True, text=True, timeout=240
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split(": ")[1] for line in done.stdout.splitlines()] == [
        "module ends",
        "module no.such",
        "file missing",
    ]


def test_a_prefetch_step_is_there_only_where_it_was_asked_for() -> None:
    """It waits for nothing and nothing waits for it, is on the nodes of its task without its GPU, has a deadline and is
    not cached; that it can fail a run is said. What an image can run, it says itself: of /server nothing is known."""
    assert not any("prefetch" in one.task for one in rewrite(documents_of(made_up), SITE).changes)
    result = rewrite(documents_of(made_up), WITH_STEPS)
    step = result.documents.pipeline["root"]["dag"]["tasks"]["egs-prefetch-train"]
    assert (step.get("dependentTasks"), step["cachingOptions"]) == (None, {})
    executors = result.documents.platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    of_task, of_step = executors["exec-train"], executors["exec-egs-prefetch-train"]
    assert of_step["nodeSelector"] == of_task["nodeSelector"]
    assert of_step["tolerations"] == of_task["tolerations"]
    assert of_step["activeDeadlineSeconds"] == "600"
    container = result.documents.pipeline["deploymentSpec"]["executors"]["exec-egs-prefetch-train"]["container"]
    assert container["image"] == "trainer:1"
    assert container["command"][:2] == ["python3", "-c"]
    assert "accelerator" not in container["resources"]
    (change,) = [one for one in result.changes if one.task == "egs-prefetch-train"]
    assert "IF THIS STEP FAILS, THE RUN FAILS" in change.reason
    assert result.notes == ("serve: has no prefetch step: nothing is known that its image can run without failing",)


def test_a_pipeline_with_a_prefetch_step_has_no_preload_beside_it() -> None:
    """The same image is not pulled twice: the plan says that the step does it."""
    plan = plan_of(made_up, profile=WITH_STEPS)
    assert [planned.task for planned in plan.preloads] == ["serve"]
    assert "train: is not preloaded: step egs-prefetch-train does it" in plan.notes


def test_changes_are_told_in_the_order_of_the_pipeline() -> None:
    """Whatever the tasks' names: what waits for another comes after it, and what was added comes last."""

    @dsl.component(base_image="python:3.11")
    def zz() -> int:
        return 1

    @dsl.component(base_image="python:3.11")
    def aa(x: int) -> int:
        return x

    @dsl.pipeline(name="backwards")
    def backwards() -> None:
        gpu(aa(x=zz().output))

    result = rewrite(documents_of(backwards), WITH_STEPS)
    assert list(dict.fromkeys(change.task for change in result.changes)) == ["zz", "aa", "egs-prefetch-aa"]
