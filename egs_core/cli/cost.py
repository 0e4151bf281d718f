"""`egs cost`: GPU hours held, used and wasted, and what they cost. Reads run logs, and a site server's runs."""

from __future__ import annotations

import csv
import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from egs_core.budgets import cost_words
from egs_core.cli.printable import printable
from egs_core.cli.site import the_site
from egs_core.client.driver_use import MOST_S
from egs_core.client.http import Refused, SiteClient, connected
from egs_core.client.places import find_address
from egs_core.cost.ledger import BY, NONE, Amounts, Ledger
from egs_core.cost.prices import Prices, load_prices
from egs_core.cost.rating import PER, Measured, Rating
from egs_core.cost.served import uses_of_drivers, uses_of_runs
from egs_core.cost.uses import Use, uses_of
from egs_core.cost.work import Told, worked_of_runs
from egs_core.errors import InputError
from egs_core.places import replace_file
from egs_core.queues import load_teams
from egs_core.report.statement import Line, Statement, statement_page
from egs_core.runlog.io import RunReader
from egs_core.runlog.records import Header
from egs_core.runlog.steps import Interval
from egs_core.units import two_places

SHOWN = 8
FORMS = ("page", "csv", "json")
STATED = ("team", "pipeline", "user")  # tables of the page; --format csv has tasks, too
MONTH = re.compile(r"(\d{4})-(\d{2})", re.ASCII)
COLUMNS = ("by", "name", *Amounts.__struct_fields__)
TWICE = "note: what a run log tells of a script that ran inside of `egs run` counts twice: the server has it, too"
AS_USED = (
    "note: what runs at the server counts as used while its command runs, whatever that does; its dashboard (/dashboard"
    " at its address, which `egs serve` names) shows how busy GPUs are, and what was free while runs waited"
)
NO_PRICES = (
    "no cost: --prices FILE says what a GPU costs, as "
    "`flavors: [{name: a100, prices: [{since: 2026-01-01, on_demand: 3.2}]}]` in YAML"
)


def cost(
    runlogs: Annotated[
        list[Path] | None, typer.Argument(metavar="[RUNLOG]...", help="Run logs; none: the site server's runs.")
    ] = None,
    server: Annotated[bool, typer.Option("--server", help="Beside run logs: the site server's runs, too.")] = False,
    prices: Annotated[Path | None, typer.Option(help="YAML file with the prices of GPUs.")] = None,
    queues: Annotated[
        Path | None,
        typer.Option(help="YAML file of queues, for the teams of run logs; without it a queue counts as a team."),
    ] = None,
    month: Annotated[str | None, typer.Option(help="Only what was held in this month (UTC), as 2026-11.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print a table with commas.")] = False,
    form: Annotated[
        str,
        typer.Option("--format", help="page: write a statement as one HTML page; csv, json: as --csv, --json."),
    ] = "",
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="The page to write (default: statement-2026-11.html, by its month)."),
    ] = None,
) -> None:
    """Add up GPU hours held, used and wasted, and money, by team, pipeline, task and user; and what a million units of
    work took, where tasks tell of it by `egs.work`."""
    form = _form(form, as_json=as_json, as_csv=as_csv, has_output=output is not None)
    if queues is not None and not runlogs:
        why = "a server's runs have their team"
        raise InputError("--queues", f"does nothing without RUNLOG: {why}", "name a run log, or leave --queues out")
    _check_logs(runlogs or [], server)
    stretch = None if month is None else _month(month)
    read = [*(runlogs or ()), *[one for one in (prices, queues) if one is not None]]
    page = _page_path(output, month or "", read) if form == "page" else None
    known = load_prices(prices) if prices is not None else None
    ledger, rating, notes = Ledger(known, stretch), Rating(known, stretch), list[str]()
    team_of = _team_of(queues)
    known_runs: dict[tuple[str, str, float], Path] = {}
    for path in runlogs or ():
        with RunReader(path) as reader:
            _check_once(known_runs, path, reader.header)
            told = Told()
            for use in uses_of(reader.header, told.noting(reader), team_of):
                ledger.add(use)
            notes += _rate(path, told, rating)
            notes += [f"note: {path} {note}" for note in _notes(reader)]
    if server and runlogs:
        notes.append(TWICE)
    if server or not runlogs:
        uses, of_server = _served(rating, stretch)
        notes += of_server
        for use in uses:
            ledger.add(use)
    if rating.has_more:
        notes.append("note: so many kinds of work are told that not all are rated")
    if known is None:
        notes.append(NO_PRICES)
    for note in notes:
        typer.echo(note, err=True)
    if page is not None:
        sources = [str(path) for path in runlogs or ()] + (["the site server's runs"] if server or not runlogs else [])
        typer.echo(_write_page(ledger, known, month or "", sources, notes, page))
    elif form == "json":
        typer.echo(json.dumps({"month": month, **ledger.to_dict(), "per_unit": rating.to_dicts()}, indent=2))
    elif form == "csv":
        _write_csv(ledger)
    else:
        _print(ledger, known.currency if known is not None else "")
        _print_rating(rating)


def _notes(reader: RunReader) -> Iterator[str]:
    if reader.truncated:
        yield "was cut off: its last line is left out"
    if reader.header.emulated_gpus:
        yield "is of emulated GPUs: nobody pays for those"


def _rate(path: Path, told: Told, rating: Rating) -> Iterator[str]:
    """Read the log once more, where its tasks tell of their work; a note where that is not all."""
    if not told.amounts:
        return
    if told.has_more:
        yield f"note: {path} tells of the work of so many tasks that not all are rated"
    with RunReader(path) as reader:
        for worked in told.worked(reader.header, reader):
            rating.add(worked)


def _check_logs(runlogs: list[Path], server: bool) -> None:
    paths = [path.resolve() for path in runlogs]
    if twice := next((path for path in runlogs if paths.count(path.resolve()) > 1), None):
        raise InputError(str(twice), "is named twice", "each log once, or its hours count twice")
    if not runlogs and not server and find_address() is None:
        raise InputError("egs cost", "no run log is named, and no EGS server is here", "name one: `egs cost run.jsonl`")


def _check_once(known: dict[tuple[str, str, float], Path], path: Path, header: Header) -> None:
    """Raises InputError for a copy: a log of the same run from the same moment on, which a simulation does not have."""
    if not header.run_id or not header.started_at:
        return
    run = header.driver, header.run_id, header.started_at
    if (first := known.setdefault(run, path)) is not path:
        raise InputError(str(path), f"is of the same run as {first}", "each run once, or its hours count twice")


def _team_of(queues: Path | None) -> Callable[[str], str]:
    if queues is None:
        return lambda queue: queue
    teams = load_teams(queues).of_queue
    return lambda queue: teams.get(queue, "")


def _month(text: str) -> Interval:
    """Its stretch, in seconds since 1970. Raises InputError."""
    match = MONTH.fullmatch(text)
    year, number = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= number <= 12:
        raise InputError("--month", f"{text!r} is no month", "write it as 2026-11")
    if not 1970 <= year <= 9998:
        raise InputError("--month", f"{text!r} is not between 1970-01 and 9998-12")
    after = (year + 1, 1) if number == 12 else (year, number + 1)
    return datetime(year, number, 1, tzinfo=UTC).timestamp(), datetime(*after, 1, tzinfo=UTC).timestamp()


def _served(rating: Rating, stretch: Interval | None) -> tuple[Iterator[Use], list[str]]:
    """What the runs of the server held, and notes."""
    notes: list[str] = []
    with connected(the_site()) as client:
        found = client.runs(with_ended=True)
        notes += _of_drivers(client, stretch)
    if evicted := sum(run.evictions > len(run.earlier) for run in found.runs):
        problem = "were evicted under an older server: of what they held before they started anew not all is known"
        notes.append(f"note: {evicted} runs {problem}")
    if any(device.label == "emulated" for device in found.devices):
        notes.append("note: the site server has emulated GPUs: nobody pays for those")
    if any(run.gpus and run.started_at is not None for run in found.runs):
        notes.append(AS_USED)
    now = time.time()
    for worked in worked_of_runs(found.runs, now, found.devices):
        rating.add(worked)
    return uses_of_runs(found.runs, now, found.devices), notes


def _of_drivers(client: SiteClient, stretch: Interval | None) -> Iterator[str]:
    """That tasks of frameworks' drivers held more, which the site's own runs do not have."""
    try:
        found = client.driver_use(MOST_S)
    except Refused:
        return  # a server of an older version, or an agent, which passes on no more than commands need
    ledger = Ledger(None, stretch)
    for use in uses_of_drivers(found.rows):
        ledger.add(use)
    if hours := ledger.total.gpu_h_held:
        more = f"tasks of frameworks' drivers held {two_places(hours)} GPU hours more, since the server started at"
        where = "the dashboard's Usage has them; here they are in no sum: name the drivers' run logs"
        yield f"note: {more} {datetime.fromtimestamp(found.since, UTC):%Y-%m-%d %H:%M} UTC; {where}"


# --- what is printed ---


def _form(form: str, *, as_json: bool, as_csv: bool, has_output: bool) -> str:
    """page, csv, json, or "" for tables. Raises InputError."""
    wanted = [name for name, is_wanted in (("json", as_json), ("csv", as_csv)) if is_wanted]
    if form and form not in FORMS:
        raise InputError("--format", f"{form!r} is unknown", " or ".join(FORMS))
    if len(wanted) > 1 or (wanted and form not in ("", wanted[0])):
        raise InputError("--json, --csv, --format", "are ways to print it", "choose one")
    form = form or (wanted[0] if wanted else "")
    if has_output and form != "page":
        raise InputError("--output", "goes with --format page", "send what is printed into a file: > FILE")
    return form


def _write_page(
    ledger: Ledger, prices: Prices | None, month: str, sources: list[str], notes: list[str], path: Path
) -> str:
    """Where it is."""
    tables = tuple([(kind, tuple([_line(*row) for row in ledger.shown(kind)])) for kind in STATED])
    currency = prices.currency if prices is not None else ""
    written = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    plain = tuple([note.removeprefix("note: ") for note in notes])
    statement = Statement(month, currency, _line("", ledger.shown_total), tables, tuple(sources), plain, written)
    content = statement_page(statement).encode("utf-8", "replace")
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)  # a pipe or a device: it stays what it is
        else:
            replace_file(path.resolve(), content)
    except OSError as error:
        raise InputError(
            str(path), f"cannot be written: {error.strerror or error}", "-o FILE names another place"
        ) from None
    return str(path)


def _page_path(output: Path | None, month: str, read: list[Path]) -> Path:
    """Where it will be. read: the files that it is made of. Raises InputError for what is no place for it."""
    path = output or Path(f"statement{f'-{month}' if month else ''}.html")
    if path.is_dir():
        raise InputError(str(path), "is a folder", "name a file to write, such as statement.html")
    if not path.parent.is_dir():
        raise InputError(str(path), "its folder is not there", "make it, or name another one")
    if path.exists() and any(one.exists() and path.samefile(one) for one in read):
        raise InputError(str(path), "is one of the files that the page is made of", "choose another name for it")
    return path


def _line(name: str, row: Amounts) -> Line:
    return Line(name, row.gpu_h_held, row.gpu_h_used, row.gpu_h_wasted, row.cost, row.cost_wasted)


def _write_csv(ledger: Ledger) -> None:
    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in ledger.table():
        writer.writerow({**row, "name": _plain(row["name"])})


def _plain(name: str) -> str:
    """A name that a spreadsheet does not take for a formula."""
    return f"'{name}" if name[:1] in ("=", "+", "-", "@", "\t", "\r") else name


def _print(ledger: Ledger, currency: str) -> None:
    console = Console(markup=False)  # names are the users'
    total = ledger.shown_total
    held, used, wasted = map(two_places, (total.gpu_h_held, total.gpu_h_used, total.gpu_h_wasted))
    text = f"GPU hours: {held} held, {used} used, {wasted} wasted"
    text += cost_words(total.cost, total.cost_wasted, currency)
    console.print(text, highlight=False, soft_wrap=True)
    for kind in BY:
        rows = ledger.shown(kind)
        if [name for name, _ in rows] not in ([], [NONE]):
            console.print(_table(kind, rows))


def _table(kind: str, rows: list[tuple[str, Amounts]]) -> Table:
    table = Table(title=f"by {kind}", title_justify="left", caption_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("", overflow="fold")
    for column in ("held h", "used h", "wasted h", "cost"):
        table.add_column(column, justify="right")
    for name, row in rows[:SHOWN]:
        hours = map(two_places, (row.gpu_h_held, row.gpu_h_used, row.gpu_h_wasted))
        table.add_row(printable(name), *hours, "-" if row.cost is None else two_places(row.cost))
    if len(rows) > SHOWN:
        table.caption = f"and {len(rows) - SHOWN} more: --json and --csv have them all"
    return table


def _print_rating(rating: Rating) -> None:
    rows = list(rating.rows())
    if not rows:
        return
    title = f"for {PER:,} units of work, with a 90 % interval"
    table = Table(title=title, title_justify="left", caption_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for column in ("units", "task", "hardware"):
        table.add_column(column, overflow="fold")
    for column in ("tasks", "GPU·min", "CPU·min", "cost"):
        table.add_column(column, justify="right")
    for row in rows[:SHOWN]:
        kind = row.kind
        hardware = " ".join(part for part in (kind.provider, kind.flavor, kind.bought) if part) or "-"
        named = (printable(text) for text in (kind.unit, f"{kind.pipeline} {kind.task}", hardware))
        measured = ("-" if one is None else _measured(one) for one in (row.gpu_min, row.cpu_min, row.cost))
        table.add_row(*named, f"{row.tasks:,}", *measured)
    if len(rows) > SHOWN:
        table.caption = f"and {len(rows) - SHOWN} more: --json has them all"
    Console(markup=False).print(table)


def _measured(one: Measured) -> str:
    text = _figure(one.value)
    return text if one.low is None or one.high is None else f"{text} ({_figure(one.low)} to {_figure(one.high)})"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
