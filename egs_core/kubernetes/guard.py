"""What the controller's accounts may not do though their rights would let them, as admission policies (CEL).

`patch` on pods is a right to much. So the API server itself refuses these accounts every change of a pod but that our
gate goes, that its deadline comes or comes earlier, and what is said of both; that a pod is deleted that was not told
so; every change of a Workload but its priority; and every change of the webhook's configuration but the certificates
that it is trusted by. `create` on pods is a right to more: it is refused for all but
preloads and placeholders, of which each field is named here, and what is not named is refused. Policies concern nobody
else.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from egs_core.flavor_names import GPU_RESOURCE_PATTERN
from egs_core.kubernetes import names, placeholders, readers
from egs_core.kubernetes.preloads import COMMAND, CONFINED, DEADLINE_S, LIMITS, MOST_IMAGES, NO_SIDECAR, NOBODY
from egs_core.kubernetes.readings import NO_READS, ReadRules
from egs_core.kubernetes.tiers import NAME as CLAIM_NAME

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


def _kept(new: str, old: str, but: Sequence[str]) -> str:
    """CEL: all fields but these are as they were, whatever they are called."""
    return (
        f"dyn({new}).all(k, k in {list(but)} || (k in dyn({old}) && dyn({new})[k] == dyn({old})[k]))"
        f" && dyn({old}).all(k, k in {list(but)} || k in dyn({new}))"
    )


WEBHOOK_RULES = (
    (
        "object.webhooks.size() == oldObject.webhooks.size()"
        " && object.webhooks.all(w, oldObject.webhooks.exists(o, o.name == w.name"
        f" && {_kept('w', 'o', ('clientConfig',))} && {_kept('w.clientConfig', 'o.clientConfig', ('caBundle',))}))",
        "more than the certificates of the webhook is changed",
    ),
    (
        _kept("object.metadata", "oldObject.metadata", ("generation", "managedFields", "resourceVersion")),
        "the webhook's labels, annotations, owners or finalizers are changed",
    ),
)
"""Else the account could send itself what it may not read, as it is made, and rewrite what it may not patch."""

_STATUS = (
    "conditions",
    "admission",
    "admissionChecks",
    "clusterName",
    "requeueState",
    "reclaimablePods",
    "resourceRequests",
    "unhealthyNodes",
    "schedulingStats",
    "preemptionGates",
    "accumulatedPastExecutionTimeSeconds",
    "accumulatedPastExexcutionTimeSeconds",  # so spelled in v1beta1
)
STATUS_RULES = (
    (
        "has(object.status) && has(oldObject.status) && "
        + " && ".join(_same(field).replace(".spec.", ".status.") for field in _STATUS),
        "more than the nominated clusters of the Workload is changed",
    ),
)


def _has(side: str, what: str, key: str) -> str:
    return f"(has({side}.metadata.{what}) && '{key}' in {side}.metadata.{what})"


_MAKES_WAY = f"{_has('oldObject', 'labels', names.WORKLOAD)} && {_has('oldObject', 'annotations', names.PREEMPTED)}"


def _is_made(side: str, label: str, priority_class: str) -> str:
    """CEL: a pod of one of the kinds that the controller makes."""
    return (
        f"has({side}.metadata.labels) && '{label}' in {side}.metadata.labels"
        f" && {side}.metadata.labels['{label}'] == '{names.BY_CONTROLLER}'"
        f" && has({side}.spec.priorityClassName) && {side}.spec.priorityClassName == '{priority_class}'"
    )


_PRELOAD = names.PRELOAD, names.PRELOAD_CLASS
_PLACEHOLDER = names.PLACEHOLDER, names.PLACEHOLDER_CLASS
DELETE_RULES = (
    (
        f"({_MAKES_WAY}) || ({_is_made('oldObject', *_PRELOAD)}) || ({_is_made('oldObject', *_PLACEHOLDER)})",
        "the pod is none that was told that it makes way, no preload and no placeholder",
    ),
)


def _only(what: str, fields: tuple[str, ...]) -> str:
    """CEL: no other field is there."""
    return f"dyn({what}).all(k, k in {list(fields)})"


def _each(rule: str) -> str:
    """CEL: of each container."""
    return f"{_NEW}.containers.all(c, {rule})"


_META = ("name", "namespace", "uid", "labels", "ownerReferences", "creationTimestamp", "managedFields", "generation")
_SPEC = (
    "activeDeadlineSeconds",
    "affinity",
    "automountServiceAccountToken",
    "containers",
    "dnsPolicy",
    "enableServiceLinks",
    "imagePullSecrets",
    "nodeSelector",
    "preemptionPolicy",
    "priority",
    "priorityClassName",
    "restartPolicy",
    "schedulerName",
    "securityContext",
    "serviceAccount",
    "serviceAccountName",
    "terminationGracePeriodSeconds",
    "tolerations",
)
"""What the controller writes, and what the API server adds by itself."""
_CONTAINER = (
    "command",
    "image",
    "imagePullPolicy",
    "name",
    "resources",
    "securityContext",
    "terminationMessagePath",
    "terminationMessagePolicy",
)


def _of_its_kind(label: str, meta: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    return (
        (f"object.metadata.labels.all(k, k in ['{label}', '{NO_SIDECAR}'])", "the pod has another label"),
        (_only("object.metadata", meta), "the pod has annotations, finalizers or a name to come"),
    )


def _ends(most_s: int) -> tuple[str, str]:
    rule = (
        f"has({_NEW}.activeDeadlineSeconds) && {_NEW}.activeDeadlineSeconds <= {most_s}"
        f" && has({_NEW}.restartPolicy) && {_NEW}.restartPolicy == 'Never'"
        f" && has({_NEW}.terminationGracePeriodSeconds) && {_NEW}.terminationGracePeriodSeconds == 0"
    )
    return rule, "the pod does not end by itself"


_CONFINED = (
    (f"has({_NEW}.priority) && {_NEW}.priority < 0", "the pod's priority is not below others'"),
    (
        f"has({_NEW}.automountServiceAccountToken) && !{_NEW}.automountServiceAccountToken"
        f" && (!has({_NEW}.serviceAccountName) || {_NEW}.serviceAccountName == 'default')",
        "the pod gets the token of a service account, or names one",
    ),
    (
        f"!has({_NEW}.schedulerName) || {_NEW}.schedulerName == 'default-scheduler'",
        "the pod has a scheduler of its own",
    ),
    (
        f"has({_NEW}.securityContext)"
        f" && {_only(_NEW + '.securityContext', ('runAsNonRoot', 'runAsUser', 'runAsGroup', 'seccompProfile'))}"
        f" && has({_NEW}.securityContext.runAsNonRoot) && {_NEW}.securityContext.runAsNonRoot"
        f" && has({_NEW}.securityContext.runAsUser) && {_NEW}.securityContext.runAsUser == {NOBODY}"
        f" && has({_NEW}.securityContext.seccompProfile)"
        f" && {_NEW}.securityContext.seccompProfile.type == 'RuntimeDefault'",
        "the pod is not confined",
    ),
    (
        _each(
            "has(c.securityContext)"
            f" && {_only('c.securityContext', tuple(CONFINED))}"
            " && has(c.securityContext.allowPrivilegeEscalation) && !c.securityContext.allowPrivilegeEscalation"
            " && has(c.securityContext.readOnlyRootFilesystem) && c.securityContext.readOnlyRootFilesystem"
            " && has(c.securityContext.runAsNonRoot) && c.securityContext.runAsNonRoot"
            " && has(c.securityContext.capabilities) && has(c.securityContext.capabilities.drop)"
            " && 'ALL' in c.securityContext.capabilities.drop && !has(c.securityContext.capabilities.add)"
        ),
        "a container may gain privileges",
    ),
)
"""Of both kinds."""
_MORE = "the pod has more than a preload has"


def _asks_for(cpu: str, memory: str) -> str:
    """CEL: a container has limits, and no more than that."""
    return (
        "(has(c.resources) && dyn(c.resources).all(k, k in ['limits', 'requests'])"
        " && has(dyn(c.resources).limits) && has(dyn(c.resources).requests)"
        " && ['cpu', 'memory'].all(n, n in dyn(c.resources).limits)"
        " && dyn(c.resources).limits.all(n, n in ['cpu', 'memory'])"
        " && dyn(c.resources).requests.all(n, n in ['cpu', 'memory'])"
        f" && quantity(dyn(c.resources).limits['cpu']).compareTo(quantity('{cpu}')) <= 0"
        f" && quantity(dyn(c.resources).limits['memory']).compareTo(quantity('{memory}')) <= 0)"
    )


_LOADS = f"(has(c.command) && c.command == {COMMAND})"
_READS = f"(has(c.command) && c.command == {json.dumps(readers.COMMAND)})"
"""CEL: what a container does."""
_FEW = _asks_for(LIMITS["cpu"], LIMITS["memory"])
_ANY_PRELOAD = (
    (_is_made("object", *_PRELOAD), "the pod is no preload"),
    *_of_its_kind(names.PRELOAD, _META),
    (
        "has(object.metadata.ownerReferences) && object.metadata.ownerReferences.size() == 1"
        " && object.metadata.ownerReferences.all(o, has(o.controller) && o.controller"
        " && !has(o.blockOwnerDeletion) && o.kind in ['Pod', 'Workflow'])",
        "the pod does not go with a pod or a Workflow",
    ),
    _ends(DEADLINE_S),
    *_CONFINED,
)
_LOADER_RULES = (
    (f"{_only(_NEW, _SPEC)} && {_NEW}.containers.size() <= {MOST_IMAGES}", _MORE),
    (_each(_only("c", _CONTAINER)), "a container has more than a preload's has"),
    (_each(_LOADS), "a container has another command"),
    (_each(_FEW), "a container asks for more than a preload needs"),
)


def preload_rules(reads: ReadRules = NO_READS) -> tuple[tuple[str, str], ...]:
    """What may be made as a preload: pods that load images; and, where that is allowed, such as read of the volume
    claims that are named, which they may not write."""
    return (*_ANY_PRELOAD, *(_reader_rules(reads) if reads.most_bytes else _LOADER_RULES))


def _reader_rules(reads: ReadRules) -> tuple[tuple[str, str], ...]:
    many = _asks_for(readers.CPUS, str(reads.most_bytes + readers.MODULES_BYTES))
    mount, volume = ("name", "mountPath", "readOnly", "subPath"), ("name", "persistentVolumeClaim")
    return (
        (f"{_only(_NEW, (*_SPEC, 'volumes'))} && {_NEW}.containers.size() <= {MOST_IMAGES}", _MORE),
        (f"{_NEW}.containers.size() == 1 || {_each(_LOADS)}", "the pod reads, and does more"),
        (_each(_only("c", (*_CONTAINER, "args", "volumeMounts"))), "a container has more than a preload's has"),
        (_each(f"({_LOADS} && !has(c.args) && !has(c.volumeMounts)) || {_READS}"), "a container has another command"),
        (
            _each(
                f"!has(c.volumeMounts) || c.volumeMounts.all(m, {_only('m', mount)} && has(m.readOnly) && m.readOnly)"
            ),
            "a container may write on a volume",
        ),
        (
            f"!has({_NEW}.volumes) || {_NEW}.volumes.all(v, {_only('v', volume)} && has(v.persistentVolumeClaim)"
            " && has(v.persistentVolumeClaim.readOnly) && v.persistentVolumeClaim.readOnly"
            f" && object.metadata.namespace + '/' + v.persistentVolumeClaim.claimName in {list(reads.volumes)})",
            "the pod has another volume than those that may be read ahead",
        ),
        (_each(f"({_READS} && {many}) || {_FEW}"), "a container asks for more than a preload needs"),
    )


def placeholder_rules(namespace: str, image: str) -> tuple[tuple[str, str], ...]:
    """What may be made as a placeholder: in that namespace, of that image, and nothing that it runs is said."""
    meta = tuple(name for name in _META if name != "ownerReferences")
    spec = tuple(name for name in _SPEC if name != "imagePullSecrets")
    return (
        (_is_made("object", *_PLACEHOLDER), "the pod is no placeholder"),
        *_of_its_kind(names.PLACEHOLDER, meta),
        (f"object.metadata.namespace == '{namespace}'", "the pod is elsewhere than the controller"),
        (f"{_only(_NEW, spec)} && {_NEW}.containers.size() == 1", "the pod has more than a placeholder has"),
        (f"has({_NEW}.preemptionPolicy) && {_NEW}.preemptionPolicy == 'Never'", "the pod may take others' places"),
        _ends(placeholders.LIFE_S),
        *_CONFINED,
        (
            _each(_only("c", tuple(name for name in _CONTAINER if name != "command"))),
            "a container has more than a placeholder's has",
        ),
        (_each(f"c.image == '{image}'"), "a container has another image"),
        (
            _each(
                "has(c.resources) && dyn(c.resources).all(k, k in ['limits', 'requests'])"
                " && has(dyn(c.resources).limits) && has(dyn(c.resources).requests)"
                " && dyn(c.resources).limits == dyn(c.resources).requests"
                f" && dyn(c.resources).limits.all(n, n in ['cpu', 'memory'] || n.matches(r'^{GPU_RESOURCE_PATTERN}$'))"
            ),
            "a container asks for more than CPUs, memory and GPUs",
        ),
    )


def template_rules(classes: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """What may be made as a template of claims: devices of these classes by tiers, which give no administrator's
    access, and no parameters for a driver."""
    devices = f"{_NEW}.spec.devices"
    return (
        (f"object.metadata.name.startsWith('{CLAIM_NAME}-')", "the template has another name"),
        (
            _only("object.metadata", tuple(name for name in _META if name != "ownerReferences"))
            + " && has(object.metadata.labels) && object.metadata.labels == {'app.kubernetes.io/name': 'egs'}",
            "the template has annotations, finalizers, owners or other labels",
        ),
        (
            f"!has({_NEW}.metadata) || dyn({_NEW}.metadata).all(k, k in [])",
            "its claims would have labels or annotations",
        ),
        (f"{_only(devices, ('requests',))} && {devices}.requests.size() == 1", "it is more than one request"),
        (
            f"{devices}.requests.all(r, {_only('r', ('name', 'firstAvailable'))} && has(r.firstAvailable)"
            f" && r.firstAvailable.all(t, t.deviceClassName in {list(classes)}"
            f" && {_only('t', ('name', 'deviceClassName', 'selectors', 'allocationMode', 'count'))}"
            " && has(t.allocationMode) && t.allocationMode == 'ExactCount'))",
            "it asks for more than a number of devices of the classes that the webhook claims of",
        ),
    )


def policies(
    accounts: dict[str, str],
    *,
    preloads: bool = False,
    reads: ReadRules = NO_READS,
    placeholder: Sequence[tuple[str, str]] = (),
    classes: Sequence[str] = (),
    nominates: bool = False,
) -> list[Object]:
    """The policies and their bindings. accounts: by name the namespace of each; preloads: with what holds the right to
    make pods to these, which read by reads; placeholder: the rules that hold it to placeholders, where they may be
    made; classes: of devices that templates of claims may name, where these may be made; nominates: with what holds the
    right to change the status of Workloads to naming clusters."""
    users = ", ".join(f"'system:serviceaccount:{where}:{name}'" for name, where in accounts.items())
    pods = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["pods"]}
    gone, made = pods | {"operations": ["DELETE"]}, pods | {"operations": ["CREATE"]}
    kueue = {
        "apiGroups": ["kueue.x-k8s.io"],
        "apiVersions": ["*"],
        "operations": ["UPDATE"],
        "resources": ["workloads"],
    }
    status = kueue | {"resources": ["workloads/status"]}
    webhooks = {
        "apiGroups": ["admissionregistration.k8s.io"],
        "apiVersions": ["v1"],
        "operations": ["UPDATE"],
        "resources": ["mutatingwebhookconfigurations"],
    }
    templates = {
        "apiGroups": ["resource.k8s.io"],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["resourceclaimtemplates"],
    }
    is_placeholder = f"has(object.metadata.labels) && '{names.PLACEHOLDER}' in object.metadata.labels"
    # with both, each policy has its own kind; what is of neither is the preloads'
    theirs = [{"name": "no-placeholder", "expression": f"!({is_placeholder})"}] if placeholder else []
    own = [{"name": "placeholder", "expression": is_placeholder}] if preloads else []
    found = []
    for name, rules, resources, more in (
        (f"{names.CONTROLLER}-opens-gates", POD_RULES, pods, []),
        (f"{names.CONTROLLER}-deletes", DELETE_RULES, gone, []),
        (f"{names.CONTROLLER}-raises", WORKLOAD_RULES, kueue, []),
        (f"{names.CONTROLLER}-certificate", WEBHOOK_RULES, webhooks, []),
        *([(f"{names.CONTROLLER}-nominates", STATUS_RULES, status, [])] if nominates else []),
        *([(f"{names.CONTROLLER}-preloads", preload_rules(reads), made, theirs)] if preloads else []),
        *([(f"{names.CONTROLLER}-placeholders", placeholder, made, own)] if placeholder else []),
        *([(f"{names.CONTROLLER}-claims", template_rules(classes), templates, [])] if classes else []),
    ):
        by = {"name": "by-egs", "expression": f"request.userInfo.username in [{users}]"}
        spec = {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [resources]},
            "matchConditions": [by, *more],
            "validations": [{"expression": rule, "message": message, "reason": "Forbidden"} for rule, message in rules],
        }
        bound = {"policyName": name, "validationActions": ["Deny"]}
        found += [
            {"apiVersion": API, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name}, "spec": spec},
            {"apiVersion": API, "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": name}, "spec": bound},
        ]
    return found
