"""What the controller's accounts may not do though their rights would let them, as admission policies (CEL).

`patch` on pods is a right to much. So the API server itself refuses these accounts every change of a pod but that our
gate goes, that its deadline comes or comes earlier, and what is said of both; that a pod is deleted that was not told
so; and every change of a Workload but its priority. Policies concern nobody else.
"""

from __future__ import annotations

from typing import Any

from egs_core.kubernetes import names

Object = dict[str, Any]
API = "admissionregistration.k8s.io/v1"
_NEW, _OLD = "object.spec", "oldObject.spec"


def _same(path: str) -> str:
    """CEL: a field is as it was, or as absent as it was."""
    return f"(has({_NEW}.{path}) == has({_OLD}.{path}) && (!has({_NEW}.{path}) || {_NEW}.{path} == {_OLD}.{path}))"


def _notes(side: str) -> str:
    return f"(has({side}.metadata.annotations) ? {side}.metadata.annotations : {{}})"


def _others_stay(allowed: str) -> str:
    """CEL: annotations but these are as they were."""
    new, old = _notes("object"), _notes("oldObject")
    return (
        f"{new}.all(k, k in {allowed} || (k in {old} && {new}[k] == {old}[k]))"
        f" && {old}.all(k, k in {allowed} || k in {new})"
    )


def _gates(side: str) -> str:
    return f"(has({side}.schedulingGates) ? {side}.schedulingGates.filter(g, g.name != '{names.GATE}') : [])"


_POD_FIELDS = ("nodeSelector", "affinity", "tolerations", "terminationGracePeriodSeconds")
_DEADLINE = "activeDeadlineSeconds"
_NOTES = (names.OPENED, names.WAITS, names.LIMIT, names.PREEMPTED)
POD_RULES = (
    (f"{_gates(_NEW)} == {_gates(_OLD)}", "another gate is changed"),
    (
        f"!has({_NEW}.schedulingGates) || !{_NEW}.schedulingGates.exists(g, g.name == '{names.GATE}')"
        f" || (has({_OLD}.schedulingGates) && {_OLD}.schedulingGates.exists(g, g.name == '{names.GATE}'))",
        "a gate is added",
    ),
    (" && ".join(_same(field) for field in _POD_FIELDS), "more than a gate of the pod is changed"),
    (
        f"{_same(_DEADLINE)} || (has({_NEW}.{_DEADLINE})"
        f" && (!has({_OLD}.{_DEADLINE}) || {_NEW}.{_DEADLINE} < {_OLD}.{_DEADLINE})"
        f" && has(object.metadata.labels) && '{names.WORKLOAD}' in object.metadata.labels)",
        "a deadline is taken away or put off, or the pod has no label of EGS",
    ),
    (
        f"{_NEW}.containers.map(c, c.image) == {_OLD}.containers.map(c, c.image)"
        f" && (!has({_NEW}.initContainers)"
        f" || {_NEW}.initContainers.map(c, c.image) == {_OLD}.initContainers.map(c, c.image))",
        "an image of the pod is changed",
    ),
    ("(has(object.metadata.labels) ? object.metadata.labels : {})"
     " == (has(oldObject.metadata.labels) ? oldObject.metadata.labels : {})", "labels of the pod are changed"),
    (_others_stay(str(list(_NOTES))), "annotations of the pod are changed"),
    ("(has(object.metadata.finalizers) ? object.metadata.finalizers : [])"
     " == (has(oldObject.metadata.finalizers) ? oldObject.metadata.finalizers : [])", "finalizers are changed"),
)  # fmt: skip
WORKLOAD_RULES = (
    (
        "object.spec.podSets == oldObject.spec.podSets && object.spec.queueName == oldObject.spec.queueName"
        " && (has(object.spec.active) ? object.spec.active : true)"
        " == (has(oldObject.spec.active) ? oldObject.spec.active : true)",
        "more than the priority of the Workload is changed",
    ),
    (_others_stay(f"['{names.BASE}']"), "annotations of the Workload are changed"),
)


def _has(side: str, what: str, key: str) -> str:
    return f"(has({side}.metadata.{what}) && '{key}' in {side}.metadata.{what})"


DELETE_RULES = (
    (
        f"{_has('oldObject', 'labels', names.WORKLOAD)} && {_has('oldObject', 'annotations', names.PREEMPTED)}",
        "the pod is none that was told that it makes way",
    ),
)


def policies(accounts: dict[str, str]) -> list[Object]:
    """The policies and their bindings. accounts: by name the namespace of each."""
    users = ", ".join(f"'system:serviceaccount:{where}:{name}'" for name, where in accounts.items())
    pods = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["pods"]}
    gone = pods | {"operations": ["DELETE"]}
    kueue = {
        "apiGroups": ["kueue.x-k8s.io"],
        "apiVersions": ["*"],
        "operations": ["UPDATE"],
        "resources": ["workloads"],
    }
    found = []
    for name, rules, resources in (
        (f"{names.CONTROLLER}-opens-gates", POD_RULES, pods),
        (f"{names.CONTROLLER}-deletes", DELETE_RULES, gone),
        (f"{names.CONTROLLER}-raises", WORKLOAD_RULES, kueue),
    ):
        spec = {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [resources]},
            "matchConditions": [{"name": "by-egs", "expression": f"request.userInfo.username in [{users}]"}],
            "validations": [{"expression": rule, "message": message, "reason": "Forbidden"} for rule, message in rules],
        }
        bound = {"policyName": name, "validationActions": ["Deny"]}
        found += [
            {"apiVersion": API, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name}, "spec": spec},
            {"apiVersion": API, "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": name}, "spec": bound},
        ]
    return found
