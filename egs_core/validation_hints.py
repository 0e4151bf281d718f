"""What a field that a file may not have was meant to be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from egs_core.graph.places import did_you_mean


def hint_of(error: Mapping[str, Any], known: Iterable[str]) -> str:
    """For a field that is not known here: the nearest one that there is, or that it belongs to another part."""
    if error["type"] != "extra_forbidden":
        return ""
    name, names = str(error["loc"][-1]), list(dict.fromkeys(known))
    longer = [one for one in names if one == f"{name}s"] or [one for one in names if one.startswith(f"{name}_")]
    if longer and name not in names:  # `gpus` for `gpus_per_node`
        return f"did you mean {longer[0]!r}?"
    if name in names:
        return f"{name!r} belongs to another part of the file"
    return did_you_mean(name, names)
