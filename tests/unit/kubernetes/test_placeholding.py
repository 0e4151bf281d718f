"""Placeholder pods as the controller makes and removes them, on an emulated API server."""

from __future__ import annotations

import copy
import json
import time
from typing import Any

import msgspec
import pytest
import yaml

pytest.importorskip("kubernetes", reason="the client of Kubernetes is not installed")

from egs_core.cli.app import run
from egs_core.kubernetes import names
from egs_core.kubernetes.cluster import ApiError, Cluster, Kind
from egs_core.kubernetes.manifests import Installation, objects
from egs_core.kubernetes.objects import moment
from egs_core.kubernetes.placeholders import made
from egs_core.kubernetes.placeholding import PlaceholderSettings, Placeholding
from egs_core.kubernetes.pods import pod_of
from egs_core.kubernetes.settings import Settings
from tests.unit.kubernetes.controlled import controlled
from tests.unit.kubernetes.emulated_api import EmulatedApi
from tests.unit.kubernetes.made_pods import node, pod
from tests.unit.kubernetes.test_placeholders import ONE, waits
from tests.unit.kubernetes.test_preloading import occupy
from tests.unit.kubernetes.test_preloads import NOW
from tests.unit.kubernetes.test_steering import api

__all__ = ["api"]  # the fixture

TWO = PlaceholderSettings(most=2)


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is looked at each ten seconds is looked at in each step."""
    monkeypatch.setattr("egs_core.kubernetes.placeholding.LOOK_S", 0.0)
    monkeypatch.setattr("egs_core.kubernetes.placeholding.HELD_S", 0.0)


def there(api: EmulatedApi) -> list[dict[str, Any]]:
    return [raw for raw in api.all("pods").values() if pod_of(raw).is_placeholder]


def full(api: EmulatedApi) -> None:
    """A node of one GPU, which is taken for an hour."""
    occupy(api, "n1", 3600)
    api.add("nodes", node("n1", gpus=1))


def add(api: EmulatedApi, *called: str, **stated: Any) -> None:
    for name in called:
        api.add("pods", pod(name, gpus=1, run=name, predicted=3600, **stated))


def test_a_node_is_asked_for_and_goes_to_the_pod_that_waits(api: EmulatedApi) -> None:
    """Two wait for a GPU: two placeholders, with what these ask for, in the controller's namespace. A node comes, and
    the first one is placed there: it is nobody's GPU, a gate is opened for it, and the placeholder is gone. The other
    one stays, as something still waits."""
    full(api)
    add(api, "a", "b", rank=9)
    with controlled(api, placeholders=TWO):
        api.until(lambda: len(there(api)) == 2)
        asked = there(api)[0]
        assert asked["metadata"]["namespace"] == names.SYSTEM
        assert asked["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
        assert api.gated() == {"a", "b"}
        api.bind(asked["metadata"]["name"], "n2")
        api.add("nodes", node("n2", gpus=1))
        api.until(lambda: len(api.gated()) == 1 and len(there(api)) == 1)
        (opened,) = {"a", "b"} - api.gated()
        assert api.all("pods")[opened]["metadata"]["annotations"][names.OPENED].endswith("order")
        api.bind(opened, "n2")
        api.add("nodes", node("n3", gpus=1))
        api.until(lambda: not api.gated() and not there(api))


def test_one_goes_when_nothing_needs_it_any_more(api: EmulatedApi) -> None:
    """What waited was deleted."""
    full(api)
    add(api, "a")
    with controlled(api, placeholders=TWO):
        api.until(lambda: there(api))
        api.remove("pods", "a")
        api.until(lambda: not there(api))


def test_a_new_controller_goes_on_with_those_that_are_there(api: EmulatedApi) -> None:
    """It makes no second one; one that was told to make none takes them away."""
    full(api)
    add(api, "a")
    with controlled(api, placeholders=TWO):
        api.until(lambda: there(api))
    before = [one["metadata"]["uid"] for one in there(api)]
    with controlled(api, placeholders=TWO):
        add(api, "b")
        api.until(lambda: len(there(api)) == 2)
        assert before[0] in [one["metadata"]["uid"] for one in there(api)]
    with controlled(api):
        api.until(lambda: not there(api))


def test_what_only_a_node_to_come_could_take_waits_for_it_in_its_order(api: EmulatedApi) -> None:
    """Its group of nodes is empty: the gates stay closed, and it says why. A node comes: it goes to the one with the
    longest path, and the other one waits for the next."""
    api.add("nodes", node("cpus"))
    for name, rank, ago_s in (("a", 3600, 60), ("b", 7200, 30)):
        raw = pod(name, gpus=1, rank=rank, predicted=3600, creationTimestamp=moment(time.time() - ago_s))
        api.add("pods", raw)
    with controlled(api, placeholders=TWO):
        api.until(lambda: len(there(api)) == 2)
        api.until(lambda: names.WAITS in api.all("pods")["a"]["metadata"]["annotations"])
        assert "one that could is asked for" in api.all("pods")["a"]["metadata"]["annotations"][names.WAITS]
        assert api.gated() == {"a", "b"}
        api.add("nodes", node("n1", gpus=1))
        api.until(lambda: api.gated() == {"a"})
        assert api.all("pods")["b"]["metadata"]["annotations"][names.OPENED].endswith("order")


def _nothing(about: str, problem: str) -> None:
    """Hears it."""


def test_no_node_is_waited_for_longer_than_one_is_worth_it(api: EmulatedApi) -> None:
    """The scheduler says then why there is none; also where no placeholder can be made: for claims of devices, by
    refusal, at a site server. What had a node meanwhile begins anew."""
    cluster = Cluster(api.kubeconfig)
    one, claims = (pod_of(pod(name, uid=name, gpus=1)) for name in ("one", "claims"))
    claims = msgspec.structs.replace(claims, claimed=1)
    both = {"one": one, "claims": claims}
    placeholding = Placeholding(cluster, TWO, names.SYSTEM, _nothing)
    assert placeholding.given_up(both, NOW, are_made=True) == [claims]
    assert placeholding.awaited == ("one",)
    assert placeholding.given_up({}, NOW + 300, are_made=True) == []
    assert placeholding.given_up({"one": one}, NOW + 361, are_made=True) == []
    assert placeholding.given_up({"one": one}, NOW + 720, are_made=True) == []
    assert placeholding.given_up({"one": one}, NOW + 722, are_made=True) == [one]
    assert not placeholding.awaited
    assert placeholding.given_up(both, NOW + 800, are_made=False) == [one, claims]
    off = Placeholding(cluster, PlaceholderSettings(), names.SYSTEM, _nothing)
    assert off.given_up(both, NOW, are_made=True) == [one, claims]
    refused = Placeholding(Refusing(api.kubeconfig), TWO, names.SYSTEM, _nothing)
    refused.look([waits("a")], [], {}, [], NOW)
    assert refused.given_up(both, NOW + 1, are_made=True) == [one, claims]


def test_off_it_makes_none(api: EmulatedApi) -> None:
    """By default; what waits is seen as ever, and why it waits is written into it."""
    full(api)
    add(api, "a", creationTimestamp=moment(time.time() - 60))
    with controlled(api):
        api.until(lambda: names.WAITS in api.all("pods")["a"]["metadata"]["annotations"])
    assert not there(api)
    assert not Settings().placeholders.most


class Refusing(Cluster):
    """Says no to what is made, or to what of it has this selector."""

    asked = 0
    status, selector = 403, dict[str, str]()
    made: tuple[str, ...] = ()

    def create(self, kind: Kind, body: dict[str, Any], namespace: str = "", timeout_s: float = 15.0) -> dict[str, Any]:  # noqa: ARG002  # the cluster's names
        if self.selector and body["spec"].get("nodeSelector") != self.selector:
            self.made = (*self.made, body["metadata"]["name"])
            return body
        self.asked += 1
        raise ApiError(self.status, "no right")


def test_one_that_is_refused_is_one_line_and_not_tried_again_at_once(api: EmulatedApi) -> None:
    """Ten minutes later it is."""
    cluster, said = Refusing(api.kubeconfig), list[str]()
    placeholding = Placeholding(cluster, TWO, names.SYSTEM, lambda about, problem: said.append(f"{about}: {problem}"))
    full_node = [pod_of(pod("x", gate=False, spec={"nodeName": "n1"}))]
    for later_s, asked in ((0, 1), (10, 1), (601, 2)):
        placeholding.look([waits("a"), waits("b")], [], {"x": full_node[0]}, [], NOW + later_s)
        assert cluster.asked == asked
    assert said == ["placeholders: 403: no right: none is made for 10 minutes"] * 2


@pytest.mark.parametrize("status", [400, 422])
def test_a_place_that_is_invalid_keeps_no_other_from_being_asked_for(api: EmulatedApi, status: int) -> None:
    """Anybody may state one: it is tried again ten minutes later, and takes no other's turn meanwhile."""
    cluster, said = Refusing(api.kubeconfig), list[str]()
    cluster.status, cluster.selector = status, {"pool": "no value"}
    placeholding = Placeholding(
        cluster, PlaceholderSettings(most=1), names.SYSTEM, lambda about, problem: said.append(f"{about}: {problem}")
    )
    wrong = msgspec.structs.replace(waits("a"), where=json.dumps({"select": cluster.selector}))
    for later_s, asked in ((0, 1), (10, 1), (601, 2)):
        placeholding.look([wrong, waits("b")], [], {}, [], NOW + later_s)
        assert cluster.asked == asked
    assert set(cluster.made) == {f"egs-placeholder-{ONE.key}-0"}
    assert said[0] == f"placeholders: {status}: no right: none like it is made for 10 minutes"


def test_what_fails_beside_the_order_is_said_and_the_order_goes_on(
    api: EmulatedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Preloads and placeholders go by what tenants have written: gates open in the same session as before."""

    def fails(*_: object) -> list[Any]:
        raise AttributeError("what a tenant wrote")

    monkeypatch.setattr("egs_core.kubernetes.controller.to_come", fails)
    full(api)
    add(api, "a")
    said = list[str]()
    with controlled(api, placeholders=TWO, preloads=True, said=said, says="the order goes on without it") as one:
        api.until(lambda: len(said) == 2)
        session = one._gated
        api.add("nodes", node("n2", gpus=1))
        api.until(lambda: not api.gated())
        assert one._gated is session is not None
    assert {line.partition(":")[0] for line in said} == {"loading ahead", "asking for nodes"}


def test_who_leaves_takes_placeholders_along(api: EmulatedApi, capsys: pytest.CaptureFixture[str]) -> None:
    """With their class and quota; a pod of others with that label stays."""
    for one in objects(Installation("egs:1", placeholders=TWO)):
        kind = one["kind"].lower()
        api.add(kind[:-1] + "ies" if kind.endswith("y") else kind + ("es" if kind.endswith("s") else "s"), one)
    ours = made(f"egs-placeholder-{ONE.key}-0", ONE, names.SYSTEM, "pause")
    theirs = copy.deepcopy(ours)
    theirs["metadata"] |= {"name": "theirs"}
    theirs["spec"]["priorityClassName"] = ""
    for raw in (ours, theirs):
        api.add("pods", raw)
    assert run(["kubernetes", "leave", "--kubeconfig", str(api.kubeconfig)]) == 0
    assert list(api.all("pods")) == ["theirs"]
    for plural in ("priorityclasses", "resourcequotas", "validatingadmissionpolicies", "roles"):
        assert api.all(plural) == {}
    assert f"priorityclasses/{names.PLACEHOLDER_CLASS}: deleted" in capsys.readouterr().err


def test_manifests_give_the_right_only_when_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    """To make and delete pods in its own namespace alone; with the policy and the quota that hold it to so many
    placeholders. The class is above an autoscaler's cut-off, and preempts nothing."""
    words = ["kubernetes", "manifests", "--image", "egs:1"]
    assert run(words) == 0
    plain = list(yaml.safe_load_all(capsys.readouterr().out))
    assert run([*words, "--placeholders", "3", "--node-time", "4m", "--placeholder-image", "mirror/pause:1"]) == 0
    more = {one["kind"]: one for one in yaml.safe_load_all(capsys.readouterr().out) if one not in plain}
    assert {kind: one["metadata"]["name"] for kind, one in more.items()} == {
        "Role": "egs-controller-placeholders",
        "RoleBinding": "egs-controller-placeholders",
        "ValidatingAdmissionPolicy": "egs-controller-placeholders",
        "ValidatingAdmissionPolicyBinding": "egs-controller-placeholders",
        "PriorityClass": names.PLACEHOLDER_CLASS,
        "ResourceQuota": names.PLACEHOLDER_CLASS,
        "Deployment": "egs-controller",
    }
    assert more["Role"]["metadata"]["namespace"] == names.SYSTEM
    assert more["Role"]["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "delete"]}]
    assert (more["PriorityClass"]["value"], more["PriorityClass"]["preemptionPolicy"]) == (-5, "Never")
    assert more["ResourceQuota"]["spec"]["hard"] == {"pods": "3"}
    arguments = more["Deployment"]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert {"--placeholders=3", "--node-time=240s", "--placeholder-image=mirror/pause:1"} <= {*arguments}


def test_the_manifests_are_objects_of_kubernetes() -> None:
    """By the official schema of 1.36, with preloads too."""
    validate = pytest.importorskip("kubernetes_validate").validate
    for preloads in (False, True):
        for one in objects(Installation("egs:1", serve=("a",), preloads=preloads, placeholders=TWO)):
            validate(one, "1.36", strict=True)


def test_what_would_do_nothing_or_is_no_time_is_one_error(api: EmulatedApi, capsys: pytest.CaptureFixture[str]) -> None:
    """It names the option and what to do."""
    words = ["kubernetes", "controller", "--kubeconfig", str(api.kubeconfig)]
    assert run([*words, "--node-time", "5m"]) == 2
    assert "--node-time: does nothing without --placeholders" in capsys.readouterr().err
    assert run([*words, "--placeholders", "0", "--placeholder-image", "x"]) == 2
    assert "--placeholder-image: does nothing without --placeholders" in capsys.readouterr().err
    for wrong in ("soon", "0s"):
        assert run([*words, "--placeholders", "2", "--node-time", wrong]) == 2
        assert "--node-time: " in capsys.readouterr().err
