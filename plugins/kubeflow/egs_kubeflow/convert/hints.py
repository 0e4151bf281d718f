"""Hints of a task inside a compiled pipeline: kfp keeps no attribute of a function, so they travel as an annotation.

    platforms.kubernetes.deploymentSpec.executors.<label>.podMetadata.annotations["egs.io/hints"] = '{"gpus": 1.0}'

The fields are those of `egs_core.hints.TaskHints`, without defaults; what is preloaded is not among them: its functions
have no place in a file. Annotations are no part of the key of kfp's cache.
"""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any, get_type_hints

import msgspec

from egs_core.errors import InputError
from egs_core.hints import TaskHints

ANNOTATION = "egs.io/hints"
_TYPES = get_type_hints(TaskHints)
_DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(TaskHints) if field.name != "preload"}
_Stated = msgspec.defstruct(
    "_Stated", [(name, _TYPES[name], default) for name, default in _DEFAULTS.items()], forbid_unknown_fields=True
)


def encode_hints(hints: TaskHints) -> str:
    """The annotation's text: the same for equal hints."""
    stated = {name: getattr(hints, name) for name, default in _DEFAULTS.items() if getattr(hints, name) != default}
    return json.dumps(stated, sort_keys=True)


def decode_hints(text: str, place: str) -> TaskHints:
    """The hints of an annotation; InputError that names the field which is wrong."""
    try:
        stated = msgspec.json.decode(text, type=_Stated)
    except msgspec.DecodeError as error:
        raise InputError(f"{place}: {ANNOTATION}", str(error).replace("`", "")) from None
    return TaskHints(**msgspec.structs.asdict(stated))
