"""`egs run -- CMD`: a command under a lease of the site server."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import PurePath
from typing import Annotated

import typer
from pydantic import ValidationError

from egs_core.cli.site import the_site
from egs_core.client import messages as c
from egs_core.client.detach import detach as start_detached
from egs_core.client.http import SiteClient, connected, trusted_owners
from egs_core.client.supervise import Supervisor, request_of, why_words
from egs_core.errors import InputError
from egs_core.units import parse_bytes, parse_seconds

INTERPRETER = re.compile(r"(python|bash|sh|zsh|perl|ruby|node|Rscript)[0-9.]*")


def run(
    command: Annotated[list[str], typer.Argument(metavar="-- CMD...", help="The command and its arguments.")],
    gpus: Annotated[int, typer.Option(help="GPUs that it holds from start to end.")] = 0,
    cpus: Annotated[float, typer.Option(help="CPUs to count for it; 0: not counted.")] = 0.0,
    memory: Annotated[str, typer.Option(help="Main memory to count for it, as 20GiB; 0: not counted.")] = "0",
    queue: Annotated[str, typer.Option(help="Queue whose quota it uses.")] = "",
    priority: Annotated[int, typer.Option(help="Of two in a queue the higher one goes first.")] = 0,
    expect: Annotated[str, typer.Option(help="How long it is believed to take, as 90s or 2h.")] = "",
    for_: Annotated[str, typer.Option("--for", help="After so long it is ended: a time box.")] = "",
    deadline: Annotated[
        str, typer.Option(help="In so long it should have ended; it goes forward in time for that.")
    ] = "",
    after: Annotated[
        list[str] | None,
        typer.Option(help="Run that has to succeed first; RUN:any: to end; RUN:failed: to fail. Repeatable."),
    ] = None,
    name: Annotated[str, typer.Option(help="Name to show; default: of the script or program.")] = "",
    check: Annotated[bool, typer.Option("--check", help="Only say when it would start, and why not now.")] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="Go on without this terminal; `egs logs` has its output.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --check and --detach: print one JSON object.")] = False,
) -> int:
    """Run a command when the site server gives it what it needs. CUDA_VISIBLE_DEVICES has its GPUs; its output and
    signals pass through, and its exit code is this one's."""
    address, owners = the_site(), trusted_owners()
    fields: dict[str, object] = {
        "name": name or name_of(command),
        "gpus": gpus,
        "cpus": cpus,
        "memory_bytes": parse_bytes(memory, "--memory"),
        "queue": queue,
        "priority": priority,
        "expected_s": parse_seconds(expect, "--expect") if expect else None,
        "for_s": parse_seconds(for_, "--for") if for_ else None,
        "deadline_s": parse_seconds(deadline, "--deadline") if deadline else None,
        "after": [_after(one) for one in after or ()],
    }
    try:
        request = request_of(fields)
    except ValidationError as error:
        first = error.errors()[0]
        option = OPTIONS.get(str(first["loc"][0]), f"--{first['loc'][0]}")
        raise InputError(option, str(first["msg"])) from None
    if check:
        with connected(address) as client:
            _show_check(client.check(request), as_json)
        return 0

    def supervise(say: Callable[[str], None], known: Callable[[c.RunView], None]) -> int:
        return Supervisor(lambda: SiteClient(address, owners), command, say).run(fields, known)

    if not detach:
        return supervise(_say, lambda _: None)
    number = start_detached(supervise, _say)
    typer.echo(json.dumps({"id": number}) if as_json else f"run {number}; its output: egs logs {number}")
    return 0


def _after(text: str) -> dict[str, str]:
    run_id, _, when = text.partition(":")
    if when not in ("", "ok", "any", "failed"):
        raise InputError("--after", f"{text!r}: a run has to end ok, any or failed, not {when}")
    return {"run": run_id, "when": when or "ok"}


def _show_check(view: c.RunView, as_json: bool) -> None:
    if as_json:
        typer.echo(view.model_dump_json())
    elif view.state == "granted":
        typer.echo("it would start now")
    else:
        typer.echo(f"it {why_words(view)}")


OPTIONS = {"memory_bytes": "--memory", "expected_s": "--expect", "for_s": "--for", "deadline_s": "--deadline"}


def name_of(command: list[str]) -> str:
    """What a command is called: its program, or the script that an interpreter is given. No other argument.

    >>> name_of(["python3.12", "jobs/train.py", "--secret", "x"]), name_of(["/opt/tool", "a"])
    ('train.py', 'tool')
    """
    program = PurePath(command[0]).name
    is_script = INTERPRETER.fullmatch(program) and len(command) > 1 and not command[1].startswith("-")
    named = PurePath(command[1]).name if is_script else program
    return "".join(one if one.isprintable() else "?" for one in named)[:200]


def _say(line: str) -> None:
    print(f"egs: {line}", file=sys.stderr, flush=True)
