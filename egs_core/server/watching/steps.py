"""What a rule does: which steps, each with what keeps it from being done (select), and doing one (issue).

drain, drain_host   as `egs drain`           requeue   the run stops with its grace and waits again for other GPUs,
stop                as `egs abort`                     where it has said that it may (`egs run --requeue`)
checkpoint          the run is asked to save its work, as it has said how (`egs run --checkpoint-signal`)
hook                whoever follows (`egs watch follow`) starts a command; here it is only said
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from egs_core.client import messages as c
from egs_core.server import controls
from egs_core.server.book import CONFIG, Book, LogLine
from egs_core.server.principals import Principal
from egs_core.server.runs import Refusal, Run
from egs_core.server.watching.conditions import Finding, called_device, holders
from egs_core.server.watching.tasks import GpuTask
from egs_core.watch_rules import Action, Rule

ORDER: tuple[Action, ...] = ("drain", "drain_host", "checkpoint", "requeue", "stop", "hook")
UNBOUND = ("checkpoint",)
"""What takes nothing from anybody: it does not count for the bound of an hour."""


class Step(NamedTuple):
    """subject: HOST/DEVICE, a host, or a run's number. left: why there is nothing to do; "" where there is."""

    action: Action
    subject: str
    left: str = ""


def who_is(rule: Rule) -> Principal:
    """By this name the log has what it does."""
    return Principal(f"rule {rule.name}", "operator", None, "egs serve --rules")


def select_steps(rule: Rule, book: Book, found: Finding) -> list[Step]:
    """All but the alert, in the order of their doing: a device is drained before what runs on it asks for another."""
    return [step for action in ORDER for step in _steps(rule, book, found, action)]


def _steps(rule: Rule, book: Book, found: Finding, action: Action) -> Iterator[Step]:
    if action not in rule.do:
        return
    if action == "hook":
        yield Step(action, found.subject)
        return
    if found.task is not None:
        yield Step(action, found.subject, "is a task of a framework, which starts and stops it: rules tell of it")
        return
    if found.place is not None and action in ("drain", "drain_host"):
        host, drained = found.place[0], book.drained_of(found.place[0])
        numbers = [found.number] if action == "drain" else range(len(book.views.devices_of(host)))
        subject = called_device(book, found.place) if action == "drain" else book.views.name_of(host)
        yield Step(action, subject, "is drained already" if all(one in drained for one in numbers) else "")
        return
    runs = holders(book, found.place, found.number) if found.place is not None else _run(book, found.run)
    for run in runs:
        yield Step(action, run.id, _left(book, run, action))


def _run(book: Book, number: str) -> list[Run]:
    run = book.runs.get(number)
    return [run] if run is not None and run.is_open else []


def _left(book: Book, run: Run, action: Action) -> str:
    if run.stop:
        return "is about to end already"
    if action == "stop":
        return ""
    if action == "checkpoint":
        return "" if run.saving else "has not said how it saves its work (egs run --checkpoint-signal)"
    if run.is_request or run.inside:
        return "is, or is in, a GPU request: it has its GPUs to their end"
    if not run.requeue:
        return "has not said that it may start again (egs run --requeue or --suspend)"
    if any(one.lease is None or one.stop for one in book.gangs.members(run)):
        return "has a gang that is about to start or to end"
    return ""


def issue_step(rule: Rule, book: Book, step: Step, why: str, task: GpuTask | None = None) -> str:
    """Do it; "" where it is done, else why it is not. It is in the log once the batch is durable. task: of a framework,
    for whose sake it is done."""
    who, reason = who_is(rule), shortened(why)
    try:
        if step.action in ("drain", "drain_host"):
            controls.drain(book, who, c.Drain(target=step.subject))
        elif step.action == "stop":
            controls.control(book, who, step.subject, "abort", c.Control(reason=reason, grace_s=CONFIG.grace_s))
        elif step.action == "checkpoint":
            ask_for_checkpoint(book, who, book.runs[step.subject], reason)
        elif step.action == "hook":
            whose = task or book.runs.get(step.subject)
            book.lines.append(LogLine(book.now, who, "hook", step.subject, whose.team if whose else "", reason))
        elif step.action == "requeue":
            evict(book, who, book.runs[step.subject], reason)
    except Refusal as refusal:
        return str(refusal)
    return ""


def ask_for_checkpoint(book: Book, who: Principal, run: Run, why: str) -> None:
    """Its supervisor hears of it by its new version."""
    book.log(who, "checkpoint", run, why)
    book.touch(run).checkpoints += 1
    run.checkpoint_at = book.now


def evict(book: Book, who: Principal, run: Run, why: str) -> None:
    """It stops, with its gang, and waits again: for GPUs that are not drained."""
    for one in book.gangs.members(run):
        if one.stop:
            continue  # with another of its gang on the same device
        book.log(who, "requeue", one, why)
        if one.lease is not None and not one.is_claimed:
            book.take_back(one, one.lease, why)
            continue
        book.touch(one).stop = f"requeued by {who.name}: {why}"
        one.is_evicted, one.grace_s = True, CONFIG.grace_s
        book.boxed.pop(one.id, None)


def shortened(text: str, most: int = 200) -> str:
    """As a reason may be.

    >>> shortened("abcdef", 4)
    'abc…'
    """
    return text if len(text) <= most else f"{text[: most - 1]}…"
