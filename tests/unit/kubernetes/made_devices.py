"""ResourceSlices, classes and claims as the API server has them, after NVIDIA's driver for DRA (`gpu.nvidia.com`):
names of attributes and capacities, its classes, and how it announces slices are its own; the devices are made up."""

from __future__ import annotations

from typing import Any

DRA = "resource.k8s.io/v1"
DRIVER = "gpu.nvidia.com"
A100, T4 = "NVIDIA A100-SXM4-40GB", "Tesla T4"


def gpu(name: str, product: str = A100, memory: str = "40Gi", **more: Any) -> dict[str, Any]:
    """A whole GPU."""
    attributes: dict[str, Any] = {
        "type": {"string": "gpu"},
        "uuid": {"string": f"GPU-{name}"},
        "productName": {"string": product},
        "brand": {"string": "Nvidia"},
        "architecture": {"string": "Ampere"},
        "cudaComputeCapability": {"version": "8.0.0"},
        "driverVersion": {"version": "580.65.6"},
        "cudaDriverVersion": {"version": "13.0.0"},
        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:00"},
    }
    return {"name": name, "attributes": attributes, "capacity": {"memory": {"value": memory}}, **more}


def mig(name: str, profile: str = "1g.5gb", memory: str = "4864Mi", **more: Any) -> dict[str, Any]:
    """A slice that MIG has made; with `consumesCounters` one that is yet to be made."""
    made = gpu(name, memory=memory)
    attributes = made["attributes"] | {
        "type": {"string": "mig"},
        "profile": {"string": profile},
        "parentUUID": {"string": "GPU-0"},
    }
    capacity = made["capacity"] | {"multiprocessors": {"value": "14"}, "memorySlice0": {"value": "1"}}
    return {"name": name, "attributes": attributes, "capacity": capacity, **more}


def resource_slice(node: str, *devices: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """What the driver publishes of a node. spec: more of it, or other."""
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    stated = {"driver": DRIVER, "pool": pool, "nodeName": node, "devices": list(devices), **spec}
    return {"apiVersion": DRA, "kind": "ResourceSlice", "metadata": {"name": f"{node}-gpus"}, "spec": stated}


def device_class(name: str = DRIVER, kind: str = "gpu", resource: str = "", domain: str = DRIVER) -> dict[str, Any]:
    """One of the driver's classes, or one like it."""
    rule = f"device.driver == '{domain}' && device.attributes['{domain}'].type == '{kind}'"
    spec = {"selectors": [{"cel": {"expression": rule}}]}
    more = {"extendedResourceName": resource} if resource else {}
    return {"apiVersion": DRA, "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec | more}


def exactly(count: int = 1, *selectors: str, of: str = DRIVER, **more: Any) -> dict[str, Any]:
    """What is asked for of a class."""
    found: dict[str, Any] = {"deviceClassName": of, "allocationMode": "ExactCount", "count": count, **more}
    return found | ({"selectors": [{"cel": {"expression": one}} for one in selectors]} if selectors else {})


def request(name: str = "gpus", **stated: Any) -> dict[str, Any]:
    return {"name": name, "exactly": exactly(**stated)}


def tiers(*stated: dict[str, Any], name: str = "gpus") -> dict[str, Any]:
    return {"name": name, "firstAvailable": [{"name": f"tier-{n}", **one} for n, one in enumerate(stated)]}


def claim(name: str, *requests: dict[str, Any], owner: str = "", namespace: str = "team") -> dict[str, Any]:
    """owner: uid of the pod for which the cluster made it of a template."""
    meta: dict[str, Any] = {"name": name, "namespace": namespace, "uid": f"claim-{name}"}
    if owner:
        meta["ownerReferences"] = [{"apiVersion": "v1", "kind": "Pod", "name": owner, "uid": owner, "controller": True}]
    spec = {"devices": {"requests": list(requests)}}
    return {"apiVersion": DRA, "kind": "ResourceClaim", "metadata": meta, "spec": spec}


def allocated(raw: dict[str, Any], node: str, *names: str) -> dict[str, Any]:
    """The same, as the scheduler has allocated it."""
    results = [{"request": "gpus", "driver": DRIVER, "pool": node, "device": name} for name in names]
    return raw | {"status": {"allocation": {"devices": {"results": results}}}}


def template(name: str, *requests: dict[str, Any], namespace: str = "team") -> dict[str, Any]:
    meta = {"name": name, "namespace": namespace}
    spec = {"spec": {"devices": {"requests": list(requests)}}}
    return {"apiVersion": DRA, "kind": "ResourceClaimTemplate", "metadata": meta, "spec": spec}


def claiming(name: str, *, of: str = "", made: str = "") -> dict[str, Any]:
    """What a pod's spec, and its status, say of a claim: of that template, which was made by that name; or by hand."""
    stated = {"resourceClaimTemplateName": of} if of else {"resourceClaimName": name}
    status = {"resourceClaimStatuses": [{"name": "gpus", "resourceClaimName": made}]} if made else {}
    return {"spec": {"resourceClaims": [{"name": "gpus", **stated}]}, "status": status}
