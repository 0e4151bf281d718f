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

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from egs_core.engine.quota import NO_LIMIT, UNLIMITED, Amounts, QueueSpec
from egs_core.engine.usage import Limits
from egs_core.errors import InputError
from egs_core.yaml_file import FileModel, Seconds, Size, input_error, line_of, read_text, read_yaml

Amount = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]


class Quota(FileModel):
    """Amounts by kind of resource; one that is left out is not limited."""

    cpus: Amount | None = None
    gpus: Amount | None = None
    memory: Size | None = None

    def to_amounts(self) -> Amounts:
        return _milli(self.cpus), _milli(self.gpus), UNLIMITED if self.memory is None else self.memory


class TaskLimits(FileModel):
    """The most that each task of a queue may use, and what becomes of it then: fail, requeue or end."""

    max_runtime: Seconds | None = None
    max_gpu_time: Seconds | None = None
    max_cost: Amount | None = None
    idle_timeout: Seconds | None = None
    on_limit: Literal["", "fail", "requeue", "end"] = ""

    def to_limits(self) -> Limits:
        return Limits(self.max_runtime, self.max_gpu_time, self.max_cost, self.idle_timeout, self.on_limit)


class Queue(FileModel):
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


class Queues(FileModel):
    """The whole file."""

    queues: Annotated[tuple[Queue, ...], Field(min_length=1)]


_FIELDS = (*Queue.model_fields, *Quota.model_fields, *TaskLimits.model_fields)


def load_queues(path: Path) -> tuple[QueueSpec, ...]:
    """The queues of a file. Raises InputError that names file and line."""
    return parse_queues(read_text(path, "queues"), str(path))


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


def _milli(amount: float | None) -> int:
    return UNLIMITED if amount is None else round(amount * 1000)
