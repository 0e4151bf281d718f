"""The words and figures of the page: which run is before, the headline cards, the rows of the metrics table."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable

import msgspec

from egs_core.errors import InputError
from egs_core.report import units
from egs_core.report.lanes import NOT_TOLD
from egs_core.runlog.claims import Claim, claim_of, noise_between
from egs_core.runlog.intervals import Timeline
from egs_core.runlog.io import Run
from egs_core.runlog.metrics import UNTOLD, DeviceMetrics, RunMetrics, metrics_of
from egs_core.runlog.same_tasks import task_difference, task_names
from egs_core.runlog.timeline import build_timeline


class Shown(msgspec.Struct):
    """One run with all that the page says about it."""

    run: Run
    line: Timeline
    metrics: RunMetrics
    title: str


class Card(msgspec.Struct, frozen=True):
    """One headline figure; before and change are empty for a single run. better: None when nothing changed."""

    name: str
    value: str
    before: str = ""
    change: str = ""
    better: bool | None = None


class Row(msgspec.Struct, frozen=True):
    """One line of the table; an empty `values` makes it a heading."""

    name: str
    values: tuple[str, ...] = ()


def shown_runs(runs: list[Run]) -> list[Shown]:
    """The runs in the order of the page: the one before first, the others as given. Titles are unique."""
    first = next((run for run in runs if run.header.policy == "native"), runs[0])
    ordered = [first, *(run for run in runs if run is not first)]
    titles = [units.short(run.header.label or run.header.policy or "run") for run in ordered]
    out = []
    for number, (run, title) in enumerate(zip(ordered, titles, strict=True)):
        line = build_timeline(run.records)
        unique = title if titles.count(title) == 1 else f"{title} #{titles[: number + 1].count(title)}"
        out.append(Shown(run, line, metrics_of(line), unique))
    return out


class Comparison(msgspec.Struct):
    """Runs of two ways to do the same work, in pairs by their order. claim: None where nothing can be said."""

    before: list[Shown]
    after: list[Shown]
    claim: Claim | None

    @property
    def names(self) -> tuple[str, str]:
        """What the two ways are called: a run's title without its number."""
        return _plain_title(self.before), _plain_title(self.after)


def compared(shown: list[Shown]) -> Comparison | None:
    """The comparison of the headline: before is the first run with all that are alike; after the way whose policy is
    egs, else the last one. None for a single run."""
    if len(shown) == 1:
        return None
    ways = _ways(shown)
    before, others = ways[0], ways[1:]
    after = next((way for way in others if way[0].run.header.policy == "egs"), others[-1])
    return Comparison(before, after, _claim(before, after))


def _ways(shown: list[Shown]) -> list[list[Shown]]:
    """The runs by how they were made: policy and mode, where these are the same the title, else each by itself."""
    keys: list[Callable[[int], object]] = [
        lambda n: (shown[n].run.header.policy, shown[n].run.header.mode),
        lambda n: shown[n].run.header.label,
        lambda n: n,
    ]
    for key in keys:
        ways: dict[object, list[Shown]] = {}
        for number, run in enumerate(shown):
            ways.setdefault(key(number), []).append(run)
        if len(ways) > 1:
            break
    return list(ways.values())


def _claim(before: list[Shown], after: list[Shown]) -> Claim | None:
    pairs = list(zip(before, after, strict=False))
    times = [(one.metrics.makespan_s, other.metrics.makespan_s) for one, other in pairs]
    if all(run.run.header.driver == "sim" for pair in pairs for run in pair):
        return claim_of(times, noise=0.0, least_s=0.0)
    return claim_of(times, noise_between(before[0].line, after[0].line))


def _plain_title(runs: list[Shown]) -> str:
    return runs[0].title if len(runs) == 1 else runs[0].title.rpartition(" #")[0] or runs[0].title


def check_same_tasks(runs: list[Run]) -> None:
    """Raises InputError that names what differs where two runs are not of the same tasks."""
    names = [run.path or run.header.label or f"run {number + 1}" for number, run in enumerate(runs)]
    first = task_names(runs[0].records)
    for run, name in zip(runs[1:], names[1:], strict=True):
        if differs := task_difference(first, task_names(run.records), (names[0], name)):
            raise InputError(name, f"is not of the same tasks: {differs}", "compare runs of one pipeline")


def device_name(device: DeviceMetrics, most: int) -> str:
    """most: letters of its node."""
    which = NOT_TOLD if device.device == UNTOLD else f"GPU {device.device}"
    return f"{units.short(device.node or 'node', most)}, {which}"


def gpu_count(shown: Shown) -> int:
    """The most that each node offered, or of which the log tells."""
    found = Counter(one.node for one in shown.metrics.devices if one.device != UNTOLD)
    for record in shown.line.capacities:
        found[record.node] = max(found[record.node], record.gpus)
    return found.total()


# --- cards ------------------------------------------------------------------------------------------------------------

Figure = tuple[str, Callable[[RunMetrics], float | None], Callable[[float | None], str], str]


OF_TIME = ("Makespan", "Mean job time")


def _figures(metrics: RunMetrics) -> list[Figure]:
    """(name, value, wording, how a change is told: `share`, `count` or `amount`); for all of them less is better,
    except for useful time."""
    kind = metrics.wastage_kind
    device = kind.upper()
    return [
        ("Makespan", lambda m: m.makespan_s, units.seconds, "amount"),
        (f"Wasted {device} time", lambda m: m.kinds[kind].effective.by_volume, units.share, "share"),
        (f"Useful {device} time", lambda m: m.kinds[kind].utilisation_useful, units.share, "more share"),
        (f"{device} time held", lambda m: m.kinds[kind].held_s, lambda v: units.amount(v, f"{device}·s"), "amount"),
        ("Cold starts", lambda m: m.cold_starts, units.number, "count"),
        ("Mean job time", lambda m: m.mean_jct_s, units.seconds, "amount"),
    ]


def cards(comparison: Comparison | None, only: Shown) -> list[Card]:
    """The six headline figures: of the one run, or of the way after beside those of the way before, each the median
    over its runs. better: only where every pair agrees, and a difference in time is more than noise."""
    if comparison is None:
        return [Card(name, word(value_of(only.metrics))) for name, value_of, word, _ in _figures(only.metrics)]
    return [_compared_card(comparison, *figure) for figure in _figures(comparison.after[0].metrics)]


def _compared_card(
    comparison: Comparison,
    name: str,
    value_of: Callable[[RunMetrics], float | None],
    word: Callable[[float | None], str],
    how: str,
) -> Card:
    olds, news = ([value_of(run.metrics) for run in way] for way in (comparison.before, comparison.after))
    old, new = _median(olds), _median(news)
    change, better = _change(old, new, how)
    if any(_change(a, b, how)[1] != better for a, b in zip(olds, news, strict=False)):
        better = None
    if name in OF_TIME and better is not None and not (comparison.claim and comparison.claim.is_claimed):
        change, better = f"{change}, within the noise", None
    return Card(name, word(new), word(old), change, better)


def _median(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _change(old: float | None, new: float | None, how: str) -> tuple[str, bool | None]:
    if old is None or new is None:
        return "", None
    if how.endswith("share"):
        points = round((new - old) * 100, 1)
        text, difference = f"{points:+.1f}{units.NBSP}points", points
    elif how == "count" or old == 0:
        text, difference = f"{new - old:+,.0f}", new - old
    else:
        percent = round((new / old - 1) * 100)
        text, difference = f"{percent:+d}{units.NBSP}%", percent
    if difference == 0:
        return "no change", None
    return text.replace("-", "−"), (difference > 0) == how.startswith("more")  # noqa: RUF001  (a real minus sign)


def headline(comparison: Comparison | None, only: Shown) -> str:
    """One sentence that says what the page shows, and no more than its runs allow; see `runlog.claims`."""
    if comparison is None:
        return f"{only.title} took {units.seconds(only.metrics.makespan_s)}."
    (before, after), claim = comparison.names, comparison.claim
    old, new = (_median([run.metrics.makespan_s for run in way]) for way in (comparison.before, comparison.after))
    versus = f"{units.seconds(new)} instead of {units.seconds(old)}"
    if claim is None:
        return f"{after} took {units.seconds(new)}, {before} {units.seconds(old)}."
    word = "sooner" if claim.ratio > 1 else "later"
    if claim.pairs == 1:
        if claim.is_claimed:
            return f"{after} ended {claim.times:.1f}× {word} in one pair of runs: {versus}."  # noqa: RUF001  # the sign, not a letter
        return f"One pair of runs, no claim: {after} took {versus} with {before}, which is within the noise."
    within = f"95{units.NBSP}% interval {claim.low:.2f} to {claim.high:.2f}"
    if claim.is_claimed:
        times = f"{claim.times:.2f}× {word}"  # noqa: RUF001  # the sign, not a letter
        return f"{after} ended {times}, the median of {claim.pairs} pairs of runs ({within}): {versus}."
    return f"No claim from {claim.pairs} pairs of runs: {after} took {versus} with {before}, {within}."


# --- table ------------------------------------------------------------------------------------------------------------


def table_rows(shown: list[Shown]) -> list[Row]:
    """Every metric, one column a run."""

    def row(name: str, value: Callable[[RunMetrics], str]) -> Row:
        return Row(name, tuple(value(s.metrics) for s in shown))

    rows = [
        Row("Time"),
        row("Makespan", lambda m: units.seconds(m.makespan_s)),
        row("Job time, mean", lambda m: units.seconds(m.mean_jct_s)),
        row("Job time, median", lambda m: units.seconds(m.p50_jct_s)),
        row("Job time, 95th percentile", lambda m: units.seconds(m.p95_jct_s)),
        row("Job time, 99th percentile", lambda m: units.seconds(m.p99_jct_s)),
        row("Wait of a ready phase, mean", lambda m: units.seconds(m.wait.mean_s)),
        row("Wait for a GPU, mean", lambda m: units.seconds(m.wait_gpu.mean_s)),
        row("Wait for a GPU, 95th percentile", lambda m: units.seconds(m.wait_gpu.p95_s)),
    ]
    for kind in ("gpu", "cpu"):
        if any(s.metrics.kinds[kind].capacity_s or s.metrics.kinds[kind].held_s for s in shown):
            rows += _kind_rows(kind, row)
    return rows + _work_rows(row) + _preload_rows(shown, row)


MakeRow = Callable[[str, Callable[[RunMetrics], str]], Row]


def _kind_rows(kind: str, row: MakeRow) -> list[Row]:
    unit = f"{kind.upper()}·s"
    rows = [
        Row(f"{kind.upper()}s"),
        row("Wasted, effective, by volume", lambda m: units.share(m.kinds[kind].effective.by_volume)),
        row("Wasted, effective, by time", lambda m: units.share(m.kinds[kind].effective.by_time)),
        row("Wasted, nominal, by volume", lambda m: units.share(m.kinds[kind].nominal.by_volume)),
        row("Wasted, nominal, by time", lambda m: units.share(m.kinds[kind].nominal.by_time)),
        row("Kept back by quota or reservation", lambda m: units.share(m.kinds[kind].effective.withheld_by_volume)),
        row("Held", lambda m: units.amount(m.kinds[kind].held_s, unit)),
        row("Utilisation, held", lambda m: units.share(m.kinds[kind].utilisation_nominal)),
    ]
    if kind == "gpu":
        rows += [
            row("Useful", lambda m: units.amount(m.kinds[kind].useful_s, unit)),
            row("Utilisation, useful", lambda m: units.share(m.kinds[kind].utilisation_useful)),
        ]
    return rows


def _work_rows(row: MakeRow) -> list[Row]:
    return [
        Row("Work"),
        row("Workloads", lambda m: units.number(m.workloads)),
        row("Phases", lambda m: units.number(m.phases)),
        row("Phases not succeeded", lambda m: units.number(m.phases - m.outcomes.get("succeeded", 0))),
        row("Cold starts", lambda m: units.number(m.cold_starts)),
        row("Time in cold starts", lambda m: units.seconds(m.cold_start_s)),
    ]


def _preload_rows(shown: list[Shown], row: MakeRow) -> list[Row]:
    if not any(s.metrics.preload.preloads for s in shown):
        return []
    return [
        Row("Cost of preloads"),
        row("Preloads", lambda m: units.number(m.preload.preloads)),
        row("Unused", lambda m: units.number(m.preload.unused)),
        row("Failed", lambda m: units.number(m.preload.failed)),
        row("CPU time", lambda m: units.amount(m.preload.cpu_s, "CPU·s")),
        row("Memory", lambda m: units.amount(m.preload.memory_gib_s, "GiB·s")),
    ]
