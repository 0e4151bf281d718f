"""A site's file of flavors: what they cost, and how fast they are where nothing has been learned yet.

flavors:
  - {name: a100, gpu_hour: 2.5}                # all that `--flavor a100` would mean
  - {name: t4, gpu_hour: 0.4, speed: 0.3}
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from egs_core.engine.specs import FlavorSpec, mig_profiles
from egs_core.errors import InputError
from egs_core.flavor_names import is_meant
from egs_core.yaml_file import FileModel, Size, has_entry_with, input_error, line_of, read_text, read_yaml

EXAMPLE = "flavors: [{name: a100, gpu_hour: 2.5}]"
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
    """Memory of one GPU, for `egs advise`, emulated GPUs and the hint `gpu_memory`; a driver that tells it counts."""


class _File(FileModel):
    flavors: Annotated[tuple[SiteFlavor, ...], Field(min_length=1)]
    """The kinds of hardware."""


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
        raise InputError(place, "needs a list of flavors under `flavors:`", EXAMPLE)
    try:
        file = _File.model_validate(data)
    except ValidationError as error:
        if has_entry_with(data, "flavors", "prices"):
            problem = "says what is paid from when on, as `--prices` reads it, and not what runs are placed by"
            raise InputError(place, problem, EXAMPLE) from None
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
