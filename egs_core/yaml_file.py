"""YAML files that users write: text read with bounds, every value with its line, and errors that name both."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from egs_core.errors import InputError
from egs_core.graph.places import did_you_mean
from egs_core.units import parse_bytes, parse_seconds

MAX_FILE_BYTES = 4 << 20
MOST_DEEP = 20
Path_ = tuple[str | int, ...]


def _bytes(value: object) -> int:
    try:
        return parse_bytes(value)
    except InputError as error:
        raise ValueError(f"{error.problem}; {error.hint}") from None


def _seconds(value: object) -> float:
    try:
        return parse_seconds(value)
    except InputError as error:
        raise ValueError(f"{error.problem}; {error.hint}") from None


Size = Annotated[int, BeforeValidator(_bytes)]
Seconds = Annotated[float, BeforeValidator(_seconds)]


class FileModel(BaseModel):
    """What a file may hold: nothing but the fields that are named."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def read_text(path: Path, what: str) -> str:
    """The text of a YAML file that describes `what`. InputError when it cannot be read, or is too large to be that."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InputError(str(path), f"is too large for a file of {what}", f"at most {MAX_FILE_BYTES >> 20} MiB")
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(str(path), f"cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise InputError(str(path), "is no text in UTF-8") from None


def read_yaml(text: str, place: str) -> tuple[Any, dict[Path_, int]]:
    """The value of a YAML text, and the line of everything in it. Raises InputError that names `place` and the line."""
    lines: dict[Path_, int] = {}
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        return (_plain(root, (), lines, place) if root is not None else None), lines
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise InputError(f"{place} line {line}", f"is no YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise InputError(place, f"is no YAML: {str(error).splitlines()[0]}") from None


def _plain(node: yaml.Node, path: Path_, lines: dict[Path_, int], place: str) -> Any:
    """The value of a node, with the line of everything in it; a key given twice, or an alias, is an error."""
    line = node.start_mark.line + 1
    lines[path] = line
    if len(path) > MOST_DEEP:
        raise InputError(f"{place} line {line}", "is nested too deeply, or an alias of itself")
    if isinstance(node, yaml.MappingNode):
        out: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key is None or key in out:
                where = f"{place} line {key_node.start_mark.line + 1}"
                raise InputError(where, "a key that is no text" if key is None else f"{key!r} is there twice")
            lines[*path, key] = key_node.start_mark.line + 1
            out[key] = _plain(value_node, (*path, key), lines, place)
        return out
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item, (*path, i), lines, place) for i, item in enumerate(node.value)]
    return _scalar(node, place)


def _scalar(node: yaml.Node, place: str) -> Any:
    loader = yaml.SafeLoader("")
    try:
        value = loader.construct_object(node)
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(f"{place} line {node.start_mark.line + 1}", str(error).splitlines()[0]) from None
    finally:
        loader.dispose()
    return value


def input_error(error: ValidationError, lines: dict[Path_, int], place: str, known: Sequence[str]) -> InputError:
    """The first of pydantic's errors with its line. known: the fields there are, to suggest the nearest."""
    first = error.errors(include_url=False, include_input=False)[0]
    path = tuple(first["loc"])
    shown = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")
    problem, hint = first["msg"].removeprefix("Value error, "), ""
    if first["type"] == "extra_forbidden":
        problem = "unknown field"
        hint = did_you_mean(str(path[-1]), known)
    return InputError(f"{place} line {line_of(path, lines)}: {shown}", problem[:1].lower() + problem[1:], hint)


def line_of(path: Path_, lines: dict[Path_, int]) -> int:
    """The line of the nearest thing that the file has."""
    while path not in lines and path:
        path = path[:-1]
    return lines.get(path, 1)
