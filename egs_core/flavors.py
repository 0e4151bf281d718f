"""Flavors of hardware as people and files name them: from what a driver calls a GPU, and with a site's prices.

    NVIDIA A100-SXM4-80GB ─► A100-SXM4-80GB        --flavor a100, --flavor a100-sxm4: meant, too
    Tesla T4              ─► T4                    --flavor t4

A site may say what they cost, and how fast they are where nothing has been learned yet:

    flavors:
      - {name: a100, gpu_hour: 2.5}                # all that `--flavor a100` would mean
      - {name: t4, gpu_hour: 0.4, speed: 0.3}
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from egs_core.engine.specs import FlavorSpec, mig_profiles
from egs_core.errors import InputError
from egs_core.yaml_file import FileModel, Size, input_error, line_of, read_text, read_yaml

VENDOR = re.compile(r"^(NVIDIA|Tesla|Quadro|GeForce|AMD|Intel)\b[\s-]*", re.IGNORECASE)
NO_NAME = re.compile(r"[^A-Za-z0-9.]+")

Amount = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1)]


class Flavor(FileModel):
    """One flavor as a user writes it."""

    name: Name
    """Name of the kind of hardware."""
    gpu_hour: Amount = 0.0
    """Price of a GPU for an hour, in any one currency."""
    cpu_hour: Amount = 0.0
    """Price of a CPU for an hour."""
    speed: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] = 1.0
    """Speed relative to the hardware for which durations are stated."""
    mig: Size | None = None
    """The GPUs are split into MIG profiles; memory of one GPU."""

    def to_spec(self) -> FlavorSpec:
        profiles = () if self.mig is None else mig_profiles(self.mig)
        return FlavorSpec(self.name, self.gpu_hour, self.cpu_hour, self.speed, profiles)


class SiteFlavor(Flavor):
    """The same in a site's own file."""

    memory: Size | None = None
    """Memory of one GPU, for `egs advise`; where a driver tells it, that counts."""


class _File(FileModel):
    flavors: Annotated[tuple[SiteFlavor, ...], Field(min_length=1)]
    """The kinds of hardware."""


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


def meant(wishes: Sequence[str], flavors: Iterable[str]) -> tuple[str, ...]:
    """Those of the flavors that one of the wishes means, in their order."""
    return tuple([flavor for flavor in flavors if any(is_meant(wish, flavor) for wish in wishes)])


def spec_for(flavor: str, specs: Iterable[FlavorSpec]) -> FlavorSpec:
    """What a site says of the flavor, under its own name: of those that mean it the longest; else the reference."""
    found = [spec for spec in specs if is_meant(spec.name, flavor)]
    best = max(found, key=lambda spec: len(spec.name), default=FlavorSpec(flavor))
    return FlavorSpec(flavor, best.gpu_hour, best.cpu_hour, best.speed)


def load_flavors(path: Path) -> tuple[FlavorSpec, ...]:
    """The flavors of a site's file. Raises InputError that names file and line."""
    return tuple([flavor.to_spec() for flavor in _load(path)])


def load_memory(path: Path) -> dict[str, int]:
    """Bytes of one GPU, by name, of those flavors of a site's file that state it. Raises InputError as above."""
    return {flavor.name: flavor.memory for flavor in _load(path) if flavor.memory is not None}


def _load(path: Path) -> tuple[SiteFlavor, ...]:
    place = str(path)
    data, lines = read_yaml(read_text(path, "flavors"), place)
    if not isinstance(data, dict):
        raise InputError(place, "needs a list of flavors under `flavors:`", "flavors: [{name: a100, gpu_hour: 2.5}]")
    try:
        file = _File.model_validate(data)
    except ValidationError as error:
        raise input_error(error, lines, place, [*SiteFlavor.model_fields, *_File.model_fields]) from None
    names: list[str] = []
    for number, flavor in enumerate(file.flavors):
        if flavor.name.lower() in names:
            where = f"{place} line {line_of(('flavors', number, 'name'), lines)}"
            raise InputError(where, f"a second flavor {flavor.name!r}", "keep one of them")
        if flavor.mig is not None:
            where = f"{place} line {line_of(('flavors', number, 'mig'), lines)}"
            raise InputError(where, "mig: a server gives out whole GPUs and parts of them", "leave it out")
        names.append(flavor.name.lower())
    return file.flavors
