"""`egs run -- CMD`: a command under a lease of the site server."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import PurePath
from typing import Annotated

import typer
from pydantic import ValidationError

from egs_core.cli.run_options import check_options, given_options
from egs_core.cli.site import NUMBER, number_of, the_site
from egs_core.cli.starting import members, say, start_all_here, start_detached, start_here
from egs_core.client import arguments
from egs_core.client import messages as c
from egs_core.client.absent_modules import absent_words
from egs_core.client.http import Refused, SiteClient, Unreachable, connected
from egs_core.client.jobs import Job
from egs_core.client.loading import modules_of
from egs_core.client.mlflow_loss import reader_of
from egs_core.client.options import option_error
from egs_core.client.places import Address
from egs_core.client.python_words import python_words
from egs_core.client.ready import MOST_READY
from egs_core.client.supervise import request_of
from egs_core.client.waiting_words import why_words
from egs_core.errors import EgsError, InputError
from egs_core.notices import warn
from egs_core.units import parse_bytes, parse_seconds

PYTHON = re.compile(r"python[0-9.]*")
INTERPRETER = re.compile(r"(python|bash|sh|zsh|perl|ruby|node|Rscript)[0-9.]*")


def run(
    ctx: typer.Context,
    command: Annotated[list[str], typer.Argument(metavar="-- CMD...", help="The command and its arguments.")],
    gpus: Annotated[
        float, typer.Option(help="GPUs that it holds from start to end: whole ones, or a part of one, as 0.25.")
    ] = 0,
    gpu_memory: Annotated[
        str,
        typer.Option(
            help="Memory of a GPU, as 20GiB: the part of one that has so much; with --gpus N: of each of those N."
        ),
    ] = "0",
    flavor: Annotated[
        list[str] | None,
        typer.Option(
            help="Flavor of GPUs that it may have, as a100; default: any, and where it should end first. Repeatable."
        ),
    ] = None,
    cpus: Annotated[float, typer.Option(help="CPUs to count for it; 0: not counted.")] = 0.0,
    memory: Annotated[str, typer.Option(help="Main memory to count for it, as 20GiB; 0: not counted.")] = "0",
    queue: Annotated[str, typer.Option(help="Queue whose quota it uses.")] = "",
    priority: Annotated[int, typer.Option(help="Of two in a queue the higher one goes first.")] = 0,
    expect: Annotated[str, typer.Option(help="How long it is believed to take, as 90s or 2h.")] = "",
    for_: Annotated[str, typer.Option("--for", help="After so long it is ended: a time box.")] = "",
    idle_timeout: Annotated[
        str, typer.Option(help="After so long without work it is ended: none measured, and none told by EGS_ACTIVITY.")
    ] = "",
    deadline: Annotated[
        str, typer.Option(help="In so long it should have ended; it goes forward in time for that.")
    ] = "",
    after: Annotated[
        list[str] | None,
        typer.Option(help="Run that has to succeed first; RUN:any: to end; RUN:failed: to fail. Repeatable."),
    ] = None,
    name: Annotated[str, typer.Option(help="Name to show; default: of the script or program.")] = "",
    split: Annotated[
        bool, typer.Option("--split", help="Hold its GPUs only inside of `with egs.gpu():` in the command's own code.")
    ] = False,
    in_: Annotated[
        str, typer.Option("--in", metavar="REQUEST", help="Run on the GPUs of this GPU request (`egs request`).")
    ] = "",
    pty: Annotated[bool, typer.Option("--pty", help="Give the command a terminal of its own.")] = False,
    hold: Annotated[bool, typer.Option("--hold", help="Do not start before `egs resume`.")] = False,
    requeue: Annotated[
        bool,
        typer.Option("--requeue", help="It may be ended for another that goes first, and starts again in its turn."),
    ] = False,
    suspend: Annotated[
        bool,
        typer.Option("--suspend", help="As --requeue, but it is put aside, off its GPUs, and goes on where it was."),
    ] = False,
    checkpoint_signal: Annotated[
        str,
        typer.Option(
            metavar="USR1|USR2|HUP", help="Signal that asks its processes to save their work, for rules that watch."
        ),
    ] = "",
    checkpoint_takes: Annotated[str, typer.Option(help="How long saving its work keeps it from that.")] = "30s",
    mlflow_loss: Annotated[
        str,
        typer.Option(
            metavar="METRIC", help="Metric that it logs to MLflow and that is its loss, for rules that watch."
        ),
    ] = "",
    array: Annotated[
        int | None, typer.Option(help="So many runs of the command; EGS_ARRAY_INDEX tells each which it is, from 0.")
    ] = None,
    gang: Annotated[
        str,
        typer.Option(
            metavar="NAME[:SIZE]",
            help="It starts together with others of this name, or none of them: SIZE runs; default: those of --array.",
        ),
    ] = "",
    gang_wait: Annotated[
        str, typer.Option(help="So long the first of a gang waits for the last to be asked for; then they end.")
    ] = "10m",
    torch_env: Annotated[
        bool,
        typer.Option(
            "--torch-env",
            help="With --gang, or --in a request over hosts: set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, "
            "where they are not set.",
        ),
    ] = False,
    retries: Annotated[int, typer.Option(min=0, help="How often it is started again when it fails.")] = 0,
    retry_on: Annotated[
        list[int] | None,
        typer.Option(min=0, max=255, help="Only after this exit code; default: any but 0, 126 and 127. Repeatable."),
    ] = None,
    preload: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULES", help="Modules, as torch,numpy, that its Python imports while it waits. Repeatable."
        ),
    ] = None,
    keep_ready: Annotated[
        int,
        typer.Option(
            min=0,
            max=MOST_READY,
            help="With --preload: so many processes may stand ready for the next runs of this command, as runs come; "
            "egs doctor shows them.",
        ),
    ] = 0,
    or_flavor: Annotated[
        list[str] | None,
        typer.Option(help="Where it ends for lack of a GPU's memory it is tried again on this flavor. Repeatable."),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Only say when it would start, and why not now.")] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="Go on without this terminal; `egs logs` has its output.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --check and --detach: print one JSON object.")] = False,
) -> int:
    """Run a command when the site server gives it what it needs. CUDA_VISIBLE_DEVICES has its GPUs; its output and
    signals pass through, and its exit code is this one's."""
    arguments.checked(command)
    check_options(given_options(ctx))
    modules = modules_of(preload or ())
    if modules:
        python_words(command)  # refused now, not when it is needed
    idle_s = parse_seconds(idle_timeout, "--idle-timeout") if idle_timeout else None
    if idle_s == 0:
        raise InputError("--idle-timeout", "must be more than 0", "leave it out for none")
    if mlflow_loss:
        reader_of(os.environ)  # refused now, not when it is needed
    address = the_site()
    fields: dict[str, object] = {
        "name": name or name_of(command),
        "gpus": gpus,
        "gpu_memory_bytes": parse_bytes(gpu_memory, "--gpu-memory"),
        "cpus": cpus,
        "memory_bytes": parse_bytes(memory, "--memory"),
        "queue": queue,
        "priority": priority,
        "expected_s": parse_seconds(expect, "--expect") if expect else None,
        "for_s": parse_seconds(for_, "--for") if for_ else None,
        "deadline_s": parse_seconds(deadline, "--deadline") if deadline else None,
        "hold": hold,
        "after": _after(address, after or ()),
        "inside": _numbers(address, "--in", [in_])[0] if in_ else "",
        "requeue": requeue or suspend,
        **_gang(gang, array or 0, gang_wait),
        **({"flavors": flavor} if flavor else {}),
        **_saving(checkpoint_signal, checkpoint_takes),
        **({"suspend": True} if suspend else {}),
    }
    try:
        request = request_of(fields)
    except ValidationError as error:
        raise option_error(error) from None
    if check:
        with connected(address) as client:
            _show_check(client.check(request), as_json)
        return 0
    job = Job(
        command,
        os.getcwd(),
        fields,
        retries,
        retry_on or [],
        is_detached=detach,
        is_split=split,
        has_terminal=pty,
        idle_s=idle_s,
        torch_env=torch_env,
        or_flavors=or_flavor or [],
        mlflow_loss=mlflow_loss,
        suspends=suspend,
        preload=modules,
        keep_ready=keep_ready,
    )
    every = [job] if array is None else members(job, array)
    later = [request_of({**fields, "flavors": [one]}) for one in or_flavor or ()]
    if later or split or array is not None:
        with connected(address) as client, suppress(Unreachable):  # then the run waits for the server, as any
            for one in later:  # refused once, and now: not when it is needed
                _check_later(client, one)
            client.check(request)
    line = _not_there(command)
    if not line and modules and not keep_ready:  # else the run or its keeper tells
        line = absent_words(command, modules)
    if line:
        warn(line)
    if not detach:
        return start_here(address, job) if array is None else start_all_here(address, every)
    numbers = [start_detached(address, one) for one in every]
    if as_json:
        typer.echo(json.dumps({"id": numbers[0], "ids": numbers}))
    elif array is not None:
        typer.echo(f"runs {', '.join(numbers)}; their output: egs logs RUN")
    else:
        typer.echo(f"run {numbers[0]}; its output: egs logs {numbers[0]}")
    return 0


def _check_later(client: SiteClient, request: c.RunRequest) -> None:
    """What is asked for where its first flavor had too little memory. Raises Refused, by the option that names it."""
    try:
        client.check(request)
    except Refused as refusal:
        raise Refused(refusal.status, str(refusal).replace("--flavor: ", "--or-flavor: ", 1)) from None


def _not_there(command: list[str]) -> str:
    """What is said of a command that could not be started here now, or of a script that its Python would not find."""
    program = command[0]
    if shutil.which(program) is None:
        if "/" in program and os.path.isfile(program):
            return f"{program} is not executable now: unless it is by its turn, the run fails (chmod +x {program})"
        return f"there is no command {program!r} here now: unless there is one by its turn, the run fails"
    is_python = PYTHON.fullmatch(PurePath(program).name) and len(command) > 1 and not command[1].startswith("-")
    if is_python and not os.path.exists(command[1]):
        return f"there is no script {command[1]!r} here now: unless there is one by its turn, the run fails"
    return ""


def _gang(text: str, array: int, wait: str) -> dict[str, object]:
    """The field of the request, {} for no gang."""
    if not text:
        return {}
    name, _, size = text.rpartition(":") if ":" in text else (text, "", str(array or ""))
    if not name or not size.isdecimal():
        problem = f"{text!r} does not say how many start together"
        raise InputError("--gang", problem, "name the gang and its size, as train:4, or add --array")
    if ":" in name:
        raise InputError("--gang", f"{text!r}: a gang's name has no colon", "name the gang and its size, as train:4")
    if array > int(size):
        raise InputError("--gang", f"the {array} runs of --array are more than a gang of {size}", "make it larger")
    return {"gang": {"name": name, "size": int(size), "wait_s": parse_seconds(wait, "--gang-wait")}}


def _saving(signal: str, takes: str) -> dict[str, object]:
    """The field of the request, {} for none."""
    name = signal.upper().removeprefix("SIG")
    return {"saving": {"signal": name, "takes_s": parse_seconds(takes, "--checkpoint-takes")}} if signal else {}


def _after(address: Address, texts: Sequence[str]) -> list[dict[str, str]]:
    """The field of the request: runs by their numbers."""
    found = []
    for text in texts:
        run, _, when = text.partition(":")
        if when not in ("", "ok", "any", "failed"):
            raise InputError("--after", f"{text!r}: a run has to end ok, any or failed, not {when}")
        found.append({"run": run, "when": when or "ok"})
    numbers = _numbers(address, "--after", [one["run"] for one in found])
    return [{**one, "run": number} for one, number in zip(found, numbers, strict=True)]


def _numbers(address: Address, option: str, words: list[str]) -> list[str]:
    """Of runs that an option calls by number or name."""
    if all(NUMBER.fullmatch(word) for word in words):
        return words
    with connected(address) as client:
        try:
            return [number_of(client, word) for word in words]
        except Refused as refusal:
            told = str(refusal)
            if option == "--in" and refusal.status == 404:  # as of a number
                told = f"there is no GPU request {words[0]!r}: `egs request list` lists those that are open"
            raise EgsError(f"{option}: {told}") from None


def _show_check(view: c.RunView, as_json: bool) -> None:
    if as_json:
        typer.echo(view.model_dump_json())
    else:
        typer.echo("it would start now" if view.state == "granted" else f"it {why_words(view)}")
        if view.notice:
            say(view.notice)


def name_of(command: list[str]) -> str:
    """What a command is called: its program, or the script that an interpreter is given. No other argument.

    >>> name_of(["python3.12", "jobs/train.py", "--secret", "x"]), name_of(["/opt/tool", "a"])
    ('train.py', 'tool')
    """
    program = PurePath(command[0]).name
    is_script = INTERPRETER.fullmatch(program) and len(command) > 1 and not command[1].startswith("-")
    named = PurePath(command[1]).name if is_script else program
    return "".join(one if one.isprintable() else "?" for one in named)[:200]
