"""What the policy lets the controller's account make where it may make placeholders: these, and no other pod."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from egs_core.graph.columns import Shape
from egs_core.kubernetes import names
from egs_core.kubernetes.guard import placeholder_rules, policies
from egs_core.kubernetes.placeholders import IMAGE, Place, made
from tests.unit.kubernetes.judged import Judge, judge

WHERE = '{"select": {"a": "b"}, "terms": [{"matchExpressions": []}], "tolerate": [{"operator": "Exists"}]}'


def placeholder(namespace: str = names.SYSTEM, where: str = WHERE, of: str = "amd.com/gpu") -> dict[str, Any]:
    """As the controller makes one."""
    place = Place(Shape(1500, 2000, 1 << 30), where, ((of, 2),))
    return made(f"egs-placeholder-{place.key}-0", place, namespace, IMAGE)


def as_made(raw: dict[str, Any]) -> dict[str, Any]:
    """With what the API server adds before it asks the policy."""
    found = copy.deepcopy(raw)
    found["spec"] |= {"priority": -5, "preemptionPolicy": "Never", "dnsPolicy": "ClusterFirst"}
    found["spec"] |= {"serviceAccountName": "default", "schedulerName": "default-scheduler"}
    for one in found["spec"]["containers"]:
        one |= {"terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}
    return found


def unwanted(raw: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Pods that would gain something, by what."""

    def changed(act: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        found = copy.deepcopy(raw)
        act(found)
        return found

    def spec(**more: Any) -> dict[str, Any]:
        return changed(lambda o: o["spec"].update(more))

    def first(**more: Any) -> dict[str, Any]:
        return changed(lambda o: o["spec"]["containers"][0].update(more))

    def meta(**more: Any) -> dict[str, Any]:
        return changed(lambda o: o["metadata"].update(more))

    labels, container = raw["metadata"]["labels"], raw["spec"]["containers"][0]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": True}
    asked = container["resources"]["limits"]
    return {
        "no label": meta(labels={}),
        "a label of others": meta(labels=labels | {"app": "web"}),
        "a label of work": meta(labels=labels | {names.WORKLOAD: "w"}),
        "a preload's": meta(labels={names.PRELOAD: names.BY_CONTROLLER}),
        "an annotation": meta(annotations={"a": "b"}),
        "a finalizer": meta(finalizers=["x.io/y"]),
        "an owner": meta(ownerReferences=[owner]),
        "a namespace of others": meta(namespace="team"),
        "another class": spec(priorityClassName="system-node-critical"),
        "no class": changed(lambda o: o["spec"].pop("priorityClassName")),
        "a higher priority": spec(priority=0),
        "that it preempts": spec(preemptionPolicy="PreemptLowerPriority"),
        "a token": spec(automountServiceAccountToken=True),
        "an account": spec(serviceAccountName="egs-controller"),
        "a volume": spec(volumes=[{"name": "root", "hostPath": {"path": "/"}}]),
        "its host's network": spec(hostNetwork=True),
        "its node": spec(nodeName="n1"),
        "a secret of a registry": spec(imagePullSecrets=[{"name": "hub"}]),
        "a second container": spec(containers=[container, container | {"name": "second"}]),
        "a first container": spec(initContainers=[container | {"name": "first"}]),
        "a scheduler": spec(schedulerName="mine"),
        "no deadline": changed(lambda o: o["spec"].pop("activeDeadlineSeconds")),
        "a late deadline": spec(activeDeadlineSeconds=86400),
        "a long goodbye": spec(terminationGracePeriodSeconds=600),
        "that it starts again": spec(restartPolicy="Always"),
        "root": spec(securityContext=raw["spec"]["securityContext"] | {"runAsUser": 0}),
        "an image": first(image="docker.io/library/miner:1"),
        "a program": first(command=["sh"]),
        "arguments": first(args=["x"]),
        "an environment": first(env=[{"name": "A", "value": "b"}]),
        "a port": first(ports=[{"containerPort": 80, "hostPort": 80}]),
        "privileges": first(
            securityContext=container["securityContext"] | {"privileged": True, "allowPrivilegeEscalation": True}
        ),
        "a disk to write on": first(securityContext=container["securityContext"] | {"readOnlyRootFilesystem": False}),
        "more than it asks for": first(resources={"requests": asked, "limits": asked | {"cpu": "64"}}),
        "a disk of the node": first(
            resources={part: asked | {"ephemeral-storage": "1Ti"} for part in ("requests", "limits")}
        ),
        "a device that is no GPU": first(
            resources={part: asked | {"example.com/hca": "1"} for part in ("requests", "limits")}
        ),
        "no resources": first(resources={}),
    }


TRIED = unwanted(as_made(placeholder()))


@pytest.fixture(scope="module")
def refused() -> Judge:
    return judge(placeholder_rules(names.SYSTEM, IMAGE))


def test_its_account_may_make_what_it_makes(refused: Judge) -> None:
    """With all that a pod may ask of its nodes, and without."""
    assert refused(as_made(placeholder())) == []
    assert refused(as_made(placeholder(of="nvidia.com/mig-1g.5gb"))) == []
    assert refused(as_made(placeholder(where=""))) == []


@pytest.mark.parametrize("what", TRIED)
def test_its_account_may_make_no_other_pod(what: str, refused: Judge) -> None:
    """One that would gain anything is refused by some rule."""
    assert refused(TRIED[what])


@pytest.mark.parametrize(("preloads", "many"), [(False, 1), (True, 2)])
def test_no_pod_is_of_no_policy(preloads: bool, many: int) -> None:
    """Each policy of what is made has its own kind; what is of neither kind has one, which refuses it."""
    rules = placeholder_rules(names.SYSTEM, IMAGE)
    found = policies({names.CONTROLLER: names.SYSTEM}, preloads=preloads, placeholder=rules)
    made_by = [
        one["spec"]
        for one in found
        if one["kind"] == "ValidatingAdmissionPolicy"
        and one["spec"]["matchConstraints"]["resourceRules"][0]["operations"] == ["CREATE"]
    ]
    assert len(made_by) == many
    conditions = [[one["expression"] for one in spec["matchConditions"][1:]] for spec in made_by]
    other = as_made(placeholder()) | {"metadata": {"name": "x", "namespace": "team"}}
    for raw in (as_made(placeholder()), other):
        asked = [not judge([(rule, rule) for rule in rules])(raw) for rules in conditions]
        assert asked.count(True) == 1
