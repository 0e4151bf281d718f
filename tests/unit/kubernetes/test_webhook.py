"""What the webhook writes, its server and certificate, and how a cluster is left; on an emulated API server."""

from __future__ import annotations

import base64
import copy
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("kubernetes", reason="the client of Kubernetes is not installed")

from egs_core.cli.app import run
from egs_core.kubernetes import names
from egs_core.kubernetes.admission import Rules, patch_of, review_of
from egs_core.kubernetes.cluster import Cluster
from egs_core.kubernetes.guard import POD_RULES, WEBHOOK_RULES
from egs_core.kubernetes.manifests import Installation, objects
from egs_core.kubernetes.pods import pod_of
from egs_core.kubernetes.webhook import Webhook
from tests.unit.kubernetes.emulated_api import EmulatedApi
from tests.unit.kubernetes.made_pods import pod

NOW = 1_800_000_000.0


def applied(raw: dict[str, Any], patch: list[dict[str, Any]]) -> dict[str, Any]:
    """A JSON patch of the few kinds that are written."""
    made = copy.deepcopy(raw)
    for one in patch:
        *way, last = [step.replace("~1", "/").replace("~0", "~") for step in one["path"].split("/")[1:]]
        place: Any = made
        for step in way:
            place = place[int(step)] if isinstance(place, list) else place[step]
        if one["op"] == "remove":
            del place[last]
        elif last == "-":
            place.append(one["value"])
        else:
            place[last] = one["value"]
    return made


def test_a_pod_gets_a_gate_and_a_moment_and_a_second_call_changes_nothing() -> None:
    """Beside gates and annotations of its author, and with a priority class where it names none."""
    theirs = {"schedulingGates": [{"name": "theirs"}], "priority": 0, "preemptionPolicy": "PreemptLowerPriority"}
    for raw in (pod("a", gate=False), pod("b", gate=False, notes={"x": "y"}, spec=theirs)):
        rules = Rules(600.0, "low")
        made = applied(raw, patch_of(raw, rules, NOW))
        assert pod_of(made).is_gated
        assert pod_of(made).release_by == NOW + 600
        assert made["spec"]["priorityClassName"] == "low"
        assert not made["spec"].keys() & {"priority", "preemptionPolicy"}
        assert patch_of(made, rules, NOW + 5) == []
        assert pod_of(made).has_other_gates == ("schedulingGates" in raw["spec"])


@pytest.mark.parametrize(
    "raw",
    [
        {"metadata": {"labels": {"app": "x"}}, "spec": {}},
        pod("preload", gate=False, labels={"egs.io/preload": "key"}),
        pod("queued", gate=False, labels={"kueue.x-k8s.io/queue-name": "q"}),
        pod("placed", gate=False, spec={"nodeName": "n"}),
        {"metadata": None, "spec": []},
    ],
)
def test_others_are_left_as_they_are(raw: dict[str, Any]) -> None:
    """Pods without our label, preloads, what Kueue holds back, what has its node, and what is no pod."""
    assert patch_of(raw, Rules(), NOW) == []
    assert review_of({"request": {"uid": "u"}}, [])["response"] == {"uid": "u", "allowed": True}


@pytest.mark.parametrize(
    ("key", "value", "may"),
    [
        ("egs.io/waits", "x", True),
        ("egs.io/opened", "x", True),
        ("egs.io/limit", "x", True),
        ("egs.io/paused", "x", False),
        ("other", "x", False),
        ("theirs", None, False),
    ],
)
def test_its_accounts_write_three_annotations_and_no_other(key: str, value: str | None, may: bool) -> None:
    """The policy's own rule, evaluated as the API server does, but by another implementation of CEL."""
    celpy = pytest.importorskip("celpy", reason="the interpreter of the policies' rules is not installed")
    rule = next(rule for rule, message in POD_RULES if message == "annotations of the pod are changed")
    program = celpy.Environment().program(celpy.Environment().compile(rule))
    old = {"metadata": {"annotations": {"theirs": "y"}}, "spec": {}}
    new = copy.deepcopy(old)
    new["metadata"]["annotations"] |= {key: value} if value else {}
    if value is None:
        del new["metadata"]["annotations"][key]
    for before, after, allowed in ((old, new, may), (new, old, may), (old, old, True)):
        values = {"object": celpy.json_to_cel(after), "oldObject": celpy.json_to_cel(before)}
        assert bool(program.evaluate(values)) is allowed


@pytest.mark.parametrize(
    ("before", "after", "is_ours", "may"),
    [
        (None, 60, True, True),
        (60, 30, True, True),
        (60, 60, False, True),
        (30, 60, True, False),
        (60, None, True, False),
        (None, 60, False, False),
        (60, 30, False, False),
    ],
)
def test_its_accounts_may_only_bring_a_deadline_forward(
    before: int | None, after: int | None, is_ours: bool, may: bool
) -> None:
    """Of pods with our label; the policy's own rule, by another implementation of CEL."""
    celpy = pytest.importorskip("celpy", reason="the interpreter of the policies' rules is not installed")
    rule = next(rule for rule, message in POD_RULES if message.startswith("a deadline is taken away"))
    program = celpy.Environment().program(celpy.Environment().compile(rule))
    values = {}
    for side, seconds in (("oldObject", before), ("object", after)):
        labels = {names.WORKLOAD: "w"} if is_ours else {"app": "x"}
        spec = {} if seconds is None else {"activeDeadlineSeconds": seconds}
        values[side] = celpy.json_to_cel({"metadata": {"labels": labels}, "spec": spec})
    assert bool(program.evaluate(values)) is may


@pytest.mark.parametrize(
    ("change", "may"),
    [
        ({}, True),
        ({"clientConfig": {"caBundle": "bmV3"}}, True),
        ({"clientConfig": {"url": "https://elsewhere.example"}}, False),
        ({"clientConfig": {"service": {"name": "another", "namespace": "egs-system"}}}, False),
        ({"rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["secrets"]}]}, False),
        ({"namespaceSelector": {}}, False),
        ({"objectSelector": None}, False),
        ({"matchConditions": [{"name": "none", "expression": "true"}]}, False),
        ({"failurePolicy": "Fail"}, False),
        ({"name": "another.egs.io"}, False),
    ],
)
def test_its_account_changes_nothing_of_the_webhook_but_its_certificates(change: dict[str, Any], may: bool) -> None:
    """The policy's own rules, by another implementation of CEL; they are the API server's in `test_real_cluster`."""
    celpy = pytest.importorskip("celpy", reason="the interpreter of the policies' rules is not installed")
    (old,) = (one for one in objects(Installation("egs:1")) if one["kind"] == "MutatingWebhookConfiguration")
    new = copy.deepcopy(old)
    (hook,) = new["webhooks"]
    for key, value in change.items():
        hook[key] = hook[key] | value if key == "clientConfig" else value
    new["webhooks"][0] = {key: value for key, value in hook.items() if value is not None}
    longer, marked = copy.deepcopy(old), copy.deepcopy(old)
    longer["webhooks"].append(copy.deepcopy(old["webhooks"][0]))
    marked["metadata"]["labels"] = marked["metadata"]["labels"] | {"more": "x"}
    for after, allowed in ((new, may), (longer, False), (marked, False)):
        values = {"object": celpy.json_to_cel(after), "oldObject": celpy.json_to_cel(old)}
        programs = [celpy.Environment().program(celpy.Environment().compile(rule)) for rule, _ in WEBHOOK_RULES]
        assert all(bool(one.evaluate(values)) for one in programs) is allowed


def test_a_priority_class_of_the_author_stays() -> None:
    """Also a default one, which the API server has written before."""
    raw = pod("a", gate=False, spec={"priorityClassName": "theirs", "priority": 7})
    assert all("priority" not in one["path"] for one in patch_of(raw, Rules(priority_class="low"), NOW))


@pytest.fixture
def api(tmp_path: Path) -> Iterator[EmulatedApi]:
    found = EmulatedApi(tmp_path)
    yield found
    found.close()


class Caller:
    """Calls the webhook as the API server does: it trusts what the configuration says, and nothing else."""

    def __init__(self, api: EmulatedApi, port: int) -> None:
        self._api, self._url = api, f"https://127.0.0.1:{port}/pods"

    def bundle(self) -> bytes:
        webhook = self._api.all("mutatingwebhookconfigurations")[names.CONTROLLER]["webhooks"][0]
        return base64.b64decode(webhook["clientConfig"].get("caBundle", ""))

    def call(self, body: bytes | None = None) -> Any:
        context = ssl.create_default_context(cadata=self.bundle().decode())
        with urllib.request.urlopen(self._url, body, 60, context=context) as answer:
            return json.loads(answer.read()) if body is not None else answer.status

    def patch(self, raw: dict[str, Any], **request: Any) -> Any:
        asked = {"uid": "u", "operation": "CREATE", "namespace": "team", "object": raw, **request}
        response = self.call(json.dumps({"request": asked}).encode())["response"]
        assert response["allowed"] is True
        return json.loads(base64.b64decode(response["patch"])) if "patch" in response else []


def test_the_server_gates_only_while_the_controller_is_well(api: EmulatedApi) -> None:
    """Its certificate is in the configuration; each rewrite is a line; what is no review is refused, not obeyed."""
    api.add("mutatingwebhookconfigurations", objects(Installation("egs:1"))[-1])
    is_well, said = [True], list[str]()
    hook = Webhook(Cluster(api.kubeconfig), Rules(), ["127.0.0.1"], lambda: is_well[0], said.append, ("127.0.0.1", 0))
    hook.start()
    try:
        caller = Caller(api, hook.port)
        api.until(caller.bundle)
        assert caller.call() == 200
        assert next(one["path"] for one in caller.patch(pod("a", gate=False))) == "/spec/schedulingGates"
        assert said == ["pod team/a: /spec/schedulingGates, /metadata/annotations"]
        assert caller.patch(pod("a", gate=False), dryRun=True)
        assert len(said) == 1
        with pytest.raises(urllib.error.HTTPError, match="400"):
            caller.call(b"[")
        is_well[0] = False
        assert caller.patch(pod("a", gate=False)) == []
        with pytest.raises(urllib.error.HTTPError, match="503"):
            caller.call()
    finally:
        hook.stop()


def test_its_certificate_is_renewed_without_a_gap(api: EmulatedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old and new are trusted while connections change over; then the new one alone, also after manifests were applied
    again, which have none."""
    api.add("mutatingwebhookconfigurations", objects(Installation("egs:1"))[-1])
    monkeypatch.setattr("egs_core.kubernetes.webhook.LOOK_S", 3600.0)
    hook = Webhook(Cluster(api.kubeconfig), Rules(), ["127.0.0.1"], lambda: True, lambda _: None, ("127.0.0.1", 0))
    hook.start()
    try:
        caller = Caller(api, hook.port)
        api.until(lambda: hook._trusted)
        first = caller.bundle()
        hook._renew()
        assert caller.bundle().startswith(first)
        assert caller.bundle() != first
        assert caller.call() == 200
        hook._tell_certificate()
        assert first not in caller.bundle()
        assert caller.call() == 200
        api.remove("mutatingwebhookconfigurations", names.CONTROLLER)
        api.add("mutatingwebhookconfigurations", objects(Installation("egs:1"))[-1])
        hook._tell_certificate()
        assert caller.call() == 200
    finally:
        hook.stop()


def test_leaving_opens_every_gate_before_anything_else_goes(
    api: EmulatedApi, capsys: pytest.CaptureFixture[str]
) -> None:
    """`egs kubernetes leave`: the webhook first, the gates, then what the manifests have made; not the namespace."""
    for one in objects(Installation("egs:1")):
        api.add(_plural(one["kind"]), one)
    for name in ("a", "b"):
        api.add("pods", pod(name))
    assert run(["kubernetes", "leave", "--kubeconfig", str(api.kubeconfig)]) == 0
    assert api.gated() == set()
    assert api.deleted[0] == "mutatingwebhookconfigurations/egs-controller"
    assert len(api.deleted) == len(objects(Installation())) - 1
    assert list(api.all("namespaces")) == ["egs-system"]
    assert capsys.readouterr().err.count("opened (leaving)") == 2
    assert run(["kubernetes", "leave", "--kubeconfig", str(api.kubeconfig)]) == 0


def test_leaving_some_namespaces_opens_no_gate_elsewhere(api: EmulatedApi, capsys: pytest.CaptureFixture[str]) -> None:
    """With --serve: what is gated in others is somebody else's."""
    for name, where in (("a", "team"), ("b", "others")):
        api.add("pods", pod(name, namespace=where))
    assert run(["kubernetes", "leave", "--kubeconfig", str(api.kubeconfig), "--serve", "team"]) == 0
    assert api.gated() == {"b"}
    assert "team/a: opened (leaving)" in capsys.readouterr().err


def _plural(kind: str) -> str:
    return kind.lower()[:-1] + "ies" if kind.endswith("y") else kind.lower() + "s"


def test_manifests_ask_for_no_more_than_what_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    """No right to make or delete a pod, or to read a secret; pods of served namespaces alone are changed; the webhook
    can never be in the way; one controller at a time."""
    assert run(["kubernetes", "manifests", "--image", "egs:1", "--serve", "a", "--serve", "b"]) == 0
    found = [one for one in yaml.safe_load_all(capsys.readouterr().out) if one]
    rules = [
        (one["kind"], one["metadata"].get("namespace", ""), rule)
        for one in found
        if one["kind"] in ("Role", "ClusterRole")
        for rule in one["rules"]
    ]
    assert not [rule for _, _, rule in rules if {"create", "delete", "*"} & {*rule["verbs"]} - _lease(rule)]
    assert not [rule for _, _, rule in rules if {"secrets", "*"} & {*rule["resources"]}]
    patched = {where for _, where, rule in rules if "pods" in rule["resources"] and "patch" in rule["verbs"]}
    assert patched == {"a", "b"}
    webhook = next(one for one in found if one["kind"] == "MutatingWebhookConfiguration")["webhooks"][0]
    assert (webhook["failurePolicy"], webhook["timeoutSeconds"]) == ("Ignore", 1)
    assert {"key": "egs.io/workload", "operator": "Exists"} in webhook["objectSelector"]["matchExpressions"]
    deployment = next(one for one in found if one["kind"] == "Deployment")
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}


def _lease(rule: dict[str, Any]) -> set[str]:
    return {"create"} if rule["resources"] == ["leases"] else set()


def test_the_manifests_are_objects_of_kubernetes() -> None:
    """Each follows the official schema of 1.36."""
    validate = pytest.importorskip("kubernetes_validate").validate
    for one in objects(Installation("egs:1", serve=("a",))):
        validate(one, "1.36", strict=True)
