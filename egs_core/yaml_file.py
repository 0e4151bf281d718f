"""YAML files that users write: text read with bounds, every value with its line, and errors that name both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)

from egs_core.errors import InputError
from egs_core.graph.places import hint_of
from egs_core.units import parse_bytes, parse_seconds
from egs_core.validation_words import first_of, problem_of, with_others

MAX_FILE_BYTES = 4 << 20
MEND = "look there, and a line before, for brackets, quotes, colons and how far lines are moved in"
MOST_DEEP = 20
MOST_DIGITS = 4300  # Python makes no whole number of more
MOST_VALUES = 2_000_000
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # a PyYAML that was built without libyaml has no fast one
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


_AMOUNT = {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "minLength": 1}]}
Size = Annotated[int, BeforeValidator(_bytes), WithJsonSchema({**_AMOUNT, "examples": ["40GiB"]})]
Seconds = Annotated[float, BeforeValidator(_seconds), WithJsonSchema({**_AMOUNT, "examples": ["90s", "2h"]})]


class FileModel(BaseModel):
    """What a file may hold: nothing but the fields that are named."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @field_validator("*", mode="before")
    @classmethod
    def _is_no_truth(cls, value: object, info: ValidationInfo) -> object:
        """pydantic takes true for 1."""
        if isinstance(value, bool) and info.field_name is not None:
            kinds = _kinds(cls.model_fields[info.field_name].annotation)
            if bool not in kinds and kinds & {int, float}:
                raise ValueError("must be a number")
        return value


def _kinds(annotation: Any) -> set[Any]:
    """The types that a value may be of, without those inside of lists."""
    if get_origin(annotation) is Annotated:
        return _kinds(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return {kind for one in get_args(annotation) for kind in _kinds(one)}
    return {annotation}


def read_text(path: Path, what: str, most_bytes: int = MAX_FILE_BYTES) -> str:
    """The text of a YAML file that describes `what`. InputError when it cannot be read, or is too large to be that."""
    try:
        if path.stat().st_size > most_bytes:
            raise InputError(str(path), f"is too large for a file of {what}", f"at most {most_bytes >> 20} MiB")
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        hint = "name a file that is there" if isinstance(error, FileNotFoundError) else ""
        raise InputError(str(path), f"cannot be read: {error.strerror or error}", hint) from None
    except UnicodeDecodeError:
        raise InputError(str(path), "is no text in UTF-8", "save it as UTF-8") from None


def read_yaml(text: str, place: str) -> tuple[Any, dict[Path_, int]]:
    """The value of a YAML text, and the line of everything in it. Raises InputError that names `place` and the line."""
    documents = read_documents(text, place)
    if len(documents) > 1:
        raise InputError(f"{place} line {documents[1][1][()]}", "is no YAML: there is a second document", "one a file")
    return documents[0] if documents else (None, {})


def read_documents(text: str, place: str, most_deep: int = MOST_DEEP) -> list[tuple[Any, dict[Path_, int]]]:
    """The documents of a YAML text, each as `read_yaml` gives it. Time and memory are bounded by the text's length:
    nothing here recurses, and what aliases stand for counts each time."""
    try:
        return _Reader(place, most_deep).read(text)
    except yaml.MarkedYAMLError as error:
        line = min(error.problem_mark.line, text.count("\n")) + 1 if error.problem_mark else 1
        raise InputError(f"{place} line {line}", f"is no YAML: {error.problem or error.context}", MEND) from None
    except yaml.YAMLError as error:
        raise InputError(place, f"is no YAML: {str(error).splitlines()[0]}", MEND) from None


@dataclass(slots=True)
class _Open:
    """A list or mapping that has not ended. values_before: read before it; key: of its next value, None before that."""

    value: Any
    path: Path_
    anchor: str | None
    values_before: int
    key: str | None = None


class _Reader:
    """Builds values from the parser's events."""

    def __init__(self, place: str, most_deep: int) -> None:
        self._place, self._most_deep = place, most_deep
        self._scalars = yaml.SafeLoader("")
        self._documents: list[tuple[Any, dict[Path_, int]]] = []
        self._open: list[_Open] = []
        self._anchors: dict[str, tuple[Any, int]] = {}  # the value, and how many values it holds
        self._count = 0
        self._lines: dict[Path_, int] = {}

    def read(self, text: str) -> list[tuple[Any, dict[Path_, int]]]:
        for event in yaml.parse(text, Loader=_LOADER):
            if isinstance(event, yaml.ScalarEvent):
                self._scalar(event)
            elif isinstance(event, yaml.CollectionStartEvent):
                self._begin(event)
            elif isinstance(event, yaml.CollectionEndEvent):
                self._end(event)
            elif isinstance(event, yaml.AliasEvent):
                self._alias(event)
            elif isinstance(event, yaml.DocumentStartEvent):
                self._anchors, self._lines = {}, {}
        return self._documents

    def _path(self, event: Any) -> Path_:
        """Where the value that begins with this event belongs."""
        if not self._open:
            return ()
        top = self._open[-1]
        if isinstance(top.value, list):
            return (*top.path, len(top.value))
        if top.key is None:
            raise InputError(self._where(event), "a key that is no text", "write it as `name: value`")
        return (*top.path, top.key)

    def _scalar(self, event: Any) -> None:
        top = self._open[-1] if self._open else None
        if top is not None and isinstance(top.value, dict) and top.key is None:
            if event.value in top.value:
                raise InputError(self._where(event), f"{event.value!r} is there twice", "keep one of them")
            top.key = event.value
            self._lines[*top.path, event.value] = event.start_mark.line + 1
            return
        self._add(self._path(event), self._constructed(event), event, 1)

    def _begin(self, event: Any) -> None:
        path = self._path(event)
        if len(path) > self._most_deep:
            raise InputError(
                self._where(event), "is nested too deeply, or an alias of itself", f"at most {self._most_deep} deep"
            )
        self._lines.setdefault(path, event.start_mark.line + 1)
        value: Any = {} if isinstance(event, yaml.MappingStartEvent) else []
        self._open.append(_Open(value, path, event.anchor, self._count))

    def _end(self, event: Any) -> None:
        done = self._open.pop()
        self._add(done.path, done.value, event, 1, done)

    def _alias(self, event: Any) -> None:
        path = self._path(event)
        if event.anchor not in self._anchors:
            raise InputError(self._where(event), f"is no YAML: no value {event.anchor!r} before its alias")
        value, count = self._anchors[event.anchor]
        self._add(path, value, event, count)

    def _add(self, path: Path_, value: Any, event: Any, count: int, done: _Open | None = None) -> None:
        self._count += count
        if self._count > MOST_VALUES:
            raise InputError(self._where(event), "aliases stand for too much", f"at most {MOST_VALUES:,} values")
        self._lines.setdefault(path, event.start_mark.line + 1)
        anchor = done.anchor if done else getattr(event, "anchor", None)
        if anchor is not None and not isinstance(event, yaml.AliasEvent):
            self._anchors[anchor] = (value, self._count - done.values_before if done else 1)
        if not self._open:
            self._documents.append((value, self._lines))
        elif isinstance(top := self._open[-1].value, list):
            top.append(value)
        else:
            top[path[-1]] = value
            self._open[-1].key = None

    def _constructed(self, event: Any) -> Any:
        tag = event.tag
        if tag is None or tag == "!":
            if not event.implicit[0]:
                return event.value  # quoted
            tag = self._scalars.resolve(yaml.ScalarNode, event.value, event.implicit)
        try:
            return self._scalars.construct_object(yaml.ScalarNode(tag, event.value))
        except (yaml.YAMLError, ValueError) as error:
            problem = str(error).splitlines()[0] if len(event.value) < MOST_DIGITS else "is too long for a number"
            shown = shown_path(self._path(event))
            where = f"{self._where(event)}{': ' if shown else ''}{shown}"
            raise InputError(where, problem) from None

    def _where(self, event: Any) -> str:
        return f"{self._place} line {event.start_mark.line + 1}"


def input_error(error: ValidationError, lines: dict[Path_, int], place: str, known: Sequence[str]) -> InputError:
    """The first of pydantic's errors with its line, and the places of the others. known: the fields there are, to
    suggest the nearest."""
    errors = error.errors(include_url=False, include_input=False)
    first = first_of(errors)
    path = tuple(first["loc"])
    shown = shown_path(path)
    where = f"{place} line {line_of(path, lines)}{': ' if shown else ''}{shown}"
    hint = with_others(hint_of(first, known), errors, lambda path: f"line {line_of(path, lines)} {shown_path(path)}")
    return InputError(where, problem_of(first), hint)


def has_entry_with(data: dict[str, Any], name: str, field: str) -> bool:
    """Whether an entry of this list has the field: it tells a file that is taken for another one."""
    entries = data.get(name)
    return isinstance(entries, list) and any(isinstance(one, dict) and field in one for one in entries)


def shown_path(path: Path_) -> str:
    """A place in a file as people write it.

    >>> shown_path(("pools", 0, "selector"))
    'pools[0].selector'
    """
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")


def line_of(path: Path_, lines: dict[Path_, int]) -> int:
    """The line of the nearest thing that the file has."""
    while path not in lines and path:
        path = path[:-1]
    return lines.get(path, 1)
