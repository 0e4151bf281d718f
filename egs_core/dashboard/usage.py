"""What a site's GPUs were used for, now and over time, and by which team: from its runs, as `egs cost` reckons, and
from what tasks of frameworks' drivers held, whose GPUs may be others. Pure.

used      while a command ran      held      from a command's start to its end, or as long as a GPU request had them
wasted    as of a run log: free, or held and not used, while a run waits for its turn (`runlog.flow`)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

import msgspec
import numpy as np

from egs_core.client.driver_use import DriverUse
from egs_core.client.messages import Device
from egs_core.client.outlines import Outline
from egs_core.cost.ledger import Ledger
from egs_core.cost.prices import HOUR_S, Prices
from egs_core.cost.served import uses_of_drivers, uses_of_runs
from egs_core.cost.uses import Use
from egs_core.dashboard.parts import BINS, Parts, card_row, chart, costs_table, kept
from egs_core.errors import InputError
from egs_core.report import units
from egs_core.report.html import Markup, tag
from egs_core.runlog.flow import Flow
from egs_core.runlog.steps import UNITS, Steps
from egs_core.units import two_places

SPANS = {"1h": 3600.0, "24h": 86400.0, "7d": 7 * 86400.0, "30d": 30 * 86400.0}
WORDS = {"1h": "hour", "24h": "24 hours", "7d": "7 days", "30d": "30 days"}
MOMENT_S = 1e-3
Part = tuple[float, float, float]  # start, end, GPUs


class Seen(msgspec.Struct, frozen=True):
    """What somebody sees of a site. now: seconds since 1970; is_whole: also what all teams do; prices: where they are
    known; misses: runs were left out that ended before this moment, None for none; drivers: what their tasks held."""

    runs: Sequence[Outline]
    devices: Sequence[Device]
    now: float
    is_whole: bool
    prices: Prices | None = None
    misses: float | None = None
    drivers: DriverUse = DriverUse(0.0, 0.0)


def usage_parts(seen: Seen, over: str) -> Parts:
    """The page. over: of `SPANS`, up to now."""
    window = seen.now - SPANS[over], seen.now
    uses = list(uses_of_runs(seen.runs, seen.now, seen.devices))
    flow = _flow(seen, uses, window[0])
    of_drivers = list(uses_of_drivers(seen.drivers.rows))
    ledger, problem = _ledger(seen, [*uses, *of_drivers], window)
    notes = [tag("p", note, class_="note") for note in _notes(seen, problem, window[0])]
    tasks_h = _added(Ledger(None, window), of_drivers).total.gpu_h_held
    shares = dict(ledger.shown("team"))
    currency = seen.prices.currency if seen.prices is not None and not problem else ""
    return {
        "title": (tag("h1", "Usage"), tag("p", f"the last {WORDS[over]}", id="status", role="status")),
        "now": (card_row(_now(seen, flow)),),
        "time": (card_row(_over(seen, flow, ledger, tasks_h, window)), *kept(_chart(seen, flow, window, over))),
        "teams": kept(costs_table(shares, currency)) or (tag("p", "No GPU was held in this time.", class_="empty"),),
        "notes": tuple(notes),
    }


def _flow(seen: Seen, uses: Sequence[Use], begin: float) -> Flow:
    """capacity: the GPUs that somebody has now or may have, so none that is drained, silent or used by what is no run;
    of somebody who does not see what others do, those that its runs held."""
    held = Steps.of_intervals((*use.held, use.gpus) for use in uses)
    useful = Steps.of_intervals((*part, use.gpus) for use in uses for part in use.used)
    blocked, none = Steps.of_intervals(_waits(seen)), Steps.of_intervals(())
    usable = float(sum(device.state in ("free", "held") for device in seen.devices))
    capacity = Steps.of_intervals([(begin, seen.now, usable)]) if seen.is_whole else held
    return Flow(capacity, held, useful, blocked, none, none)


def _waits(seen: Seen) -> Iterator[Part]:
    """When a run waited for its turn, and not for others or for somebody to resume it; each time, of one that was
    evicted."""
    ended = {run.id: run.ended_at for run in seen.runs}
    for run in seen.runs:
        if not run.gpus or run.inside:
            continue
        for start, waited_s, gpus in [
            *((one.started_at, one.waited_s, one.gpus) for one in run.earlier),
            (run.started_at, run.waited_s, run.gpus),
        ]:
            if start is not None and waited_s:
                yield start - waited_s, start, gpus
        if run.state == "waiting" and not run.after:
            since = [*(ended.get(one) or 0.0 for one in run.follows), *(one.ended_at for one in run.earlier)]
            yield max([run.submitted_at, *since]), seen.now, run.gpus


def _ledger(seen: Seen, uses: Sequence[Use], window: tuple[float, float]) -> tuple[Ledger, str]:
    """And why there is no money, where there are prices."""
    try:
        return _added(Ledger(seen.prices, window), uses), ""
    except InputError as error:
        return _added(Ledger(None, window), uses), str(error)


def _added(ledger: Ledger, uses: Iterable[Use]) -> Ledger:
    for use in uses:
        ledger.add(use)
    return ledger


def _now(seen: Seen, flow: Flow) -> list[tuple[str, str]]:
    """The last moment before now."""
    at = seen.now - MOMENT_S
    held, useful, wasted = [_gpus(one, at) for one in (flow.held, flow.useful, _wasted(seen, flow))]
    devices = [("GPUs", units.number(float(len(seen.devices))))]
    waiting = sum(run.gpus for run in seen.runs if run.state == "waiting" and not run.after and not run.inside)
    return [
        *(devices if seen.is_whole else []),
        ("Held now", units.number(held)),
        ("Used now", units.number(useful)),
        ("Wasted now", units.number(wasted)),
        ("GPUs waited for", units.number(waiting)),
        *([("Held by drivers' tasks", units.number(seen.drivers.gpus))] if seen.drivers.rows else []),
    ]


def _over(seen: Seen, flow: Flow, ledger: Ledger, tasks_h: float, window: tuple[float, float]) -> list[tuple[str, str]]:
    capacity_s, useful_s = flow.capacity.integral(window), flow.useful.integral(window)
    wasted_s = _wasted(seen, flow).integral(window)
    used, wasted = [units.share(one / capacity_s) if capacity_s else units.NONE for one in (useful_s, wasted_s)]
    total = ledger.shown_total
    money = [] if total.cost is None or seen.prices is None else [("Cost", f"{total.cost:.2f} {seen.prices.currency}")]
    return [
        ("GPU hours held", two_places(total.gpu_h_held)),
        *([("Of that drivers' tasks", two_places(tasks_h))] if tasks_h else []),
        ("GPU hours wasted", two_places(wasted_s / HOUR_S)),
        ("Used of all GPUs" if seen.is_whole else "Used of what was held", used),
        ("Wasted of all GPUs" if seen.is_whole else "Wasted of that", wasted),
        *money,
    ]


def _chart(seen: Seen, flow: Flow, window: tuple[float, float], over: str) -> Markup | None:
    edges = np.linspace(*window, BINS + 1)
    capacity, useful, wasted = [one.averages(edges) for one in (flow.capacity, flow.useful, _wasted(seen, flow))]
    if not capacity.max() and not useful.max():
        return None
    ends = f"{'1 ' * (over == '1h')}{WORDS[over]} ago", "now"
    if seen.is_whole:
        legend = "wasted: free, or held and not used, while a run waited for its turn; the line: all GPUs"
        label = "GPUs over time: used below, wasted above it; the line is what there is"
    else:
        legend = "wasted: held and not used; the line: all that was held"
        label = "GPUs of your teams over time: used below, held and not used above it"
    return chart("GPUs over time", label, capacity, useful, wasted, ends, legend)


def _wasted(seen: Seen, flow: Flow) -> Steps:
    """Of somebody who does not see what others do, and so not what is free: what is held and not used."""
    return flow.wasted if seen.is_whole else flow.idle_effective


def _notes(seen: Seen, problem: str, begin: float) -> Iterator[str]:
    yield "Runs and GPU requests of this site; GPU hours, in all and of teams, also of tasks of frameworks' drivers."
    if seen.drivers.since > begin:
        at = datetime.fromtimestamp(seen.drivers.since, UTC)
        yield f"Of those tasks what was held since {at:%Y-%m-%d %H:%M} UTC, when the server started."
    if seen.drivers.rows:
        yield "Their GPUs may be others than the site's: shares and the time line are of runs and requests alone."
        yield "`egs cost` of the server has runs and requests alone, too: drivers' tasks are in their run logs."
    if seen.is_whole:
        yield "The line is of the GPUs that runs may have now: none that is drained, silent or used by others."
        yield "GPUs that nobody had are in no team's row. A run that waits for its quota counts, too, as waiting."
    if problem:
        yield f"No money is told: {problem}"
    elif seen.prices is None:
        yield "`egs serve --prices FILE` says what a GPU costs."
    if any(one.label == "emulated" for one in seen.devices):
        yield "The GPUs are emulated: nobody pays for those."
    if seen.misses is not None and seen.misses > begin:
        yield "Not all of this time is kept: the server keeps the last 10,000 runs that have ended."
    if evicted := sum(run.evictions > len(run.earlier) for run in seen.runs):
        yield f"{evicted} runs were evicted under an older server: not all of what they held before is known."


def _gpus(steps: Steps, at: float) -> float:
    return float(steps.at(np.array([at]))[0]) / UNITS
