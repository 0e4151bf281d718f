"""Preload pods as the controller makes and removes them, on an emulated API server."""

from __future__ import annotations

import copy
import json
import time
from typing import Any

import pytest
import yaml

pytest.importorskip("kubernetes", reason="the client of Kubernetes is not installed")

from egs_core.cli.app import run
from egs_core.kubernetes import names
from egs_core.kubernetes.cluster import ApiError, Cluster, Kind
from egs_core.kubernetes.images import full_name, images_of
from egs_core.kubernetes.manifests import Installation, objects
from egs_core.kubernetes.objects import moment
from egs_core.kubernetes.preloads import preload_of
from egs_core.kubernetes.settings import Settings
from tests.unit.kubernetes.controlled import controlled
from tests.unit.kubernetes.emulated_api import EmulatedApi
from tests.unit.kubernetes.made_pods import node, pod
from tests.unit.kubernetes.made_workflows import executor, task, workflow
from tests.unit.kubernetes.test_preloads import BIG, ENDED, NOW, container, raw_preload
from tests.unit.kubernetes.test_steering import api

__all__ = ["api"]  # the fixture


def test_manifests_give_the_right_only_when_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    """To make and delete pods, in served namespaces; with the policy that holds it to preloads. Off: nothing of it."""
    words = ["kubernetes", "manifests", "--image", "egs:1", "--serve", "a"]
    assert run(words) == 0
    plain = capsys.readouterr().out
    assert "reload" not in plain.replace(names.PRELOAD, "").replace("no preload and", "").replace(
        names.PRELOAD_CLASS, ""
    )
    assert run([*words, "--preload"]) == 0
    found = [one for one in yaml.safe_load_all(capsys.readouterr().out) if one]
    more = [one for one in found if one not in list(yaml.safe_load_all(plain))]
    kinds = [(one["kind"], one["metadata"]["name"]) for one in more]
    assert kinds == [
        ("Role", "egs-controller-changes"),
        ("ValidatingAdmissionPolicy", "egs-controller-preloads"),
        ("ValidatingAdmissionPolicyBinding", "egs-controller-preloads"),
        ("PriorityClass", names.PRELOAD_CLASS),
        ("Deployment", "egs-controller"),
    ]
    assert {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "delete"]} in more[0]["rules"]
    assert more[1]["spec"]["matchConstraints"]["resourceRules"][0]["operations"] == ["CREATE"]
    assert (more[3]["value"], more[3]["preemptionPolicy"]) == (-100, "Never")
    assert "--preload" in more[4]["spec"]["template"]["spec"]["containers"][0]["args"]


# --- the controller ---


def occupy(api: EmulatedApi, name: str, left_s: int) -> None:
    """A pod that has the GPU of a node, and will have left it in so long."""
    status = {"phase": "Running", "startTime": moment(time.time())}
    spec = {"nodeName": name, "containers": [{"image": "old:1", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}
    api.add("pods", pod(f"on-{name}", gate=False, predicted=left_s, run=f"on-{name}", spec=spec, status=status))


def busy(api: EmulatedApi, left_s: int = 20) -> None:
    """A node of one GPU, which is taken."""
    occupy(api, "n1", left_s)
    api.add("nodes", node("n1", gpus=1))


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is looked at each five seconds is looked at in each step."""
    monkeypatch.setattr("egs_core.kubernetes.preloading.LOOK_S", 0.0)


def waits(name: str = "waits", image: str = "big:1", **stated: Any) -> dict[str, Any]:
    limits = {"limits": {"nvidia.com/gpu": "1"}}
    spec = {"containers": [{"name": "main", "image": image, "resources": limits}], **stated.pop("spec", {})}
    return pod(name, spec=spec, **{"predicted": 50, "run": name} | stated)


def loaders(api: EmulatedApi) -> dict[str, dict[str, Any]]:
    return {name: one for name, one in api.all("pods").items() if names.PRELOAD in one["metadata"].get("labels", {})}


def loads(api: EmulatedApi, state: dict[str, Any], phase: str = "Pending") -> None:
    """As a kubelet would say of the one that is there."""
    (name,) = loaders(api)
    status = {"phase": phase, "startTime": moment(NOW), **container(**state)}
    api.change("pods", name, lambda one: one.update(status=status))


def test_an_image_is_loaded_before_its_pod_has_a_place(api: EmulatedApi) -> None:
    """On the node that will be free, in the pod's name; removed when it is there, and not made again, though the node
    does not list it. The pod is opened when it is its turn."""
    busy(api)
    api.add("pods", waits())
    with controlled(api, preloads=True):
        api.until(lambda: loaders(api))
        (made_pod,) = loaders(api).values()
        assert images_of(made_pod["spec"]) == (BIG,)
        found = preload_of(made_pod | {"status": {}})
        assert found is not None
        assert found.node == "n1"
        assert made_pod["metadata"]["ownerReferences"][0]["uid"] == api.all("pods")["waits"]["metadata"]["uid"]
        loads(api, {"terminated": ENDED}, "Succeeded")
        api.until(lambda: not loaders(api))
        api.end("on-n1")
        api.until(lambda: not api.gated())
        assert not loaders(api)
    assert len([one for one in api.deleted if "preload" in one]) == 1


def test_a_new_leader_goes_on_with_what_is_there(api: EmulatedApi) -> None:
    """It makes no second one, and takes it away at its end."""
    busy(api)
    api.add("pods", waits())
    with controlled(api, preloads=True):
        api.until(lambda: loaders(api))
    (name,) = loaders(api)
    with controlled(api, "two", preloads=True):
        api.add("pods", pod("small", cpu=1, run="s"))
        api.until(lambda: "small" in api.opened())
        assert list(loaders(api)) == [name]
        loads(api, {"waiting": {"reason": "CreateContainerError"}})
        api.until(lambda: not loaders(api))


def test_none_is_made_where_the_image_is(api: EmulatedApi) -> None:
    """As the node lists it, or because something made of it runs there. Two nodes: the one without would be no
    better."""
    busy(api)
    for image, listed in (("old:1", ""), ("big:1", BIG)):
        if listed:
            images = [{"names": [listed], "sizeBytes": 1}]
            api.change("nodes", "n1", lambda one: one["status"].update(images=images))  # noqa: B023  # acts at once
        api.add("pods", waits(f"waits-{listed[-1:]}", image))
    with controlled(api, preloads=True):
        api.add("pods", waits("third", "third:1"))
        api.until(lambda: loaders(api))
        assert [images_of(one["spec"]) for one in loaders(api).values()] == [(full_name("third:1"),)]


def test_it_is_withdrawn_with_its_pod_or_when_that_will_go_elsewhere(api: EmulatedApi) -> None:
    """A second node is free much sooner: the first preload goes, one is made there; the pod goes, and so does that."""
    busy(api, 80)
    api.add("pods", waits())
    with controlled(api, preloads=True) as controller:
        api.until(lambda: loaders(api))
        occupy(api, "n2", 10)
        api.until(lambda: any(one.node == "n2" for one in controller._pods.items().values()))
        api.add("nodes", node("n2", gpus=1))  # a node that is free for a moment would be taken
        api.until(lambda: [one.node for one in map(preload_of, loaders(api).values()) if one] == ["n2"])
        api.remove("pods", "waits")
        api.until(lambda: not loaders(api))


def test_an_image_that_cannot_be_pulled_is_said_once(api: EmulatedApi) -> None:
    """And not tried again for a while; its pod is not kept from its turn."""
    said: list[str] = []
    busy(api)
    api.add("pods", waits())
    with controlled(api, preloads=True, says="was not pulled", said=said):
        api.until(lambda: loaders(api))
        loads(api, {"waiting": {"reason": "ImagePullBackOff"}})
        api.until(lambda: not loaders(api))
        api.end("on-n1")
        api.until(lambda: not api.gated())
    assert said == [f"preload {BIG}: was not pulled on node n1"]


def test_a_right_that_is_missing_is_said_once_and_gates_are_opened(
    api: EmulatedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Manifests without --preload: one line, and the order is kept."""
    create, tries = Cluster.create, []

    def refuses(cluster: Cluster, kind: Kind, body: dict[str, Any], namespace: str = "") -> Any:
        if kind.plural == "pods":
            tries.append(body)
            raise ApiError(403, "pods is forbidden")
        return create(cluster, kind, body, namespace)

    monkeypatch.setattr(Cluster, "create", refuses)
    said: list[str] = []
    busy(api)
    api.add("pods", waits())
    with controlled(api, preloads=True, says="none is made there for 10 minutes", said=said):
        api.until(lambda: said)
        for number in range(3):
            api.add("pods", pod(f"small-{number}", cpu=1, run=f"s{number}"))
            api.until(lambda: len(api.opened()) == number + 1)  # noqa: B023  # at once
    assert (len(said), len(tries)) == (1, 1)


def test_the_next_step_of_a_run_is_loaded_for(api: EmulatedApi) -> None:
    """While the one before it runs: its pod is not there yet, so the preload is its Workflow's, and goes when that has
    ended."""
    api.add("nodes", node("n1", gpus=1))
    run_of = workflow("r", {"a": task(30), "b": task(20, ["a"], gpus="1"), "c": task(5, ["b"])})
    for one in run_of["spec"]["arguments"]["parameters"]:
        told = json.loads(one["value"])
        one["value"] = json.dumps(told | {"image": f"{one['name'][-1]}:1"})
    api.add("workflows", run_of)
    status = {"phase": "Running", "startTime": moment(time.time())}
    api.add("pods", executor("r", "a", gate=False, predicted=30, spec={"nodeName": "n1"}, status=status))
    with controlled(api, preloads=True):
        api.until(lambda: loaders(api))
        (found,) = loaders(api).values()
        assert images_of(found["spec"]) == (full_name("b:1"),)
        assert found["metadata"]["ownerReferences"][0]["kind"] == "Workflow"
        assert found["metadata"]["namespace"] == "team"
        api.change("workflows", "r", lambda one: one["status"].update(phase="Succeeded"))
        api.until(lambda: not loaders(api))


def test_off_it_makes_nothing_and_asks_for_nothing(api: EmulatedApi) -> None:
    """No pod, no list of preloads, and what nodes have is not kept."""
    busy(api)
    api.add("pods", waits())
    with controlled(api) as controller:
        api.add("pods", pod("small", cpu=1, run="s"))
        api.until(lambda: "small" in api.opened())
        assert controller._preloads.lists == 0
        assert not any(one.images for one in controller._pods.items().values())
    assert not loaders(api)
    assert not Settings().preloads


def test_who_leaves_takes_preloads_along(api: EmulatedApi, capsys: pytest.CaptureFixture[str]) -> None:
    """Its own, also while the controller that made them is away; a pod of others with that label stays."""
    for one in objects(Installation("egs:1", preloads=True)):
        kind = one["kind"].lower()
        api.add(kind[:-1] + "ies" if kind.endswith("y") else kind + ("es" if kind.endswith("s") else "s"), one)
    ours = raw_preload()
    theirs = copy.deepcopy(ours)
    theirs["metadata"] |= {"name": "theirs", "uid": "v"}
    theirs["spec"]["priorityClassName"] = ""
    for one in (ours, theirs):
        api.add("pods", one)
    assert run(["kubernetes", "leave", "--kubeconfig", str(api.kubeconfig)]) == 0
    assert list(api.all("pods")) == ["theirs"]
    assert api.all("priorityclasses") == {}
    assert api.all("validatingadmissionpolicies") == {}
    assert f"priorityclasses/{names.PRELOAD_CLASS}: deleted" in capsys.readouterr().err


def test_a_time_to_pull_that_is_none_is_one_error(api: EmulatedApi, capsys: pytest.CaptureFixture[str]) -> None:
    """It names the option and what was wrong; also where the option does nothing."""
    words = ["kubernetes", "controller", "--kubeconfig", str(api.kubeconfig)]
    assert run([*words, "--preload", "--pull-time", "soon"]) == 2
    assert "--pull-time: 'soon' is not a duration" in capsys.readouterr().err
    assert run([*words, "--pull-time", "5m"]) == 2
    assert "--pull-time: does nothing without --preload" in capsys.readouterr().err
    assert run([*words, "--release-by", "late"]) == 2
    assert "--release-by: 'late' is not a duration" in capsys.readouterr().err
