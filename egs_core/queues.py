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
    order: arrival               # between its workloads: remaining_work (the default), dependents, arrival, or learned
    limits: {max_runtime: 24h, max_gpu_time: 96h, max_cost: 200}    # of each task, if it states no smaller ones
  - name: interactive
    cohort: lab
    nominal: {gpus: 1}
    borrowing_limit: {gpus: 0}   # a fixed quota: never more …
    lending_limit: {gpus: 0}     # … and never given away
    limits: {max_runtime: 2h, on_limit: end}     # a time box: what has had it counts as succeeded

The site server (`egs serve --queues FILE`) also reads whose the queues are, and who is in which team:

teams:
  - name: vision
    users: [ann, "4711"]         # of the host, by name, or by number; over TCP a token names the team
queues:
  - name: research
    team: vision                 # for this team alone; left out: for all

And which of the GPUs of its own host it keeps for which queue, and when:

reservations:
  - queue: research
    gpus: 4
    days: [mon, wed]             # every week; or once: date: 2026-12-07
    begin: "09:00"               # of the time zone; quoted, as YAML takes some such texts for numbers
    end: "11:00"                 # of the next day, where that is earlier; a whole day: "00:00" to "24:00"
    zone: Europe/Berlin
    lead: 4h                     # so long before, only what ends in time starts on them: by its time box

And what is promised to those who use a queue (`egs slo`); what would break it goes first within the queue:

queues:
  - name: research
    slo: {wait_p95: 10m, jct_p95: 4h, deadline_share: 0.95}

And how many GPU hours a queue, or all queues of a team, may use in a month:

queues:
  - name: research
    budget: {gpu_hours: 500}     # of a calendar month
teams:
  - name: vision
    budget:
      gpu_hours: 2000
      per: month                 # or week, from Monday, or day
      warn_at: 0.8               # from this part on, who submits is told
      then: stop                 # nothing new gets GPUs until the next month; or warn: it is only told
      zone: Europe/Berlin        # whose calendar; left out: UTC

`idle_timeout` is a known name that cannot be used yet: nothing measures whether a task is idle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from msgspec.structs import replace
from pydantic import AfterValidator, BeforeValidator, Field, ValidationError

from egs_core.budgets import Budget, Per, Then
from egs_core.calendar import DAY_MINUTES, DAYS, MOST_LEAD_S, Reservation, day_of, end_of, known_zone, minute_of
from egs_core.engine.rules.quota import left_of_quota
from egs_core.engine.specs import NO_LIMIT, UNLIMITED, Amounts, Limits, QueueSpec
from egs_core.engine.state.records import QueueState
from egs_core.errors import InputError, counted, listed
from egs_core.hints import HINTS
from egs_core.notices import MAX_COST_UNUSED, warn_once
from egs_core.slo import Objectives, Slo
from egs_core.yaml_file import FileModel, Path_, Seconds, Size, input_error, line_of, read_text, read_yaml

GPU = 1  # in `Amounts`
Minute = Annotated[int, BeforeValidator(minute_of)]
EndMinute = Annotated[int, BeforeValidator(end_of)]
Day = Annotated[str, BeforeValidator(day_of)]
Zone = Annotated[str, AfterValidator(known_zone)]
Amount = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]


class Quota(FileModel):
    """Amounts by kind of resource; one that is left out is not limited."""

    cpus: Amount | None = None
    """CPUs; a kind of resource that is left out is not limited."""
    gpus: Amount | None = None
    """GPUs."""
    memory: Size | None = None
    """Main memory."""

    def to_amounts(self) -> Amounts:
        return _milli(self.cpus), _milli(self.gpus), UNLIMITED if self.memory is None else self.memory


class TaskLimits(FileModel):
    """The most that each task of a queue may use, and what becomes of it then: fail, requeue or end."""

    max_runtime: Annotated[Seconds, Field(gt=0)] | None = None
    """The longest that one attempt at a task may run."""
    max_gpu_time: Annotated[Seconds, Field(gt=0)] | None = None
    """The most GPU time that a task may hold, in all its attempts together."""
    max_cost: Amount | None = None
    """The most that a task may cost, in all its attempts together, in the currency of the prices."""
    idle_timeout: Seconds | None = None
    """How long a task may be idle before it is stopped. Not available yet, and refused: use `max_runtime`."""
    on_limit: Literal["", "fail", "requeue", "end"] = ""
    """A task that is stopped at a limit has failed (`fail`, the default), starts again, or has succeeded (`end`)."""

    def to_limits(self) -> Limits:
        return Limits(**{HINTS[name].field if name in HINTS else name: value for name, value in self})


class GpuBudget(FileModel):
    """GPU hours, or money, that may be used in a month; for the site server alone."""

    gpu_hours: Amount | None = None
    """GPUs held, parts as parts, times the hours. Either this or `cost`."""
    cost: Amount | None = None
    """What they cost, by the file of prices (`egs serve --prices`)."""
    currency: Annotated[str, Field(max_length=20)] = ""
    """Of `cost`: that of the file of prices; left out: whatever that is."""
    per: Per = "month"
    """Of the calendar: a month, a week (from Monday) or a day."""
    warn_at: Annotated[float, Field(gt=0, le=1)] = 0.8
    """From this part of it on, who submits is told how much is used."""
    then: Then = "stop"
    """Once it is used up: nothing new gets GPUs before the next month (`stop`), or that is only told (`warn`)."""
    zone: Zone = "UTC"
    """Of whose calendar, as Europe/Berlin."""

    def to_budget(self, queues: tuple[str, ...], *, queue: str = "", team: str = "", is_shared: bool = False) -> Budget:
        hours, rest = self.gpu_hours or 0.0, (self.per, self.warn_at, self.then, self.zone, is_shared)
        return Budget(hours, queues, queue, team, *rest, cost=self.cost, currency=self.currency)


class Queue(FileModel):
    """One queue as a user writes it; see the module for what the fields mean."""

    name: Annotated[str, Field(min_length=1)]
    """Name of the queue."""
    team: str = ""
    """The team to which it belongs, for the site server alone; left out: everyone's."""
    cohort: str = ""
    """Cohort: queues of one cohort may use each other's idle quota."""
    nominal: Quota = Quota()
    """The quota that the queue is promised."""
    borrowing_limit: Quota | None = None
    """The most that it may use beyond `nominal`; left out: no limit."""
    lending_limit: Quota | None = None
    """The most of `nominal` that other queues may use; left out: all."""
    weight: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] = 1.0
    """Weight of its fair share."""
    half_life: Annotated[Seconds, Field(gt=0)] = 3600.0
    """How fast past usage is forgotten in the fair share."""
    max_wait: Seconds | None = None
    """`max_wait` of tasks that state none."""
    limits: TaskLimits | None = None
    """Limits of each task; a task's own hints may only lower them."""
    deadline: Seconds | None = None
    """Deadline of workloads that state none, from their submission."""
    order: Literal["remaining_work", "dependents", "arrival", "learned"] = "remaining_work"
    """Between its workloads: the one with the least work left first; the longest remaining path first, in whatever
    workload; or the workload that came first. Or `learned`: whichever of these, by what roll-outs of the
    queue say, in the site server's own pool and in `egs simulate`; elsewhere the first."""
    budget: GpuBudget | None = None
    """GPU hours, or money, that it may use in a month, for the site server alone."""
    slo: Objectives = Objectives()
    """What is promised to its users, for `egs slo` and alerts, by the site server alone. While too much fails, what
    would break a promise next goes first within the queue."""

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
            self.order,
        )


class TeamUsers(FileModel):
    """A team, whose members see and change only what is theirs; for the site server alone."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    """Name of the team."""
    users: tuple[str, ...] = ()
    """Users of the server's host who are in it, by name or by number. A user may be in several."""
    budget: GpuBudget | None = None
    """GPU hours, or money, that all its queues together may use in a month."""


class ReservedGpus(FileModel):
    """GPUs of the site server's own host that are kept for a queue at certain times."""

    queue: Annotated[str, Field(min_length=1)]
    """The queue, whose runs alone may have them then."""
    gpus: Annotated[int, Field(ge=1, le=1024)]
    """How many, whole ones."""
    days: tuple[Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"], ...] = ()
    """Days of the week on which they are kept."""
    date: Day | None = None
    """The one day on which they are kept, as 2026-12-07; instead of `days`."""
    begin: Minute
    """From when on, as "09:00"."""
    end: EndMinute
    """Until when, at most "24:00"; of the next day where it is earlier than `begin`."""
    zone: Zone
    """The time zone of all this, as Europe/Berlin or UTC."""
    lead: Annotated[Seconds, Field(ge=0, le=MOST_LEAD_S)] = 4 * 3600.0
    """So long before `begin`, only what ends in time starts on them; at most seven days."""

    def to_reservation(self) -> Reservation:
        days, day = tuple([DAYS.index(one) for one in self.days]), self.date or ""
        end = self.end % DAY_MINUTES
        return Reservation(self.queue, self.gpus, self.begin, end, self.zone, day, days, self.lead)


class Queues(FileModel):
    """The whole file."""

    queues: Annotated[tuple[Queue, ...], Field(min_length=1)]
    """The queues."""
    teams: tuple[TeamUsers, ...] = ()
    """Who is in which team, for the site server alone."""
    reservations: tuple[ReservedGpus, ...] = ()
    """GPUs that are kept for queues at certain times, by the site server alone."""


@dataclass(frozen=True)
class Teams:
    """Whose a site's queues are, and who is in which team. users: of each team, as the file names them; slos: what is
    promised to those who use a queue."""

    users: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    of_queue: Mapping[str, str] = field(default_factory=dict)
    slos: Mapping[str, tuple[Slo, ...]] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        return list(self.users)

    def of_user(self, name: str, uid: int) -> tuple[str, ...] | None:
        """A user's teams, as the file orders them; None where it names no team at all: everyone is of all. Users whom
        it does not name are together in the team without a name."""
        if not self.users:
            return None
        found = [team for team, users in self.users.items() if name in users or str(uid) in users]
        return tuple(found) or ("",)


_FIELDS = (
    *Queue.model_fields,
    *Objectives.model_fields,
    *TeamUsers.model_fields,
    *Quota.model_fields,
    *TaskLimits.model_fields,
    *ReservedGpus.model_fields,
    *GpuBudget.model_fields,
)


def load_queues(path: Path, *, has_prices: bool) -> tuple[QueueSpec, ...]:
    """The queues of a file. Raises InputError that names file and line.

    has_prices: whether the hardware has prices. Without them a cost is never reached, and `max_cost` is left out with
    one warning.
    """
    found = parse_queues(read_text(path, "queues"), str(path))
    if has_prices or all(queue.limits is None or queue.limits.max_cost is None for queue in found):
        return found
    warn_once(MAX_COST_UNUSED)
    return tuple(replace(q, limits=q.limits and replace(q.limits, max_cost=None)) for q in found)


def parse_queues(text: str, place: str = "queues") -> tuple[QueueSpec, ...]:
    """The queues of a YAML text. Raises InputError that names `place` and the line."""
    data, lines = read_yaml(text, place)
    if not isinstance(data, dict):
        raise InputError(place, "needs a list of queues under `queues:`", "queues: [{name: research}]")
    file = _validated(data, lines, place)
    queues = file.queues
    for number, queue in enumerate(queues):
        if queue.limits is not None and queue.limits.idle_timeout is not None:
            line = line_of(("queues", number, "limits", "idle_timeout"), lines)
            where = f"{place} line {line}: queues[{number}].limits.idle_timeout"
            raise InputError(where, "is not available yet: nothing measures whether a task is idle", "use max_runtime")
    seen: dict[str, int] = {}
    for number, queue in enumerate(queues):
        if seen.setdefault(queue.name, number) != number:
            line = line_of(("queues", number, "name"), lines)
            raise InputError(f"{place} line {line}", f"a second queue {queue.name!r}")
    _check_teams(file, lines, place)
    _check_budgets(file, lines, place)
    _check_reservations(file, lines, place)
    return tuple([queue.to_spec() for queue in queues])


def load_teams(path: Path) -> Teams:
    """Whose the queues of a file are, who is in which team, and what is promised. Raises InputError that names file and
    line."""
    file = _read(path)
    return Teams(
        {team.name: team.users for team in file.teams},
        {queue.name: queue.team for queue in file.queues if queue.team},
        {queue.name: slos for queue in file.queues if (slos := queue.slo.slos())},
    )


def load_reservations(path: Path) -> tuple[Reservation, ...]:
    """What of the site server's GPUs is kept for queues. Raises InputError that names file and line."""
    return tuple([one.to_reservation() for one in _read(path).reservations])


def load_budgets(path: Path) -> tuple[Budget, ...]:
    """The GPU hours, or money, that queues and teams may use. Raises InputError that names file and line."""
    file = _read(path)
    has_teams = bool(file.teams) or any(queue.team for queue in file.queues)
    of_queues = [
        queue.budget.to_budget((queue.name,), queue=queue.name, is_shared=has_teams and not queue.team)
        for queue in file.queues
        if queue.budget is not None
    ]
    of_teams = [
        team.budget.to_budget(_queues_of(file, team.name), team=team.name)
        for team in file.teams
        if team.budget is not None
    ]
    return (*of_queues, *of_teams)


def _queues_of(file: Queues, team: str) -> tuple[str, ...]:
    return tuple([queue.name for queue in file.queues if queue.team == team])


def _read(path: Path) -> Queues:
    """Raises InputError that names file and line."""
    text = read_text(path, "queues")
    parse_queues(text, str(path))
    data, lines = read_yaml(text, str(path))
    return _validated(data, lines, str(path))


def _check_budgets(file: Queues, lines: dict[Path_, int], place: str) -> None:
    owners: dict[str, tuple[Queue | TeamUsers, ...]] = {"queues": file.queues, "teams": file.teams}
    for kind, found in owners.items():
        for number, owner in enumerate(found):
            budget, at = owner.budget, (kind, number, "budget")
            if budget is None:
                continue
            where = f"{place} line {line_of(at, lines)}: {kind}[{number}].budget"
            if (budget.gpu_hours is None) == (budget.cost is None):
                hint = "gpu_hours: 500, or cost: 1500 with `egs serve --prices`"
                raise InputError(where, "is either of GPU hours or of money", hint)
            if budget.currency and budget.cost is None:
                raise InputError(where, "has a currency, and is of GPU hours", "cost: 1500, or leave currency out")


def _check_reservations(file: Queues, lines: dict[Path_, int], place: str) -> None:
    known = [queue.name for queue in file.queues]
    for number, one in enumerate(file.reservations):
        if one.queue not in known:
            line = line_of(("reservations", number, "queue"), lines)
            raise InputError(f"{place} line {line}", f"there is no queue {one.queue!r}", f"there are {listed(known)}")
        if (one.date is None) == (not one.days):
            line = line_of(("reservations", number), lines)
            problem = "a reservation has either days of the week or one date"
            raise InputError(f"{place} line {line}", problem, "days: [mon, wed], or date: 2026-12-07")
        if one.begin == one.end:
            line = line_of(("reservations", number, "end"), lines)
            hint = 'a whole day is begin: "00:00", end: "24:00"'
            raise InputError(f"{place} line {line}", "a reservation ends when it begins", hint)
        if one.gpus * 1000 > (most := _most_gpus(file.queues, known.index(one.queue))):
            line = line_of(("reservations", number, "gpus"), lines)
            kept = f"{counted(one.gpus, 'GPU')} {'is' if one.gpus == 1 else 'are'} kept for queue {one.queue!r}"
            problem = f"{kept}, which may have {most / 1000:g} at most"
            raise InputError(f"{place} line {line}", problem, "keep fewer, or raise its nominal or borrowing_limit")


def _most_gpus(queues: Sequence[Queue], number: int) -> int:
    """Thousandths of GPUs that a queue may have while nobody else has any."""
    specs = [queue.to_spec() for queue in queues]
    cohort = tuple([i for i, one in enumerate(specs) if one.cohort and one.cohort == specs[number].cohort])
    return left_of_quota([QueueState(spec, cohort) for spec in specs], number, GPU)


def _validated(data: object, lines: dict[Path_, int], place: str) -> Queues:
    try:
        return Queues.model_validate(data)
    except ValidationError as error:
        raise input_error(error, lines, place, [*_FIELDS, "queues", "teams", "reservations"]) from None


def _check_teams(file: Queues, lines: dict[Path_, int], place: str) -> None:
    known: list[str] = []
    for number, team in enumerate(file.teams):
        if team.name in known:
            line = line_of(("teams", number, "name"), lines)
            raise InputError(f"{place} line {line}", f"a second team {team.name!r}")
        known.append(team.name)
        if team.budget is not None and not _queues_of(file, team.name):
            line = line_of(("teams", number, "budget"), lines)
            problem = f"team {team.name!r} has no queue, so nothing would count against its budget"
            raise InputError(f"{place} line {line}", problem, f"team: {team.name} in a queue")
    for number, queue in enumerate(file.queues):
        if known and queue.team and queue.team not in known:
            line = line_of(("queues", number, "team"), lines)
            raise InputError(f"{place} line {line}", f"there is no team {queue.team!r}", f"there are {listed(known)}")


def _milli(amount: float | None) -> int:
    return UNLIMITED if amount is None else round(amount * 1000)
