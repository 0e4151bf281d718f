"""What the policy lets the controller's account make: preloads, and no other pod."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from egs_core.graph.columns import Shape
from egs_core.kubernetes import names
from egs_core.kubernetes.foreseen import Owner, Start, Wanted
from egs_core.kubernetes.guard import PRELOAD_RULES
from egs_core.kubernetes.preloads import made
from tests.unit.kubernetes.judged import Judge, judge

BIG = "docker.io/library/big:1"
OWNER = Owner("v1", "Pod", "p", "uid-p")


def preload(name: str = "p") -> dict[str, Any]:
    """A pod as the controller makes it, for one of that name."""
    return made(Start(Wanted(Owner("v1", "Pod", name, f"uid-{name}"), "team", Shape(0), images=(BIG,)), "n1", 0.0))


def as_made(raw: dict[str, Any]) -> dict[str, Any]:
    """With what the API server adds before it asks the policy."""
    found = copy.deepcopy(raw)
    found.pop("status", None)
    found["spec"] |= {"priority": -100, "preemptionPolicy": "Never", "dnsPolicy": "ClusterFirst"}
    found["spec"] |= {
        "serviceAccountName": "default",
        "serviceAccount": "default",
        "schedulerName": "default-scheduler",
    }
    for one in found["spec"]["containers"]:
        one |= {"terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}
    return found


def changed(raw: dict[str, Any], act: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    found = copy.deepcopy(raw)
    act(found)
    return found


def unwanted(raw: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Pods that would gain something, by what."""

    def spec(**more: Any) -> dict[str, Any]:
        return changed(raw, lambda o: o["spec"].update(more))

    def without(field: str) -> dict[str, Any]:
        return changed(raw, lambda o: o["spec"].pop(field))

    def first(**more: Any) -> dict[str, Any]:
        return changed(raw, lambda o: o["spec"]["containers"][0].update(more))

    def confined(**more: Any) -> dict[str, Any]:
        return changed(raw, lambda o: o["spec"]["containers"][0]["securityContext"].update(more))

    def meta(**more: Any) -> dict[str, Any]:
        return changed(raw, lambda o: o["metadata"].update(more))

    def asks(part: str, **more: str) -> dict[str, Any]:
        return changed(raw, lambda o: o["spec"]["containers"][0]["resources"][part].update(more))

    labels, owner = raw["metadata"]["labels"], raw["metadata"]["ownerReferences"][0]
    probe = {"exec": {"command": ["sh"]}}
    volume, mount = {"name": "root", "hostPath": {"path": "/"}}, {"name": "root", "mountPath": "/x"}
    return {
        "no label": meta(labels={"a": "b"}),
        "a label of others": meta(labels=labels | {"app": "web"}),
        "another preload's": meta(labels={names.PRELOAD: "k3y"}),
        "an annotation": meta(annotations={"kubectl.kubernetes.io/default-container": "x"}),
        "a finalizer": meta(finalizers=["x.io/y"]),
        "no owner": changed(raw, lambda o: o["metadata"].pop("ownerReferences")),
        "an owner of another kind": meta(ownerReferences=[owner | {"kind": "ReplicaSet"}]),
        "an owner that it may be taken from": meta(ownerReferences=[owner | {"controller": False}]),
        "an owner that it blocks": meta(ownerReferences=[owner | {"blockOwnerDeletion": True}]),
        "another class": spec(priorityClassName="system-node-critical"),
        "no class": without("priorityClassName"),
        "a higher priority": spec(priority=0),
        "a token": spec(automountServiceAccountToken=True),
        "a token by default": without("automountServiceAccountToken"),
        "an account": spec(serviceAccountName="admin", serviceAccount="admin"),
        "a volume": spec(volumes=[volume]),
        "its host's network": spec(hostNetwork=True),
        "its host's processes": spec(hostPID=True),
        "its node": spec(nodeName="n1"),
        "a first container": spec(initContainers=[raw["spec"]["containers"][0] | {"name": "first"}]),
        "a claim": spec(resourceClaims=[{"name": "gpu", "resourceClaimName": "gpu"}]),
        "resources of the pod": spec(resources={"limits": {"cpu": "64"}}),
        "a runtime": spec(runtimeClassName="kata"),
        "a scheduler": spec(schedulerName="mine"),
        "a gate": spec(schedulingGates=[{"name": "x"}]),
        "no deadline": without("activeDeadlineSeconds"),
        "a late deadline": spec(activeDeadlineSeconds=86400),
        "that it starts again": spec(restartPolicy="Always"),
        "a long goodbye": spec(terminationGracePeriodSeconds=600),
        "root": spec(securityContext=raw["spec"]["securityContext"] | {"runAsUser": 0}),
        "a group": spec(securityContext=raw["spec"]["securityContext"] | {"fsGroup": 0}),
        "no confinement": without("securityContext"),
        "an unconfined kernel": spec(
            securityContext=raw["spec"]["securityContext"] | {"seccompProfile": {"type": "Unconfined"}}
        ),
        "many containers": spec(
            containers=[raw["spec"]["containers"][0] | {"name": f"c{number}"} for number in range(11)]
        ),
        "a program": first(command=["sh", "-c", "id"]),
        "no program": changed(raw, lambda o: o["spec"]["containers"][0].pop("command")),
        "arguments": first(args=["x"]),
        "an environment": first(env=[{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]),
        "a mount": changed(spec(volumes=[volume]), lambda o: o["spec"]["containers"][0].update(volumeMounts=[mount])),
        "a port": first(ports=[{"containerPort": 80, "hostPort": 80}]),
        "a hook": first(lifecycle={"postStart": probe}),
        "a probe": first(startupProbe=probe),
        "privileges": confined(privileged=True, allowPrivilegeEscalation=True),
        "more privileges": confined(allowPrivilegeEscalation=True),
        "a capability": confined(capabilities={"drop": ["ALL"], "add": ["SYS_ADMIN"]}),
        "all capabilities": confined(capabilities={}),
        "root in a container": confined(runAsUser=0),
        "a disk to write on": confined(readOnlyRootFilesystem=False),
        "a GPU": asks("limits", **{"nvidia.com/gpu": "1"}),
        "a GPU asked for": first(resources={part: {"nvidia.com/gpu": "1"} for part in ("limits", "requests")}),
        "many CPUs": asks("limits", cpu="8"),
        "much memory": asks("limits", memory="8Gi"),
        "no limit": first(resources={"requests": {"cpu": "0", "memory": "0"}}),
        "no resources": first(resources={}),
    }


TRIED = unwanted(as_made(preload()))


@pytest.fixture(scope="module")
def refused() -> Judge:
    """What the policy's rules have against a pod."""
    return judge(PRELOAD_RULES)


def test_its_account_may_make_what_it_makes(refused: Judge) -> None:
    """With all that a task may ask of its nodes."""
    where = json.dumps(
        {"select": {"a": "b"}, "terms": [{"matchExpressions": []}], "tolerate": [{"operator": "Exists"}]}
    )
    one = Wanted(OWNER, "team", Shape(0), where, images=(BIG, "b"), pull_secrets=("hub",))
    assert refused(as_made(made(Start(one, "n1", 0.0)))) == []


@pytest.mark.parametrize("what", TRIED)
def test_its_account_may_make_no_other_pod(what: str, refused: Judge) -> None:
    """One that would gain anything is refused by some rule."""
    assert refused(TRIED[what])
