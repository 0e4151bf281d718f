"""Pods that the preloads' guard has to refuse: a preload's pod, each with one thing that it must not have."""

from __future__ import annotations

import copy
from typing import Any

Object = dict[str, Any]


def unwanted(pod: Object) -> dict[str, Object]:
    """By what is wrong."""
    main = pod["spec"]["containers"][0]
    secure, confined = main["securityContext"], pod["spec"]["securityContext"]
    in_spec: dict[str, Object] = {
        "class": {"priorityClassName": "system-node-critical"},
        "token": {"automountServiceAccountToken": True},
        "volume": {"volumes": [{"name": "host", "hostPath": {"path": "/"}}]},
        "host's processes": {"hostPID": True},
        "node": {"nodeName": "master"},
        "init container": {"initContainers": [{"name": "other", "image": "other"}]},
        "claim": {"resourceClaims": [{"name": "gpus", "resourceClaimName": "gpus"}]},
        "account": {"serviceAccountName": "egs-other"},
        "grace": {"terminationGracePeriodSeconds": 86400},
        "restarts": {"restartPolicy": "Always"},
        "long deadline": {"activeDeadlineSeconds": 601},
        "no deadline": {"activeDeadlineSeconds": None},
        "scheduler": {"schedulerName": "other"},
        "seccomp": {"securityContext": confined | {"seccompProfile": {"type": "Unconfined"}}},
        "SELinux": {"securityContext": confined | {"seLinuxOptions": {"type": "spc_t"}}},
        "AppArmor": {"securityContext": confined | {"appArmorProfile": {"type": "Unconfined"}}},
        "sysctl": {"securityContext": confined | {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}},
    }
    in_container: dict[str, Object] = {
        "gpu": {"resources": {"limits": {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1"}}},
        "no limits": {"resources": {}},
        "no memory limit": {"resources": {"limits": {"cpu": "1"}}},
        "1,000 CPUs": {"resources": {"limits": {"cpu": "1000", "memory": "1Gi"}}},
        "memory": {"resources": {"limits": {"cpu": "1", "memory": "2Gi"}}},
        "no context": {"securityContext": {}},
        "privileged": {"securityContext": secure | {"privileged": True}},
        "capabilities": {"securityContext": secure | {"capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN"]}}},
        "root": {"securityContext": secure | {"runAsUser": 0}},
        "secret": {"env": [{"name": "a", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]},
        "secrets": {"envFrom": [{"secretRef": {"name": "s"}}]},
        "port": {"ports": [{"containerPort": 80, "hostPort": 80}]},
        "hook": {"lifecycle": {"preStop": {"sleep": {"seconds": 1}}}},
    }
    in_metadata: dict[str, Object] = {
        "finalizer": {"finalizers": ["other.io/x"]},
        "owner": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "u"}]},
        "Kueue's priority": {"labels": pod["metadata"]["labels"] | {"kueue.x-k8s.io/priority-class": "urgent"}},
        "no label": {"labels": {}},
    }
    found = {}
    for what, part in (*in_spec.items(), *in_container.items(), *in_metadata.items()):
        made = copy.deepcopy(pod)
        place = made["spec"] if what in in_spec else made["metadata"]
        (made["spec"]["containers"][0] if what in in_container else place).update(part)
        if part == {"activeDeadlineSeconds": None}:
            del made["spec"]["activeDeadlineSeconds"]
        found[what] = made
    return found
