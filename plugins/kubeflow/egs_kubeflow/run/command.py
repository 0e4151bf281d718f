"""`egs kubeflow run pipeline.yaml`: run a compiled pipeline on this machine."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from egs_kubeflow.convert.arguments import Argument, split_arguments
from egs_kubeflow.run.api import ROOT, RunResult, run_file

EXIT_FAILED, EXIT_INTERRUPTED = 1, 130


def run_command(
    pipeline: Annotated[Path, typer.Argument(help="A pipeline that kfp has compiled.")],
    arg: Argument = [],  # noqa: B006  # typer makes a new list for each call
    policy: Annotated[str, typer.Option(help="Rule of order among waiting tasks: egs, or fifo to compare.")] = "egs",
    cpus: Annotated[float | None, typer.Option(help="CPU slots; by default all CPUs.")] = None,
    gpus: Annotated[int | None, typer.Option(help="GPU slots; by default all GPUs.")] = None,
    emulate_gpus: Annotated[bool, typer.Option(help="The GPU slots have no device.")] = False,
    root: Annotated[Path, typer.Option(help="Where tasks write.")] = Path(ROOT),
    runlog: Annotated[Path | None, typer.Option(help="The run log; by default in the user's data folder.")] = None,
    quiet: Annotated[bool, typer.Option(help="Do not show what tasks print.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Run a compiled pipeline on this machine, in parallel, each task in a process of its own."""
    shown = None if quiet or as_json else lambda task, line: print(f"[{task}] {line}", end="", flush=True)
    options = {"policy": policy, "cpus": cpus, "gpus": gpus, "emulate_gpus": emulate_gpus, "root": root, "echo": shown}
    with _interrupted_by(signal.SIGTERM, signal.SIGHUP):
        result = run_file(
            pipeline,
            split_arguments(arg),
            runlog=str(runlog) if runlog else None,
            raise_on_error=False,
            **options,
        )
    with _unread():
        _print(result, as_json)
    return 0 if result.state == "succeeded" else EXIT_FAILED


@contextmanager
def _unread() -> Iterator[None]:
    """Nobody may read what is printed any more (`… | head`): that is no error, and changes no exit code."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more when it ends


@contextmanager
def _interrupted_by(*signals: signal.Signals) -> Iterator[None]:
    """These end the run as Ctrl-C does: else its tasks, which have process groups of their own, would stay."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in signals}
    try:
        yield
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _print(result: RunResult, as_json: bool) -> None:
    if as_json:
        print(json.dumps(_as_json(result)))
        return
    has_errors = bool(result.failed)
    table = Table("task", "state", "attempts", *(["error"] if has_errors else []), box=None)
    for task in result.tasks:
        row = [task.task, task.state, str(task.attempts), *([task.error] if has_errors else [])]
        table.add_row(*(Text(cell, overflow="fold") for cell in row))
    console = _Console()
    console.print(table)
    for name, value in result.outputs.items():
        console.print(f"{name} = {_plain(value)!r}", markup=False)
    console.print(f"{result.state} in {result.seconds:.1f} s")
    console.print(f"outputs: {result.folder}", markup=False, soft_wrap=True)
    if _has_log(result):
        part = "" if result.has_whole_log else " (in part)"
        console.print(f"run log: {result.runlog}{part}", markup=False, soft_wrap=True)


def _has_log(result: RunResult) -> bool:
    return result.has_whole_log or result.runlog.is_file()


class _Console(Console):
    """rich's, but that it leaves to its caller what a pipe means that nobody reads."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def _as_json(result: RunResult) -> dict[str, Any]:
    tasks = [
        {"task": t.task, "state": t.state, "attempts": t.attempts, "error": t.error, "folder": t.folder}
        for t in result.tasks
    ]
    return {
        "pipeline": result.name,
        "state": result.state,
        "seconds": result.seconds,
        "outputs": {name: _plain(value) for name, value in result.outputs.items()},
        "tasks": tasks,
        "folder": str(result.folder),
        "runlog": str(result.runlog) if _has_log(result) else None,
    }


def _plain(value: Any) -> Any:
    """An output as JSON has it: an artifact is where it lies."""
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value.uri if hasattr(value, "uri") else value
