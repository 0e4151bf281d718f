"""`egs server`: what was changed on a site server, by whom and from where; its database as a file."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from egs_core.cli.rows import print_rows
from egs_core.cli.serve import default_data, needs_server
from egs_core.cli.site import the_site
from egs_core.client import tokens as t
from egs_core.client.http import connected
from egs_core.errors import InputError, counted

if TYPE_CHECKING:
    from egs_core.server.upkeep import Found

DataFolder = Annotated[
    Path | None, typer.Option("--data", help="Folder of its database, as of `egs serve`; default: one of this user's.")
]
Database = Annotated[
    str, typer.Option(envvar="EGS_DATABASE", help="URL of its PostgreSQL, as of `egs serve`, instead of a folder.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

server = typer.Typer(help="Look after the site server.")


@server.command("log")
def log(
    limit: Annotated[int, typer.Option(min=1, max=t.MOST_LOGGED, help="At most so many, the last ones.")] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List the last changes: when, who, in which role, from where, what. For admins, and for operators of teams."""
    with connected(the_site()) as client:
        found = client.log(limit)
    if as_json:
        typer.echo(found.model_dump_json())
        return
    rows = []
    for one in found.entries:
        when = datetime.fromtimestamp(one.at).isoformat(" ", "seconds")
        rows.append((when, one.who, one.role, one.origin, one.verb, one.subject, one.team, one.text))
    print_rows(("when", "who", "role", "from", "what", "which", "team", "more"), rows)


@server.command("backup")
def backup(
    file: Annotated[Path, typer.Argument(help="File to write; must not be there yet.")],
    data: DataFolder = None,
    database: Database = "",
    as_json: AsJson = False,
) -> None:
    """Write a copy of the server's database, also while it runs, and check it. The file is for its owner alone."""
    _not_postgresql(database, "backup", f"pg_dump --format=custom --file={file} URL")
    with needs_server("egs server backup"):
        from egs_core.server import upkeep
    _show(upkeep.backup(data or default_data(), file), str(file), as_json)


@server.command("restore")
def restore(
    file: Annotated[Path, typer.Argument(help="A copy that `egs server backup` has written.")],
    data: DataFolder = None,
    database: Database = "",
    force: Annotated[
        bool, typer.Option("--force", help="Also where the present one cannot be read: nobody knows then who runs.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Put a copy in the place of the database, which is kept as `site.db.replaced`. Refused while a server runs, and
    while a process of one of its runs lives."""
    hint = f"end all runs and all servers, then pg_restore --clean --if-exists --single-transaction --dbname=URL {file}"
    _not_postgresql(database, "restore", hint)
    with needs_server("egs server restore"):
        from egs_core.server import upkeep
    _show(upkeep.restore(data or default_data(), file, force=force), str(file), as_json)


@server.command("check")
def check(
    file: Annotated[Path | None, typer.Argument(help="A copy; default: the server's own database.")] = None,
    data: DataFolder = None,
    database: Database = "",
    as_json: AsJson = False,
) -> int:
    """Say whether a database is sound: whole, its journal folds, its runs and the engine agree. Also while the server
    runs. Exit code 1: it is not."""
    with needs_server("egs server check"):
        from egs_core.server import upkeep
        from egs_core.server.database import parse_database, place_of
    url = parse_database(database) if database and not (file or data) else None
    path = file or data or default_data()
    place = place_of(url) if url else str(path)
    try:
        _show(upkeep.check_postgresql(url) if url else upkeep.check(path), place, as_json)
    except upkeep.Unsound as error:
        typer.echo(f"{place}: not sound: {error}", err=True)
        return 1
    return 0


def _not_postgresql(database: str, what: str, hint: str) -> None:
    """Raises InputError for a database whose copies are not files of EGS."""
    if database:
        raise InputError(f"egs server {what}", "PostgreSQL has a program of its own for that", hint)


def _show(found: Found, place: str, as_json: bool) -> None:
    if as_json:
        typer.echo(msgspec.json.encode(found).decode())
        return
    runs = f"{counted(found.runs, 'run')}, {found.open} of them open, {found.held} with a lease"
    typer.echo(f"{place}: sound: {runs}; {found.entries} entries; {found.size_bytes} bytes")
