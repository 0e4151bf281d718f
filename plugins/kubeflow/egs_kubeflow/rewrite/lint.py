"""All that is wrong with a site's profile, each with its line and what to do; and the profile's schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from egs_core.adapter import ProfileFault
from egs_core.errors import InputError
from egs_core.graph.places import hint_of
from egs_core.validation_words import problem_of
from egs_core.yaml_file import Path_, line_of, read_text, shown_path
from egs_kubeflow.rewrite.profile import NO_POOLS, Profile, part_at, read_profile

DIALECT = "https://json-schema.org/draft/2020-12/schema"
LINE = " line "
MOST_COMPARED = 100


def profile_schema() -> dict[str, Any]:
    """The JSON schema of a profile, from its types. Rules between fields are not in it: `faults_of` knows those."""
    made = Profile.model_json_schema(mode="validation")
    return {"$schema": DIALECT, **made, "title": "Site of Kubeflow Pipelines, for EGS", "required": ["pools"]}


def faults_of(path: Path) -> list[ProfileFault]:
    """In the order of the file; [] for a profile that can be used."""
    try:
        data, lines = read_profile(read_text(path, "a site"), str(path))
    except InputError as error:
        return [_unreadable(path, error)]
    found: dict[Path_, ProfileFault] = {}
    if "pools" not in data:
        found["pools",] = ProfileFault(str(path), 1, "pools", "is missing", NO_POOLS)
    try:
        Profile.model_validate(data)
    except ValidationError as error:
        for one in error.errors(include_url=False, include_input=False):
            place = _place(one, lines)
            found.setdefault(place, _fault(path, one, place, lines))  # one a value, of all forms that it may have
    return sorted(found.values(), key=lambda fault: fault.line)


def _unreadable(path: Path, error: InputError) -> ProfileFault:
    """Of what is no YAML: the place has the line."""
    _, _, rest = error.place.rpartition(LINE)
    line = int(rest) if rest.isdecimal() else 0
    return ProfileFault(str(path), line, "", error.problem, error.hint or "write it as YAML has it")


def _fault(path: Path, one: Mapping[str, Any], place: Path_, lines: dict[Path_, int]) -> ProfileFault:
    known = list(part_at(place[:-1]).model_fields)
    problem, remedy = _parts(problem_of(one)) if one["type"] == "value_error" else (problem_of(one), "")
    remedy = remedy or hint_of(one, known) or _known(one, known) or _meaning(place) or "change it, or leave it out"
    return ProfileFault(str(path), line_of(place, lines), shown_path(place), problem, remedy)


def _known(one: Mapping[str, Any], known: Sequence[str]) -> str:
    """For a field that there is not, and that is near none: those that there are, the nearest first."""
    if one["type"] != "extra_forbidden":
        return ""
    name = str(one["loc"][-1])[:MOST_COMPARED]
    nearest = sorted(known, key=lambda other: -SequenceMatcher(None, name, other).ratio())
    return f"known here: {', '.join(nearest)}"


def _parts(text: str) -> tuple[str, str]:
    """What is wrong, and what to do, of a rule's own text.

    >>> _parts("pool 'a' has a device class, but no GPUs: add accelerator: nvidia.com/gpu")
    ("pool 'a' has a device class, but no GPUs", 'add accelerator: nvidia.com/gpu')
    """
    separator = "; " if "; " in text else ": "
    problem, _, remedy = text.partition(separator)
    return problem, remedy


def _place(one: Mapping[str, Any], lines: dict[Path_, int]) -> Path_:
    """Without what pydantic adds: which form of a value was tried, and that it is about a key."""
    path: Path_ = tuple(one["loc"])
    while path and path not in lines and one["type"] != "missing":
        path = path[:-1]
    return path


def _meaning(place: Path_) -> str:
    """What the field is that the place is in."""
    for size in range(len(place), 0, -1):
        fields = part_at(place[: size - 1]).model_fields
        name = str(place[size - 1])
        if name in fields and (said := fields[name].description):
            return f"{name}: {said}"
    return ""
