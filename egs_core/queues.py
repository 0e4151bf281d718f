"""Queues and their quotas from one YAML file; every error names the file and the line.

queues:
  - name: research
    cohort: lab                  # queues of one cohort may use each other's idle quota
    nominal: {gpus: 4, cpus: 64, memory: 256GiB}
    borrowing_limit: {gpus: 2}   # at most so much beyond nominal; a kind that is left out: no limit
    lending_limit: {gpus: 3}     # at most so much of nominal may others use
    weight: 2                    # of its fair share
    half_life: 1h                # how fast past usage is forgotten in the fair share
    max_wait: 30m                # of tasks that state none: then they go to the front
    deadline: 12h                # of workloads that state none, from their submission
    limits: {max_runtime: 24h, max_gpu_time: 96h, max_cost: 200}    # of each task, if it states no smaller ones
  - name: interactive
    cohort: lab
    nominal: {gpus: 1}
    borrowing_limit: {gpus: 0}   # a fixed quota: never more …
    lending_limit: {gpus: 0}     # … and never given away
    limits: {max_runtime: 2h, idle_timeout: 15m, on_limit: end}     # a time box: what has had it counts as succeeded
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from egs_core.engine.quota import NO_LIMIT, UNLIMITED, Amounts, QueueSpec
from egs_core.engine.usage import Limits
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


Amount = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
Seconds = Annotated[float, BeforeValidator(_seconds)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Quota(_Model):
    """Amounts by kind of resource; one that is left out is not limited."""

    cpus: Amount | None = None
    gpus: Amount | None = None
    memory: Annotated[int, BeforeValidator(_bytes)] | None = None

    def to_amounts(self) -> Amounts:
        return _milli(self.cpus), _milli(self.gpus), UNLIMITED if self.memory is None else self.memory


class TaskLimits(_Model):
    """The most that each task of a queue may use, and what becomes of it then: fail, requeue or end."""

    max_runtime: Seconds | None = None
    max_gpu_time: Seconds | None = None
    max_cost: Amount | None = None
    idle_timeout: Seconds | None = None
    on_limit: Literal["", "fail", "requeue", "end"] = ""

    def to_limits(self) -> Limits:
        return Limits(self.max_runtime, self.max_gpu_time, self.max_cost, self.idle_timeout, self.on_limit)


class Queue(_Model):
    """One queue as a user writes it; see the module for what the fields mean."""

    name: Annotated[str, Field(min_length=1)]
    cohort: str = ""
    nominal: Quota = Quota()
    borrowing_limit: Quota | None = None
    lending_limit: Quota | None = None
    weight: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] = 1.0
    half_life: Annotated[Seconds, Field(gt=0)] = 3600.0
    max_wait: Seconds | None = None
    limits: TaskLimits | None = None
    deadline: Seconds | None = None

    def to_spec(self) -> QueueSpec:
        """What the engine is told."""
        return QueueSpec(
            self.name,
            self.cohort,
            self.nominal.to_amounts(),
            self.borrowing_limit.to_amounts() if self.borrowing_limit else NO_LIMIT,
            self.lending_limit.to_amounts() if self.lending_limit else NO_LIMIT,
            self.weight,
            self.half_life,
            self.max_wait,
            self.limits.to_limits() if self.limits else None,
            self.deadline,
        )


class Queues(_Model):
    """The whole file."""

    queues: Annotated[tuple[Queue, ...], Field(min_length=1)]


_FIELDS = (*Queue.model_fields, *Quota.model_fields, *TaskLimits.model_fields)


def load_queues(path: Path) -> tuple[QueueSpec, ...]:
    """The queues of a file. Raises InputError that names file and line."""
    return parse_queues(read_text(path, "queues"), str(path))


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


def parse_queues(text: str, place: str = "queues") -> tuple[QueueSpec, ...]:
    """The queues of a YAML text. Raises InputError that names `place` and the line."""
    data, lines = read_yaml(text, place)
    if not isinstance(data, dict):
        raise InputError(place, "needs a list of queues under `queues:`", "queues: [{name: research}]")
    try:
        queues = Queues.model_validate(data).queues
    except ValidationError as error:
        raise input_error(error, lines, place, [*_FIELDS, "queues"]) from None
    seen: dict[str, int] = {}
    for number, queue in enumerate(queues):
        if seen.setdefault(queue.name, number) != number:
            line = line_of(("queues", number, "name"), lines)
            raise InputError(f"{place} line {line}", f"a second queue {queue.name!r}")
    return tuple([queue.to_spec() for queue in queues])


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


def _milli(amount: float | None) -> int:
    return UNLIMITED if amount is None else round(amount * 1000)
