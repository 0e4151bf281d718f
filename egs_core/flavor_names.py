"""How people, drivers and clusters name flavors of hardware.

    NVIDIA A100-SXM4-80GB ─► A100-SXM4-80GB        --flavor a100, --flavor a100-sxm4: meant, too
    Tesla T4              ─► T4                    --flavor t4

Apart from the site's file of flavors (`egs_core.flavors`): a command that only compares names reads no file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

GPU_RESOURCE_PATTERN = r".+/(gpu(\.shared)?|mig-.+|[a-z]+_nps\d+|i915|xe|gaudi|tpu|neuron)"
"""What device plugins of Kubernetes call GPUs, parts of them and other accelerators; Python's and RE2's."""
_GPU_RESOURCE = re.compile(GPU_RESOURCE_PATTERN)
VENDOR = re.compile(r"^(NVIDIA|Tesla|Quadro|GeForce|AMD|Intel)\b[\s-]*", re.IGNORECASE)
NO_NAME = re.compile(r"[^A-Za-z0-9.]+")


@lru_cache(maxsize=1024)  # a run that is submitted asks it for each device
def flavor_of_product(product: str) -> str:
    """The flavor of what a driver calls a GPU; "" where it says nothing.

    >>> [flavor_of_product(p) for p in ("NVIDIA A100-SXM4-80GB", "Tesla T4", "NVIDIA GeForce RTX 4090", "")]
    ['A100-SXM4-80GB', 'T4', 'RTX-4090', '']
    """
    name = product.strip()
    while (shorter := VENDOR.sub("", name)) != name:
        name = shorter
    return NO_NAME.sub("-", name).strip("-")


def is_gpu_resource(name: str) -> bool:
    """Whether a device plugin of Kubernetes calls GPUs so, parts of them (MIG's, AMD's partitions), replicas that share
    one, or other accelerators.

    >>> names = ("nvidia.com/gpu", "nvidia.com/mig-1g.5gb", "nvidia.com/gpu.shared", "amd.com/cpx_nps4", "rdma/hca")
    >>> [is_gpu_resource(name) for name in names]
    [True, True, True, True, False]
    """
    return "/" in name and _GPU_RESOURCE.fullmatch(name) is not None


LABELS = (
    "nvidia.com/gpu.product",  # of NVIDIA's GPU feature discovery
    "amd.com/gpu.product-name",
    "beta.amd.com/gpu.product-name",
    "cloud.google.com/gke-accelerator",
    "k8s.amazonaws.com/accelerator",
    "karpenter.k8s.aws/instance-gpu-name",
)
"""Labels of Kubernetes nodes that name the product of their GPUs; the first that a node has counts."""
SHARED_PRODUCT = "-SHARED"  # how that says that several pods share each GPU


def flavor_of_labels(labels: Mapping[str, str]) -> str:
    """The flavor of a Kubernetes node's GPUs; "" where its labels do not tell.

    >>> flavor_of_labels({"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-SHARED"})
    'A100-SXM4-80GB'
    >>> flavor_of_labels({"cloud.google.com/gke-accelerator": "nvidia-tesla-t4"}), flavor_of_labels({})
    ('t4', '')
    """
    product = next((labels[name] for name in LABELS if labels.get(name)), "")
    return flavor_of_product(product.replace("_", "-").removesuffix(SHARED_PRODUCT))


def is_meant(wish: str, flavor: str) -> bool:
    """Whether a wish means the flavor: its name, or the beginning of it up to a hyphen, in any case.

    >>> is_meant("a100", "A100-SXM4-80GB"), is_meant("A10", "A100"), is_meant("", "A100")
    (True, False, False)
    """
    wish, flavor = wish.lower(), flavor.lower()
    return bool(wish) and (flavor == wish or flavor.startswith(f"{wish}-"))


def nearest(names: Iterable[str], flavor: str) -> str:
    """Of names that mean the flavor the longest; "" for none.

    >>> nearest(("a100", "a100-sxm4", "t4"), "A100-SXM4-80GB"), nearest(("t4",), "A100")
    ('a100-sxm4', '')
    """
    return max((name for name in names if is_meant(name, flavor)), key=len, default="")


def meant(wishes: Sequence[str], flavors: Iterable[str]) -> tuple[str, ...]:
    """Those of the flavors that one of the wishes means, in their order."""
    return tuple([flavor for flavor in flavors if any(is_meant(wish, flavor) for wish in wishes)])
