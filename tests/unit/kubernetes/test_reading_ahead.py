"""Files and modules read ahead by the controller, on an emulated API server; and the rights that it has for that."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import yaml

pytest.importorskip("kubernetes", reason="the client of Kubernetes is not installed")

from egs_core.cli.app import run
from egs_core.kubernetes.cluster import ApiError, Cluster, Kind
from egs_core.kubernetes.learning import Learning
from egs_core.kubernetes.manifests import Installation, objects
from egs_core.kubernetes.preloading import Preloading
from egs_core.kubernetes.preloads import LOADED, Preload
from egs_core.kubernetes.readers import MODULES_BYTES, reading_in
from egs_core.kubernetes.readings import Mount, Reading, ReadRules
from tests.unit.kubernetes.controlled import controlled
from tests.unit.kubernetes.emulated_api import EmulatedApi
from tests.unit.kubernetes.made_pods import node
from tests.unit.kubernetes.test_preloading import _often, busy, loaders, loads, waits
from tests.unit.kubernetes.test_preloads import BIG, ENDED
from tests.unit.kubernetes.test_steering import api

__all__ = ["_often", "api"]  # fixtures

READS = ReadRules(8 << 30, ("team/models",))
VOLUMES = [{"name": "m", "persistentVolumeClaim": {"claimName": "models"}}]
MOUNTS = [{"name": "m", "mountPath": "/models"}]
HINTS = {"preload": {"files": ["/models/a.bin"], "modules": ["torch"]}}
WORDS = ["kubernetes", "manifests", "--image", "egs:1", "--serve", "team", "--preload"]


def has_image(api: EmulatedApi) -> None:
    """A busy node with the image, of 64 GiB of memory."""
    busy(api)
    images = [{"names": [BIG], "sizeBytes": 1}]
    api.change("nodes", "n1", lambda one: one["status"].update(images=images))


def claim(api: EmulatedApi, *modes: str) -> None:
    meta = {"name": "models", "namespace": "team"}
    status = {"phase": "Bound", "accessModes": list(modes)}
    api.add("persistentvolumeclaims", {"metadata": meta, "spec": {"accessModes": list(modes)}, "status": status})


def reads(name: str = "waits", hints: dict[str, Any] | None = None) -> dict[str, Any]:
    """A pod that waits, and reads of that volume."""
    found = waits(name, hints=HINTS if hints is None else hints)
    found["spec"]["volumes"] = VOLUMES
    found["spec"]["containers"][0]["volumeMounts"] = MOUNTS
    return found


def test_how_long_reading_took_is_known_of_the_last_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever may make pods may make up files without end."""
    monkeypatch.setattr("egs_core.kubernetes.preloading.MOST_READ", 3)
    nowhere: Any = None  # nothing is asked for
    loading = Preloading(nowhere, 1.0, Learning(nowhere, "egs-system", print), print)
    for load in ("a", "b", "c", "a", "d"):
        loading._learn(Preload("u", "x", "team", "n1", (load,), LOADED, took_s=5.0, is_reader=True), 0.0)
    assert [*loading._read_s] == ["c", "a", "d"]


def of(one: dict[str, Any]) -> Reading:
    found = reading_in(one)
    assert found is not None
    return found


def test_files_and_modules_are_read_where_the_image_is(api: EmulatedApi) -> None:
    """First it is loaded, then a pod of that image mounts the task's volume as the task does, read-only, and reads; it
    goes when that is done, and is not made again for a while."""
    busy(api)
    claim(api, "ReadWriteMany")
    api.add("pods", reads())
    with controlled(api, preloads=True, reads=READS):
        api.until(lambda: loaders(api))
        assert [reading_in(one) for one in loaders(api).values()] == [None]
        loads(api, {"terminated": ENDED | {"exitCode": 0}}, "Succeeded")
        api.until(lambda: any(map(reading_in, loaders(api).values())))
        (made,) = loaders(api).values()
        assert of(made) == Reading("team", BIG, ("/models/a.bin",), ("torch",), (Mount("models", "/models"),))
        (volume,), (container,) = made["spec"]["volumes"], made["spec"]["containers"]
        assert volume["persistentVolumeClaim"] == {"claimName": "models", "readOnly": True}
        assert container["resources"]["limits"]["memory"] == str(READS.most_bytes + MODULES_BYTES)
        loads(api, {"terminated": ENDED | {"exitCode": 0}}, "Succeeded")
        api.until(lambda: not loaders(api))
        api.add("pods", reads("other"))
        api.end("on-n1")
        api.until(lambda: api.opened())
        assert not loaders(api)


def test_no_more_is_read_than_a_quarter_of_a_nodes_memory(api: EmulatedApi) -> None:
    """Whatever is allowed: what runs there needs it more."""
    has_image(api)
    small = node("n1", gpus=1)["status"]["allocatable"] | {"memory": "2Gi"}
    api.change("nodes", "n1", lambda one: one["status"].update(allocatable=small))
    api.add("pods", reads(hints={"preload": {"files": ["/opt/b"]}}))
    with controlled(api, preloads=True, reads=READS):
        api.until(lambda: loaders(api))
        (made,) = loaders(api).values()
        assert made["spec"]["containers"][0]["args"][0] == "512"


def test_it_is_withdrawn_when_its_pod_goes(api: EmulatedApi) -> None:
    """As a preload of an image is."""
    has_image(api)
    claim(api, "ReadOnlyMany")
    api.add("pods", reads())
    with controlled(api, preloads=True, reads=READS):
        api.until(lambda: loaders(api))
        api.remove("pods", "waits")
        api.until(lambda: not loaders(api))


def test_what_cannot_be_read_is_said_once(api: EmulatedApi) -> None:
    """With the container's words; its pod is not kept from its turn."""
    said: list[str] = []
    has_image(api)
    api.add("pods", reads(hints={"preload": {"files": ["/opt/b"]}}))
    with controlled(api, preloads=True, reads=READS, says="was not read", said=said):
        api.until(lambda: loaders(api))
        loads(api, {"terminated": ENDED | {"exitCode": 1, "message": "dd: can't open '/opt/b'\n"}}, "Failed")
        api.until(lambda: not loaders(api))
        api.end("on-n1")
        api.until(lambda: not api.gated())
    assert [line.partition(": ")[2] for line in said] == ["was not read on node n1: dd: can't open '/opt/b'"]
    assert said[0].startswith(f"preload /opt/b of {BIG} (")


@pytest.mark.parametrize(
    ("prepare", "rules", "problem"),
    [
        (lambda api: claim(api, "ReadWriteOnce"), READS, "its access modes ReadWriteOnce are not all of many nodes"),
        (lambda api: claim(api, "ReadWriteMany"), ReadRules(8 << 30), "no --preload-volume team/models names it"),
        (lambda _: None, READS, "404"),
        (lambda api: api.forbidden.add("persistentvolumeclaims"), READS, "403"),
    ],
)
def test_a_volume_that_may_not_be_mounted_is_said_once_and_the_rest_is_read(
    prepare: Callable[[EmulatedApi], None], rules: ReadRules, problem: str, api: EmulatedApi
) -> None:
    """Of the image: modules, and files that are no volume's."""
    said: list[str] = []
    has_image(api)
    prepare(api)
    api.add("pods", reads())
    with controlled(api, preloads=True, reads=rules, says="its files are not read ahead", said=said):
        api.until(lambda: loaders(api))
        assert [of(one) for one in loaders(api).values()] == [Reading("team", BIG, (), ("torch",))]
        api.add("pods", reads("other"))
        api.end("on-n1")
        api.until(lambda: api.opened())
    assert len(said) == 1
    assert said[0].startswith("volume team/models: ")
    assert problem in said[0]


def test_a_refusal_to_read_keeps_no_image_from_being_loaded(api: EmulatedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the manifests were written without it, or a namespace has a limit."""
    create = Cluster.create

    def refuses(cluster: Cluster, kind: Kind, body: dict[str, Any], namespace: str = "") -> Any:
        if kind.plural == "pods" and reading_in(body):
            raise ApiError(403, "exceeded quota")
        return create(cluster, kind, body, namespace)

    monkeypatch.setattr(Cluster, "create", refuses)
    said: list[str] = []
    has_image(api)
    api.add("pods", reads(hints={"preload": {"modules": ["torch"]}}))
    with controlled(api, preloads=True, reads=READS, says="exceeded quota", said=said):
        api.until(lambda: said)
        api.add("pods", waits("image", "other:1"))
        api.until(lambda: loaders(api))
        assert [reading_in(one) for one in loaders(api).values()] == [None]


def test_off_nothing_is_read(api: EmulatedApi) -> None:
    """Images alone are loaded."""
    has_image(api)
    api.add("pods", reads())
    with controlled(api, preloads=True):
        api.add("pods", waits("image", "other:1"))
        api.until(lambda: loaders(api))
        assert [reading_in(one) for one in loaders(api).values()] == [None]


# --- rights ---


def test_manifests_give_the_right_to_these_volumes_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """To look at them; to mount them is the policy's. In the namespaces of each."""
    assert run(WORDS) == 0
    plain = list(yaml.safe_load_all(capsys.readouterr().out))
    more = ["--serve", "b", "--preload-files", "8GiB", "--preload-volume", "team/models", "--preload-volume", "b/data"]
    assert run([*WORDS, *more]) == 0
    found = list(yaml.safe_load_all(capsys.readouterr().out))
    assert "volumes" not in json.dumps([one for one in plain if "Policy" in one["kind"]])
    roles = [one for one in found if one["metadata"]["name"] == "egs-controller-changes" and one["kind"] == "Role"]
    right = {"apiGroups": [""], "resources": ["persistentvolumeclaims"], "verbs": ["get"]}
    for role, name in zip(roles, ("models", "data"), strict=True):
        assert [one for one in role["rules"] if "persistentvolumeclaims" in one["resources"]] == [
            {**right, "resourceNames": [name]}
        ]
    (deployment,) = (one for one in found if one["kind"] == "Deployment")
    arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    assert arguments[-3:] == [f"--preload-files={8 << 30}", "--preload-volume=team/models", "--preload-volume=b/data"]
    everywhere = objects(Installation("egs:1", preloads=True, reads=READS))
    (role,) = (one for one in everywhere if one["metadata"]["name"] == "egs-controller-changes" and "rules" in one)
    assert role["rules"][-1] == {**right, "resourceNames": ["models"]}


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--preload-files", "8GiB"], "--preload-files: does nothing without --preload"),
        (["--preload", "--preload-files", "much"], "--preload-files: 'much' is not a size"),
        (["--preload", "--preload-files", "9kB"], "--preload-files: is less than 1 MiB"),
        (["--preload", "--preload-volume", "a/b"], "--preload-volume: does nothing without --preload-files"),
        (["--preload", "--preload-files", "1GiB", "--preload-volume", "models"], "'models' is no NAMESPACE/CLAIM"),
        (["--preload", "--preload-files", "1GiB", "--preload-volume", "b/c", "--serve", "a"], "is not served"),
    ],
)
def test_what_would_read_nothing_is_one_error(
    words: list[str], problem: str, api: EmulatedApi, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the manifests as of the controller."""
    for command in (["manifests", "--image", "egs:1"], ["controller", "--kubeconfig", str(api.kubeconfig)]):
        assert run(["kubernetes", *command, *words]) == 2
        assert problem in capsys.readouterr().err
