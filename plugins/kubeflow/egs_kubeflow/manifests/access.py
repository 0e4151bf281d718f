"""What a controller that reads runs and makes preload pods may do, and no more. Its account is its own: the controller
that opens gates (`egs kubernetes manifests`) makes no pods.

`pods create` is a right to much: a pod may use any service account of its namespace, any volume and any privilege. So a
ValidatingAdmissionPolicy, which the API server itself evaluates, refuses this controller every pod but a preload's.
"""

from __future__ import annotations

import math
from typing import Any

from egs_kubeflow.manifests.objects import Object, made
from egs_kubeflow.manifests.pods import CLASS, PRELOAD
from egs_kubeflow.rewrite.profile import Profile

NAME = "egs-preloader"
READ = ["get", "list", "watch"]
_PART = "access"
_RBAC = "rbac.authorization.k8s.io"
_ADMISSION = "admissionregistration.k8s.io/v1"
_IS_MARKED = f"has({{0}}.metadata.labels) && '{PRELOAD}' in {{0}}.metadata.labels"

_ALLOWED = (  # CEL, and what is wrong where it is false
    (_IS_MARKED.format("object"), f"the pod has no label {PRELOAD}"),
    (
        f"has(object.spec.priorityClassName) && object.spec.priorityClassName == '{CLASS}'",
        f"the pod's priority class is not {CLASS}",
    ),
    (
        "has(object.spec.automountServiceAccountToken) && !object.spec.automountServiceAccountToken",
        "the pod gets the token of a service account",
    ),
    ("!has(object.spec.volumes) || object.spec.volumes.size() == 0", "the pod has volumes"),
    (
        "!(has(object.spec.hostNetwork) && object.spec.hostNetwork)"
        " && !(has(object.spec.hostPID) && object.spec.hostPID)"
        " && !(has(object.spec.hostIPC) && object.spec.hostIPC) && !has(object.spec.nodeName)",
        "the pod uses what is its host's, or chooses its node",
    ),
    ("has(object.spec.activeDeadlineSeconds)", "the pod has no deadline"),
    ("!has(object.spec.initContainers) || object.spec.initContainers.size() == 0", "the pod has init containers"),
    ("!has(object.spec.resourceClaims) || object.spec.resourceClaims.size() == 0", "the pod claims devices"),
    (
        "!has(object.spec.resources) && object.spec.containers.all(c, has(c.resources)"
        " && has(dyn(c.resources).limits) && ['cpu', 'memory'].all(n, n in dyn(c.resources).limits)"
        " && dyn(c.resources).limits.all(n, n in ['cpu', 'memory'])"
        " && quantity(dyn(c.resources).limits['cpu']).compareTo(quantity('1')) <= 0"
        " && quantity(dyn(c.resources).limits['memory']).compareTo(quantity('1Gi')) <= 0)",
        "a container has no limits, or asks for more than a CPU and 1 GiB of memory",
    ),
    (
        "object.spec.containers.all(c, has(c.securityContext) && has(c.securityContext.allowPrivilegeEscalation)"
        " && !c.securityContext.allowPrivilegeEscalation && !(has(c.securityContext.privileged)"
        " && c.securityContext.privileged) && has(c.securityContext.runAsNonRoot) && c.securityContext.runAsNonRoot"
        " && has(c.securityContext.capabilities) && has(c.securityContext.capabilities.drop)"
        " && 'ALL' in c.securityContext.capabilities.drop && !has(c.securityContext.capabilities.add))",
        "a container may gain privileges",
    ),
    (
        "object.spec.containers.all(c, !has(c.envFrom) && (!has(c.env) || c.env.all(e, !has(e.valueFrom))))",
        "a container reads secrets or config maps",
    ),
    (
        "object.spec.containers.all(c, !has(c.ports) || c.ports.all(p, !has(p.hostPort)))",
        "a container takes a port of its host",
    ),
    (
        "!has(object.spec.serviceAccountName) || object.spec.serviceAccountName == 'default'",
        "the pod names a service account",
    ),
    (
        "has(object.spec.terminationGracePeriodSeconds) && object.spec.terminationGracePeriodSeconds == 0"
        " && has(object.spec.restartPolicy) && object.spec.restartPolicy == 'Never'"
        " && (!has(object.spec.activeDeadlineSeconds) || object.spec.activeDeadlineSeconds <= {deadline})",
        "the pod does not go when it is told to",
    ),
    (  # Kueue adds its own, where it takes pods of no queue
        "!has(object.metadata.ownerReferences) && (!has(object.metadata.finalizers)"
        " || object.metadata.finalizers.all(f, f == 'kueue.x-k8s.io/managed'))",
        "the pod has finalizers or an owner",
    ),
    (
        "has(object.spec.securityContext) && has(object.spec.securityContext.seccompProfile)"
        " && object.spec.securityContext.seccompProfile.type == 'RuntimeDefault'"
        " && ['sysctls', 'seLinuxOptions', 'appArmorProfile', 'supplementalGroups', 'fsGroup']"
        ".all(n, !(n in dyn(object.spec.securityContext)))"
        " && object.spec.containers.all(c, !has(c.lifecycle) && (!has(c.securityContext)"
        " || ['seccompProfile', 'appArmorProfile', 'seLinuxOptions', 'runAsUser']"
        ".all(n, !(n in dyn(c.securityContext)))))",
        "the pod changes how it is confined",
    ),
    (
        "!has(object.spec.schedulerName) || object.spec.schedulerName == 'default-scheduler'",
        "the pod has a scheduler of its own",
    ),
    (
        "!has(object.metadata.labels) || !('kueue.x-k8s.io/priority-class' in object.metadata.labels)",
        "the pod has a priority of Kueue",
    ),
)


def access(profile: Profile) -> list[Object]:
    """Namespace, service account, roles with their bindings, and the guard."""
    here, pipelines = profile.controller_namespace, profile.namespace
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    namespace = made("v1", "Namespace", here, _PART)
    namespace["metadata"]["labels"] |= labels
    return [
        namespace,
        made("v1", "ServiceAccount", NAME, _PART, here),
        *_granted("ClusterRole", "", here, _of_cluster(profile)),
        *_granted("Role", pipelines, here, _of_pipelines(profile)),
        *_granted("Role", here, here, _OWN),
        *_guard(here, math.ceil(profile.preload.deadline)),
    ]


_OWN = [
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": [*READ, "create", "update"]},
    {"apiGroups": [""], "resources": ["configmaps"], "verbs": READ},
]


def _of_cluster(profile: Profile) -> list[Object]:
    rules: list[Object] = [{"apiGroups": [""], "resources": ["nodes"], "verbs": READ}]
    if any(pool.device_class for pool in profile.pools):
        rules.append({"apiGroups": ["resource.k8s.io"], "resources": ["resourceslices"], "verbs": READ})
    return rules


def _of_pipelines(profile: Profile) -> list[Object]:
    rules: list[Object] = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": [*READ, "create", "delete"]},
        {"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]},
        {"apiGroups": ["argoproj.io"], "resources": ["workflows"], "verbs": READ},
    ]
    if profile.queues or profile.cluster_queues:
        rules.append({"apiGroups": ["kueue.x-k8s.io"], "resources": ["workloads", "localqueues"], "verbs": READ})
    if any(pool.device_class for pool in profile.pools):
        rules.append({"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": READ})
    return rules


def _granted(kind: str, namespace: str, home: str, rules: list[Object]) -> list[Object]:
    """A role and its binding to the controller, whose service account is in `home`."""
    name = NAME if namespace != home else f"{NAME}-own"
    subjects = [{"kind": "ServiceAccount", "name": NAME, "namespace": home}]
    reference = {"apiGroup": _RBAC, "kind": kind, "name": name}
    binding = made(f"{_RBAC}/v1", f"{kind}Binding", name, _PART, namespace, roleRef=reference, subjects=subjects)
    return [made(f"{_RBAC}/v1", kind, name, _PART, namespace, rules=rules), binding]


def _guard(home: str, deadline_s: int) -> list[Object]:
    """The policy for pods that the controller makes or deletes, and its binding; it concerns nobody else."""
    account = f"system:serviceaccount:{home}:{NAME}"
    rules = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "DELETE"], "resources": ["pods"]}]
    spec: dict[str, Any] = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": rules},
        "matchConditions": [{"name": "by-controller", "expression": f"request.userInfo.username == '{account}'"}],
        "validations": [
            {
                "expression": f"request.operation != 'DELETE' || ({_IS_MARKED.format('oldObject')})",
                "message": "the pod is no preload",
                "reason": "Forbidden",
            },
            *(
                {
                    "expression": f"request.operation != 'CREATE' || ({expression})",
                    "message": message,
                    "reason": "Forbidden",
                }
                for expression, message in (
                    (rule.replace("{deadline}", str(deadline_s)), why) for rule, why in _ALLOWED
                )
            ),
        ],
    }
    name = f"{NAME}-pods"
    bound = {"policyName": name, "validationActions": ["Deny"]}
    return [
        made(_ADMISSION, "ValidatingAdmissionPolicy", name, _PART, spec=spec),
        made(_ADMISSION, "ValidatingAdmissionPolicyBinding", name, _PART, spec=bound),
    ]
