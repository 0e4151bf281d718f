"""On a real API server with its scheduler: the cluster that `EGS_TEST_KUBECONFIG` names, which is for tests alone."""

from __future__ import annotations

import base64
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from egs_core.kubernetes import names
from egs_core.kubernetes.admission import Rules
from egs_core.kubernetes.certificate import new_certificate
from egs_core.kubernetes.cluster import (
    EVENTS,
    JOBS,
    JSON_PATCH,
    LIMIT_RANGES,
    MERGE,
    PODS,
    WEBHOOKS,
    WORKFLOWS,
    ApiError,
    Cluster,
    Kind,
)
from egs_core.kubernetes.leaving import leave
from egs_core.kubernetes.manifests import KINDS, objects
from egs_core.kubernetes.opening import open_gate
from egs_core.kubernetes.overdue import open_overdue
from egs_core.kubernetes.pausing import pause, resume
from egs_core.kubernetes.pods import Pod
from egs_core.kubernetes.steering import Asked, abort
from egs_core.kubernetes.webhook import Webhook
from tests.cluster.argo_runs import why_no_argo
from tests.cluster.real import FILE, HERE, LIMIT_S, Site, applied, controlled, understood, until
from tests.unit.kubernetes.made_pods import pod
from tests.unit.kubernetes.made_workflows import executor, group, noted, task, workflow
from tests.unit.kubernetes.made_workflows import node as begun

pytestmark = pytest.mark.skipif(
    not FILE, reason="EGS_TEST_KUBECONFIG names no kubeconfig of a cluster for tests: nothing was tried on a real one"
)
TOKENS = Kind("/api/v1", "serviceaccounts")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with applied(tmp_path) as found:
        yield found


@pytest.fixture
def preempting(tmp_path: Path) -> Iterator[Site]:
    """With the rights to delete what makes way."""
    with applied(tmp_path, preempts=True) as found:
        yield found


def test_pods_get_their_places_in_the_engines_order(site: Site) -> None:
    """One GPU, three pods: the scheduler gets them one by one, with the least rights that are written."""
    for name, rank in (("short", 10), ("long", 99), ("middle", 50)):
        site.add(name, gpus=1, rank=rank, predicted=5)
    with controlled(site):
        for name in ("long", "middle", "short"):
            until(lambda n=name: site.pods()[n].node == site.name)  # type: ignore[misc]  # one each
            assert all(one.is_gated for one in site.pods().values() if one.name != name)
            site.delete(name)


CRDS = Kind("/apis/apiextensions.k8s.io/v1", "customresourcedefinitions", False)


@pytest.fixture
def workflows(site: Site) -> Iterator[None]:
    """Argo's kind of object; where it is not installed, one of that name without a schema, for the time of the test.
    Not where Argo's controller is there, too, which would go on with made-up runs."""
    if not why_no_argo(site):
        pytest.skip("Argo's controller is in the cluster: test_real_argo.py has it make the pods")
    name, schema = "workflows.argoproj.io", {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1alpha1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    called = {"kind": "Workflow", "listKind": "WorkflowList", "plural": "workflows", "singular": "workflow"}
    spec = {"group": "argoproj.io", "scope": "Namespaced", "names": called, "versions": [version]}
    try:
        site.admin.get(CRDS, name)
        made = False
    except ApiError:
        site.admin.create(CRDS, {"metadata": {"name": name}, "spec": spec})
        made = True
    until(lambda: _is_served(site))
    yield
    if made:
        site.admin.delete(CRDS, name)


def _is_served(site: Site) -> bool:
    try:
        return site.admin.list(WORKFLOWS, site.name)[0] == []
    except ApiError:
        return False


@pytest.mark.usefixtures("workflows")
def test_runs_of_argo_go_by_what_is_left_of_them(site: Site) -> None:
    """Under its own account it reads Workflows, and writes into a pod why it waits. The labels say the contrary of what
    is left; a loop that turns out to be long puts its run behind. An aborted run ends with its pods."""
    loop = group({"x": task(10)}, ["a"], loops=True, at_once=1)
    for name, tasks in (("long", {"a": task(5), "b": task(100, ["a"])}), ("short", {"a": task(5), "many": loop})):
        made = workflow(name, tasks)
        made["metadata"] = {"name": name, "namespace": site.name}
        site.admin.create(WORKFLOWS, made, site.name)

    def add(run: str, path: str, name: str, rank: int) -> None:
        spec = {**HERE, "nodeSelector": {"egs-test": site.name}}
        made = executor(run, path, name=name, namespace=site.name, spec=spec, cpu=5, rank=rank, predicted=5)
        del made["metadata"]["uid"]
        site.admin.create(PODS, made, site.name)

    add("long", "a", "long-a", 6)
    add("short", "a", "short-a", 500)
    with controlled(site):
        until(lambda: site.pods()["short-a"].node)
        until(
            lambda: site.pods()["long-a"].waits.startswith(
                "place 1 of 1: no node has room for it now; its run takes 105 s"
            )
        )
        add("short", "many.iteration-iterations(0:0).iteration-item.x", "item", 11)
        count = begun("root.many.iteration-driver", outputs={"iteration-count": "40"})
        status = {"nodes": noted("short", [begun("root.a", type="DAG"), count])}
        site.admin.patch(WORKFLOWS, "short", {"status": status}, site.name)
        until(lambda: "its run takes 395 s" in site.pods()["item"].waits)
        site.delete("short-a")
        until(lambda: site.pods()["long-a"].node)
        assert site.pods()["item"].is_gated
        done = abort(site.admin, Asked(site.name, "short"))
        assert (done.workflow, done.pods, done.makers) == ("short", ("item",), ())
        assert site.admin.get(WORKFLOWS, "short", site.name)["spec"]["shutdown"] == "Terminate"
        until(lambda: "item" not in site.pods())


def test_the_second_process_has_the_rights_that_it_needs(site: Site) -> None:
    """It opens what is overdue, and nothing else, under its own account."""
    site.add("late", notes={names.RELEASE_BY: "2020-01-01T00:00:00Z"})
    site.add("new")
    said: list[str] = []
    assert open_overdue(site.account(names.OVERDUE), (site.name,), 3600.0, said.append) == 0
    assert {one.name for one in site.pods().values() if one.is_gated} == {"new"}, said


REFUSED: dict[str, dict[str, Any] | list[Any]] = {
    "label": {"metadata": {"labels": {"x": "y"}}},
    "annotation": {"metadata": {"annotations": {"x": "y"}}},
    "finalizer": {"metadata": {"finalizers": ["x.io/y"]}},
    "image": [{"op": "replace", "path": "/spec/containers/0/image", "value": "other:1"}],
    "selector": {"spec": {"nodeSelector": {"egs-test": "x", "more": "x"}}},
    "toleration": {"spec": {"tolerations": [{"operator": "Exists"}, {"key": "x", "operator": "Exists"}]}},
    "later deadline": {"spec": {"activeDeadlineSeconds": 700}},
    "no deadline": {"spec": {"activeDeadlineSeconds": None}},
    "other gate": [{"op": "remove", "path": "/spec/schedulingGates/1"}],
    "all gates": {"spec": {"schedulingGates": []}},
}


@pytest.mark.parametrize("account", [names.CONTROLLER, names.OVERDUE])
def test_its_accounts_change_nothing_but_our_gate(site: Site, account: str) -> None:
    """Each further change is refused, by policy or by the API server's own checks; our gate goes."""
    gates = [{"name": names.GATE}, {"name": "theirs.io/gate"}]
    made = site.add("one", spec={"schedulingGates": gates, "activeDeadlineSeconds": 600})
    theirs = pod("theirs", namespace=site.name, gate=False)
    del theirs["metadata"]["labels"]
    site.admin.create(PODS, theirs, site.name)
    cluster = site.account(account)
    until(lambda: _is_refused(cluster, site, REFUSED["label"]))  # a policy is in force a moment after it was made
    allowed = [what for what, body in REFUSED.items() if not _is_refused(cluster, site, body)]
    assert allowed == []
    earlier = {"spec": {"activeDeadlineSeconds": 5}, "metadata": {"annotations": {names.LIMIT: "x"}}}
    assert not _is_refused(cluster, site, earlier)
    assert _is_refused(cluster, site, {"spec": {"activeDeadlineSeconds": 5}}, "theirs")
    for act in (
        lambda: cluster.delete(PODS, "one", site.name),
        lambda: cluster.create(PODS, pod("two", namespace=site.name), site.name),
        lambda: cluster.list(Kind("/api/v1", "secrets"), site.name),
        lambda: cluster.patch(PODS, "x", {"metadata": {"annotations": {}}}, "default"),
    ):
        with pytest.raises(ApiError, match="403"):
            act()
    assert open_gate(cluster, made, "order", time.time()) is not None
    assert not site.pods()["one"].is_gated
    assert site.pods()["one"].has_other_gates


def _is_refused(cluster: Cluster, site: Site, body: dict[str, Any] | list[Any], name: str = "one") -> bool:
    how = JSON_PATCH if isinstance(body, list) else MERGE
    try:
        cluster.patch(PODS, name, body, site.name, how, is_tried=True)
    except ApiError as error:
        return error.status in (403, 422)
    return False


def test_the_webhook_gates_while_the_controller_lives(site: Site) -> None:
    """The API server trusts its certificate, also the next one; where it is down, a pod passes as it is. A GPU that a
    LimitRange gives to a task which needs none is taken off, and not what its author has stated."""
    lives = threading.Event()
    lives.set()
    hook = Webhook(site.admin, Rules(600.0), ["127.0.0.1"], lives.is_set, lambda _: None, ("127.0.0.1", 0))
    config = next(one for one in objects(site.of) if one["kind"] == "MutatingWebhookConfiguration")
    config["webhooks"][0]["clientConfig"] = {"url": f"https://127.0.0.1:{hook.port}/pods"}
    site.admin.delete(WEBHOOKS, names.CONTROLLER)
    site.admin.create(WEBHOOKS, config)
    hook.start()
    made = iter(range(1000))

    def is_gated() -> bool:
        return site.add(f"p{next(made)}", gate=False).is_gated

    until(is_gated)
    _takes_a_given_gpu_off(site)
    assert site.add("stated", gate=False).release_by > time.time()
    hook._renew()
    hook._tell_certificate()
    until(is_gated)
    lives.clear()
    assert not is_gated()
    lives.set()
    until(is_gated)
    hook.stop()
    assert not is_gated()


def _takes_a_given_gpu_off(site: Site) -> None:
    gpu = "nvidia.com/gpu"
    spec = {"limits": [{"type": "Container", "default": {gpu: "1"}}]}
    site.admin.create(LIMIT_RANGES, {"metadata": {"name": "gpus"}, "spec": spec}, site.name)
    # the API server's own list of these is watched: a pod that names nothing is given one when it has seen it
    until(lambda: site.add(f"given-{uuid.uuid4().hex[:6]}", gate=False).shape.gpu_milli == 1000)
    assert site.add("free", gate=False, hints={"gpus": 0}).shape.gpu_milli == 0
    assert site.add("said", gate=False, gpus=1, hints={"gpus": 0}).shape.gpu_milli == 1000
    least = {"limits": [{"type": "Container", "default": {gpu: "1"}, "min": {gpu: "1"}}]}
    site.admin.patch(LIMIT_RANGES, "gpus", {"spec": least}, site.name)
    until(lambda: site.add(f"least-{uuid.uuid4().hex[:6]}", gate=False, hints={"gpus": 0}).shape.gpu_milli == 1000)
    site.admin.delete(LIMIT_RANGES, "gpus", site.name)
    until(lambda: site.add(f"none-{uuid.uuid4().hex[:6]}", gate=False).shape.gpu_milli == 0)


def test_who_leaves_leaves_nothing(site: Site) -> None:
    """Twice: the second time there is nothing to do. Pods that waited go on; the namespace stays."""
    site.add("waits", gpus=1)
    site.add("waits-too", gpus=1)
    for _ in range(2):
        assert leave(site.admin, site.of, lambda _: None) == 0
    assert not any(one.is_gated for one in site.pods().values())
    for one in objects(site.of)[1:]:
        meta = one["metadata"]
        with pytest.raises(ApiError, match="404"):
            site.admin.get(KINDS[one["kind"]], meta["name"], meta.get("namespace", ""))


def test_the_manifests_are_applied_again_without_a_conflict(site: Site) -> None:
    """Also when the controller has written its certificate; which stays."""
    bundle = base64.b64encode(b"-----BEGIN CERTIFICATE-----\n").decode()
    with suppress(ApiError):  # it checks that it is one
        site.admin.patch(
            WEBHOOKS, names.CONTROLLER, [{"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": bundle}],
            how=JSON_PATCH,
        )  # fmt: skip
    site.apply()


def test_the_controllers_account_changes_nothing_of_the_webhook_but_its_certificates(site: Site) -> None:
    """It would be sent secrets as they are made, or pods of other namespaces. The API server asks policies about a
    webhook's configuration, which it does not ask webhooks about; and has checked the rules' types."""
    assert "egs-controller-certificate" in understood(site)
    cluster, hook = site.account(names.CONTROLLER), "/webhooks/0"
    secrets = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["secrets"]}
    bundle = base64.b64encode(new_certificate(["egs.example"])[0]).decode()
    certificate = {"op": "add", "path": f"{hook}/clientConfig/caBundle", "value": bundle}
    there = cluster.get(WEBHOOKS, names.CONTROLLER)["webhooks"][0]
    for one in (
        {"op": "add", "path": f"{hook}/rules/-", "value": secrets},
        {"op": "replace", "path": f"{hook}/namespaceSelector", "value": {}},
        {"op": "replace", "path": f"{hook}/objectSelector", "value": {}},
        {"op": "replace", "path": f"{hook}/failurePolicy", "value": "Fail"},
        {"op": "replace", "path": f"{hook}/clientConfig/service/name", "value": "another"},
        {"op": "replace", "path": f"{hook}/clientConfig", "value": {"url": "https://elsewhere.example"}},
        {"op": "add", "path": "/webhooks/-", "value": {**there, "name": "another.egs.io"}},
        {"op": "remove", "path": "/webhooks"},
        {"op": "add", "path": "/metadata/annotations", "value": {"one": "more"}},
    ):
        until(lambda one=one: _refusal_of_webhook(cluster, [certificate, one]))  # type: ignore[misc]  # one each
    cluster.patch(WEBHOOKS, names.CONTROLLER, [certificate], how=JSON_PATCH)
    assert cluster.get(WEBHOOKS, names.CONTROLLER)["webhooks"][0]["clientConfig"]["caBundle"] == bundle


def _refusal_of_webhook(cluster: Cluster, patch: list[Any]) -> str:
    """What the policy says against a change of the webhook's configuration, which is not carried out; "": nothing."""
    try:
        cluster.patch(WEBHOOKS, f"{names.CONTROLLER}?dryRun=All", patch, how=JSON_PATCH)
    except ApiError as error:
        if "egs-controller-certificate" not in str(error):
            raise
        return str(error)
    return ""


def test_limits_become_deadlines_of_pods(site: Site) -> None:
    """Under its own account: with the gate, and of what runs when the run's GPU time is used up. No kubelet is there to
    end them."""
    run = {names.RUN_LIMITS: '{"max_gpu_time": 60}'}
    site.add("timed", cpu=1, run="another", hints={"max_runtime_s": 90})
    site.add("holds", gpus=1, rank=9, notes=run)
    site.add("waits", gpus=1, rank=1)
    with controlled(site):
        until(lambda: site.pods()["holds"].node)
        until(lambda: site.pods()["timed"].deadline_s == 90)
        assert site.pods()["holds"].deadline_s == 60  # what is left for it alone
        site.begins("holds", 30)
        site.add("also", cpu=1)
        until(lambda: site.pods()["also"].node)
        site.begins("holds", 50)
        assert site.pods()["holds"].deadline_s == 60
        site.begins("also", 20)
        until(lambda: site.pods()["also"].deadline_s)
        assert 20 <= (site.pods()["also"].deadline_s or 0) < 20 + LIMIT_S
        site.delete("holds")
        until(lambda: site.pods()["waits"].node)
        assert site.pods()["waits"].deadline_s == 1
        raw = site.admin.get(PODS, "waits", site.name)["metadata"]["annotations"]
        assert raw[names.LIMIT].endswith(" at most 1 s: max_gpu_time of its run")


def test_a_paused_run_waits_past_its_release_by_time(site: Site) -> None:
    """For the controller and the second process, under their own accounts; a dry run asks and changes nothing."""
    past = {names.RELEASE_BY: "2020-01-01T00:00:00Z"}
    site.add("first", rank=9, notes=past)
    asked = Asked(site.name, "r", reason="a test")
    assert pause(site.admin, Asked(site.name, "r", is_tried=True)).held == ("first",)
    assert not site.pods()["first"].paused
    assert pause(site.admin, asked).held == ("first",)
    assert site.pods()["first"].paused.endswith(": a test")
    site.add("later", notes=past)
    assert open_overdue(site.account(names.OVERDUE), (site.name,), 3600.0, lambda _: None) == 0
    with controlled(site):
        site.add("other", run="other")
        until(lambda: site.pods()["other"].node)
        assert all(site.pods()[name].is_gated for name in ("first", "later"))
        resume(site.admin, asked)
        until(lambda: site.pods()["first"].node and site.pods()["later"].node)


def add_job(site: Site, retries: int) -> Pod:
    """A Job with one pod of low priority and a GPU, gated; the pod."""
    template = pod("x", gpus=1, run="low", predicted=5000)
    spec = template["spec"] | HERE | {"restartPolicy": "Never", "nodeSelector": {"egs-test": site.name}}
    made = {"metadata": {"labels": template["metadata"]["labels"]}, "spec": spec}
    job = {"metadata": {"name": "low"}, "spec": {"backoffLimit": retries, "template": made}}
    site.admin.create(JOBS, job, site.name)
    until(lambda: any(one.job for one in site.pods().values()))
    return of_job(site)


def test_a_job_makes_its_pod_again_for_one_that_made_way(preempting: Site) -> None:
    """By Kubernetes' own Job controller: the pod of lower priority is told, deleted and made again, behind its gate. No
    kubelet is there: the test takes the pod away when it is told to go."""
    site = preempting
    first = add_job(site, 3)
    with controlled(site, "deleted for", preempts=True):
        until(lambda: of_job(site).node)
        site.add("urgent", gpus=1, run="urgent", predicted=5, hints={"priority": 10})
        until(lambda: site.pods()[first.name].is_leaving)
        assert names.PREEMPTED in site.admin.get(PODS, first.name, site.name)["metadata"]["annotations"]
        site.delete(first.name)
        until(lambda: site.pods()["urgent"].node)
        until(lambda: any(one.job and one.uid != first.uid for one in site.pods().values()))
        assert of_job(site).is_gated
    assert [one["reason"] for one in site.admin.list(EVENTS, site.name)[0]].count("Preempted") == 1


def test_a_job_without_retries_keeps_its_pod(preempting: Site) -> None:
    """It is read just before, and nothing else is kept from its turn."""
    site = preempting
    first = add_job(site, 0)
    with controlled(site, "is not preempted: its Job has no retry left", preempts=True):
        until(lambda: of_job(site).node)
        site.add("urgent", gpus=1, run="urgent", predicted=5, hints={"priority": 10})
        until(lambda: site.pods()["urgent"].waits)
        site.add("small", cpu=1, run="another")
        until(lambda: site.pods()["small"].node)
        assert not of_job(site).is_leaving
        assert of_job(site).uid == first.uid


def of_job(site: Site) -> Pod:
    """The Job's pod, the newest."""
    return max((one for one in site.pods().values() if one.job), key=lambda one: (not one.is_leaving, one.created))


def test_a_right_to_delete_reaches_no_pod_that_was_not_told(preempting: Site) -> None:
    """Its role lets it; the policy does not."""
    site, cluster = preempting, preempting.account(names.CONTROLLER)
    site.add("one")
    until(lambda: _is_refused(cluster, site, REFUSED["label"]))
    with pytest.raises(ApiError, match="403"):
        cluster.delete(PODS, "one", site.name)
    cluster.patch(PODS, "one", {"metadata": {"annotations": {names.PREEMPTED: "x"}}}, site.name)
    cluster.delete(PODS, "one", site.name, uid=site.pods()["one"].uid)
    until(lambda: "one" not in site.pods())
