"""The words and figures of the page: which run is before, the headline cards, the rows of the metrics table."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from egs_core.report import units
from egs_core.runlog.intervals import Timeline
from egs_core.runlog.io import Run
from egs_core.runlog.metrics import RunMetrics, metrics_of
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


def compared(shown: list[Shown]) -> tuple[Shown | None, Shown]:
    """(before, after) of the headline; after is the first run under policy egs, else the last one."""
    if len(shown) == 1:
        return None, shown[0]
    others = shown[1:]
    return shown[0], next((s for s in others if s.run.header.policy == "egs"), others[-1])


# --- cards ------------------------------------------------------------------------------------------------------------

Figure = tuple[str, Callable[[RunMetrics], float | None], Callable[[float | None], str], str]


def _figures(kind: str) -> list[Figure]:
    """(name, value, wording, how a change is told: `share`, `count` or `amount`); for all of them less is better,
    except for useful time."""
    device = kind.upper()
    return [
        ("Makespan", lambda m: m.makespan_s, units.seconds, "amount"),
        (f"Wasted {device} time", lambda m: m.kinds[kind].effective.by_volume, units.share, "share"),
        (f"Useful {device} time", lambda m: m.kinds[kind].utilisation_useful, units.share, "more share"),
        (f"{device} time held", lambda m: m.kinds[kind].held_s, lambda v: units.amount(v, f"{device}·s"), "amount"),
        ("Cold starts", lambda m: m.cold_starts, units.number, "count"),
        ("Mean job time", lambda m: m.mean_jct_s, units.seconds, "amount"),
    ]


def cards(before: Shown | None, after: Shown) -> list[Card]:
    """The six headline figures of the run after, beside those of the run before."""
    out = []
    for name, value_of, word, how in _figures(after.metrics.wastage_kind):
        value = value_of(after.metrics)
        if before is None:
            out.append(Card(name, word(value)))
            continue
        old = value_of(before.metrics)
        change, better = _change(old, value, how)
        out.append(Card(name, word(value), word(old), change, better))
    return out


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


def headline(before: Shown | None, after: Shown) -> str:
    """One sentence that says what the page shows."""
    took = units.seconds(after.metrics.makespan_s)
    if before is None:
        return f"{after.title} took {took}."
    old, new = before.metrics.makespan_s, after.metrics.makespan_s
    versus = f"{took} instead of {units.seconds(old)}"
    if new <= 0 or old <= 0 or 0.99 < old / new < 1.01:
        return f"{after.title} took as long as {before.title}: {took}."
    ratio = old / new if old > new else new / old
    return f"{after.title} ended {ratio:.1f}× {'sooner' if old > new else 'later'}: {versus}."  # noqa: RUF001  # the sign, not a letter


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
