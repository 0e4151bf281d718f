"""Hints of a task inside a compiled pipeline: kfp keeps no attribute of a function, so they travel as an annotation.

    platforms.kubernetes.deploymentSpec.executors.<label>.podMetadata.annotations["egs.io/hints"] = '{"gpus": 1.0}'

The fields are those of `egs_core.hints.TaskHints`, without defaults. Of what is preloaded there are the modules and the
files, `"preload": {"modules": ["torch"]}`; a function has no place in a file. Annotations are no part of the key of
kfp's cache.
"""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any, get_type_hints

import msgspec

from egs_core.errors import InputError
from egs_core.hints import Files, Modules, PreloadItem, TaskHints, files, modules

ANNOTATION = "egs.io/hints"
_TYPES = get_type_hints(TaskHints)
_DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(TaskHints) if field.name != "preload"}


class _Preload(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    modules: tuple[str, ...] = ()
    files: tuple[str, ...] = ()

    def items(self) -> tuple[PreloadItem, ...]:
        """As in hints. Raises InputError for what is no name of a module, or no path."""
        return (*((modules(*self.modules),) if self.modules else ()), *((files(*self.files),) if self.files else ()))


_Stated = msgspec.defstruct(
    "_Stated",
    [*((name, _TYPES[name], default) for name, default in _DEFAULTS.items()), ("preload", _Preload, _Preload())],
    forbid_unknown_fields=True,
)


def encode_hints(hints: TaskHints) -> str:
    """The annotation's text: the same for equal hints."""
    stated = {name: getattr(hints, name) for name, default in _DEFAULTS.items() if getattr(hints, name) != default}
    if loaded := msgspec.to_builtins(_Preload(*preloaded(hints))):
        stated["preload"] = loaded
    return json.dumps(stated, sort_keys=True)


def decode_hints(text: str, place: str) -> TaskHints:
    """The hints of an annotation; InputError that names the field which is wrong."""
    try:
        stated = msgspec.structs.asdict(msgspec.json.decode(text, type=_Stated))
        return TaskHints(**stated | {"preload": stated["preload"].items()})
    except msgspec.DecodeError as error:
        raise InputError(f"{place}: {ANNOTATION}", str(error).replace("`", "")) from None
    except InputError as error:
        raise InputError(f"{place}: {ANNOTATION}: preload", error.problem) from None


def preloaded(hints: TaskHints) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The modules and the files that a task would have loaded before it starts."""
    found = hints.preload
    names = [name for item in found if isinstance(item, Modules) for name in item.names]
    return tuple(names), tuple(path for item in found if isinstance(item, Files) for path in item.paths)
