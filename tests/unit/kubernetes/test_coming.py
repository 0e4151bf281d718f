"""Which steps of runs of Argo come next, when, and what their pods will be made of."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from egs_core.graph.columns import Shape
from egs_core.kubernetes.coming import to_come
from egs_core.kubernetes.foreseen import Wanted, starts
from egs_core.kubernetes.images import pod_with_images
from egs_core.kubernetes.objects import moment
from egs_core.kubernetes.paths import Traces
from egs_core.kubernetes.pods import node_of
from egs_core.kubernetes.readings import Mount, readable
from egs_core.kubernetes.workflows import workflow_of
from tests.unit.kubernetes.made_pods import node as api_node
from tests.unit.kubernetes.made_workflows import executor, group, node, task, workflow

NOW = 1_800_000_000.0


def runs(path: str, since_s: float = 0.0, **stated: Any) -> dict[str, Any]:
    status = {"phase": "Running", "startTime": moment(NOW - since_s)}
    return executor("r", path, gate=False, spec={"nodeName": "n1"}, status=status, **stated)


def come(raw: dict[str, Any], *pods: dict[str, Any]) -> list[Wanted]:
    traces = Traces()
    traces.applied({one.uid: one for one in map(pod_with_images, pods)}, [workflow_of(raw)])
    return to_come(traces.runs(), NOW)


def in_s(found: list[Wanted]) -> list[tuple[float, float | None]]:
    """When they are ready, and how long they take."""
    return [(round(one.ready_at - NOW, 3), one.takes_s) for one in found]


TASKS = {"a": task(30), "b": task(20, ["a"]), "c": task(5, ["a"]), "d": task(7, ["b", "c"]), "e": task(9)}


def test_what_waits_for_running_pods_alone_is_in_sight() -> None:
    """Ready when the last of them should have ended; nothing behind it, and nothing behind what waits itself."""
    raw = workflow("r", TASKS)
    assert in_s(come(raw, runs("a", 10), executor("r", "e"))) == [(20.0, 20.0), (20.0, 5.0)]
    raw = workflow("r", TASKS, [node("root.a", type="DAG")])
    assert in_s(come(raw, runs("b", 5), runs("c", 2), runs("e"))) == [(15.0, 7.0)]
    assert in_s(come(raw, runs("b", 5), executor("r", "c"))) == [(0.0, 9.0)]  # e, which waits for nothing
    assert in_s(come(workflow("r", TASKS), executor("r", "a"), executor("r", "e"))) == []


def test_a_pod_that_has_ended_is_over_before_its_workflow_says_so() -> None:
    """Its controller notes it a moment later: the step is not to come again."""
    found = come(workflow("r", TASKS), executor("r", "a", ran=30), runs("e"))
    assert in_s(found) == [(0.0, 20.0), (0.0, 5.0)]


def test_a_driver_takes_the_time_that_others_took() -> None:
    """Between a step and the next there is one."""
    drivers = [node(f"root.{name}-driver", templateName="system-container-driver", took=4) for name in ("a", "e")]
    assert in_s(come(workflow("r", TASKS, drivers), runs("a"), runs("e")))[0] == (34.0, 20.0)


def test_iterations_to_come_are_in_sight() -> None:
    """Of a loop whose number of iterations nobody knows yet: one."""
    raw = workflow("r", {"a": task(30), "many": group({"x": task(10)}, ["a"], loops=True)})
    assert in_s(come(raw, runs("a"))) == [(30.0, 10.0)]


def test_nothing_is_said_of_runs_that_cannot_be_read() -> None:
    """Or are over, or have no pod of ours."""
    unread, over = workflow("r", TASKS), workflow("r", TASKS, phase="Succeeded")
    unread["spec"]["templates"][-1]["dag"]["tasks"][0]["templateRef"] = {"name": "x"}
    assert come(unread, runs("a")) == come(over, runs("a")) == come(workflow("r", TASKS)) == []


def test_a_step_of_plain_argo_asks_as_its_template_says() -> None:
    """Where it says nothing of nodes, as its Workflow does; of two kinds of GPUs so many of each. Not if a
    pod-spec-patch changes it, or it is not EGS's."""
    limits = {"cpu": "2", "memory": "1Gi", "nvidia.com/gpu": "1"}
    made: dict[str, Any] = {"name": "train", "container": {"image": "image:2", "resources": {"limits": limits}}}
    made["metadata"] = {"labels": {"egs.io/workload": "w", "egs.io/predicted-s": "50"}}
    first = {"name": "prepare", "container": {"image": "image:1"}, "metadata": made["metadata"]}
    steps = [{"name": "a", "template": "prepare"}, {"name": "b", "template": "train", "dependencies": ["a"]}]
    raw = workflow("r", {})
    raw["spec"] |= {"entrypoint": "main", "nodeSelector": {"pool": "x"}, "imagePullSecrets": [{"name": "s"}]}
    raw["spec"]["templates"] = [{"name": "main", "dag": {"tasks": steps}}, first, made]
    runs_now = runs("a", predicted=30)
    runs_now["metadata"]["annotations"]["workflows.argoproj.io/node-name"] = "r.a"
    (found,) = come(raw, runs_now)
    assert (found.shape, found.devices) == (Shape(2000, 1000, 1 << 30), (("nvidia.com/gpu", 1),))
    assert found.images == ("docker.io/library/image:2",)
    assert (json.loads(found.where), found.pull_secrets) == ({"select": {"pool": "x"}}, ("s",))
    assert in_s([found]) == [(30.0, 50.0)]
    limits |= {"nvidia.com/mig-1g.5gb": "2"}
    (found,) = come(raw, runs_now)
    assert found.devices == (("nvidia.com/gpu", 1), ("nvidia.com/mig-1g.5gb", 2))
    offers = [dict(found.devices[: number + 1]) for number in range(2)]
    whole, both = (node_of(api_node(f"n{n}", offers=one, labels={"pool": "x"})) for n, one in enumerate(offers))
    assert [one.node for one in starts([found], [], [whole, both], NOW, NOW + 100)] == ["n1"]
    assert starts([found], [], [whole, whole], NOW, NOW + 100) == []
    made["podSpecPatch"] = "{}"
    assert come(raw, runs_now) == []
    del made["podSpecPatch"], made["metadata"]["labels"]["egs.io/workload"]
    assert come(raw, runs_now) == []


@pytest.mark.parametrize(
    ("resources", "shape"),
    [
        ({"resourceCpuRequest": "1500m", "resourceMemoryLimit": "2Gi", "cpuLimit": 8.0}, Shape(1500, 0, 2 << 30)),
        ({"cpuLimit": 2.0, "memoryRequest": 1.0, "memoryLimit": 2.0}, Shape(2000, 0, 1_000_000_000)),
        ({"accelerator": {"resourceType": "nvidia.com/gpu", "resourceCount": "2"}}, Shape(0, 2000, 0)),
        ({"resourceCpuLimit": "{{$.inputs.parameters['n']}}"}, Shape(0)),
        ("x", Shape(0)),
    ],
)
def test_what_a_step_asks_for_is_what_its_driver_is_told(resources: object, shape: Shape) -> None:
    """As newer and older compilers write it; what is no amount is none."""
    (found,) = come(asking({"image": "team/app:2", "resources": resources}), runs("a"))
    assert (found.shape, found.images) == (shape, ("docker.io/team/app:2",))


def test_where_a_step_may_run_is_what_its_driver_is_told() -> None:
    """Selector, required affinity, tolerations and secrets, as kfp-kubernetes writes them."""
    term = {"matchExpressions": [{"key": "x", "operator": "Exists"}]}
    platform = {
        "nodeSelector": {"labels": {"pool": "a100"}},
        "nodeAffinity": [term, term | {"weight": 5}],
        "tolerations": [{"key": "gpu", "operator": "Exists", "tolerationSeconds": "30"}],
        "imagePullSecret": [{"secretName": "hub"}, {}],
    }
    (found,) = come(asking({"image": "a:1"}, platform), runs("a"))
    assert json.loads(found.where) == {
        "select": {"pool": "a100"},
        "terms": [term],
        "tolerate": [{"key": "gpu", "operator": "Exists", "tolerationSeconds": 30}],
    }
    assert found.pull_secrets == ("hub",)
    assert (found.owner.api, found.owner.kind, found.owner.uid) == ("argoproj.io/v1alpha1", "Workflow", "uid-r")


def test_what_a_step_reads_is_what_its_driver_is_told() -> None:
    """Its hints, and the volume claims whose names are known before the run; of others nothing is read."""
    hints = {"preload": {"files": ["/a/m", "/b/m", "/c/m", "/tmp/m"], "modules": ["torch"]}}
    platform = {
        "podMetadata": {"annotations": {"egs.io/hints": json.dumps(hints)}},
        "pvcMount": [
            {"mountPath": "/a", "constant": "data", "subPath": "x"},
            {"mountPath": "/b", "pvcNameParameter": {"runtimeValue": {"constant": "models"}}},
            {"mountPath": "/c", "taskOutputParameter": {"producerTask": "a"}},
        ],
        "emptyDirMounts": [{"mountPath": "/tmp"}],
    }
    (found,) = come(asking({"image": "a:1"}, platform), runs("a"))
    assert found.reading is not None
    assert (found.reading.namespace, found.reading.image) == ("team", "docker.io/library/a:1")
    told = readable(found.reading, bool)
    assert told is not None
    assert (told.files, told.modules) == (("/a/m", "/b/m"), ("torch",))
    assert told.mounts == (Mount("data", "/a", "x"), Mount("models", "/b"))
    (plain,) = come(asking({"image": "a:1"}), runs("a"))
    assert plain.reading is None


@pytest.mark.parametrize("container", [{}, {"image": "{{$.inputs.parameters['image']}}"}, {"image": ""}])
def test_an_image_that_only_the_run_knows_is_none(container: dict[str, Any]) -> None:
    """Nothing can be loaded for such a step."""
    assert come(asking(container), runs("a")) == []


@pytest.mark.parametrize(
    ("container", "platform"),
    [
        ({"image": "a:1"}, {"nodeAffinity": [{"matchExpressions": ["x"]}]}),
        ({"image": "a:1"}, {"nodeAffinity": [{"matchFields": {"key": "x"}}]}),
        ({"image": "a:1"}, {"nodeAffinity": [{"matchExpressions": [{"key": "x", "operator": "In", "values": 5}]}]}),
        ({"image": "a:\ud800"}, {}),
        ({"image": "a:1"}, {"imagePullSecret": [{"secretName": "\ud800"}]}),
        ({"image": "a:1"}, {"nodeSelector": {"labels": {"pool": "\ud800"}}}),
        ({"image": "a:1"}, {"nodeSelector": {"labels": {"pool": "{{inputs.parameters.pool}}"}}}),
    ],
)
def test_a_step_of_which_no_pod_can_be_made_is_none(container: dict[str, Any], platform: dict[str, Any]) -> None:
    """What drivers are told is JSON that nobody has validated; the run goes on as a graph."""
    assert come(asking(container, platform), runs("a")) == []


def test_a_template_says_of_nodes_what_only_its_run_will_know() -> None:
    """A placeholder of the words between the braces would be refused."""
    made: dict[str, Any] = {"name": "train", "container": {"image": "image:2"}, "metadata": {"labels": {}}}
    made["metadata"]["labels"] = {"egs.io/workload": "w"}
    steps = [{"name": "a", "template": "train"}, {"name": "b", "template": "train", "dependencies": ["a"]}]
    pod_now = runs("a", predicted=30)
    pod_now["metadata"]["annotations"]["workflows.argoproj.io/node-name"] = "r.a"
    affinity: dict[str, Any] = {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}]}}
    }
    wrong = copy.deepcopy(affinity)
    terms = wrong["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    terms[0] = {"matchExpressions": ["x"]}
    for stated, count in (
        ({"nodeSelector": {"pool": "x"}}, 1),
        ({"nodeSelector": {"pool": "{{inputs.parameters.pool}}"}}, 0),
        ({"affinity": affinity}, 1),
        ({"affinity": wrong}, 0),
    ):
        raw = workflow("r", {})
        raw["spec"] |= {"entrypoint": "main", "templates": [{"name": "main", "dag": {"tasks": steps}}, made | stated]}
        assert len(come(raw, pod_now)) == count


def asking(container: dict[str, Any], platform: dict[str, Any] | None = None) -> dict[str, Any]:
    """A run of two steps, whose second one has this container."""
    raw = workflow("r", {"a": task(30), "b": task(20, ["a"])})
    parameters = raw["spec"]["arguments"]["parameters"]
    parameters[1]["value"] = json.dumps(container)
    if platform is not None:
        parameters.append({"name": "kubernetes-comp-b", "value": json.dumps(platform)})
        root = next(one for one in raw["spec"]["templates"] if one["name"] == "root")
        driver = next(one for one in root["dag"]["tasks"] if one["name"] == "b-driver")
        value = "{{workflow.parameters.kubernetes-comp-b}}"
        driver["arguments"]["parameters"].append({"name": "kubernetes-config", "value": value})
    return raw
