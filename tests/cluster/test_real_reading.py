"""Files and modules read ahead, on a real API server with its scheduler and volumes (`test_real_cluster`).

What pods read is nothing here: they have no containers. That the command reads is for `test_readers`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from egs_core.kubernetes import names
from egs_core.kubernetes.cluster import NODES, VOLUME_CLAIMS, ApiError, Kind
from egs_core.kubernetes.manifests import KINDS
from egs_core.kubernetes.readers import reading_in
from egs_core.kubernetes.readings import Mount, Reading, ReadRules
from tests.cluster.real import Site, controlled, refusal, understood, until
from tests.cluster.test_real_cluster import pytestmark
from tests.cluster.test_real_preloads import POLICY, add, loaders, pulling
from tests.unit.kubernetes.test_preload_policy import preload, reader, unwanted, unwanted_readers

__all__ = ["pytestmark"]

VOLUMES = Kind("/api/v1", "persistentvolumes", False)
IMAGE = "docker.io/library/second:1"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Where the volume claim `models` may be read ahead; it is bound to a volume of many nodes."""
    found = Site(tmp_path)
    try:
        reads = ReadRules(1 << 30, (f"{found.name}/models",))
        found.of = msgspec.structs.replace(found.of, preloads=True, reads=reads)
        found.apply()
        bind(found)
        yield found
    finally:
        found.close()
        found.admin.delete(VOLUMES, found.name)


def bind(site: Site) -> None:
    of = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    nfs = {"server": "nfs.example", "path": "/models"}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": site.name, "name": "models"}
    spec = of | {"capacity": {"storage": "1Gi"}, "nfs": nfs, "claimRef": claim}
    site.admin.create(VOLUMES, {"metadata": {"name": site.name}, "spec": spec})
    wanted = of | {"volumeName": site.name, "resources": {"requests": {"storage": "1Gi"}}}
    site.admin.create(VOLUME_CLAIMS, {"metadata": {"name": "models"}, "spec": wanted}, site.name)
    until(lambda: site.admin.get(VOLUME_CLAIMS, "models", site.name).get("status", {}).get("phase") == "Bound")


def test_a_task_finds_read_what_it_reads(site: Site) -> None:
    """Its image is on the node; while another pod has the GPU a preload mounts its volume there, read-only, placed by
    the scheduler under the least rights; and is gone when it has ended."""
    volumes = [{"name": "m", "persistentVolumeClaim": {"claimName": "models"}}]
    limits = {"limits": {"cpu": "1", "nvidia.com/gpu": "1"}}
    main: dict[str, Any] = {"name": "main", "image": "second:1", "resources": limits}
    main |= {"volumeMounts": [{"name": "m", "mountPath": "/models"}]}
    seen: list[dict[str, Any]] = []

    def reads() -> list[dict[str, Any]]:
        seen.extend(one for one in loaders(site) if reading_in(one) and one["spec"].get("nodeName"))
        return seen

    with pulling(site) as kubelet, controlled(site, preloads=True, reads=site.of.reads):
        kubelet.images.update((IMAGE, "docker.io/library/first:1"))
        listed = [{"names": [IMAGE], "sizeBytes": 1}]
        site.admin.patch(NODES, f"{site.name}/status", {"status": {"images": listed}})
        add(site, "first", "first:1", 8)
        until(lambda: "first" in kubelet.running)
        hints = {"preload": {"files": ["/models/m.bin"], "modules": ["torch"]}}
        spec = {"containers": [main], "volumes": volumes}
        site.add("second", spec=spec, hints=hints, predicted=8, run="second")
        until(reads)
        until(lambda: not loaders(site))
        assert site.pods()["second"].is_gated
    assert seen[0]["spec"]["nodeName"] == site.name
    reading = Reading(site.name, IMAGE, ("/models/m.bin",), ("torch",), (Mount("models", "/models"),))
    assert reading_in(seen[0]) == reading


def test_its_account_reads_what_is_named_and_nothing_else(site: Site) -> None:
    """Each pod that would gain anything is refused, all but two by the policy; what the controller makes passes, also
    where a namespace enforces `restricted`. Of volume claims it sees this one."""
    owner, cluster = site.add("owner"), site.account(names.CONTROLLER)
    made, image = reader("owner", site.name), preload("owner")
    made["spec"]["containers"][0]["resources"]["limits"]["memory"] = "3Gi"
    for one in (made, image):
        one["metadata"]["namespace"] = site.name
        one["metadata"]["ownerReferences"][0]["uid"] = owner.uid
    site.admin.create(KINDS["ServiceAccount"], {"metadata": {"name": "admin"}}, site.name)
    tried = unwanted(image) | {f"{what} (reads)": body for what, body in unwanted_readers(made, image).items()}
    until(lambda: POLICY in refusal(cluster, site, tried["a program"]))
    said = {what: refusal(cluster, site, body) for what, body in tried.items()}
    assert [what for what, why in said.items() if not why] == []
    # the API server itself gives priorities by class, and knows no such runtime
    assert {what for what, why in said.items() if POLICY not in why} == {"a higher priority", "a runtime"}, said
    label = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    site.admin.patch(KINDS["Namespace"], site.name, label)
    assert refusal(cluster, site, made) == refusal(cluster, site, image) == ""
    assert POLICY in understood(site)
    other = copy.deepcopy(made)
    other["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"] = "others"
    assert "another volume" in refusal(cluster, site, other)
    assert cluster.get(VOLUME_CLAIMS, "models", site.name)["status"]["phase"] == "Bound"
    for name in ("others", ""):
        with pytest.raises(ApiError, match="403"):
            cluster.get(VOLUME_CLAIMS, name, site.name)
