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
from egs_core.kubernetes.guard import preload_rules
from egs_core.kubernetes.preloads import made
from egs_core.kubernetes.readings import Mount, Reading, ReadRules
from tests.unit.kubernetes.judged import Judge, judge

BIG = "docker.io/library/big:1"
OWNER = Owner("v1", "Pod", "p", "uid-p")
READS = ReadRules(8 << 30, ("team/models",))


def preload(name: str = "p") -> dict[str, Any]:
    """A pod as the controller makes it, for one of that name."""
    return made(Start(Wanted(Owner("v1", "Pod", name, f"uid-{name}"), "team", Shape(0), images=(BIG,)), "n1", 0.0))


def reader(name: str = "p", namespace: str = "team") -> dict[str, Any]:
    """One that reads a file of a volume claim, and a module."""
    reads = Reading(namespace, BIG, ("/models/a",), ("torch",), (Mount("models", "/models", "v1"),))
    owner = Owner("v1", "Pod", name, f"uid-{name}")
    return made(Start(Wanted(owner, namespace, Shape(0), reading=reads), "n1", 0.0), READS.most_bytes)


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


def unwanted_readers(raw: dict[str, Any], loader: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Pods that would gain something more than to read what they may. loader: a preload of an image."""

    def spec(**more: Any) -> dict[str, Any]:
        return changed(raw, lambda o: o["spec"].update(more))

    def first(**more: Any) -> dict[str, Any]:
        return changed(raw, lambda o: o["spec"]["containers"][0].update(more))

    def mount(**more: Any) -> dict[str, Any]:
        return changed(raw, lambda o: o["spec"]["containers"][0]["volumeMounts"][0].update(more))

    def without(found: dict[str, Any], field: str) -> dict[str, Any]:
        del found["spec"]["containers"][0]["volumeMounts"][0][field]
        return found

    def volume(**more: Any) -> dict[str, Any]:
        return spec(volumes=[{"name": "v0", **more}])

    container, image = raw["spec"]["containers"][0], loader["spec"]["containers"][0]
    claim = raw["spec"]["volumes"][0]["persistentVolumeClaim"]
    return {
        "another claim": volume(persistentVolumeClaim=claim | {"claimName": "secrets"}),
        "a claim to write on": volume(persistentVolumeClaim={"claimName": "models"}),
        "a claim that it may write on": volume(persistentVolumeClaim=claim | {"readOnly": False}),
        "a folder of its host": volume(hostPath={"path": "/"}),
        "a secret": volume(secret={"secretName": "s"}),
        "a token": volume(projected={"sources": [{"serviceAccountToken": {"path": "t"}}]}),
        "a volume of a driver": volume(csi={"driver": "x"}),
        "a folder": volume(emptyDir={}),
        "a volume more": spec(volumes=[*raw["spec"]["volumes"], {"name": "root", "hostPath": {"path": "/"}}]),
        "a mount to write on": mount(readOnly=False),
        "a mount that nobody says is read-only": without(mount(), "readOnly"),
        "a mount that others see": mount(mountPropagation="HostToContainer"),
        "an expression": without(mount(subPathExpr="$(A)"), "subPath"),
        "a program": first(command=["sh", "-c", "id"]),
        "a program of its own that reads": first(command=[*container["command"][:2], "id", "egs-reader"]),
        "no program": changed(raw, lambda o: o["spec"]["containers"][0].pop("command")),
        "an environment": first(env=[{"name": "A", "value": "b"}]),
        "a device": first(volumeDevices=[{"name": "v0", "devicePath": "/dev/x"}], volumeMounts=[]),
        "two that read": spec(containers=[container, container | {"name": "preload-1"}]),
        "one that reads and one that loads": spec(containers=[container, image | {"name": "preload-1"}]),
        "arguments for an image": changed(loader, lambda o: o["spec"]["containers"][0].update(args=["x"])),
        "much memory": changed(raw, lambda o: o["spec"]["containers"][0]["resources"]["limits"].update(memory="11Gi")),
        "many CPUs": changed(raw, lambda o: o["spec"]["containers"][0]["resources"]["limits"].update(cpu="2")),
        "memory for an image": changed(
            loader, lambda o: o["spec"]["containers"][0]["resources"]["limits"].update(memory="1Gi")
        ),
        "no limit": first(resources={"requests": {"cpu": "0", "memory": "0"}}),
    }  # fmt: skip


TRIED = unwanted(as_made(preload()))
TRIED_TO_READ = unwanted_readers(as_made(reader()), as_made(preload()))


@pytest.fixture(scope="module")
def refused() -> Judge:
    """What the policy's rules have against a pod."""
    return judge(preload_rules())


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


@pytest.fixture(scope="module")
def refused_to_read() -> Judge:
    """The same where some may be read."""
    return judge(preload_rules(READS))


def test_its_account_may_read_what_is_named(refused_to_read: Judge, refused: Judge) -> None:
    """Of the image, and of the volume claims that are named, in their namespace; images as before. Where nothing may be
    read no volume is mounted and nothing else is run."""
    assert refused_to_read(as_made(reader())) == []
    alone = Wanted(OWNER, "team", Shape(0), reading=Reading("team", BIG, ("/opt/a",)))
    assert refused_to_read(as_made(made(Start(alone, "n1", 0.0), READS.most_bytes))) == []
    assert refused_to_read(as_made(preload())) == []
    assert refused(as_made(reader()))
    assert refused_to_read(as_made(reader(namespace="others"))) == [
        "the pod has another volume than those that may be read ahead"
    ]


@pytest.mark.parametrize("what", TRIED_TO_READ)
def test_its_account_may_read_nothing_else(what: str, refused_to_read: Judge) -> None:
    """Nor write, nor run anything else."""
    assert refused_to_read(TRIED_TO_READ[what])


@pytest.mark.parametrize("what", TRIED)
def test_reading_ahead_allows_no_other_pod(what: str, refused_to_read: Judge) -> None:
    """What is refused without it, is."""
    assert refused_to_read(TRIED[what])
