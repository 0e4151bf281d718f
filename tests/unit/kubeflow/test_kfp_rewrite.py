"""A pipeline for a site: where its tasks run, what they are labelled with, and what is left alone."""

from typing import Any

import pytest
from kfp import dsl, kubernetes

from egs_core.graph.columns import Shape
from egs_core.hints import TaskHints
from egs_core.history import HistoryRow
from egs_core.predict import Predictor
from egs_kubeflow.convert.documents import documents_of, dump_documents
from egs_kubeflow.convert.hints import ANNOTATION, encode_hints
from egs_kubeflow.rewrite.changes import Rewritten, explain
from egs_kubeflow.rewrite.pipeline import rewrite
from egs_kubeflow.rewrite.profile import Profile, parse_profile

SITE = parse_profile("""
pools:
  - {name: cpu, selector: {pool: cpu}, cpus: 16}
  - {name: t4, selector: {pool: t4}, accelerator: nvidia.com/gpu, gpus_per_node: 1, gpu_memory: 16GiB, flavor: t4}
  - name: a100
    selector: {pool: a100}
    accelerator: nvidia.com/gpu
    gpus_per_node: 8
    gpu_memory: 40GiB
    flavor: a100
    tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]
queues: [{name: gone}, {name: gpus, kind: gpu, exists: true}, {name: team, exists: true}]
priority_classes:
  - {name: low, exists: true}
  - {name: high, at_least: 10, exists: true}
  - {name: planned, at_least: 20}
time_limits: {cpu: 1h, gpu: 1 day}
""")


@dsl.component(base_image="python:3.11")
def step(x: int = 1) -> int:
    return x


def hinted(task: Any, **hints: Any) -> Any:
    """A task with hints."""
    return kubernetes.add_pod_annotation(task, ANNOTATION, encode_hints(TaskHints(**hints)))


def gpus(task: Any, count: int, name: str = "nvidia.com/gpu") -> Any:
    """A task with an accelerator."""
    return task.set_accelerator_type(name).set_accelerator_limit(count)


def configs(result: Rewritten) -> dict[str, Any]:
    """What the platform says of each task at the root, by its name."""
    spec, platform = result.documents.pipeline, result.documents.platform
    executors = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    components = spec["components"]
    tasks = spec["root"]["dag"]["tasks"]
    labels = {name: components[task["componentRef"]["name"]].get("executorLabel") for name, task in tasks.items()}
    return {name: executors[label] for name, label in labels.items() if label in executors}


def selectors(result: Rewritten) -> dict[str, Any]:
    """Each task's node selector; None where it has none."""
    return {name: config.get("nodeSelector", {}).get("labels") for name, config in configs(result).items()}


@pytest.mark.proves("kubeflow cluster", "gpu_memory", "flavors")
def test_gpu_steps_go_to_the_first_pool_that_fits_and_cpu_steps_off_gpu_nodes() -> None:
    """By number of devices, their memory and kind; tolerations come with the pool."""

    @dsl.pipeline(name="placed")
    def placed() -> None:
        step().set_display_name("plain")
        gpus(step(), 1)
        gpus(step(), 4)
        hinted(gpus(step(), 1), gpu_memory_bytes=30 * 2**30)
        hinted(gpus(step(), 1), flavors=("a100",))
        step().set_cpu_limit("32")
        gpus(step(), 16)
        gpus(step(), 1, "amd.com/gpu")

    result = rewrite(documents_of(placed), SITE)
    a100 = {"pool": "a100"}
    assert selectors(result) == {
        "step": {"pool": "cpu"},
        "step-2": {"pool": "t4"},
        "step-3": a100,
        "step-4": a100,
        "step-5": a100,
        "step-6": None,
        "step-7": None,
        "step-8": None,
    }
    found = configs(result)
    toleration = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    assert found["step-3"]["tolerations"] == [toleration]
    assert "tolerations" not in found["step-2"]
    off = [{"key": "pool", "operator": "NotIn", "values": [name]} for name in ("a100", "t4")]
    assert found["step-6"]["nodeAffinity"] == [{"matchExpressions": off}]
    assert [note for note in result.notes if "is not placed" in note] == [
        "step-7: is not placed: no pool is sure to have room for nvidia.com/gpu"
        " (t4: 16 GPUs asked for, 1 there; a100: 16 GPUs asked for, 8 there)",
        "step-8: is not placed: no pool has amd.com/gpu",
    ]


@pytest.mark.parametrize(
    ("hints", "why"),
    [
        ({"gpu_memory_bytes": 80 * 2**30}, "a100: 80 GiB of GPU memory asked for, 40 there"),
        ({"flavors": ("h100",)}, "t4: h100 asked for, t4 there; a100: h100 asked for, a100 there"),
    ],
)
def test_a_task_without_a_pool_says_what_each_lacks(hints: dict[str, Any], why: str) -> None:
    """GPU memory and the kind of GPU, as asked for and as there."""

    @dsl.pipeline(name="unplaced")
    def unplaced() -> None:
        hinted(gpus(step(), 1), **hints)

    (note,) = rewrite(documents_of(unplaced), SITE).notes
    assert why in note


def test_a_number_that_only_the_run_knows_says_so() -> None:
    """It is what keeps the task from being placed."""

    @dsl.pipeline(name="unsure")
    def unsure(count: str) -> None:
        step().set_accelerator_type("nvidia.com/gpu").set_accelerator_limit(count)

    (note,) = rewrite(documents_of(unsure), SITE).notes
    assert "a100: an unknown number of GPUs asked for, 8 there" in note


def test_what_only_the_run_knows_fits_no_pool_of_stated_size() -> None:
    """A pod that its pool has no room for would wait for ever; a value given for one run is known."""

    @dsl.pipeline(name="unknown")
    def unknown(cpu: str, count: str) -> None:
        step().set_cpu_limit(cpu)
        task = step()
        task.set_accelerator_type("nvidia.com/gpu").set_accelerator_limit(count)

    documents = documents_of(unknown)
    assert selectors(rewrite(documents, SITE)) == {"step": None, "step-2": None}
    assert "nodeAffinity" in configs(rewrite(documents, SITE))["step"]
    known = rewrite(documents, SITE, arguments={"cpu": "8", "count": "2"})
    assert selectors(known) == {"step": {"pool": "cpu"}, "step-2": {"pool": "a100"}}


def test_a_task_that_is_there_twice_is_placed_for_both() -> None:
    """A nested pipeline with one GPU here and eight there fits no pool of one; where both agree, it does."""

    @dsl.pipeline(name="inner")
    def inner(count: str) -> None:
        step().set_accelerator_type("nvidia.com/gpu").set_accelerator_limit(count)

    def placed(first: str, second: str) -> Any:
        @dsl.pipeline(name="twice")
        def twice() -> None:
            inner(count=first)
            inner(count=second)

        documents = documents_of(twice)
        tasks = documents.pipeline["root"]["dag"]["tasks"]
        tasks["inner-2"]["componentRef"] = tasks["inner"]["componentRef"]
        platform = rewrite(documents, SITE).documents.platform["platforms"]["kubernetes"]
        return platform["deploymentSpec"]["executors"]["exec-step"].get("nodeSelector", {}).get("labels")

    assert placed("1", "1") == {"pool": "t4"}
    assert placed("1", "8") is None


def test_keeping_off_pools_of_several_labels_means_lacking_one_of_them() -> None:
    """A node with only one of a pool's two labels is not in that pool."""
    profile = parse_profile("""
pools:
  - {name: a, selector: {x: "1", y: "2"}, accelerator: nvidia.com/gpu}
  - {name: b, selector: {z: "3"}, accelerator: nvidia.com/gpu}
""")

    @dsl.pipeline(name="off")
    def off() -> None:
        step()

    terms = configs(rewrite(documents_of(off), profile))["step"]["nodeAffinity"]
    found = [{one["key"]: one["values"] for one in term["matchExpressions"]} for term in terms]
    assert found == [{"x": ["1"], "z": ["3"]}, {"y": ["2"], "z": ["3"]}]


def test_what_the_author_set_wins() -> None:
    """Selectors, affinity, time limits, queues and classes stay; nothing is added to a placed task."""

    @dsl.pipeline(name="set")
    def own() -> None:
        first = gpus(step(), 1)
        kubernetes.add_node_selector(first, "mine", "yes")
        kubernetes.set_timeout(first, 60)
        kubernetes.add_pod_label(first, "kueue.x-k8s.io/queue-name", "mine")
        kubernetes.add_pod_label(first, "kueue.x-k8s.io/priority-class", "mine-too")
        second = hinted(gpus(step(), 1), gpus=4.0, cpus=2.0, memory_bytes=100)
        second.set_cpu_limit("1").set_memory_request("1G")
        kubernetes.add_node_affinity(second, match_expressions=[{"key": "k", "operator": "Exists"}])

    result = rewrite(documents_of(own), SITE)
    first, second = configs(result)["step"], configs(result)["step-2"]
    assert first["nodeSelector"] == {"labels": {"mine": "yes"}}
    assert first["activeDeadlineSeconds"] == "60"
    assert first["podMetadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "mine"
    assert first["podMetadata"]["labels"]["kueue.x-k8s.io/priority-class"] == "mine-too"
    assert {"tolerations", "nodeAffinity"}.isdisjoint(first)
    assert "nodeSelector" not in second
    executors = result.documents.pipeline["deploymentSpec"]["executors"]
    stated = executors["exec-step-2"]["container"]["resources"]
    assert (stated["accelerator"]["resourceCount"], stated["resourceCpuLimit"]) == ("1", "1")
    assert "resourceCpuRequest" not in stated
    assert stated["resourceMemoryRequest"] == "1G"


@pytest.mark.proves("kubeflow cluster", "gpus", "cpus", "memory", "max_runtime", "priority", "limits")
def test_hints_become_resources_limits_and_labels() -> None:
    """GPUs, CPUs, memory, the time limit, and the class of the author's priority."""

    @dsl.pipeline(name="hinted")
    def pipeline() -> None:
        hinted(step(), gpus=0.5, cpus=3.0, memory_bytes=2**30, max_runtime_s=89.5, priority=12, expect_s=(30.0,))

    result = rewrite(documents_of(pipeline), SITE)
    resources = result.documents.pipeline["deploymentSpec"]["executors"]["exec-step"]["container"]["resources"]
    accelerator = {"type": "nvidia.com/gpu", "count": "1", "resourceType": "nvidia.com/gpu", "resourceCount": "1"}
    assert resources["accelerator"] == accelerator
    assert (resources["resourceCpuRequest"], resources["resourceMemoryRequest"]) == ("3", str(2**30))
    config = configs(result)["step"]
    assert config["activeDeadlineSeconds"] == "90"
    assert config["podMetadata"]["labels"] == {
        "egs.io/workload": "hinted",
        "egs.io/task": "step",
        "egs.io/rank": "30.0",
        "egs.io/predicted-s": "30.0",
        "kueue.x-k8s.io/queue-name": "gpus",
        "kueue.x-k8s.io/priority-class": "high",
    }


def test_no_queue_for_a_task_that_its_quotas_never_admit() -> None:
    """An author's selector that fits no pool of the queue's quotas: Kueue would keep the pod for ever. One that a pool
    fits, or of a queue whose quotas the profile does not say, gets its queue."""
    site = """
pools: [{name: cpu, selector: {pool: cpu}}, {name: edge, selector: {pool: edge}}]
cluster_queues: [{name: shared, quotas: {cpu: {cpus: 4}}}]
queues: [{name: team, exists: true, cluster_queue: shared}]
"""

    @dsl.pipeline(name="placed")
    def pipeline() -> None:
        kubernetes.add_node_selector(step(), "pool", "edge")
        kubernetes.add_node_selector(step(), "zone", "b")
        step()

    def queued(profile: str) -> tuple[set[str], tuple[str, ...]]:
        found = rewrite(documents_of(pipeline), parse_profile(profile))
        labels = {name: config["podMetadata"]["labels"] for name, config in configs(found).items()}
        return {name for name, one in labels.items() if "kueue.x-k8s.io/queue-name" in one}, found.notes

    known, notes = queued(site)
    assert known == {"step-2", "step-3"}
    assert notes == (
        "step: queue 'team' is not written: its node selector pool=edge fits none of the pools that ClusterQueue "
        "'shared' has: cpu",
    )
    assert queued(site.replace(", cluster_queue: shared", "")) == ({"step", "step-2", "step-3"}, ())


def test_only_kueue_objects_that_exist_are_named() -> None:
    """A class that is not there would keep the pod waiting for ever: it is a note. Without queues there is no class."""

    @dsl.pipeline(name="urgent")
    def pipeline() -> None:
        hinted(step(), priority=25)

    result = rewrite(documents_of(pipeline), SITE)
    labels = configs(result)["step"]["podMetadata"]["labels"]
    assert labels["kueue.x-k8s.io/queue-name"] == "team"
    assert "kueue.x-k8s.io/priority-class" not in labels
    assert result.notes == ("step: priority class 'planned' is not written: the profile does not say it exists",)
    bare = configs(rewrite(documents_of(pipeline), Profile()))["step"]["podMetadata"]["labels"]
    assert set(bare) == {"egs.io/workload", "egs.io/task", "egs.io/rank"}


def test_ranks_and_predictions_come_from_the_history() -> None:
    """The first of two tasks has the whole path before it; a task without history has no predicted duration."""

    @dsl.component(base_image="python:3.11")
    def other(x: int) -> int:
        return x

    @dsl.pipeline(name="learned")
    def pipeline() -> None:
        other(x=step().output)

    rows = [HistoryRow("learned", "step", 0, Shape(), 40.0) for _ in range(5)]
    history = Predictor()
    history.learn(rows)
    labels = {
        name: config["podMetadata"]["labels"]
        for name, config in configs(rewrite(documents_of(pipeline), Profile(), history)).items()
    }
    assert labels["step"]["egs.io/predicted-s"] == "40.0"
    assert "egs.io/predicted-s" not in labels["other"]
    rank = float(labels["other"]["egs.io/rank"])
    assert float(labels["step"]["egs.io/rank"]) == pytest.approx(40.0 + rank, abs=0.11)


def test_the_history_knows_nested_tasks_by_their_path() -> None:
    """As a local run records them: also one in a loop in an exit handler, whatever memory its GPU should have."""

    @dsl.pipeline(name="deep")
    def deep() -> None:
        with dsl.ExitHandler(step()), dsl.ParallelFor([1, 2]) as x:
            hinted(gpus(step(x=x), 1), gpu_memory_bytes=2**30)

    history = Predictor()
    path, shape = "exit-handler-1.for-loop-3.step-2", Shape(1000, 1000)
    history.learn([HistoryRow("deep", path, 0, shape, 40.0) for _ in range(5)])
    changes = rewrite(documents_of(deep), Profile(), history).changes
    found = {(change.task, change.field): change.after for change in changes}
    assert found[path, "label egs.io/predicted-s"] == "40.0"
    assert ("step", "label egs.io/predicted-s") not in found


def test_a_rank_says_whether_it_is_of_what_is_usual() -> None:
    """A path on which one task is neither known nor hinted is said to be a guess; one that is known is not."""

    @dsl.pipeline(name="guessed")
    def guessed() -> None:
        step(x=hinted(step(), expect_s=(30.0,)).output)
        hinted(step(), expect_s=(30.0,))

    changes = rewrite(documents_of(guessed), Profile()).changes
    ranks = {change.task: change.reason for change in changes if change.field == "label egs.io/rank"}
    assert {task for task, reason in ranks.items() if "a guess" in reason} == {"step", "step-2"}
    assert set(ranks) == {"step", "step-2", "step-3"}


def test_learned_ranks_choose_no_priority_class() -> None:
    """Tasks of equal user priority have one class, however urgent history makes them."""

    @dsl.pipeline(name="equal")
    def pipeline() -> None:
        first = step()
        for _ in range(3):
            first = step(x=first.output)

    result = configs(rewrite(documents_of(pipeline), SITE))
    labels = [config["podMetadata"]["labels"] for config in result.values()]
    assert len({one["egs.io/rank"] for one in labels}) == 4
    assert {one["kueue.x-k8s.io/priority-class"] for one in labels} == {"low"}


def test_tasks_of_one_component_get_labels_of_their_own() -> None:
    """The component is copied, not its command or image; a DAG that runs twice is labelled once, as it is written."""

    @dsl.pipeline(name="inner")
    def inner(x: int) -> None:
        step(x=x)

    @dsl.pipeline(name="shared")
    def shared() -> None:
        step(x=1)
        step(x=2)
        inner(x=1)
        inner(x=2)

    documents = documents_of(shared)
    tasks, components = documents.pipeline["root"]["dag"]["tasks"], documents.pipeline["components"]
    tasks["step-2"]["componentRef"] = tasks["step"]["componentRef"]
    tasks["inner-2"]["componentRef"] = tasks["inner"]["componentRef"]
    del components["comp-step-2"]
    result = rewrite(documents, Profile())
    found = configs(result)
    assert [found[name]["podMetadata"]["labels"]["egs.io/task"] for name in ("step", "step-2")] == ["step", "step-2"]
    executors = result.documents.pipeline["deploymentSpec"]["executors"].values()
    assert len({executor["container"]["image"] for executor in executors}) == 1
    assert len({str(executor["container"]["command"]) for executor in executors}) == 1
    assert not rewrite(result.documents, Profile()).changes


def test_a_gang_is_counted_over_its_loops_and_not_cached() -> None:
    """Three iterations and one task are four pods; Kueue's group is written for a named run only."""

    @dsl.pipeline(name="together")
    def together() -> None:
        with dsl.ParallelFor([1, 2, 3]) as x:
            hinted(step(x=x), gang="ring")
        hinted(step(), gang="ring")
        step()

    documents = documents_of(together)
    result = rewrite(documents, SITE)
    alone, member = configs(result)["step-3"], configs(result)["step-2"]
    assert member["podMetadata"]["labels"]["egs.io/gang"] == "ring"
    assert member["podMetadata"]["annotations"]["egs.io/gang-size"] == "4"
    reasons = {change.reason for change in result.changes if "egs.io/gang" in change.field}
    assert reasons == {"one of 4 of gang 'ring', for a scheduler that starts them together"}
    assert "egs.io/gang" not in alone["podMetadata"]["labels"]
    tasks = result.documents.pipeline["root"]["dag"]["tasks"]
    assert (tasks["step-2"]["cachingOptions"], tasks["step-3"]["cachingOptions"]) == ({}, {"enableCache": True})
    inside = result.documents.pipeline["components"]["comp-for-loop-2"]["dag"]["tasks"]["step"]
    assert inside["cachingOptions"] == {}
    assert "pod-group" not in dump_documents(result.documents)
    named = configs(rewrite(documents, SITE, run_id="r7"))["step-2"]["podMetadata"]
    assert named["labels"]["kueue.x-k8s.io/pod-group-name"] == "together-ring-r7"
    assert named["annotations"]["kueue.x-k8s.io/pod-group-total-count"] == "4"


@pytest.mark.parametrize("parallelism", [2, None])
def test_a_gang_that_cannot_be_whole_is_a_note(parallelism: int | None) -> None:
    """A loop that runs two of three at once, or whose width only the run knows, would wait for itself."""

    @dsl.pipeline(name="broken")
    def broken(xs: list) -> None:  # type: ignore[type-arg]  # as kfp's users write it
        with dsl.ParallelFor([1, 2, 3] if parallelism else xs, parallelism=parallelism) as x:
            hinted(step(x=x), gang="ring")

    result = rewrite(documents_of(broken), SITE)
    assert "egs.io/gang" not in dump_documents(result.documents).replace("egs.io/hints", "")
    assert any(note.startswith("gang 'ring': is not started together") for note in result.notes)


def test_each_change_says_why() -> None:
    """`--diff` has a line a task, and under it each field, what it was, and the reason."""

    @dsl.pipeline(name="why")
    def why() -> None:
        step()

    documents = documents_of(why)
    lines = explain(rewrite(documents, SITE).changes)
    assert lines[0] == "step"
    assert lines[1] == "  node selector: pool is cpu (it needs no GPU: pool 'cpu', off the nodes with GPUs)"
    assert "  timeout: 3600 s (the site's limit)" in lines
    again = rewrite(rewrite(documents, SITE).documents, Profile(), Predictor()).changes
    assert again == ()
