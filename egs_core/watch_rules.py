"""Rules by which a site server watches devices and runs, from one YAML file; every error names the file and the line.

dry_run: false                     # left out: true, and nothing is done, only said
most_an_hour: 10                   # firings that change something, all rules together
alerts: {webhook: "https://chat.example.org/hooks/…"}    # and, or: apprise: ["mailto://…", "slack://…"]
rules:
  - name: too hot
    when: {temperature_above: 88}  # one condition
    for: 60s                       # it has to hold for so long without a break
    do: [alert, drain]
  - name: idle
    when: {idle_for: 30m}
    queues: [research]             # of runs: only those of these queues
    do: [alert, stop]
    dry_run: true
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec
from pydantic import AfterValidator, BeforeValidator, Field, ValidationError

from egs_core.client.messages import PLAIN
from egs_core.errors import InputError, listed
from egs_core.units import parse_seconds
from egs_core.yaml_file import FileModel, Path_, Seconds, input_error, line_of, read_text, read_yaml, shown_path

Action = Literal["alert", "drain", "drain_host", "checkpoint", "requeue", "stop", "hook"]
Kind = Literal["device", "run"]
Throttle = Literal["power", "heat", "hardware"]
FOR_S = 60.0
MOST_RULES = 100
MOST_S = 30 * 86400.0
MOST_XID = 10_000
CLEAR_S = 60.0
SAMPLES = 20

Span = Annotated[Seconds, Field(gt=0, le=MOST_S)]
ACTIONS: Mapping[Kind, tuple[Action, ...]] = {
    "device": ("alert", "drain", "drain_host", "checkpoint", "requeue", "stop", "hook"),
    "run": ("alert", "checkpoint", "requeue", "stop", "hook"),
}
LASTING = (
    "silent_for",
    "idle_for",
    "no_progress_for",
    "over_learned",
    "xid",
    "loss_not_falling_for",
    "loss_not_falling_steps",
    "unsaved_for",
)
"""Conditions that have a time of their own, or are a moment: `for` is none unless it is stated."""
OF_RUNS = (
    "idle_for",
    "no_progress_for",
    "over_learned",
    "loss",
    "loss_not_falling_for",
    "loss_not_falling_steps",
    "unsaved_for",
)
OF_TASKS = ("idle_for", "no_progress_for", "over_learned", "loss", "loss_not_falling_for", "loss_not_falling_steps")
"""Those that look at tasks of frameworks' drivers, too."""


def _unsaved(value: object) -> object:
    if value in (None, "auto"):
        return value
    try:
        seconds = parse_seconds(value)
    except InputError as error:
        raise ValueError(f"{error.problem}; {error.hint}, or auto") from None
    if not CLEAR_S <= seconds <= MOST_S:
        raise ValueError(f"must be from 1m to {MOST_S / 86400:g} days, or auto")
    return seconds


def _xids(value: object) -> object:
    numbers = value if isinstance(value, list | tuple) else ()
    if value in (None, "any") or (numbers and all(type(one) is int and 1 <= one <= MOST_XID for one in numbers)):
        return value
    raise ValueError("must be a list of numbers, as [79, 48], or any")


class When(FileModel):
    """What a rule looks at: exactly one of these."""

    temperature_above: Annotated[float, Field(ge=0, le=200)] | None = None
    """A GPU is hotter than so many degrees Celsius."""
    power_limit_below: Annotated[float, Field(gt=0, le=1e5)] | None = None
    """The power that a GPU may take now is less than so many watts: somebody, or the power supply, has capped it."""
    throttled: Annotated[tuple[Throttle, ...], Field(min_length=1)] | None = None
    """A GPU's clocks are held back: by its `power` cap, by `heat`, or by its `hardware` (a brake of the host's)."""
    memory_above: Annotated[float, Field(gt=0, lt=1)] | None = None
    """More than this share of a GPU's memory is in use."""
    ecc_errors: Annotated[int, Field(ge=1, le=10**9)] | None = None
    """A GPU's memory has had so many uncorrected errors since its driver was loaded."""
    xid: Annotated[tuple[int, ...] | Literal["any"] | None, BeforeValidator(_xids)] = None
    """The driver has told of an XID error of a GPU, one of these or any, in the last ten minutes."""
    silent_for: Span | None = None
    """Nothing has been heard of a GPU for so long: its driver does not answer, or the agent of its host is gone."""
    idle_for: Span | None = None
    """None of the GPUs that a run or a request holds has computed for so long, by what NVML measures. Also of a task of
    a framework's driver, where it is known which of the site's GPUs it has."""
    no_progress_for: Span | None = None
    """A run that tells of its work (`egs.work`, `egs.progress`) has told nothing new for so long. Also a task with GPUs
    of a framework's driver, of what it tells by `egs.progress`; so do the rules of its loss."""
    loss: Literal["nan"] | None = None
    """The latest loss that a run has told (`egs.progress`) is NaN or infinite."""
    loss_not_falling_for: Span | None = None
    """The loss that a run tells has not fallen in so long: not in the later half more than its spread explains."""
    loss_not_falling_steps: Annotated[int, Field(ge=2, le=10**12)] | None = None
    """The same in so many steps."""
    over_learned: Annotated[float, Field(ge=1, le=1000)] | None = None
    """A run takes longer than so many times the P99 of its like: of its user, name and GPUs; 20 at least. Also a task
    with GPUs of a framework's driver, of its user, workload, name and GPUs."""

    unsaved_for: Annotated[float | Literal["auto"] | None, BeforeValidator(_unsaved)] = None
    """A run that says how it saves its work (`egs run --checkpoint-signal`) was not asked to for so long; auto: for as
    long as is worth it, by how long that takes and how often runs fail."""

    @property
    def stated(self) -> dict[str, object]:
        return {name: value for name, value in self if value is not None}


def _plain(name: str) -> str:
    if not re.match(PLAIN, name):
        raise ValueError("must be one line, without characters that steer a terminal or turn the direction of writing")
    return name


class WatchRule(FileModel):
    """One rule."""

    name: Annotated[str, Field(min_length=1, max_length=60), AfterValidator(_plain)]
    """What the log, alerts and `egs watch` call it."""
    when: When
    """The condition."""
    for_s: Annotated[Annotated[Seconds, Field(ge=0, le=MOST_S)] | None, Field(alias="for")] = None
    """So long it has to hold without a break; left out: a minute, none where the condition has a time of its own."""
    do: Annotated[tuple[Action, ...], Field(min_length=1)]
    """What is done, once, until the condition has been gone for as long again, and a minute at least."""
    dry_run: bool | None = None
    """Only say what it would have done; left out: as the file says."""
    queues: tuple[str, ...] = ()
    """Of runs: only those of these queues; left out: all."""


def _is_address(url: str) -> str:
    problem = "must be an address that begins with https:// or http://"
    try:
        parts = urlsplit(url)
        _ = parts.port  # ValueError for what is none
    except ValueError:
        raise ValueError(problem) from None  # in words that show nothing of it
    if parts.scheme not in ("http", "https") or not parts.hostname or not url.isprintable() or " " in url:
        raise ValueError(problem)
    return url


def _is_notified(url: str) -> str:
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s]+", url) or not url.isprintable():
        raise ValueError("must be an address as Apprise reads it, mailto://… or slack://…")
    return url


class Alerts(FileModel):
    """Where alerts go: to each of these."""

    webhook: Annotated[str, Field(max_length=2000), AfterValidator(_is_address)] | None = None
    """Address to which each alert is posted, as JSON."""
    apprise: Annotated[
        tuple[Annotated[str, Field(max_length=2000), AfterValidator(_is_notified)], ...], Field(max_length=20)
    ] = ()
    """Addresses of Apprise, to which it is sent: mail, Slack and others. Needs `egs-core[alerts]`."""


class WatchFile(FileModel):
    """The whole file."""

    dry_run: bool = True
    """Only say what rules would have done."""
    most_an_hour: Annotated[int, Field(ge=1, le=10_000)] = 10
    """Firings in an hour that change something, of all rules together; further ones wait."""
    alerts: Alerts | None = None
    """Where alerts go."""
    rules: Annotated[tuple[WatchRule, ...], Field(min_length=1, max_length=MOST_RULES)]
    """The rules."""


class Condition(msgspec.Struct, frozen=True):
    """name: as in the file; bound: its value there. kind: of what it speaks."""

    name: str
    bound: float | tuple[str, ...] | tuple[int, ...]
    kind: Kind

    @property
    def words(self) -> str:
        """As the file has it."""
        bound = self.bound
        if isinstance(bound, tuple):
            return f"{self.name} {', '.join(map(str, bound)) or 'any'}"
        return f"{self.name} {span(bound) if self.name.endswith('_for') else f'{bound:g}'}"


class Rule(msgspec.Struct, frozen=True):
    """What the server is told. queues: none for all."""

    name: str
    when: Condition
    for_s: float
    do: tuple[Action, ...]
    is_dry: bool
    queues: tuple[str, ...] = ()

    @property
    def clear_s(self) -> float:
        """So long its condition has to be gone before it counts as new."""
        return max(self.for_s, CLEAR_S)


class Rules(msgspec.Struct, frozen=True):
    """All of a file. webhook: where alerts go, "" for nowhere; apprise: further addresses, as Apprise reads them."""

    rules: tuple[Rule, ...] = ()
    most_an_hour: int = 10
    webhook: str = ""
    apprise: tuple[str, ...] = ()

    def uses(self, name: str) -> bool:
        """Whether a rule has this condition."""
        return any(rule.when.name == name for rule in self.rules)

    def most(self, name: str) -> float:
        """The highest bound of a condition whose bound is a number; 0 where no rule has it."""
        bounds = [rule.when.bound for rule in self.rules if rule.when.name == name]
        return max((bound for bound in bounds if not isinstance(bound, tuple)), default=0.0)


FIELDS = (
    *WatchFile.model_fields,
    *When.model_fields,
    "for",
    *(set(WatchRule.model_fields) - {"for_s"}),
    "webhook",
    "apprise",
)


def load_rules(path: Path) -> Rules:
    """The rules of a file. Raises InputError that names file and line."""
    return parse_rules(read_text(path, "rules"), str(path))


def parse_rules(text: str, place: str = "rules") -> Rules:
    """The rules of a YAML text. Raises InputError that names `place` and the line."""
    data, lines = read_yaml(text, place)
    if not isinstance(data, dict):
        hint = "rules: [{name: hot, when: {temperature_above: 88}, do: [alert]}]"
        raise InputError(place, "needs a list of rules under `rules:`", hint)
    try:
        file = WatchFile.model_validate(data)
    except ValidationError as error:
        raise input_error(error, lines, place, FIELDS) from None
    names: set[str] = set()
    for number, rule in enumerate(file.rules):
        _check(file, number, rule, lines, place)
        if rule.name in names:
            raise InputError(
                _where(("rules", number, "name"), lines, place), f"a second rule {rule.name!r}", "give it another name"
            )
        names.add(rule.name)
    alerts = file.alerts or Alerts()
    found = tuple([_rule(file, rule) for rule in file.rules])
    return Rules(found, file.most_an_hour, alerts.webhook or "", alerts.apprise)


def _check(file: WatchFile, number: int, rule: WatchRule, lines: dict[Path_, int], place: str) -> None:
    stated, at = list(rule.when.stated), ("rules", number)
    if len(stated) != 1:
        problem = "needs a condition" if not stated else f"has {len(stated)} conditions: {', '.join(stated)}"
        raise InputError(_where((*at, "when"), lines, place), problem, "one a rule, as when: {temperature_above: 88}")
    kind = _kind(stated[0])
    if wrong := [one for one in rule.do if one not in ACTIONS[kind]]:
        hint = f"to a {kind}: {listed(ACTIONS[kind])}"
        raise InputError(_where((*at, "do"), lines, place), f"{stated[0]} is of runs, which none can {wrong[0]}", hint)
    if len(set(rule.do)) < len(rule.do):
        raise InputError(_where((*at, "do"), lines, place), "an action is there twice", "keep one of them")
    if kind == "device" and "requeue" in rule.do and not {"drain", "drain_host"} & set(rule.do):
        problem = "what is requeued could get the same GPU again"
        raise InputError(_where((*at, "do"), lines, place), problem, "do: [drain, requeue]")
    if "checkpoint" in rule.do and {"requeue", "stop"} & set(rule.do):
        problem = "what is stopped or requeued has its grace to save its work anyway"
        raise InputError(_where((*at, "do"), lines, place), problem, "leave checkpoint out")
    if stated[0] == "unsaved_for" and "checkpoint" not in rule.do:
        problem = "unsaved_for without a checkpoint fires once, and never again"
        raise InputError(_where((*at, "do"), lines, place), problem, "do: [checkpoint]")
    if {"requeue", "stop"} <= set(rule.do):
        raise InputError(_where((*at, "do"), lines, place), "requeue and stop exclude each other", "keep one of them")
    if "alert" in rule.do and not (file.alerts and (file.alerts.webhook or file.alerts.apprise)):
        hint = "alerts: {webhook: https://…} at the top, or leave alert out: the log and `egs watch` have all"
        raise InputError(_where((*at, "do"), lines, place), "an alert has nowhere to go", hint)
    if stated[0] == "xid" and rule.for_s:
        problem = "an XID is a moment: it does not hold for a while"
        raise InputError(_where((*at, "for"), lines, place), problem, "leave it out")
    if kind == "device" and rule.queues:
        problem = f"{stated[0]} is of GPUs, which are of no queue"
        raise InputError(_where((*at, "queues"), lines, place), problem, "leave it out")


def _where(path: Path_, lines: dict[Path_, int], place: str) -> str:
    return f"{place} line {line_of(path, lines)}: {shown_path(path)}"


def _kind(name: str) -> Kind:
    return "run" if name in OF_RUNS else "device"


def _rule(file: WatchFile, rule: WatchRule) -> Rule:
    ((name, value),) = rule.when.stated.items()
    words: dict[object, tuple[str, ...]] = {"any": (), "nan": ("nan",), "auto": ("auto",)}
    bound = value if isinstance(value, tuple) else words[value] if value in words else float(str(value))
    for_s = rule.for_s if rule.for_s is not None else 0.0 if name in LASTING else FOR_S
    is_dry = file.dry_run if rule.dry_run is None else rule.dry_run
    return Rule(rule.name, Condition(name, bound, _kind(name)), for_s, rule.do, is_dry, rule.queues)


def span(seconds: float) -> str:
    """A time, as the file has it.

    >>> span(90), span(120), span(5400), span(7200)
    ('90s', '2m', '90m', '2h')
    """
    for unit, length in (("h", 3600), ("m", 60)):
        if seconds >= length and seconds % length == 0:
            return f"{seconds / length:g}{unit}"
    return f"{seconds:g}s"
