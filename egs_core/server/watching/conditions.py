"""What is true now of each device or run that a rule looks at. Pure, and nothing is changed."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from egs_core.client.watching import DeviceHealth
from egs_core.errors import counted
from egs_core.runlog.labels import task_called
from egs_core.server.book import Book
from egs_core.server.flavors import key_of
from egs_core.server.hosts import OWN
from egs_core.server.runs import NOBODY, Run
from egs_core.server.watching.health import Health, Place
from egs_core.server.watching.saving import Failures, interval_s
from egs_core.server.watching.tasks import GpuTask, WatchedTask
from egs_core.server.watching.trends import Trend
from egs_core.watch_rules import OF_TASKS, SAMPLES, Rule, span

LearnedKey = tuple[str, str, float, str]  # user, name, GPUs, and their flavor


class Finding(NamedTuple):
    """Of one device (place, and its number on its host), run, or task of a framework. holds: None: what the rule looks
    at is not known now. text: what is, with the numbers."""

    subject: str
    holds: bool | None
    text: str
    place: Place | None = None
    number: int = 0
    run: str = ""
    task: GpuTask | None = None


class Learned:
    """P99 of how long runs of one user, name, number of GPUs and flavor took that succeeded, of those that a site
    keeps."""

    AGAIN_S = 60.0

    def __init__(self) -> None:
        self._p99: dict[LearnedKey, float] = {}
        self._at = -math.inf

    def p99_s(self, book: Book, run: Run) -> float | None:
        """None where too few have ended."""
        if book.now - self._at >= self.AGAIN_S:
            self._at, self._p99 = book.now, _p99s(book.ended)
        return self._p99.get(_key(run))


def _p99s(ended: Iterable[Run]) -> dict[LearnedKey, float]:
    found: defaultdict[LearnedKey, list[float]] = defaultdict(list)
    for run in ended:
        if run.outcome == "succeeded" and run.started_at is not None and run.ended_at is not None:
            found[_key(run)].append(run.ended_at - run.started_at)
    return {
        key: sorted(times)[math.ceil(0.99 * len(times)) - 1] for key, times in found.items() if len(times) >= SAMPLES
    }


def _key(run: Run) -> LearnedKey:
    return *key_of(run), run.flavor


class Past(NamedTuple):
    """What runs before say."""

    learned: Learned
    failures: Failures


def findings(
    rule: Rule, book: Book, health: Health, past: Past, tasks: Sequence[WatchedTask] = ()
) -> Iterator[Finding]:
    """One for each device or run that it looks at. tasks: of frameworks, that run."""
    if rule.when.kind == "device":
        for place, number in devices(book):
            holds, text = _of_device(rule, book, health, place)
            called = called_device(book, place)
            yield Finding(called, holds, f"GPU {called} {text}", place, number)
        return
    for run in book.open_runs():
        if run.is_claimed and not run.stop and (not rule.queues or run.queue in rule.queues):
            found = _of_run(rule, book, health, past, run)
            if found is not None:
                yield Finding(run.id, found[0], f"run {run.id} ({run.name}) {found[1]}", run=run.id)
    for task, p99_s in tasks if rule.when.name in OF_TASKS else ():
        if not rule.queues or task.queue in rule.queues:
            holds, text = _of_task(rule, book, health, task, p99_s)
            named = task_called(task.name, task.task)
            called = f"task {named} of driver {task.driver} ({task.framework}: {task.workload}, {task.user})"
            yield Finding(task.called, holds, f"{called} {text}", task=task)


def devices(book: Book) -> list[tuple[Place, int]]:
    """All of the site, each with its number on its host."""
    hosts = [OWN, *(host.name for host in book.hosts.joined())]
    return [((host, one.id), n) for host in hosts for n, one in enumerate(book.views.devices_of(host))]


def called_device(book: Book, place: Place) -> str:
    """As `egs drain` takes it."""
    return f"{book.views.name_of(place[0])}/{place[1]}"


def holders(book: Book, place: Place, number: int) -> list[Run]:
    """Runs and requests that hold it; what runs in a request is the request's."""
    open_runs = book.open_runs()
    held = [run for run in open_runs if run.lease is not None and not run.inside and run.host == place[0]]
    return [run for run in held if run.lease is not None and number in run.lease.devices]


# --- devices ---

Told = tuple[bool | None, str]


def _of_device(rule: Rule, book: Book, health: Health, place: Place) -> Told:
    now, bound = book.now, rule.when.bound
    if rule.when.name == "silent_for":
        heard_at = health.heard_at(place, is_watched=_is_watched(book, place[0]))
        if heard_at is None:
            return None, "is emulated: nothing is heard of it"
        silent_s = now - heard_at
        return silent_s >= _number(rule), f"has not been heard of for {silent_s:.0f} s, at least {span(_number(rule))}"
    if rule.when.name == "xid":
        wanted = bound if isinstance(bound, tuple) else ()
        told = [number for number in health.xids(place, now) if not wanted or number in wanted]
        listed = ", ".join(map(str, dict.fromkeys(told)))
        return bool(told), f"has had XID {listed} in the last ten minutes" if told else "has had no such XID"
    found = health.of(place, now)
    return (None, "is not measured now") if found is None else MEASURED[rule.when.name](rule, found)


def _is_watched(book: Book, host: str) -> bool:
    return book.offer.is_watched if host == OWN else book.hosts.all[host].is_watched


def _temperature(rule: Rule, found: DeviceHealth) -> Told:
    return _beyond(rule, found.temperature_c, "has {:g} °C", "above", "tells no temperature")


def _power_limit(rule: Rule, found: DeviceHealth) -> Told:
    return _beyond(rule, found.power_limit_w, "may take {:g} W", "below", "tells no power limit")


def _beyond(rule: Rule, value: float | None, words: str, side: str, unknown: str, form: str = "g") -> Told:
    """Whether a value is above or below the rule's bound. words: where the value is written."""
    if value is None:
        return None, unknown
    holds = value > _number(rule) if side == "above" else value < _number(rule)
    return holds, f"{words.format(value)}, {_side(holds, side)} {_number(rule):{form}}"


def _throttled(rule: Rule, found: DeviceHealth) -> Told:
    if found.throttled is None:
        return None, "does not tell whether its clocks are held back"
    wanted = rule.when.bound if isinstance(rule.when.bound, tuple) else ()
    held = [one for one in found.throttled if one in wanted]
    return bool(held), f"has its clocks held back by {' and '.join(held)}" if held else "has free clocks"


def _memory(rule: Rule, found: DeviceHealth) -> Told:
    unknown = "does not tell how much memory is in use"
    return _beyond(rule, found.memory_used, "has {:.1%} of its memory in use", "above", unknown, ".1%")


def _ecc(rule: Rule, found: DeviceHealth) -> Told:
    if found.ecc_errors is None:
        return None, "counts no ECC errors"
    is_reached = found.ecc_errors >= _number(rule)
    return (
        is_reached,
        f"has had {found.ecc_errors} uncorrected ECC errors, {_side(is_reached, 'at least')} {_number(rule):g}",
    )


MEASURED: dict[str, Callable[[Rule, DeviceHealth], Told]] = {
    "temperature_above": _temperature,
    "power_limit_below": _power_limit,
    "throttled": _throttled,
    "memory_above": _memory,
    "ecc_errors": _ecc,
}

# --- runs ---


def _of_run(rule: Rule, book: Book, health: Health, past: Past, run: Run) -> Told | None:
    """None for one that it does not look at."""
    if rule.when.name == "idle_for":
        return _idle(rule, book, health, run)
    if run.supervisor == NOBODY or run.started_at is None:
        return None  # a request does no work itself
    if rule.when.name.startswith("loss"):
        return _loss(rule, health.trend(run.id), book.now)
    if rule.when.name == "no_progress_for":
        told_at = health.told_at(run.id)
        if told_at is None:
            return None, "has told of no work yet (egs.work, egs.progress)"
        return _silent(rule, book.now - max(told_at, run.started_at))
    if rule.when.name == "unsaved_for":
        return _unsaved(rule, book, past.failures, run)
    return _over_learned(rule, book.now - run.started_at, past.learned.p99_s(book, run))


def _silent(rule: Rule, silent_s: float) -> Told:
    return (
        silent_s >= _number(rule),
        f"has told of no more work for {silent_s:.0f} s, at least {span(_number(rule))}",
    )


def _of_task(rule: Rule, book: Book, health: Health, task: GpuTask, p99_s: float | None) -> Told:
    """Of a framework's, which tells by its driver."""
    now = book.now
    if rule.when.name == "idle_for":
        return _task_idle(rule, book, health, task)
    if rule.when.name == "over_learned":
        return _over_learned(rule, task.took_s, p99_s)
    if rule.when.name.startswith("loss"):
        return _loss(rule, health.trend(task.key), now)
    told_at = health.told_at(task.key)
    if told_at is None:
        return None, "has not told yet how far it is (egs.progress)"
    return _silent(rule, now - told_at)


def _task_idle(rule: Rule, book: Book, health: Health, task: GpuTask) -> Told:
    """By NVML of the site's own devices, where the task has said that it has these."""
    places = {place[1]: place for place, _ in devices(book)} if task.devices else {}
    since = [health.idle_since(places[one], book.now) if one in places else None for one in task.devices]
    return _none_computes(rule, task.gpus, since, book.now, book.now - task.took_s)


def _over_learned(rule: Rule, took_s: float, p99_s: float | None) -> Told:
    if p99_s is None:
        return None, f"has no {SAMPLES} like it before it that succeeded"
    is_over = took_s > _number(rule) * p99_s
    text = f"has taken {took_s:.0f} s, {_side(is_over, 'more than')} {_number(rule):g} times its P99 of {p99_s:.0f} s"
    return is_over, text


def _unsaved(rule: Rule, book: Book, failures: Failures, run: Run) -> Told | None:
    if run.saving is None or run.started_at is None:
        return None
    unsaved_s = book.now - max(run.started_at, run.checkpoint_at or 0.0)
    text = f"was not asked for a checkpoint for {unsaved_s:.0f} s"
    if isinstance(rule.when.bound, tuple):
        between_s = failures.between_s(book.ended, book.now)
        most_s = interval_s(run.saving.takes_s, between_s, run.gang.size if run.gang else 1)
        often = f"a run fails every {between_s / 3600:.3g} h"
        return (
            unsaved_s >= most_s,
            f"{text}; one takes {span(run.saving.takes_s)}, {often}: worth it each {most_s:.0f} s",
        )
    return unsaved_s >= rule.when.bound, f"{text}, at least {span(rule.when.bound)}"


def _loss(rule: Rule, trend: Trend | None, now: float) -> Told:
    if trend is None:
        return None, "has told of no loss yet (egs.progress)"
    if rule.when.name == "loss":
        return trend.is_nan, f"tells a loss that is {_side(trend.is_nan, 'NaN')}"
    by_steps = rule.when.name == "loss_not_falling_steps"
    window = f"{_number(rule):g} steps" if by_steps else span(_number(rule))
    found = trend.halves_steps(_number(rule)) if by_steps else trend.halves_s(_number(rule), now)
    if found is None:
        return None, f"has not told enough losses in {window}"
    means = f"{found.later:.4g} on average in the later half, {found.earlier:.4g} in the earlier one"
    return not found.falls, f"has a loss that {'falls' if found.falls else 'has not fallen'} in {window}: {means}"


def _idle(rule: Rule, book: Book, health: Health, run: Run) -> Told | None:
    if run.lease is None or not run.lease.devices or run.inside:
        return None
    of_host = book.views.devices_of(run.host)
    since = [health.idle_since((run.host, of_host[number].id), book.now) for number in run.lease.devices]
    return _none_computes(rule, run.gpus, since, book.now, run.lease.claimed_at or run.lease.granted_at)


def _none_computes(rule: Rule, gpus: float, since: Sequence[float | None], now: float, begun: float) -> Told:
    """since: from when on each of the GPUs has not computed, None where that is not known; begun: from when on they are
    held."""
    known = [at for at in since if at is not None]
    if not known or len(known) < len(since):
        return None, "holds GPUs of which it is not known whether they compute"
    idle_s = now - max(*known, begun)
    text = f"holds {counted(gpus, 'GPU')}, of which none has computed for {idle_s:.0f} s"
    return idle_s >= _number(rule), f"{text}, at least {span(_number(rule))}"


def _number(rule: Rule) -> float:
    assert not isinstance(rule.when.bound, tuple)
    return rule.when.bound


def _side(holds: bool, word: str) -> str:
    return word if holds else f"not {word}"
