"""`egs run -- CMD`: a command under a lease of the site server."""

from __future__ import annotations

import re
import sys
from pathlib import PurePath
from typing import Annotated

import typer
from pydantic import ValidationError

from egs_core.cli.site import the_site
from egs_core.client.http import SiteClient, trusted_owners
from egs_core.client.supervise import Supervisor
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
    name: Annotated[str, typer.Option(help="Name to show; default: of the script or program.")] = "",
) -> int:
    """Run a command when the site server gives it what it needs. CUDA_VISIBLE_DEVICES has its GPUs; its output and
    signals pass through, and its exit code is this one's."""
    address = the_site()
    fields: dict[str, object] = {
        "name": name or name_of(command),
        "gpus": gpus,
        "cpus": cpus,
        "memory_bytes": parse_bytes(memory, "--memory"),
        "queue": queue,
        "priority": priority,
        "expected_s": parse_seconds(expect, "--expect") if expect else None,
        "for_s": parse_seconds(for_, "--for") if for_ else None,
    }
    owners = trusted_owners()
    try:
        return Supervisor(lambda: SiteClient(address, owners), command, _say).run(fields)
    except ValidationError as error:
        first = error.errors()[0]
        option = OPTIONS.get(str(first["loc"][0]), f"--{first['loc'][0]}")
        raise InputError(option, str(first["msg"])) from None


OPTIONS = {"memory_bytes": "--memory", "expected_s": "--expect", "for_s": "--for"}


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
