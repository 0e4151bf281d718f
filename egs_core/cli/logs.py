"""`egs logs RUN`: the output of a command that was started with `egs run --detach`."""

from __future__ import annotations

import json
import sys
import time
from typing import Annotated

import typer

from egs_core.cli.site import the_site
from egs_core.client.detach import log_file
from egs_core.client.http import connected
from egs_core.errors import EgsError

LOOK_S = 0.5
CHUNK = 1 << 16


def logs(
    run: Annotated[str, typer.Argument(help="Number of the run, as `egs run --detach` and `egs ps` say it.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run has ended.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object: the file and the run.")] = False,
) -> None:
    """Print the output of a detached run of this user."""
    with connected(the_site()) as client:
        view = client.view(run)
        path = log_file(view)
        try:
            file = path.open("rb")
        except OSError:
            raise EgsError(
                f"run {run} has no log of this user here: only runs by `egs run --detach` have one"
            ) from None
        with file:
            if as_json:
                typer.echo(json.dumps({"file": str(path), "run": view.model_dump()}))
                return
            while True:
                is_over = view.state == "ended"
                while part := file.read(CHUNK):
                    sys.stdout.buffer.write(part)
                sys.stdout.buffer.flush()
                if not follow or is_over:
                    return
                time.sleep(LOOK_S)
                view = client.view(run)
