"""A GPU that a LimitRange gives to every container, and a task that says it needs none. Pods as the API server of
Kubernetes 1.36 has them after its LimitRanger; `tests/cluster/test_real_cluster.py` has them from a real one."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from egs_core.kubernetes.gpu_free import given
from tests.unit.kubernetes.emulated_api import EmulatedApi
from tests.unit.kubernetes.made_pods import pod

GPU = "nvidia.com/gpu"
NOTE = "kubernetes.io/limit-ranger"
LIMIT = f"LimitRanger plugin set: {GPU} request for container main; cpu, {GPU} limit for container main"


def ranged(name: str = "p", note: str = LIMIT, **hints: float) -> dict[str, Any]:
    """A pod whose only container has a GPU, by that note."""
    found = pod(name, gpus=1, notes={NOTE: note}, hints=hints)
    found["spec"]["containers"][0]["resources"]["requests"] = {GPU: "1"}
    return found


def test_only_what_was_filled_in_for_a_task_without_gpus_was_given() -> None:
    """Not where the task says nothing or wants one, where the author has stated the limit, where another container got
    it, nor where it is 0 already."""
    (found,) = given(ranged(gpus=0))
    assert (found.field, found.at, found.gpu, found.kinds) == ("containers", 0, GPU, ("limits", "requests"))
    assert given(ranged()) == given(ranged(gpus=1)) == []
    assert (
        given(ranged(note="", gpus=0))
        == given(ranged(note="LimitRanger plugin set: cpu limit for container main"))
        == []
    )
    assert given(ranged(note=f"LimitRanger plugin set: {GPU} limit for container other", gpus=0)) == []
    mig = ranged(note=LIMIT.replace(GPU, "nvidia.com/mig-1g.5gb"), gpus=0)
    mig["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/mig-1g.5gb": "1"}}
    assert [one.gpu for one in given(mig)] == ["nvidia.com/mig-1g.5gb"]
    none = ranged(gpus=0)
    none["spec"]["containers"][0]["resources"] = {"limits": {GPU: "0"}, "requests": {GPU: "0"}}
    assert given(none) == []


def test_of_several_containers_those_that_were_given_one() -> None:
    """An init container has a field of its own."""
    note = f"{LIMIT}; {GPU} limit for container beside; {GPU} limit for init container fetch"
    found = ranged(note=note, gpus=0)
    found["spec"]["containers"].append({"name": "beside", "resources": {"limits": {GPU: "1"}}})
    found["spec"]["initContainers"] = [{"name": "main"}, {"name": "fetch", "resources": {"limits": {GPU: "1"}}}]
    assert [(one.field, one.at, one.kinds) for one in given(found)] == [
        ("containers", 0, ("limits", "requests")),
        ("containers", 1, ("limits",)),
        ("initContainers", 1, ("limits",)),
    ]


@pytest.fixture
def api(tmp_path: Path) -> Iterator[EmulatedApi]:
    pytest.importorskip("kubernetes", reason="the client of Kubernetes is not installed")
    found = EmulatedApi(tmp_path)
    yield found
    found.close()


def paths(api: EmulatedApi, raw: dict[str, Any], said: list[str]) -> list[str]:
    """What the webhook writes into it."""
    from egs_core.kubernetes.admission import Rules
    from egs_core.kubernetes.cluster import Cluster
    from egs_core.kubernetes.webhook import Webhook

    hook = Webhook(Cluster(api.kubeconfig), Rules(), ["127.0.0.1"], lambda: True, said.append, ("127.0.0.1", 0))
    request = {"uid": "u", "operation": "CREATE", "namespace": "team", "object": raw}
    try:
        patch = hook.answer({"request": request})["response"].get("patch", "W10=")
    finally:
        hook._server.server_close()
    return [one["path"] for one in json.loads(base64.b64decode(patch))]


def test_the_webhook_takes_it_off_unless_the_namespace_needs_one(api: EmulatedApi) -> None:
    """With a least number of GPUs in the LimitRange, or a ratio, or where that cannot be read, the pod stays as it is,
    and is gated all the same; the rewrite is a line of the log."""
    said: list[str] = []
    api.add(
        "limitranges", {"metadata": {"name": "a", "namespace": "team"}, "spec": {"limits": [{"default": {GPU: 1}}]}}
    )
    gate = "/spec/schedulingGates"
    off = [f"/spec/containers/0/resources/{kind}/nvidia.com~1gpu" for kind in ("limits", "requests")]
    assert [one for one in paths(api, ranged(gpus=0, name="free"), said) if "resources" in one] == off
    assert [line for line in said if off[0] in line and "team/free" in line]
    assert not [one for one in paths(api, ranged(gpus=1), said) if "resources" in one]
    ungated = ranged(gpus=0)
    del ungated["spec"]["schedulingGates"]
    for rule in ("min", "maxLimitRequestRatio"):
        meta = {"name": "b", "namespace": "team"}
        api.add("limitranges", {"metadata": meta, "spec": {"limits": [{rule: {GPU: "1"}}]}})
        found = paths(api, ungated, said)
        assert (gate in found, [one for one in found if "resources" in one]) == (True, [])
    api.forbidden.add("limitranges")
    assert gate in paths(api, ungated, said)
    assert [line for line in said if line.startswith("limit ranges: team: 403")]
