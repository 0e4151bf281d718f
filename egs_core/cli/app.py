"""`egs`: finds the command, runs it, and turns every way it can fail into one line and an exit code.

Exit codes: 0 done · 1 a bug, or a check that failed · 2 input that the user can mend · 130 interrupted.

Only the module of the command that was asked for is imported: `egs --help` stays quick, and a command that cannot be
imported (a library missing) does not take the others down. A command module exposes a function with its own name;
what that returns, if it is a number, is the exit code.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Annotated, Any

import typer

from egs_core import __version__
from egs_core.errors import EgsError

COMMANDS: dict[str, str] = {
    "demo": "Run the demo's pipelines natively and with EGS on a real local framework, and compare.",
    "graph": "Read a workload file and show its graph: tasks, edges, critical path; convert it.",
    "plan": "Show the order in which EGS would run a workload, and why.",
    "simulate": "Run workloads on a simulated cluster in virtual time.",
    "replay": "Run a workload file on a real framework, natively or with EGS.",
    "audit": "Say what a cluster wasted and what EGS would have saved, from its history.",
    "collect": "Receive Ray's pushed events and keep them: run logs and durations that outlive the cluster.",
    "report": "Turn run logs into one self-contained page.",
    "why": "Say why a task of a run waited.",
    "ps": "List what runs with EGS on a framework: workloads, stages, tasks.",
    "abort": "End a workload, a stage or a task that another process runs.",
    "pause": "Start nothing more of a workload, a stage or a task.",
    "resume": "Take back a pause.",
    "preempt": "Stop a workload, a stage or a task now, and start it again later.",
    "doctor": "Check Python, packages, adapters, GPUs and the history store.",
}

ADAPTERS: dict[str, str] = {
    "kubeflow": "Compile, rewrite and run Kubeflow pipelines (needs egs-kubeflow).",
}
"""Adapters with commands of their own: `egs kubeflow --help` lists them."""

MODULES = dict.fromkeys(("ps", "abort", "pause", "resume", "preempt"), "control")
"""Where the command is not in a module of its own name."""

EXIT_BUG, EXIT_INPUT, EXIT_INTERRUPTED = 1, 2, 130


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the `egs` script: runs one command line and exits the process."""
    sys.exit(run(list(sys.argv[1:] if argv is None else argv)))


def run(args: list[str]) -> int:
    """Run one command line and return its exit code; never raises for what a command did."""
    try:
        returned = build_app(_asked_for(args))(args, prog_name="egs", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_stdout()
        return EXIT_BUG
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else EXIT_BUG if end.code else 0
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:
        return _report(error)
    return returned if isinstance(returned, int) else 0


def build_app(asked_for: str | None = None) -> typer.Typer:
    """The app with every command listed, of which only `asked_for` is imported and can run."""
    app = typer.Typer(name="egs", add_completion=False, no_args_is_help=True, rich_markup_mode="rich")
    app.callback()(_options)
    for name, summary in COMMANDS.items():
        app.command(name, help=None if name == asked_for else summary)(_load(name) if name == asked_for else _listed)
    for name, summary in ADAPTERS.items():
        if name == asked_for:
            from egs_core.adapter import load_commands

            app.add_typer(load_commands(name), name=name, help=summary)
        else:
            app.command(name, help=summary)(_listed)
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"egs {__version__}")
        raise typer.Exit


def _options(
    _version: Annotated[bool, typer.Option("--version", callback=_show_version, help="Show the version.")] = False,
) -> None:
    """Makes pipelines stop wasting GPUs. Every command has its own --help; most take --json."""


def _listed() -> None:
    """Stands for a command that was not asked for: `--help` lists it, nothing runs it."""


def _asked_for(args: Sequence[str]) -> str | None:
    first = next((arg for arg in args if not arg.startswith("-")), None)
    return first if first in COMMANDS or first in ADAPTERS else None


def _load(name: str) -> Callable[..., Any]:
    """The function of a command. A module that cannot be imported is an error of that command alone."""
    try:
        command: Callable[..., Any] = getattr(import_module(f"egs_core.cli.{MODULES.get(name, name)}"), name)
    except ImportError as error:
        missing = (error.name or "").split(".")[0]
        remedy = "reinstall egs-core" if missing in ("", "egs_core") else f"pip install {missing}"
        raise EgsError(f"egs {name}: cannot be loaded: {error} ({remedy})") from error
    return command


def _report(error: Exception) -> int:
    """Say on stderr what went wrong, in one line, and return the exit code that belongs to it."""
    if os.environ.get("EGS_DEBUG") == "1":
        traceback.print_exception(error)
    if isinstance(error, EgsError):
        return _fail(str(error), EXIT_INPUT)
    if isinstance(error, typer.Abort):
        return EXIT_INTERRUPTED
    if hasattr(error, "format_message"):  # typer's own: an unknown option, a bad value; empty when it showed the help
        message = str(error.format_message())
        return _fail(f"{message} (see: {_help_of(error)})", EXIT_INPUT) if message else EXIT_INPUT
    if isinstance(error, OSError) and error.filename is not None:
        return _fail(f"{error.filename}: {error.strerror}", EXIT_INPUT)
    problem = f"this is a bug in egs {__version__}: {type(error).__name__}: {error}"
    return _fail(f"{problem} (run it again with EGS_DEBUG=1 and report what it prints)", EXIT_BUG)


def _help_of(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    return f"{context.command_path if context is not None else 'egs'} --help"


def _fail(message: str, code: int) -> int:
    print("error: " + " ".join(message.split()), file=sys.stderr)
    return code


def _discard_stdout() -> None:
    """Who reads stdout has gone: give the interpreter's last flush somewhere to go, so that it stays quiet."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
