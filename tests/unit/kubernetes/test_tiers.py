"""Limits of GPUs that the webhook writes as claims with tiers, the templates it makes, and what it may make of them."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("kubernetes", reason="the client of Kubernetes is not installed")

from egs_core.cli.app import run
from egs_core.errors import InputError
from egs_core.kubernetes.admission import Rules
from egs_core.kubernetes.cluster import Cluster
from egs_core.kubernetes.devices import slice_of
from egs_core.kubernetes.guard import template_rules
from egs_core.kubernetes.leaving import leave
from egs_core.kubernetes.manifests import Installation, objects
from egs_core.kubernetes.selectors import is_selected
from egs_core.kubernetes.tiers import ClaimRule, claimed, rule_of, template_of
from egs_core.kubernetes.webhook import Webhook
from tests.unit.kubernetes.emulated_api import EmulatedApi
from tests.unit.kubernetes.judged import judge
from tests.unit.kubernetes.made_devices import DRIVER, T4, gpu, resource_slice
from tests.unit.kubernetes.made_pods import pod
from tests.unit.kubernetes.test_steering import api
from tests.unit.kubernetes.test_webhook import applied

__all__ = ["api"]  # the fixture

RULES = ClaimRule("a100", DRIVER), ClaimRule("t4", DRIVER), ClaimRule("rtx-4090", "gaming")
EITHER = {"flavors": ["a100", "t4"]}
PROFILE = """namespace: team
pools:
  - {name: a, selector: {pool: a}, accelerator: nvidia.com/gpu, device_class: gpu.nvidia.com, flavor: a100}
claims: true
"""


def asks(name: str = "p", **stated: Any) -> dict[str, Any]:
    return pod(name, **{"gate": False, "gpus": 2, "hints": EITHER, **stated})


def test_a_limit_becomes_a_claim_with_a_tier_for_each_flavor() -> None:
    """In their order, so many devices as the limit says; nothing else of the pod is changed, and a second call changes
    nothing more."""
    raw = asks()
    found = claimed(raw, RULES)
    assert found is not None
    made = applied(raw, found.patch)
    (container,) = made["spec"]["containers"]
    assert container["resources"] == {"limits": {"cpu": "1"}, "claims": [{"name": "egs-gpus"}]}
    name = found.template["metadata"]["name"]
    assert made["spec"]["resourceClaims"] == [{"name": "egs-gpus", "resourceClaimTemplateName": name}]
    (request,) = found.template["spec"]["spec"]["devices"]["requests"]
    assert [(one["deviceClassName"], one["count"]) for one in request["firstAvailable"]] == [(DRIVER, 2)] * 2
    assert "a100" in request["firstAvailable"][0]["selectors"][0]["cel"]["expression"]
    assert claimed(made, RULES) is None
    del made["spec"]["resourceClaims"], container["resources"]["claims"]
    container["resources"]["limits"]["nvidia.com/gpu"] = "2"
    assert made == raw


def test_the_name_of_a_template_says_its_content() -> None:
    """Another order of flavors, or another number, is another template."""
    names = {
        template_of(list(rules), count)["metadata"]["name"]
        for rules in (RULES[:2], RULES[1::-1], RULES[:1])
        for count in (1, 2)
    }
    assert len(names) == 6


_TWO = [{"name": n, "image": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}} for n in ("a", "b")]
_SLICE = [{"name": "a", "image": "i", "resources": {"limits": {"nvidia.com/mig-1g.5gb": "1"}}}]
_TERM = {"matchExpressions": [{"key": "nvidia.com/gpu.product", "operator": "In", "values": ["Tesla-T4"]}]}
_NODES = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [_TERM]}}}


@pytest.mark.parametrize(
    "raw",
    [
        asks(hints={}),
        asks(hints={"flavors": ["a100", "v100"]}),
        asks(hints={"flavors": "a100"}),
        asks(gpus=0),
        asks(gpus=64),
        asks(labels={"kueue.x-k8s.io/queue-name": "q"}),
        asks(spec={"resourceClaims": [{"name": "own", "resourceClaimName": "mine"}]}),
        asks(spec={"containers": _TWO}),
        asks(spec={"containers": _SLICE}),
        asks(spec={"nodeSelector": {"nvidia.com/gpu.product": "Tesla-T4"}}),
        asks(spec={"affinity": _NODES}),
        {"metadata": None, "spec": []},
    ],
)
def test_what_its_author_wants_stays(raw: dict[str, Any]) -> None:
    """No flavors, one that no rule is for, no list; no GPU, or too many; what Kueue counts; claims of its own; several
    containers; another resource; a product chosen by nodes; no pod."""
    assert claimed(raw, RULES) is None


def test_a_tier_takes_what_people_mean_by_the_flavor() -> None:
    """By what drivers call their GPUs, as flavors are meant everywhere (`flavor_names`)."""
    products = "NVIDIA A100-SXM4-40GB", T4, "NVIDIA A10", "NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 4090 D"
    found = slice_of(resource_slice("n1", *(gpu(f"g{n}", product) for n, product in enumerate(products))))
    facts = {one.name[-1]: one.facts for one in found.devices["n1"]}
    for rule, takes in zip(RULES, ("0", "1", "34"), strict=True):
        (tier,) = template_of([rule], 1)["spec"]["spec"]["devices"]["requests"][0]["firstAvailable"]
        expression = tier["selectors"][0]["cel"]["expression"]
        assert {name for name, one in facts.items() if is_selected(expression, one)} == set(takes)


# --- in the webhook ---


@pytest.fixture
def hook(api: EmulatedApi) -> Iterator[tuple[Webhook, list[str]]]:
    said: list[str] = []
    found = Webhook(
        Cluster(api.kubeconfig), Rules(claims=RULES), ["127.0.0.1"], lambda: True, said.append, ("127.0.0.1", 0)
    )
    yield found, said
    found._server.server_close()


def review(raw: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"request": {"uid": "u", "operation": "CREATE", "namespace": "team", "object": raw, **more}}


def rewritten(hook: Webhook, raw: dict[str, Any], **more: Any) -> bool:
    """Whether the answer has a claim in it."""
    patch = hook.answer(review(raw, **more))["response"].get("patch", "W10=")
    return any(one["path"] == "/spec/resourceClaims" for one in json.loads(base64.b64decode(patch)))


def test_a_template_is_there_before_its_pod_and_each_rewrite_is_a_line(
    api: EmulatedApi, hook: tuple[Webhook, list[str]]
) -> None:
    """Made once for pods that claim the same; for a dry run none is made."""
    assert rewritten(hook[0], asks("dry"), dryRun=True)
    assert api.all("resourceclaimtemplates") == {}
    assert rewritten(hook[0], asks("one"))
    assert rewritten(hook[0], asks("two"))
    (name,) = api.all("resourceclaimtemplates")
    assert [f"nvidia.com/gpu: 2 is claimed of {name} (a100, else t4)" in line for line in hook[1]] == [True, True]
    assert [line.split(":")[0] for line in hook[1]] == ["pod team/one", "pod team/two"]


@pytest.mark.parametrize("kind", ["absent", "forbidden"])
def test_without_a_template_the_limit_stays(api: EmulatedApi, hook: tuple[Webhook, list[str]], kind: str) -> None:
    """A cluster without DRA, or without the right: the pod is gated as ever, and a line says why, once."""
    getattr(api, kind).add("resourceclaimtemplates")
    assert not rewritten(hook[0], asks("one"))
    assert not rewritten(hook[0], asks("two"))
    assert [line for line in hook[1] if "the limit stays" in line] == hook[1][:1]
    assert any("/spec/schedulingGates" in line for line in hook[1])


def test_others_pods_are_left_as_they_are(hook: tuple[Webhook, list[str]]) -> None:
    """Whatever their hints say."""
    foreign = asks()
    del foreign["metadata"]["labels"]
    assert not rewritten(hook[0], foreign)
    assert not rewritten(hook[0], asks(spec={"nodeName": "n1"}))


# --- rights, policy, leaving ---


def unwanted(raw: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Templates that would gain something, by what."""
    found = {}

    def made(what: str) -> tuple[dict[str, Any], dict[str, Any]]:
        found[what] = copy.deepcopy(raw)
        return found[what], found[what]["spec"]["spec"]["devices"]

    made("another class")[1]["requests"][0]["firstAvailable"][0]["deviceClassName"] = "other"
    made("all devices")[1]["requests"][0]["firstAvailable"][0] |= {"allocationMode": "All", "count": None}
    made("a toleration")[1]["requests"][0]["firstAvailable"][0]["tolerations"] = [{"operator": "Exists"}]
    exactly = {"deviceClassName": DRIVER, "adminAccess": True, "allocationMode": "ExactCount", "count": 1}
    made("an administrator's access")[1]["requests"] = [{"name": "gpus", "exactly": exactly}]
    opaque = {"driver": DRIVER, "parameters": {"apiVersion": "x/v1", "kind": "X"}}
    made("parameters")[1]["config"] = [{"opaque": opaque}]
    made("two requests")[1]["requests"].append(raw["spec"]["spec"]["devices"]["requests"][0] | {"name": "more"})
    made("another name")[0]["metadata"]["name"] = "others"
    made("a finalizer")[0]["metadata"]["finalizers"] = ["x.io/y"]
    made("a label")[0]["metadata"]["labels"]["more"] = "x"
    made("labels of claims")[0]["spec"]["metadata"] = {"labels": {"x": "y"}}
    for one in found.values():
        for request in one["spec"]["spec"]["devices"]["requests"]:
            for tier in request.get("firstAvailable", ()):
                if tier.get("count") is None:
                    tier.pop("count", None)
    return found


def test_the_policy_lets_such_templates_through_and_no_others() -> None:
    """Each that would gain anything is refused; the API server itself is asked in `tests/cluster`."""
    against = judge(template_rules([DRIVER]))
    raw = template_of(list(RULES[:2]), 2)
    raw["metadata"] |= {"namespace": "team", "uid": "u", "creationTimestamp": "now", "managedFields": []}
    assert against(raw) == []
    assert [what for what, one in unwanted(raw).items() if not against(one)] == []


def test_the_right_to_make_templates_is_there_only_where_they_are_made() -> None:
    """And reading, changing or deleting them is never one; without it a dry run has no side effect to speak of."""

    def rights(of: Installation) -> list[list[str]]:
        rules = [rule for one in objects(of) for rule in one.get("rules", ())]
        return [rule["verbs"] for rule in rules if "resourceclaimtemplates" in rule["resources"]]

    with_claims = Installation("i", claims=RULES)
    assert (rights(Installation("i")), rights(with_claims)) == ([], [["create"]])
    made = {(one["kind"], one["metadata"]["name"]) for one in objects(with_claims)}
    assert ("ValidatingAdmissionPolicy", "egs-controller-claims") in made
    (deployment,) = [one for one in objects(with_claims) if one["kind"] == "Deployment"]
    arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    assert [one for one in arguments if one.startswith("--claim=")] == [
        f"--claim=a100={DRIVER}",
        f"--claim=t4={DRIVER}",
        "--claim=rtx-4090=gaming",
    ]


def test_who_leaves_takes_the_templates_too(api: EmulatedApi) -> None:
    """Those that the webhook has made, and no others; a cluster without DRA has none."""
    own = template_of(list(RULES[:1]), 1)
    own["metadata"]["namespace"] = "team"
    other = copy.deepcopy(own)
    other["metadata"]["name"] = "a-x1"
    for one in (own, other):
        api.add("resourceclaimtemplates", one)
    cluster = Cluster(api.kubeconfig)
    assert leave(cluster, Installation(), lambda _: None, lambda _: None) == 0
    assert list(api.all("resourceclaimtemplates")) == ["a-x1"]
    api.absent.add("resourceclaimtemplates")
    assert leave(cluster, Installation(), lambda _: None, lambda _: None) == 0
    cluster.close()


@pytest.mark.parametrize("stated", ["a100", "=x", "a100=", "a'100=x", "a100=X", "a100=x=y"])
def test_a_mistyped_rule_is_an_error(stated: str, capsys: pytest.CaptureFixture[str]) -> None:
    """That names the option and says how it is written."""
    with pytest.raises(InputError, match=r"--claim.*such as a100=gpu\.nvidia\.com"):
        rule_of(stated, "--claim")
    assert run(["kubernetes", "manifests", "--image", "i", "--claim", stated]) == 2
    assert "--claim" in capsys.readouterr().err


def test_a_profile_says_what_is_claimed() -> None:
    """Flavor and class of its pools, where it says `claims: true`; without such a pool that is an error."""
    profile = pytest.importorskip("egs_kubeflow.rewrite.profile", reason="the adapter of Kubeflow is not installed")
    assert profile.cluster_profile(profile.parse_profile(PROFILE)).claims == (("a100", DRIVER),)
    assert profile.cluster_profile(profile.parse_profile(PROFILE.replace("claims: true", ""))).claims == ()
    with pytest.raises(InputError, match="no pool has a flavor and a device_class"):
        profile.parse_profile(PROFILE.replace(", flavor: a100", ""))
