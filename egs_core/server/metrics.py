"""What `GET /metrics` tells, in Prometheus's terms: from what the writer and the pools know at that moment. Pure.

Whoever is bound to teams gets the series of those teams alone: others' are left out of every family, and so are the
server's own figures, by which the work of others could be seen. Devices and hosts are everybody's, as in `egs ps`.
Labels are queues and teams, states, outcomes, hosts and frameworks, all of bounded number: never a run, user or name.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from egs_core import __version__
from egs_core.budgets import HOUR_S
from egs_core.engine.specs import UNLIMITED
from egs_core.server.book import Book
from egs_core.server.pools import DriverCount
from egs_core.server.principals import Principal
from egs_core.server.runs import RUNNING, WAITING, WHOLE_DEVICE
from egs_core.server.tally import COMMIT_BOUNDS_S, WAIT_BOUNDS_S, Buckets, GpuSeconds, Key, Tally

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
GPU = 1  # in `Amounts`
BY_KEY = ("queue", "team")
BY_CURRENCY = (*BY_KEY, "currency")
OUTCOMES = ("succeeded", "failed", "aborted", "lost")  # those that are there at zero, so that a rate begins


class Beside(msgspec.Struct, frozen=True):
    """What others than the logic know. drivers: of the pools; used_milli: of each queue in the pools; clients: that
    wait for something to change; steps: of the rules that watch, by rule, action and outcome."""

    drivers: Sequence[DriverCount] = ()
    used_milli: Mapping[str, int] = {}
    clients: int = 0
    steps: Mapping[tuple[str, str, str], int] = {}


def families(book: Book, tally: Tally, beside: Beside, who: Principal) -> list[Metric]:
    """All of an active server that this principal may see. Raises Refusal for one that sees nothing."""
    who.need_to_see()
    for queue in book.queues:
        tally.key(queue, book.team_of_queue.get(queue, ""))  # at zero from the start
    tally.settle(book.now)
    tally.look(book.open_runs(), book.now)
    return [
        _build(),
        _gauge("leader", "1 at the active server of the site, 0 at one that stands by", (), {(): 1.0}),
        *_everybodys(book),
        *_runs(book, tally, beside, who),
        *_quotas(book, beside, who),
        *_budgets(book, who),
        *_totals(tally, who),
        *_slos(book, tally, who),
        *_own(tally, beside, who),
    ]


def standby_families() -> list[Metric]:
    """Of a server that stands by: what it is, and that it is not the active one."""
    return [_build(), _gauge("leader", "1 at the active server of the site, 0 at one that stands by", (), {(): 0.0})]


def text_of(found: Iterable[Metric]) -> bytes:
    """As Prometheus reads it; labels may hold anything."""
    return generate_latest(_Collected(found))


class _Collected:
    """What Prometheus's client writes."""

    def __init__(self, found: Iterable[Metric]) -> None:
        self._found = found

    def collect(self) -> Iterable[Metric]:
        return self._found


# --- the parts ---


def _build() -> Metric:
    return InfoMetricFamily("egs_build", "Version of the site server", {"version": __version__})


def _everybodys(book: Book) -> list[Metric]:
    listed = book.views.listed(lambda _run: False).devices
    devices = Counter((one.host, one.state) for one in listed)
    hosts = Counter(
        "suspect" if state == "silent" else "up"
        for _, state, _, _ in book.views.listed_hosts(lambda _run: False)
        if state != "forgotten"
    )
    return [
        _gauge("devices", "GPUs of the site's hosts by state", ("host", "state"), devices),
        _gauge("hosts", "Hosts of the site: up, or suspect while nothing is heard of them", ("state",), _each(hosts)),
    ]


def _each(hosts: Counter[str]) -> dict[tuple[str, ...], int]:
    return {(state,): hosts[state] for state in ("up", "suspect")}


def _runs(book: Book, tally: Tally, beside: Beside, who: Principal) -> list[Metric]:
    held, states, sees = _held_by_runs(book, tally), _states(book, tally), _sees(who)
    tasks: Counter[tuple[str, ...]] = Counter()
    drivers: Counter[tuple[str, ...]] = Counter()
    for one in beside.drivers:
        source = one.framework, *tally.key(one.queue, one.team)
        drivers[source] += 1
        tasks[*source, "running"] += one.running
        tasks[*source, "waiting"] += one.waiting
        held[source] += one.gpus
    by_source = ("source", *BY_KEY)
    return [
        _gauge("devices_held", "GPUs held, parts as parts, and by what", by_source, _of(held, sees, 2)),
        _gauge("runs", "Open runs and GPU requests by state", (*BY_KEY, "state"), _of(states, sees, 1)),
        _gauge("tasks", "GPU tasks of frameworks by state", (*by_source, "state"), _of(tasks, sees, 2)),
        _gauge("drivers", "Drivers of frameworks that share a pool", by_source, _of(drivers, sees, 2)),
        *_waits(book, tally, sees),
    ]


def _held_by_runs(book: Book, tally: Tally) -> dict[tuple[str, ...], float]:
    held: dict[tuple[str, ...], float] = defaultdict(float)
    for run in book.open_runs():
        if run.lease is not None and not run.inside:
            held["request" if run.is_request else "run", *tally.key(run.queue, run.team)] += run.gpus
    return held


def _states(book: Book, tally: Tally) -> Counter[tuple[str, ...]]:
    counts = Counter((*tally.key(run.queue, run.team), run.state) for run in book.open_runs())
    counts.update({(*key, state): 0 for key in tally.keys for state in (WAITING, RUNNING)})
    return Counter[tuple[str, ...]](counts)


def _waits(book: Book, tally: Tally, sees: Callable[[str], bool]) -> list[Metric]:
    oldest: dict[Key, float] = dict.fromkeys(tally.keys, 0.0)
    for seen in tally.open.values():
        if seen.waits_since is not None:
            oldest[seen.key] = max(oldest[seen.key], book.now - seen.waits_since)
    waits = {key: tally.waits.get(key, Buckets(WAIT_BOUNDS_S)) for key in tally.keys}
    text = "How long the run that waits for its turn the longest has done so"
    return [
        _gauge("oldest_wait_seconds", text, BY_KEY, _of(oldest, sees, 1)),
        _histogram("wait_seconds", "How long runs waited for their GPUs", BY_KEY, WAIT_BOUNDS_S, _of(waits, sees, 1)),
    ]


def _quotas(book: Book, beside: Beside, who: Principal) -> list[Metric]:
    nominal: dict[tuple[str, ...], float] = {}
    used: dict[tuple[str, ...], float] = {}
    borrowed: dict[tuple[str, ...], float] = {}
    for queue in book.engine.state.queues:
        name, most = queue.spec.name, queue.spec.nominal[GPU]
        team = book.team_of_queue.get(name, "")
        if name not in book.queues or not (who.teams is None or (team and who.is_of(team))):
            continue  # what is used of a queue without a team is not one team's
        milli = queue.used[GPU] + beside.used_milli.get(name, 0)
        used[name,] = milli / WHOLE_DEVICE
        if most != UNLIMITED:
            nominal[name,] = most / WHOLE_DEVICE
            borrowed[name,] = max(0, milli - most) / WHOLE_DEVICE
    return [
        _gauge("queue_nominal_gpus", "GPUs that the queue is promised; none without a quota", ("queue",), nominal),
        _gauge("queue_used_gpus", "GPUs that count against the queue's quota, in all pools", ("queue",), used),
        _gauge("queue_borrowed_gpus", "GPUs that the queue uses beyond its nominal quota", ("queue",), borrowed),
    ]


def _budgets(book: Book, who: Principal) -> list[Metric]:
    """Of those whose use it may see."""
    seen = [one for one in book.views.spending.views(who, book.team_of_queue) if one.used is not None]
    labels = {(one.queue, one.team or book.team_of_queue.get(one.queue, "")): one for one in seen}
    most = {key: one.gpu_hours * HOUR_S for key, one in labels.items() if one.cost is None}
    used = {key: (one.used or 0.0) * HOUR_S for key, one in labels.items() if one.cost is None}
    money = {(*key, one.currency): one for key, one in labels.items() if one.cost is not None}
    cost = {key: one.cost or 0.0 for key, one in money.items()}
    cost_used = {key: one.cost_used or 0.0 for key, one in money.items()}
    stopped = {key: float(one.then == "stop" and one.state == "used up") for key, one in labels.items()}
    return [
        _gauge("budget_gpu_seconds", "GPU seconds that the queue, or the team, may use in its period", BY_KEY, most),
        _gauge("budget_used_gpu_seconds", "GPU seconds of that used in this period, in all pools", BY_KEY, used),
        _gauge("budget_cost", "Money that the queue, or the team, may use in its period", BY_CURRENCY, cost),
        _gauge("budget_used_cost", "Money of that used in this period, in all pools", BY_CURRENCY, cost_used),
        _gauge("budget_stopped", "1 where the budget is used up and nothing new gets a GPU, else 0", BY_KEY, stopped),
    ]


def _totals(tally: Tally, who: Principal) -> list[Metric]:
    keys = [key for key in tally.keys if who.is_of(key[1])]
    gpu_s = {key: tally.gpu_s.get(key, GpuSeconds()) for key in keys}
    held, used = {key: one.held for key, one in gpu_s.items()}, {key: one.used for key, one in gpu_s.items()}
    wasted = {key: held[key] - used[key] for key in keys}
    ended: dict[tuple[str, ...], float] = {(*key, outcome): 0.0 for key in keys for outcome in OUTCOMES}
    ended |= {(*key, outcome): count for (key, outcome), count in tally.ended.items() if who.is_of(key[1])}
    return [
        _counter("gpu_held_seconds", "GPU seconds that runs and requests held", held),
        _counter("gpu_used_seconds", "GPU seconds held in which a command ran", used),
        _counter("gpu_wasted_seconds", "GPU seconds held in which no command ran", wasted),
        _counter("grants", "Leases given to runs and requests", {key: tally.grants[key] for key in keys}),
        _counter("evictions", "Runs told to stop for another", {key: tally.evictions[key] for key in keys}),
        _counter(
            "requeues", "Runs that stopped for another, and wait again", {key: tally.requeues[key] for key in keys}
        ),
        _counter("runs_ended", "Runs and requests that ended, by outcome", ended, (*BY_KEY, "outcome")),
    ]


def _slos(book: Book, tally: Tally, who: Principal) -> list[Metric]:
    """At zero from the start, so that a rate begins."""
    slos, sees, labels = tally.slos, _sees(who), (*BY_KEY, "slo")
    keys = [(queue, book.team_of_queue.get(queue, "")) for queue in slos.objectives]
    stated = {(*key, slo.name): slo.share for key in keys for slo in slos.objectives[key[0]]}
    events, errors = (
        dict.fromkeys(stated, 0) | {(*key, name): count for (key, name), count in counts.items()}
        for counts in (slos.events, slos.errors)
    )
    return [
        _gauge("slo_objective_ratio", "Share of events that has to be good", labels, _of(stated, sees, 1)),
        _counter("slo_events", "Events that an objective speaks of", _of(events, sees, 1), labels),
        _counter("slo_errors", "Those of them that were not good", _of(errors, sees, 1), labels),
    ]


def _own(tally: Tally, beside: Beside, who: Principal) -> list[Metric]:
    """By the server's own business a team could see how much others do."""

    def one(value: float) -> dict[tuple[str, ...], float]:
        return {(): value} if who.teams is None else {}

    commits: dict[tuple[str, ...], Buckets] = {(): tally.commits} if who.teams is None else {}
    steps = beside.steps if who.teams is None else {}
    return [
        _counter("rule_steps", "What rules that watch have done, or would have", steps, ("rule", "action", "outcome")),
        _histogram("commit_seconds", "How long the database took for a batch", (), COMMIT_BOUNDS_S, commits),
        _counter("commit_failures", "Batches that the database did not take", one(tally.failed_commits), ()),
        _gauge("journal_entries", "Entries of the journal since its last snapshot", (), one(tally.journal_entries)),
        _gauge("journal_bytes", "Size of the journal since its last snapshot", (), one(tally.journal_bytes)),
        _gauge("long_poll_clients", "Clients that wait for something to change", (), one(beside.clients)),
    ]


# --- series ---


def _sees(who: Principal) -> Callable[[str], bool]:
    return who.is_of


def _of(values: Mapping[Any, Any], sees: Callable[[str], bool], team_at: int) -> dict[Any, Any]:
    """What whoever asks may see. team_at: where the labels have the team."""
    return {labels: value for labels, value in values.items() if sees(labels[team_at])}


def _gauge(name: str, text: str, labels: Sequence[str], values: Mapping[Any, float]) -> Metric:
    return _filled(GaugeMetricFamily(f"egs_{name}", text, labels=labels), values)


def _counter(name: str, text: str, values: Mapping[Any, float], labels: Sequence[str] = BY_KEY) -> Metric:
    return _filled(CounterMetricFamily(f"egs_{name}", text, labels=labels), values)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, values: Mapping[Any, float]) -> Metric:
    for labels, value in sorted(values.items()):
        family.add_metric(list(labels), float(value))
    return family


def _histogram(
    name: str, text: str, labels: Sequence[str], bounds: Sequence[float], values: Mapping[Any, Buckets]
) -> Metric:
    family = HistogramMetricFamily(f"egs_{name}", text, labels=labels)
    for key, found in sorted(values.items()):
        total, buckets = 0, []
        for bound, count in zip([*bounds, float("inf")], found.counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else str(bound), float(total)))
        family.add_metric(list(key), buckets, found.sum)
    return family
