"""`egs logs RUN` and `egs attach RUN`: the output of a command that was started with `egs run --detach`."""

from __future__ import annotations

import json
import sys
import time
from typing import Annotated, BinaryIO

import typer

from egs_core.cli.site import the_site
from egs_core.client import messages as c
from egs_core.client.detach import log_file
from egs_core.client.http import SiteClient, connected
from egs_core.errors import EgsError

LOOK_S = 0.5
CHUNK = 1 << 16
NO_CODE, INTERRUPTED = 1, 130  # of a run that ended without one; of this command


def logs(
    run: Annotated[str, typer.Argument(help="Number or name of the run, as `egs ps` shows it.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run has ended.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object: the file and the run.")] = False,
) -> None:
    """Print the output of a detached run of this user."""
    with connected(the_site()) as client:
        view = client.view(run, named=True)
        with _opened(view) as file:
            if as_json:
                typer.echo(json.dumps({"file": str(log_file(view)), "run": view.model_dump()}))
                return
            _print(client, view, file, follow)


def attach(run: Annotated[str, typer.Argument(help="Number or name of a detached run of this user.")]) -> int:
    """Print the output of a detached run until it ends, and exit with its exit code. Ctrl-C leaves it running."""
    with connected(the_site()) as client:
        view = client.view(run, named=True)
        with _opened(view) as file:
            try:
                ended = _print(client, view, file, follow=True)
            except KeyboardInterrupt:
                print(f"egs: run {view.id} goes on; egs attach {view.id} shows it again", file=sys.stderr)
                return INTERRUPTED
    return NO_CODE if ended.exit_code is None else ended.exit_code


def _opened(view: c.RunView) -> BinaryIO:
    try:
        return log_file(view).open("rb")
    except OSError:
        problem = "only runs by `egs run --detach` have one"
        raise EgsError(f"run {view.id} has no log of this user here: {problem}") from None


def _print(client: SiteClient, view: c.RunView, file: BinaryIO, follow: bool) -> c.RunView:
    """What is in the log, and where it is followed what comes, to the run's end; the run as it was then."""
    while True:
        is_over = view.state == "ended"
        while part := file.read(CHUNK):
            sys.stdout.buffer.write(part)
        sys.stdout.buffer.flush()
        if not follow or is_over:
            return view
        time.sleep(LOOK_S)
        view = client.view(view.id)
