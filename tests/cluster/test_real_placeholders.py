"""Placeholder pods on a real API server with its scheduler (`test_real_cluster`): what an autoscaler would see of them,
and who gets the node that comes. No autoscaler is there: the test adds the node."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from egs_core.kubernetes import names
from egs_core.kubernetes.cluster import PODS, ApiError, Cluster
from egs_core.kubernetes.gates import OVERDUE
from egs_core.kubernetes.leaving import leave
from egs_core.kubernetes.manifests import KINDS, objects
from egs_core.kubernetes.opening import open_gate
from egs_core.kubernetes.placeholding import PlaceholderSettings
from egs_core.kubernetes.pods import pod_of
from tests.cluster.real import FILE, Site, applied, controlled, refusal, understood, until
from tests.cluster.test_real_cluster import pytestmark
from tests.unit.kubernetes.test_placeholder_policy import placeholder, unwanted
from tests.unit.kubernetes.test_preload_policy import preload

__all__ = ["pytestmark"]

TWO = PlaceholderSettings(most=2)
POLICY = f"{names.CONTROLLER}-placeholders"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """With the rights to make two placeholders, and preloads."""
    with applied(tmp_path, preloads=True, placeholders=TWO) as found:
        yield found


def stand_ins(site: Site) -> list[dict[str, Any]]:
    label = f"{names.PLACEHOLDER}={names.BY_CONTROLLER}"
    return site.admin.list(PODS, site.of.namespace, label)[0]


def full(site: Site, *waiting: str) -> None:
    """The GPU is taken for an hour, and these wait."""
    site.add("first", gpus=1, predicted=3600, gate=False, spec={"nodeName": site.name})
    site.begins("first", 0)
    for name in waiting:
        site.add(name, gpus=1, predicted=3600)


def unschedulable(raw: dict[str, Any]) -> bool:
    """What a cluster autoscaler adds a node for."""
    stated = raw.get("status", {}).get("conditions") or []
    return any(one["type"] == "PodScheduled" and one.get("reason") == "Unschedulable" for one in stated)


def test_a_node_is_asked_for_and_goes_to_the_pod_that_waits(site: Site) -> None:
    """Under its own account the controller makes a placeholder, which the scheduler finds no node for; the pod itself
    is behind its gate. A node comes: the pod has it, the placeholder is gone, and no GPU was counted twice."""
    full(site, "second")
    with controlled(site, placeholders=TWO):
        until(lambda: [one for one in stand_ins(site) if unschedulable(one)])
        assert site.pods()["second"].is_gated
        site.add_node(f"{site.name}-new", 1)
        until(lambda: site.pods()["second"].node == f"{site.name}-new")
        assert site.pods()["second"].opened_for == "order"
        until(lambda: not stand_ins(site))


def test_a_step_to_come_finds_its_node_kept_and_takes_it(site: Site) -> None:
    """Two wait, one GPU comes: one of them has it and the placeholder of the other stays. Then that pod is deleted: so
    is its placeholder."""
    full(site, "second", "third")
    with controlled(site, placeholders=TWO):
        until(lambda: len(stand_ins(site)) == 2)
        site.add_node(f"{site.name}-new", 1)
        until(lambda: len([one for one in site.pods().values() if one.node]) == 2)
        until(lambda: len(stand_ins(site)) == 1)
        (left,) = [one.name for one in site.pods().values() if one.is_gated]
        site.delete(left)
        until(lambda: not stand_ins(site))


def test_a_gpu_that_is_given_back_is_the_next_pods_at_once(site: Site) -> None:
    """While placeholders wait for a node, pods end and others get their GPU: no placeholder ever has it in between, as
    the scheduler would have to take it away again."""
    full(site)
    with watched(site) as placed, controlled(site, placeholders=TWO):
        for number in range(6):
            site.add(f"p{number}", gpus=1, predicted=3600)
        until(lambda: len(stand_ins(site)) == 2)
        site.end("first")
        took = []
        for _ in range(3):
            gave_back = time.monotonic()
            until(lambda: running(site))
            took.append(time.monotonic() - gave_back)
            site.end(running(site)[0])
        print(f"a GPU given back was the next pod's after {[round(one, 2) for one in took]} s; placed: {placed}")
    assert placed == []


def running(site: Site) -> list[str]:
    return [one.name for one in site.pods().values() if one.holds]


@contextmanager
def watched(site: Site) -> Iterator[list[str]]:
    """Placeholders that got a node, as it happens: one line each."""
    found: list[str] = []
    cluster, version = Cluster(Path(FILE)), site.admin.list(PODS, site.of.namespace)[1]

    def follow() -> None:
        with suppress(ApiError):
            for event in cluster.watch(PODS, version, site.of.namespace, timeout_s=600):
                pod = pod_of(event["object"])
                if pod.is_placeholder and pod.node and f"{pod.name} {pod.node}" not in found:
                    found.append(f"{pod.name} {pod.node}")

    threading.Thread(target=follow, daemon=True).start()
    yield found


def test_without_a_controller_the_scheduler_takes_its_place_for_the_pod(site: Site) -> None:
    """It dies, the node comes, and the placeholder has it. A gate that is opened otherwise, as the second process does:
    the scheduler deletes the placeholder for the pod."""
    full(site, "second")
    with controlled(site, placeholders=TWO):
        until(lambda: stand_ins(site))
    new = f"{site.name}-new"
    site.add_node(new, 1)
    until(lambda: [one for one in stand_ins(site) if pod_of(one).node == new])
    assert site.pods()["second"].is_gated
    open_gate(site.admin, site.pods()["second"], OVERDUE, 0.0)
    until(lambda: site.pods()["second"].node == new)
    assert not stand_ins(site)


def test_a_placeholder_takes_nobodys_place(site: Site) -> None:
    """A pod of a still lower priority has the GPU: it keeps it."""
    site.add("low", gpus=1, gate=False, spec={"priorityClassName": names.PRELOAD_CLASS})
    until(lambda: site.pods()["low"].node)
    site.admin.create(PODS, made(site), site.of.namespace)
    until(lambda: [one for one in stand_ins(site) if unschedulable(one)])
    assert site.pods()["low"].node
    assert not site.pods()["low"].is_leaving


def made(site: Site, number: int = 0) -> dict[str, Any]:
    """One with which the site's node has to do."""
    where = f'{{"select": {{"egs-test": "{site.name}"}}, "tolerate": [{{"operator": "Exists"}}]}}'
    raw = placeholder(site.of.namespace, where)
    asked = {"cpu": "1", "memory": "0", "nvidia.com/gpu": "1"}
    raw["spec"]["containers"][0]["resources"] = {"requests": asked, "limits": asked}
    raw["metadata"]["name"] = f"{raw['metadata']['name'][:-1]}{number}"
    return raw


def test_its_account_makes_so_many_placeholders_and_no_other_pod(site: Site) -> None:
    """Each pod that would gain anything is refused, nearly all by the policy, the rest by what the API server itself
    checks; so is a placeholder elsewhere, and a third one by the quota. It deletes them again, and no pod of others.
    Preloads are made as before."""
    cluster, here = site.account(names.CONTROLLER), site.of.namespace
    raw = made(site)
    tried = unwanted(raw)
    site.admin.patch(KINDS["Namespace"], here, _enforced("privileged"))  # the policy is asked alone
    until(lambda: POLICY in refusal(cluster, site, tried["a program"], here))  # in force a moment after it was made
    theirs = made(site, 7) | {"spec": made(site)["spec"] | {"priorityClassName": ""}}
    owner = copy.deepcopy(theirs)
    owner["metadata"]["name"] = tried["an owner"]["metadata"]["ownerReferences"][0]["name"]
    site.admin.create(
        PODS, owner, here
    )  # Kueue, where it is, refuses before any policy what one that is not there owns
    said = {
        what: refusal(cluster, site, body, body["metadata"]["namespace"])
        for what, body in tried.items()
        if what != "a namespace of others"
    }
    assert [what for what, why in said.items() if not why] == []
    # the API server itself gives priorities by class; what is not said to be a placeholder is the preloads' to refuse
    own = {"a higher priority", "that it preempts"}
    others = {what for what, why in said.items() if f"{names.CONTROLLER}-preloads" in why}
    assert others == {"no label", "a preload's"}
    assert {what for what, why in said.items() if POLICY not in why} == own | others, said
    site.admin.patch(KINDS["Namespace"], here, _enforced("restricted"))
    elsewhere = copy.deepcopy(raw)
    elsewhere["metadata"]["namespace"] = site.name
    assert "403" in refusal(cluster, site, elsewhere, site.name)
    until(lambda: not refusal(cluster, site, raw, here))  # the quota has been counted
    for number in range(2):
        until(lambda one=number: _is_made(cluster, made(site, one), here))  # type: ignore[misc]  # one each
    assert "exceeded quota" in refusal(cluster, site, made(site, 2), here)
    for number in range(2):
        cluster.delete(PODS, made(site, number)["metadata"]["name"], here)
    site.admin.create(PODS, theirs, here)
    with pytest.raises(ApiError, match="403"):
        cluster.delete(PODS, theirs["metadata"]["name"], here)
    load = preload("owner")
    load["metadata"]["namespace"] = site.name
    load["metadata"]["ownerReferences"][0]["uid"] = site.add("owner").uid
    assert refusal(cluster, site, load) == ""


def _enforced(level: str) -> dict[str, Any]:
    return {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": level}}}


def _is_made(cluster: Any, body: dict[str, Any], where: str) -> bool:
    try:
        cluster.create(PODS, body, where)
    except ApiError as error:
        return error.status == 409
    return True


def test_the_api_server_understands_the_policies(site: Site) -> None:
    """Also where placeholders alone are made."""
    assert POLICY in understood(site)
    site.of = msgspec.structs.replace(site.of, preloads=False)
    site.apply()
    assert POLICY in understood(site)


def test_who_leaves_takes_placeholders_along(site: Site) -> None:
    """With their class, their quota and all else that was applied."""
    site.admin.create(PODS, made(site), site.of.namespace)
    assert leave(site.admin, site.of, lambda _: None, lambda _: None) == 0
    until(lambda: not stand_ins(site))
    for one in objects(site.of)[1:]:
        meta = one["metadata"]
        with pytest.raises(ApiError, match="404"):
            site.admin.get(KINDS[one["kind"]], meta["name"], meta.get("namespace", ""))
