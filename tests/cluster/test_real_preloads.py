"""Images loaded ahead, on a real API server with its scheduler (`test_real_cluster`).

A kubelet of the tests' own stands in for one that pulls: an image takes it `PULL_S`, one after the other, and a
deletion breaks a pull off.
"""

from __future__ import annotations

import copy
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from egs_core.cli.app import run
from egs_core.kubernetes import names
from egs_core.kubernetes.cluster import LEASES, NODES, PODS, ApiError, Cluster, Kind
from egs_core.kubernetes.images import PULL_S as ASSUMED_S
from egs_core.kubernetes.images import images_of
from egs_core.kubernetes.leaving import leave
from egs_core.kubernetes.manifests import KINDS, objects
from egs_core.kubernetes.objects import moment
from egs_core.kubernetes.pods import Pod
from egs_core.kubernetes.preloads import preload_of
from tests.cluster.real import FILE, LIMIT_S, Site, applied, controlled, refusal, understood, until
from tests.cluster.test_real_cluster import pytestmark
from tests.unit.kubernetes.test_preload_policy import preload, unwanted

__all__ = ["pytestmark"]

PULL_S = 4.0
POLICY = f"{names.CONTROLLER}-preloads"
STATUS = Kind("/api/v1", "pods")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """With the rights to make preloads."""
    with applied(tmp_path, preloads=True) as found:
        yield found


def loaders(site: Site) -> list[dict[str, Any]]:
    return site.admin.list(PODS, site.name, f"{names.PRELOAD}={names.BY_CONTROLLER}")[0]


def loads_for(site: Site, owner: Pod) -> None:
    """A preload for it is made, as soon as Kueue's webhook, which asks who owns a pod, has seen the owner, too."""
    made = preload(owner.name)
    made["metadata"]["namespace"] = site.name
    made["metadata"]["ownerReferences"][0]["uid"] = owner.uid

    def is_made() -> bool:
        try:
            site.admin.create(PODS, made, site.name)
        except ApiError as error:
            if error.status != 404:
                raise
            return False
        return True

    until(is_made)


class Kubelet:
    """Of the site's node. images: what it has; running: by pod's name, how long that took from its place there."""

    def __init__(self, site: Site) -> None:
        self._site, self._cluster = site, Cluster(Path(FILE))
        self.images: set[str] = set()
        self.running: dict[str, float] = {}
        self._seen: dict[str, float] = {}
        self._pull: tuple[str, str, float] | None = None  # uid of a pod, an image, until when
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(LIMIT_S)

    def _run(self) -> None:
        while not self._ended.wait(0.05):
            pods = [one for one in self._cluster.list(PODS, self._site.name)[0] if one["spec"].get("nodeName")]
            pods.sort(key=lambda one: self._seen.setdefault(one["metadata"]["uid"], time.monotonic()))
            for raw in pods:
                try:
                    self._look(raw)
                except ApiError as error:
                    if error.status not in (404, 409):
                        raise

    def _look(self, raw: dict[str, Any]) -> None:
        meta, phase = raw["metadata"], raw.get("status", {}).get("phase")
        if "deletionTimestamp" in meta:
            if self._pull and self._pull[0] == meta["uid"]:
                self._pull = None
            self._cluster.delete(PODS, f"{meta['name']}?gracePeriodSeconds=0", meta["namespace"], uid=meta["uid"])
        elif phase == "Pending":
            self._begin(raw, meta["uid"])

    def _begin(self, raw: dict[str, Any], uid: str) -> None:
        now = time.monotonic()
        if self._pull and self._pull[0] == uid and now >= self._pull[2]:
            self.images.add(self._pull[1])
            self._pull = None
            listed = [{"names": [image], "sizeBytes": 1} for image in sorted(self.images)]
            self._cluster.patch(NODES, f"{self._site.name}/status", {"status": {"images": listed}})
        missing = [image for image in images_of(raw["spec"]) if image not in self.images]
        if missing and self._pull is None:
            self._pull = uid, missing[0], now + PULL_S
        began = time.time() - (now - self._seen[uid])
        if not missing:
            is_preload = preload_of(raw) is not None
            self._tell(raw, "Succeeded" if is_preload else "Running", began)
            self.running[raw["metadata"]["name"]] = now - self._seen[uid]
        elif not raw["status"].get("startTime"):
            self._tell(raw, "Pending", began)

    def _tell(self, raw: dict[str, Any], phase: str, began: float) -> None:
        now = moment(time.time())
        states: dict[str, dict[str, Any]] = {
            "Pending": {"waiting": {"reason": "ContainerCreating"}},
            "Running": {"running": {"startedAt": now}},
            "Succeeded": {"terminated": {"exitCode": 0, "startedAt": now, "finishedAt": now}},
        }
        about = {"ready": False, "restartCount": 0, "imageID": "", "state": states[phase]}
        found = [{"name": one["name"], "image": one["image"], **about} for one in raw["spec"]["containers"]]
        status = {"phase": phase, "startTime": moment(began), "containerStatuses": found}
        meta = raw["metadata"]
        self._cluster.patch(STATUS, f"{meta['name']}/status", {"status": status}, meta["namespace"])


@contextmanager
def pulling(site: Site) -> Iterator[Kubelet]:
    found = Kubelet(site)
    found.start()
    try:
        yield found
    finally:
        found.stop()


def add(site: Site, name: str, image: str, predicted: float) -> None:
    limits = {"limits": {"cpu": "1", "nvidia.com/gpu": "1"}}
    spec = {"containers": [{"name": "main", "image": image, "resources": limits}]}
    site.add(name, spec=spec, predicted=predicted, run=name)


@pytest.mark.parametrize("preloads", [False, True])
def test_a_gpu_waits_for_no_pull_where_the_image_was_loaded(site: Site, preloads: bool) -> None:
    """Two pods, one GPU, an image each: the second one's is pulled while the first one runs, or while it has the GPU.
    The preload is placed by the scheduler under the least rights, and is gone before."""
    with pulling(site) as kubelet, controlled(site, preloads=preloads, pull_s=PULL_S):
        add(site, "first", "first:1", 8)
        until(lambda: "first" in kubelet.running)
        add(site, "second", "second:1", 8)
        if preloads:
            until(lambda: "docker.io/library/second:1" in kubelet.images and not loaders(site))
        else:
            until(lambda: site.pods()["second"].waits)
        assert site.pods()["second"].is_gated
        site.delete("first")
        until(lambda: "second" in kubelet.running)
    took_s = kubelet.running["second"]
    print(f"from its place to its start: {took_s:.2f} s; a pull takes {PULL_S:.0f} s")
    assert took_s < PULL_S / 2 if preloads else took_s >= PULL_S


def test_one_that_is_not_wanted_any_more_goes(site: Site) -> None:
    """Its pod is deleted while the image is pulled: by the controller, or by Kubernetes, whose owner it was."""
    with pulling(site) as kubelet, controlled(site, preloads=True, pull_s=PULL_S):
        add(site, "first", "first:1", 8)
        until(lambda: "first" in kubelet.running)
        add(site, "second", "second:1", 8)
        until(lambda: loaders(site))
        site.delete("second")
        until(lambda: not loaders(site))
        assert "docker.io/library/second:1" not in kubelet.images


def test_one_that_no_controller_takes_away_goes_with_its_pod(site: Site) -> None:
    """The controller dies; the garbage collector of Kubernetes knows the owner."""
    with pulling(site) as kubelet:
        with controlled(site, preloads=True, pull_s=ASSUMED_S):
            add(site, "first", "first:1", 8)
            until(lambda: "first" in kubelet.running)
            add(site, "second", "second:1", 8)
            until(lambda: loaders(site))
        site.delete("second")
        until(lambda: not loaders(site))


def test_its_account_makes_preloads_and_no_other_pod(site: Site) -> None:
    """Each pod that would gain anything is refused, all but two by the policy; what the controller makes passes, also
    where a namespace enforces `restricted`, and it alone is deleted."""
    owner, cluster = site.add("owner"), site.account(names.CONTROLLER)
    made = preload("owner")
    made["metadata"]["namespace"] = site.name
    made["metadata"]["ownerReferences"][0]["uid"] = owner.uid
    site.admin.create(KINDS["ServiceAccount"], {"metadata": {"name": "admin"}}, site.name)
    tried = unwanted(made)
    until(lambda: POLICY in refusal(cluster, site, tried["a program"]))  # it is in force a moment after it was made
    said = {what: refusal(cluster, site, body) for what, body in tried.items()}
    assert [what for what, why in said.items() if not why] == []
    # the API server itself gives priorities by class, and knows no such runtime
    assert {what for what, why in said.items() if POLICY not in why} == {"a higher priority", "a runtime"}, said
    label = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    site.admin.patch(KINDS["Namespace"], site.name, label)
    assert refusal(cluster, site, made) == ""
    for where in ("default", site.of.namespace):
        body = copy.deepcopy(made)
        body["metadata"]["namespace"] = where
        with pytest.raises(ApiError, match="403"):
            cluster.create(PODS, body, where)
    with pytest.raises(ApiError, match="403"):
        cluster.delete(PODS, "owner", site.name)
    theirs = copy.deepcopy(made)
    theirs["metadata"] |= {"name": "theirs", "labels": {names.PRELOAD: "k3y"}}
    site.admin.create(PODS, theirs, site.name)
    with pytest.raises(ApiError, match="403"):
        cluster.delete(PODS, "theirs", site.name)
    cluster.create(PODS, made, site.name)
    cluster.delete(PODS, made["metadata"]["name"], site.name)
    until(lambda: made["metadata"]["name"] not in site.pods())


def test_the_api_server_understands_the_policies(site: Site) -> None:
    """It has checked the types of each rule, and has nothing to say of any."""
    assert POLICY in understood(site)


def test_without_the_right_nothing_is_made(tmp_path: Path) -> None:
    """Manifests without --preload: their account makes no pod, whatever it is."""
    site = Site(tmp_path)
    try:
        site.apply()
        made = preload()
        made["metadata"]["namespace"] = site.name
        with pytest.raises(ApiError, match="403"):
            site.account(names.CONTROLLER).create(PODS, made, site.name)
    finally:
        site.close()


def test_what_would_go_is_said_and_stays_and_goes_when_egs_is_taken_out(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    """The API server is asked of each change, also of a very pod, and makes none; then what was said is what goes."""
    loads_for(site, site.add("owner", notes={names.PAUSED: "pod 2026-11-28T05:00:00Z by ann"}))
    site.add("waits")
    where = site.of.namespace
    spec = {"holderIdentity": "laptop-7", "renewTime": moment(site.admin.now()).replace("Z", ".000000Z")}
    site.admin.create(LEASES, {"metadata": {"name": names.CONTROLLER}, "spec": spec}, where)
    words = ["kubernetes", "leave", "--kubeconfig", FILE, "--namespace", where, "--serve", site.name]
    assert run([*words, "--dry-run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sorted(found["opened"]) == [f"{site.name}/owner", f"{site.name}/waits"]
    assert (found["paused"], found["refused"]) == ([f"{site.name}/owner"], [])
    assert (found["leads"]["holder"], found["leads"]["is_outside"]) == ("laptop-7", True)
    assert {one.name for one in site.pods().values() if one.is_gated} == {"owner", "waits"}
    assert "deletionTimestamp" not in loaders(site)[0]["metadata"]
    assert "annotations" not in site.admin.get(LEASES, names.CONTROLLER, where)["metadata"]
    for one in objects(site.of):
        meta = one["metadata"]
        there = site.admin.get(KINDS[one["kind"]], meta["name"], meta.get("namespace", ""))["metadata"]
        assert "deletionTimestamp" not in there
    lines: list[str] = []
    assert leave(site.admin, site.of, lines.append, lambda _: None) == 0
    said = [f"{one['kind']}/{one['name']}: deleted" for one in found["deleted"]]
    assert said == [line for line in lines if line.endswith(": deleted")]


def test_who_leaves_takes_preloads_and_their_class_along(site: Site) -> None:
    """And all else that was applied."""
    loads_for(site, site.add("owner"))
    assert leave(site.admin, site.of, lambda _: None, lambda _: None) == 0
    until(lambda: not loaders(site))
    for one in objects(site.of)[1:]:
        meta = one["metadata"]
        with pytest.raises(ApiError, match="404"):
            site.admin.get(KINDS[one["kind"]], meta["name"], meta.get("namespace", ""))
