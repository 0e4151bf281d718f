"""What the types of keys and options are called on the reference pages."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from egs_core.queues import Minute
from egs_core.yaml_file import FileModel, Seconds, Size

SIZE = "size: bytes, or text such as `20GiB`"
SPAN = "time: seconds, or text such as `30s`, `2h`"
CLOCK = 'time of the day, as `"09:00"`'
PLAIN: dict[object, str] = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "`true` or `false`",
    Path: "path",
}
SHAPES: dict[object, str] = {Size: SIZE, Seconds: SPAN, Minute: CLOCK}


def type_name(annotation: Any) -> str:
    """How a value of that type is written."""
    for shape, name in SHAPES.items():
        if annotation == shape or _core(annotation) == shape:
            return name
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_name(args[0])
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(type_name(one) for one in args if one is not type(None) and not _empty(one)))
    if origin is Literal:
        return " or ".join(f"`{one}`" for one in args if one != "")
    if origin in (tuple, list):
        return f"list of {type_name(args[0])}"
    if origin is dict:
        return f"mapping of {type_name(args[0])} to {type_name(args[1])}"
    if isinstance(annotation, type) and issubclass(annotation, FileModel):
        return f"[{annotation.__name__}](#{annotation.__name__.lower()})"
    return PLAIN.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _core(annotation: Any) -> Any:
    """Size and Seconds with further bounds are nested `Annotated`s, which Python flattens: compare what converts."""
    if get_origin(annotation) is not Annotated:
        return annotation
    validators = {id(get_args(shape)[1]): shape for shape in SHAPES}
    return next((validators[id(one)] for one in get_args(annotation)[1:] if id(one) in validators), annotation)


def _empty(annotation: Any) -> bool:
    return get_origin(annotation) is Literal and get_args(annotation) == ("",)
