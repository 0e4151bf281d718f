"""`egs audit`: what a cluster's history says was wasted, and what EGS would have saved. Reads; changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from egs_core.adapter import HistoryReader, audit_sources, load_able
from egs_core.audit.accounts import GpuTime
from egs_core.audit.build import Audit
from egs_core.audit.build import audit as build_audit
from egs_core.audit.compare import Compared, compare, read_forecast, write_forecast
from egs_core.audit.forecast import MOST_TASKS, SEEDS, Forecast
from egs_core.audit.observed import AuditRequest, Observed, header_of, observed_in, observed_of, only_job
from egs_core.cli.audit_overview import show_overview
from egs_core.errors import InputError, counted
from egs_core.graph.places import did_you_mean
from egs_core.report.build import write_report
from egs_core.runlog.io import Run, read_run, write_run
from egs_core.runlog.records import TaskAdded, WorkloadSubmitted
from egs_core.runlog.same_tasks import task_names
from egs_core.units import two_places

SHOWN = 8
FIGURE_NAMES = {"makespan_s": "makespan s", "wait_s": "mean wait s", "gpu_held_s": "GPU·s held"}


def _audit(
    runlogs: Annotated[
        list[Path] | None, typer.Argument(metavar="[RUNLOG]...", help="Run logs that EGS has written.")
    ] = None,
    events: Annotated[
        Path | None,
        typer.Option(
            help="Events that a framework has left, or the folder of `egs collect` or of an adapter's listener."
        ),
    ] = None,
    days: Annotated[
        float, typer.Option(help="Of a history that goes far back: read the runs of this many days.")
    ] = 30.0,
    gpu_pool: Annotated[
        list[str] | None, typer.Option(help="Of a framework with pools: one whose slots are GPUs; repeatable.")
    ] = None,
    user: Annotated[
        str, typer.Option(help="User of the framework; the adapter's page names the password's variable.")
    ] = "",
    job: Annotated[str, typer.Option(help="Audit only this job.")] = "",
    gpu_price: Annotated[float, typer.Option(help="Price of a GPU per hour.")] = 0.0,
    seeds: Annotated[
        int, typer.Option(help="Number of simulations with varied durations, for the error band.")
    ] = SEEDS,
    most_tasks: Annotated[int, typer.Option(help="Simulate at most this many tasks.")] = MOST_TASKS,
    forecast_out: Annotated[Path | None, typer.Option(help="Write the forecast to this file.")] = None,
    compare_with: Annotated[
        Path | None, typer.Option("--compare", help="A forecast file; compare a run log of EGS_MODE=on with it.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Also write the history as an HTML page.")
    ] = None,
    runlog: Annotated[Path | None, typer.Option(help="Also write the history as a run log.")] = None,
    overview: Annotated[
        bool,
        typer.Option(
            "--overview", help="All sources in one report: by framework, team, user and week, and what would save most."
        ),
    ] = False,
    prices: Annotated[Path | None, typer.Option(help="With --overview: YAML file with the prices of GPUs.")] = None,
    queues: Annotated[
        Path | None, typer.Option(help="With --overview: YAML file of queues, for teams; else a queue counts as one.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    **frameworks: str,
) -> None:
    """Report what a cluster wasted, why tasks waited, and what EGS would have saved. Read-only.

    Give one source: the option of an installed adapter, --events, or run logs; with --overview as many as you like.
    With --compare: one run log of EGS_MODE=on.
    """
    logs = runlogs or []
    given = {name: value for name, value in frameworks.items() if value}
    if compare_with is not None:
        _compare(compare_with, logs, bool(given) or events is not None, as_json)
        return
    pools = tuple(gpu_pool or ())
    if overview:
        useless = {"--job": job, "--forecast-out": forecast_out, "--output": output, "--runlog": runlog}
        _check_overview(logs, given, events, useless)
        _check_options(gpu_price, seeds, most_tasks, days)
        chosen = list(given) or ([_chosen([], given, events)] if events is not None else [])
        requests = [(name, AuditRequest(*_place_of(name, given, events), days, user, pools)) for name in chosen]
        show_overview(logs, (_of_framework(*one) for one in requests), prices, queues, gpu_price, as_json)
        return
    if prices is not None or queues is not None:
        raise InputError("--prices, --queues", "do nothing without --overview", "add it, or name --gpu-price")
    framework = _chosen(logs, given, events)
    _check_options(gpu_price, seeds, most_tasks, days)
    address, path = _place_of(framework, given, events)
    request = AuditRequest(address, path, days, user, pools)
    histories = [observed_in(read_run(log)) for log in logs] or [_of_framework(framework, request)]
    if job:
        histories = [_only(history, job) for history in histories]
    if len(histories) > 1 and (forecast_out or runlog):
        raise InputError("--forecast-out, --runlog", "need exactly one history", "name one run log")
    audits = [build_audit(history, gpu_price, seeds, most_tasks) for history in histories]
    _keep(audits[0], histories, forecast_out, runlog, output)
    if as_json:
        shown = [one.to_dict() for one in audits]
        typer.echo(json.dumps({"audits": shown} if len(shown) > 1 else shown[0]))
    else:
        for one in audits:
            _print(one)


SOURCES = audit_sources()


def _with_sources(command: Callable[..., None]) -> Callable[..., None]:
    """The command with one option for each installed adapter that can audit, in the place of `**frameworks`."""
    parameters = [p for p in signature(command, eval_str=True).parameters.values() if p.kind is not p.VAR_KEYWORD]
    for name, source in SOURCES.items():
        spelt, metavar = [f"--{one}" for one in (name, *source.also)], "PATH" if source.is_path else "URL"
        option = Annotated[str, typer.Option(*spelt, metavar=metavar, help=source.help)]
        parameters.append(Parameter(name, Parameter.KEYWORD_ONLY, default="", annotation=option))

    @wraps(command)
    def with_sources(*args: Any, **kwargs: Any) -> None:
        command(*args, **kwargs)

    with_sources.__dict__["__signature__"] = Signature(parameters)
    with_sources.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return with_sources


def _check_overview(
    logs: list[Path], given: dict[str, str], events: Path | None, useless: Mapping[str, object]
) -> None:
    """Raises InputError for no source, and for what does nothing there."""
    if not logs and not given and events is None:
        raise InputError("egs audit --overview", "needs a source", "name run logs, or an option of an adapter")
    for option, value in useless.items():
        if value:
            raise InputError(option, "does nothing with --overview", f"leave {option} or --overview out")


def _chosen(logs: list[Path], given: dict[str, str], events: Path | None) -> str:
    """The adapter whose history is read; "" for run logs. Raises InputError unless there is exactly one source."""
    beside = any(SOURCES[name].events == "beside" for name in given)
    alone = next((name for name, source in SOURCES.items() if source.events == "alone"), "")
    if bool(logs) + len(given) + (events is not None and not beside) != 1:
        options = [
            f"--{one} {'PATH' if source.is_path else 'URL'}"
            for name, source in SOURCES.items()
            for one in (name, *source.also)
        ]
        raise InputError(
            "egs audit",
            "needs one source",
            f"egs audit {', '.join([*options, '--events PATH'])}, or RUNLOG...; of a site server: egs cost",
        )
    if events is not None and not given and not alone:
        raise InputError("--events", "no installed adapter reads events", "give run logs")
    return next(iter(given), alone if events is not None else "")


def _place_of(framework: str, given: dict[str, str], events: Path | None) -> tuple[str, Path | None]:
    """The address and the path that the adapter is given."""
    value = given.get(framework, "")
    return ("", Path(value)) if value and SOURCES[framework].is_path else (value, events)


def _check_options(gpu_price: float, seeds: int, most_tasks: int, days: float) -> None:
    if not 0 <= gpu_price <= 1e6:
        raise InputError("--gpu-price", f"must be 0 to 1000000, not {gpu_price:g}")
    if not 0 < days <= 3650:
        raise InputError("--days", f"must be more than 0 and at most 3650, not {days:g}")
    if not 0 <= seeds <= 100:
        raise InputError("--seeds", f"must be 0 to 100, not {seeds}")
    if not 1 <= most_tasks <= 100_000:
        raise InputError("--most-tasks", f"must be 1 to 100000, not {most_tasks}")


def _of_framework(name: str, request: AuditRequest) -> Observed:
    observed = observed_of(load_able(name, HistoryReader, "read a history").read_history(request))
    if not any(isinstance(record, TaskAdded) for record in observed.records):
        raise InputError(observed.header.label or request.address, "no task of any job is known there")
    return observed


def _only(history: Observed, job: str) -> Observed:
    known = [record.workload for record in history.records if isinstance(record, WorkloadSubmitted)]
    if job not in known:
        hint = did_you_mean(job, known) or f"known: {', '.join(known[:5])}"
        raise InputError("--job", f"no job {job!r} in {history.header.label}", hint)
    return only_job(history, job)


def _keep(
    audited: Audit, histories: list[Observed], forecast_out: Path | None, runlog: Path | None, output: Path | None
) -> None:
    runs = [Run(history.header, list(history.records)) for history in histories]
    if forecast_out is not None:
        if audited.forecast is None:
            why = next((note for note in audited.unknown if note.startswith("no forecast: ")), "nothing was simulated")
            raise InputError("--forecast-out", f"there is no forecast: {why.removeprefix('no forecast: ')}")
        write_forecast(forecast_out, audited.forecast, audited.source, task_names(histories[0].records))
    if runlog is not None:
        write_run(runlog, header_of(histories[0]), histories[0].records)
    if output is not None:
        write_report(runs, output, compare=False)


def _compare(file: Path, logs: list[Path], has_source: bool, as_json: bool) -> None:
    if has_source or len(logs) != 1:
        raise InputError("--compare", "needs one run log of a run with EGS_MODE=on")
    kept, run = read_forecast(file), read_run(logs[0])
    rows = compare(kept, run)
    if as_json:
        typer.echo(json.dumps({"forecast_of": kept.source, "run": run.path, "figures": msgspec.to_builtins(rows)}))
        return
    table = _table(
        f"{run.path} against the forecast of {kept.source}", "", "before", "forecast", "band", "achieved", ""
    )
    for row in rows:
        table.add_row(FIGURE_NAMES[row.figure], *_band_cells(row), f"{row.achieved:,.1f}", _verdict(row))
    Console(markup=False).print(table)


def _verdict(row: Compared) -> str:
    if row.in_band:
        return "in the band"
    return "better than the band" if row.achieved < row.band.low else "worse than the band"


def _band_cells(row: Compared) -> tuple[str, str, str]:
    band = row.band
    return f"{band.observed:,.1f}", f"{band.expected:,.1f}", f"{band.low:,.1f} to {band.high:,.1f}"


# --- on a terminal ----------------------------------------------------------------------------------------------------


def _print(audited: Audit) -> None:
    console = Console(markup=False)  # names are the users'
    console.print(_summary(audited), highlight=False, markup=False)
    for title, rows in (("by job", audited.by_job), ("by task", audited.by_task)):
        if rows:
            console.print(_accounts(f"{audited.unit} time {title}, most wasteful first", rows))
    if audited.waits:
        console.print(_waits(audited))
    if audited.forecast is not None:
        console.print(_forecast(audited.forecast))
    for line in audited.unknown:
        console.print(f"note: {line}", highlight=False, markup=False)


def _summary(audited: Audit) -> str:
    total, lines = audited.total, []
    jobs = f"{audited.jobs} job{'s' if audited.jobs != 1 else ''}"
    lines.append(f"{audited.source}: {jobs}, {counted(audited.tasks, 'task')} in {audited.window_s:,.1f} s")
    if audited.unfinished:
        lines.append(f"{audited.unfinished} tasks had not ended")
    if audited.offered_s:
        held, used, wasted = (_hours(seconds) for seconds in (total.held_s, total.used_s, total.wasted_s))
        offered, queued = _hours(audited.offered_s), ""
        if total.queued_s:
            queued = f"{_hours(total.queued_s)} taken by tasks that had yet to start, "
        lines.append(f"{audited.unit} time: {offered} offered, {queued}{held} held, {used} used, {wasted} wasted")
    if audited.capacity_gpu_s:
        lines.append(f"idle or held unused while work waited for a GPU: {_hours(audited.idle_blocked_gpu_s)}")
    if audited.wastage_by_volume is not None:
        shares = f"{audited.wastage_by_volume:.1%} by volume, {audited.wastage_by_time or 0.0:.1%} by time"
        unit = audited.unit if audited.wastage_kind == "cpu" else "GPU"
        lines.append(f"wastage ratio of {unit}s: {shares}")
    if audited.cost_held is not None:
        lines.append(
            f"cost: {two_places(audited.cost_held)} held, {two_places(audited.cost_wasted or 0.0)} of it wasted"
        )
    return "\n".join(lines)


def _accounts(title: str, rows: list[GpuTime]) -> Table:
    has_queued = any(row.queued_s for row in rows)  # else the framework does not say
    table = _table(
        title, "", "runs", *(["queued"] if has_queued else []), "held", "used", "cold start", "idle", "wasted"
    )
    for row in rows[:SHOWN]:
        seconds = (*([row.queued_s] if has_queued else []), row.held_s, row.used_s, row.cold_s, row.idle_s)
        share = f"{row.wasted_s / row.taken_s:.0%}" if row.taken_s else "-"
        table.add_row(row.name, f"{row.runs:,}", *(_hours(value) for value in seconds), share)
    if len(rows) > SHOWN:
        table.caption = f"and {len(rows) - SHOWN} more: --json has them all"
    return table


def _waits(audited: Audit) -> Table:
    table = _table("the longest waits", "", "waited s", "why")
    for wait in audited.waits[:SHOWN]:
        name = wait.label if wait.started else f"{wait.label} (not started)"
        table.add_row(name, f"{wait.wait_s:,.1f}", wait.reason)
    return table


def _forecast(forecast: Forecast) -> Table:
    title = "what EGS would have changed, by simulation (mode on, code unchanged)"
    table = _table(title, "", "observed", "with EGS", "saved", "band", "with hints")
    for name, shown in FIGURE_NAMES.items():
        band = getattr(forecast, name)
        hinted = "-" if forecast.hinted is None else f"{getattr(forecast.hinted, name):,.1f}"
        saved, between = f"{band.saved:.0%}", f"{band.low:,.1f} to {band.high:,.1f}"
        table.add_row(shown, f"{band.observed:,.1f}", f"{band.expected:,.1f}", saved, between, hinted)
    checked = f"the simulated native run misses the observed makespan by {forecast.native_error:.1%}"
    table.caption = f"{forecast.tasks:,} of {counted(forecast.all_tasks, 'task')} simulated; {checked}"
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", caption_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(columns):
        options: dict[str, Any] = {"justify": "left" if number == 0 or column in ("why", "") else "right"}
        table.add_column(column, overflow="fold", **options)
    return table


def _hours(gpu_s: float) -> str:
    return f"{gpu_s / 3600:,.2f} h" if gpu_s >= 3600 else f"{gpu_s:,.1f} s"


audit = _with_sources(_audit)
