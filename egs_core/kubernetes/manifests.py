"""What the controller needs in its cluster, as objects in the order in which they are applied; `leave` deletes them.

Nothing here is the cluster's own: each name begins with `egs-`, but for the namespace.
"""

from __future__ import annotations

from typing import Any

import msgspec

from egs_core.kubernetes import names
from egs_core.kubernetes.cluster import CONFIG_MAPS, NAMESPACES, Kind
from egs_core.kubernetes.clusters import MANAGER
from egs_core.kubernetes.gates import RELEASE_BY_S
from egs_core.kubernetes.guard import API as ADMISSION
from egs_core.kubernetes.guard import placeholder_rules, policies
from egs_core.kubernetes.makers import SAY_GANGS
from egs_core.kubernetes.placeholding import PlaceholderSettings
from egs_core.kubernetes.readings import ReadRules
from egs_core.kubernetes.tiers import ClaimRule, said

Object = dict[str, Any]
RBAC = "rbac.authorization.k8s.io"
PORT = 9443
READ = ["get", "list", "watch"]
APP = {"app.kubernetes.io/name": "egs", "app.kubernetes.io/component": "controller"}
KINDS = {
    "MutatingWebhookConfiguration": Kind(f"/apis/{ADMISSION}", "mutatingwebhookconfigurations", False),
    "ValidatingAdmissionPolicy": Kind(f"/apis/{ADMISSION}", "validatingadmissionpolicies", False),
    "ValidatingAdmissionPolicyBinding": Kind(f"/apis/{ADMISSION}", "validatingadmissionpolicybindings", False),
    "ClusterRole": Kind(f"/apis/{RBAC}/v1", "clusterroles", False),
    "ClusterRoleBinding": Kind(f"/apis/{RBAC}/v1", "clusterrolebindings", False),
    "Role": Kind(f"/apis/{RBAC}/v1", "roles"),
    "RoleBinding": Kind(f"/apis/{RBAC}/v1", "rolebindings"),
    "Namespace": NAMESPACES,
    "ServiceAccount": Kind("/api/v1", "serviceaccounts"),
    "ConfigMap": CONFIG_MAPS,
    "Service": Kind("/api/v1", "services"),
    "Deployment": Kind("/apis/apps/v1", "deployments"),
    "CronJob": Kind("/apis/batch/v1", "cronjobs"),
    "ResourceQuota": Kind("/api/v1", "resourcequotas"),
    "PriorityClass": Kind("/apis/scheduling.k8s.io/v1", "priorityclasses", False),
}
PRELOAD_PRIORITY = -100
"""A cluster autoscaler adds no node for pods below -10, and keeps none for them (--expendable-pods-priority-cutoff)."""
PLACEHOLDER_PRIORITY = -5
"""For these it does; and every pod of EGS's goes before them."""

CA_FOLDER = "/etc/egs-ca"


class Installation(msgspec.Struct, frozen=True):
    """What is installed. serve: namespaces whose pods are served; none named: all but the system's. arguments: more of
    the controller's; preempts: it may delete pods that make way; preloads: it may make pods that load images, and by
    reads such as read; placeholders: and so many that stand for what needs a node. url: of the site server that it
    joins; token_secret: the Secret with its token, under `token`; queue: its `EGS_QUEUE`; ca: the ConfigMap with the
    certificates that its `EGS_CA` names, under `ca.crt`. claims: what its webhook claims in the place of limits.
    multikueue: one of `clusters.ROLES`, "": none; cluster_name: by which others know the cluster."""

    image: str = ""
    namespace: str = names.SYSTEM
    serve: tuple[str, ...] = ()
    release_by_s: float = RELEASE_BY_S
    arguments: tuple[str, ...] = ()
    preempts: bool = False
    preloads: bool = False
    url: str = ""
    token_secret: str = ""
    queue: str = ""
    ca: str = ""
    placeholders: PlaceholderSettings = PlaceholderSettings()
    claims: tuple[ClaimRule, ...] = ()
    multikueue: str = ""
    cluster_name: str = ""
    reads: ReadRules = ReadRules()

    @property
    def nominates(self) -> bool:
        return self.multikueue == MANAGER


def objects(of: Installation) -> list[Object]:
    """All of them; the webhook, which gates pods, last."""
    return [
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": of.namespace, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
        },
        *(_made("v1", "ServiceAccount", name, of.namespace) for name in (names.CONTROLLER, names.OVERDUE)),
        _made("v1", "ConfigMap", names.DURATIONS, of.namespace),  # without data, so that what is learned stays there
        *_rights(of),
        *policies(
            dict.fromkeys((names.CONTROLLER, names.OVERDUE), of.namespace),
            preloads=of.preloads,
            reads=of.reads,
            placeholder=placeholder_rules(of.namespace, of.placeholders.image) if of.placeholders.most else (),
            classes=sorted({one.device_class for one in of.claims}),
            nominates=of.nominates,
        ),
        *([_priority_class(names.PRELOAD_CLASS, PRELOAD_PRIORITY, _ABOUT_PRELOADS)] if of.preloads else []),
        *(_for_placeholders(of) if of.placeholders.most else []),
        _service(of),
        _deployment(of),
        _cron_job(of),
        _webhook(of),
    ]


# --- rights ---


def _rights(of: Installation) -> list[Object]:
    """Pods and nodes are read everywhere, for the room there is; changed they are only where they are served."""
    kueue, here = "kueue.x-k8s.io", of.namespace
    controller = [
        _rule("", ["pods", "nodes"], READ),
        _rule("", ["limitranges"], ["list"]),
        _rule(kueue, ["workloads", "localqueues", "clusterqueues"], READ),
        _rule("argoproj.io", ["workflows"], READ),
        *(_rule(group, [plural], READ) for group, _, plural in SAY_GANGS.values()),
        _rule("resource.k8s.io", ["resourceslices", "resourceclaims", "deviceclasses"], READ),
        _rule("scheduling.k8s.io", ["priorityclasses"], ["get"]),
        {**_rule("admissionregistration.k8s.io", ["mutatingwebhookconfigurations"], ["get", "patch"]),
         "resourceNames": [names.CONTROLLER]},
    ]  # fmt: skip
    lease = [
        {**_rule("coordination.k8s.io", ["leases"], ["get", "update"]), "resourceNames": [names.CONTROLLER]},
        _rule("coordination.k8s.io", ["leases"], ["create"]),
    ]
    durations = [{**_rule("", ["configmaps"], ["get", "patch"]), "resourceNames": [names.DURATIONS]}]
    opens = [_rule("", ["pods"], ["get", "list", "patch"])]
    changes = [_rule("", ["pods"], ["patch"]), _rule(kueue, ["workloads"], ["patch"])]
    if of.preempts:
        changes += [
            _rule("", ["pods"], ["delete"]),
            _rule("", ["events"], ["create"]),
            _rule("batch", ["jobs"], ["get"]),
        ]
    makes = [_rule("", ["pods"], ["create", "delete"])]
    nominates = [
        _rule(kueue, ["workloads"], ["get", "list"]),
        _rule(kueue, ["admissionchecks", "multikueueconfigs", "multikueueclusters"], READ),
        _rule(kueue, ["workloads/status"], ["patch"]),
    ]  # of all namespaces: Kueue has one dispatcher, and nobody else nominates
    if of.preloads:
        changes += makes
    if of.claims:
        changes.append(_rule("resource.k8s.io", ["resourceclaimtemplates"], ["create"]))
    return [
        *_granted(names.CONTROLLER, "", controller, names.CONTROLLER, here),
        *_granted(f"{names.CONTROLLER}-lease", here, lease, names.CONTROLLER, here),
        *_granted(names.DURATIONS, here, durations, names.CONTROLLER, here),
        *(
            one
            for account in (names.CONTROLLER, names.OVERDUE)
            if of.nominates
            for one in _granted(f"{account}-nominates", "", nominates, account, here)
        ),
        *(
            _granted(f"{names.CONTROLLER}-placeholders", here, makes, names.CONTROLLER, here)
            if of.placeholders.most
            else []
        ),
        *(
            one
            for where in of.serve or ("",)
            for one in (
                *_granted(
                    f"{names.CONTROLLER}-changes", where, [*changes, *_volume_rights(of, where)], names.CONTROLLER, here
                ),
                *_granted(names.OVERDUE, where, opens, names.OVERDUE, here),
            )
        ),
    ]


def _volume_rights(of: Installation, where: str) -> list[Object]:
    """To see whether the volume claims that may be read ahead may be mounted twice: of these alone."""
    named = [one.partition("/") for one in of.reads.volumes]
    claims = sorted({claim for namespace, _, claim in named if where in ("", namespace)})
    return [{**_rule("", ["persistentvolumeclaims"], ["get"]), "resourceNames": claims}] if claims else []


def _rule(group: str, resources: list[str], verbs: list[str]) -> Object:
    return {"apiGroups": [group], "resources": resources, "verbs": verbs}


def _granted(name: str, where: str, rules: list[Object], account: str, home: str) -> list[Object]:
    kind = "Role" if where else "ClusterRole"
    subjects = [{"kind": "ServiceAccount", "name": account, "namespace": home}]
    reference = {"apiGroup": RBAC, "kind": kind, "name": name}
    return [
        _made(f"{RBAC}/v1", kind, name, where, rules=rules),
        _made(f"{RBAC}/v1", f"{kind}Binding", name, where, roleRef=reference, subjects=subjects),
    ]


# --- processes ---


def _service(of: Installation) -> Object:
    spec = {"selector": APP, "ports": [{"name": "https", "port": 443, "targetPort": PORT}]}
    return _made("v1", "Service", names.CONTROLLER, of.namespace, spec=spec)


def _deployment(of: Installation) -> Object:
    """Recreate: ready means leading, so a rolling update would wait for ever for the new one."""
    host = f"{names.CONTROLLER}.{of.namespace}.svc"
    arguments = ["kubernetes", "controller", "--webhook-host", host, f"--webhook-port={PORT}", *_stated(of)]
    chosen = {"--preempt": of.preempts, "--preload": of.preloads}
    more = [*(one for one, is_chosen in chosen.items() if is_chosen), *_stated_placeholders(of.placeholders)]
    more += [f"--preload-files={of.reads.most_bytes}"] if of.reads.most_bytes else []
    more += [f"--preload-volume={one}" for one in of.reads.volumes]
    more += [f"--claim={said(one)}" for one in of.claims]
    more += [f"--multikueue={of.multikueue}"] if of.multikueue else []
    more += [f"--cluster-name={of.cluster_name}"] if of.cluster_name else []
    more += of.arguments
    pod = _pod_spec(of, names.CONTROLLER, [*arguments, "--lease-namespace", of.namespace, *more])
    probe = {"httpGet": {"path": "/healthz", "port": PORT, "scheme": "HTTPS"}, "periodSeconds": 5}
    if of.url:
        pod["containers"][0]["env"] = _environment(of)
    if of.ca:
        pod["volumes"].append({"name": "ca", "configMap": {"name": of.ca}})
        pod["containers"][0]["volumeMounts"].append({"name": "ca", "mountPath": CA_FOLDER, "readOnly": True})
    pod["containers"][0] |= {"ports": [{"containerPort": PORT}], "readinessProbe": probe}
    template = {"metadata": {"labels": APP}, "spec": pod}
    spec = {"replicas": 1, "strategy": {"type": "Recreate"}, "selector": {"matchLabels": APP}, "template": template}
    return _made("apps/v1", "Deployment", names.CONTROLLER, of.namespace, spec=spec)


def _environment(of: Installation) -> list[Object]:
    """By which it joins a site server. The kubelet reads the Secret, so no right to read one is needed."""
    found: list[Object] = [{"name": "EGS_URL", "value": of.url}]
    if of.queue:
        found.append({"name": "EGS_QUEUE", "value": of.queue})
    if of.token_secret:
        token = {"secretKeyRef": {"name": of.token_secret, "key": "token"}}
        found.append({"name": "EGS_TOKEN", "valueFrom": token})
    if of.ca:
        found.append({"name": "EGS_CA", "value": f"{CA_FOLDER}/ca.crt"})
    return found


def _cron_job(of: Installation) -> Object:
    """Each minute, which is as often as there may be."""
    more = ["--multikueue"] if of.nominates else []
    arguments = ["kubernetes", "open-overdue", *_stated(of), *more]
    pod = _pod_spec(of, names.OVERDUE, arguments) | {"restartPolicy": "Never"}
    job = {"activeDeadlineSeconds": 300, "backoffLimit": 0, "template": {"spec": pod}}
    spec = {
        "schedule": "* * * * *",
        "concurrencyPolicy": "Forbid",
        "successfulJobsHistoryLimit": 1,
        "failedJobsHistoryLimit": 1,
        "jobTemplate": {"spec": job},
    }
    return _made("batch/v1", "CronJob", names.OVERDUE, of.namespace, spec=spec)


def _stated(of: Installation) -> list[str]:
    return [f"--release-by={of.release_by_s:.0f}s", *(f"--serve={one}" for one in of.serve)]


def _stated_placeholders(asked: PlaceholderSettings) -> list[str]:
    stated = [f"--placeholders={asked.most}", f"--node-time={asked.node_s:.0f}s", f"--placeholder-image={asked.image}"]
    return stated if asked.most else []


def _pod_spec(of: Installation, account: str, arguments: list[str]) -> Object:
    container = {
        "name": "egs",
        "image": of.image,
        "args": arguments,
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    user = {"runAsNonRoot": True, "runAsUser": 65534, "seccompProfile": {"type": "RuntimeDefault"}}
    volumes = [{"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}}]
    return {"serviceAccountName": account, "securityContext": user, "volumes": volumes, "containers": [container]}


_ABOUT_PRELOADS = "Pods of EGS that load images ahead: they preempt nothing, and make way for everything."
_ABOUT_PLACEHOLDERS = "Pods of EGS that stand for what needs a node: they preempt nothing, and make way for all work."


def _priority_class(name: str, value: int, about: str) -> Object:
    stated: Object = {"value": value, "preemptionPolicy": "Never", "globalDefault": False, "description": about}
    return _made("scheduling.k8s.io/v1", "PriorityClass", name, **stated)


def _for_placeholders(of: Installation) -> list[Object]:
    """Their class, and how many pods may have it where they are made."""
    name = names.PLACEHOLDER_CLASS
    scope = {"scopeName": "PriorityClass", "operator": "In", "values": [name]}
    spec = {"hard": {"pods": str(of.placeholders.most)}, "scopeSelector": {"matchExpressions": [scope]}}
    return [
        _priority_class(name, PLACEHOLDER_PRIORITY, _ABOUT_PLACEHOLDERS),
        _made("v1", "ResourceQuota", name, of.namespace, spec=spec),
    ]


def _webhook(of: Installation) -> Object:
    """No `caBundle`: the controller writes its own. Until then, and whenever it is away, pods pass as they are."""
    name = "kubernetes.io/metadata.name"
    chosen = (
        {"key": name, "operator": "In", "values": list(of.serve)}
        if of.serve
        else {"key": name, "operator": "NotIn", "values": ["kube-system", of.namespace]}
    )
    ours = [{"key": names.WORKLOAD, "operator": "Exists"}, {"key": names.PRELOAD, "operator": "DoesNotExist"}]
    rules = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]
    webhook = {
        "name": "pods.egs.io",
        "admissionReviewVersions": ["v1"],
        "clientConfig": {
            "service": {"name": names.CONTROLLER, "namespace": of.namespace, "path": "/pods", "port": 443}
        },
        "failurePolicy": "Ignore",
        "timeoutSeconds": 1,
        "sideEffects": "NoneOnDryRun" if of.claims else "None",
        "reinvocationPolicy": "Never",
        "matchPolicy": "Equivalent",
        "namespaceSelector": {"matchExpressions": [chosen]},
        "objectSelector": {"matchExpressions": ours},
        "rules": [{**rules[0], "scope": "Namespaced"}],
    }
    return _made(ADMISSION, "MutatingWebhookConfiguration", names.CONTROLLER, "", webhooks=[webhook])


def _made(api: str, kind: str, name: str, namespace: str = "", **content: Any) -> Object:
    meta = {"name": name, **({"namespace": namespace} if namespace else {}), "labels": APP}
    return {"apiVersion": api, "kind": kind, "metadata": meta, **content}
