"""`egs`: finds the command, runs it, and turns every way it can fail into one line and an exit code.

Exit codes: 0 done · 1 a bug, or a check that failed · 2 input that the user can mend · 130 interrupted.

Only the module of the command that was asked for is imported: `egs --help` stays quick, and a command that cannot be
imported (a library missing) does not take the others down. A command module exposes a function with its own name
(`split_model` for `split-model`); what that returns, if it is a number, is the exit code.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from typing import Annotated, Any

import typer

from egs_core import __version__
from egs_core.errors import EgsError
from egs_core.validation_words import problem_of

COMMANDS: dict[str, str] = {
    "demo": "Run the demo's pipelines natively and with EGS on a real local framework, and compare.",
    "graph": "Read a workload file and show its graph: tasks, edges, critical path; convert it.",
    "plan": "Show the order in which EGS would run a workload, and why.",
    "simulate": "Run workloads on a simulated cluster in virtual time.",
    "replay": "Run a workload file on a real framework, natively or with EGS.",
    "audit": "Report what a cluster wasted and what EGS would have saved, from its history.",
    "cost": "Add up GPU hours and money by team, pipeline, task and user.",
    "trace": "Write what ran as OpenTelemetry traces, into a file or a collector.",
    "history": "Show what is known of tasks: runs, durations warm and cold, and how they changed.",
    "collect": "Receive the events that a framework pushes and keep them after the cluster has ended.",
    "dashboard": "Show run logs in a browser: graphs, what runs and waits, wastage, cost.",
    "report": "Write run logs as one self-contained HTML page.",
    "serve": "Share the GPUs of this host among users, or join a server that does.",
    "run": "Run a command when the site server gives it the GPUs that it needs.",
    "profile": "Measure a command on each flavor of GPU at hand, and say which it should have.",
    "advise": "Say which flavor of GPU each task should have, from its runs, and what is not known.",
    "request": "Ask the site server for GPUs for a while, in which commands run.",
    "watch": "Show what the site server's rules see and did; check a file of rules.",
    "slo": "Show how far the site server keeps what its queues promise; rules for Prometheus.",
    "top": "Show the site server's GPUs, queues and runs, again each second.",
    "queue": "List what waits for the site server, and why.",
    "update": "Change what a run of the site server asked for.",
    "token": "Make, list and revoke tokens for the site server.",
    "server": "Show who changed what on the site server; back up, restore and check its database.",
    "release": "End a run of the site server before its time, as a success.",
    "drain": "Give a GPU, or all of the host's, to nothing new; what runs goes on.",
    "undrain": "End that.",
    "host": "List hosts that have joined the site server, or say that one is gone.",
    "logs": "Print the output of a run that was detached.",
    "attach": "Follow a run that was detached to its end, for its exit code.",
    "redo": "Run a command of the site server again that has ended.",
    "why": "Explain why a task of a run waited, or a run of the site server waits.",
    "ps": "List the workloads and tasks that run with EGS on a framework, or with the site server.",
    "abort": "Stop a workload, a stage or a task for good.",
    "pause": "Start no more tasks of a workload or a stage; running ones continue.",
    "resume": "End a pause.",
    "preempt": "Stop a workload, a stage or a task now and restart it later.",
    "split-model": "Split a model's operators over devices: latency, idle memory, limits of memory.",
    "kubernetes": "Order the pods of a Kubernetes cluster: controller, manifests, the way out.",
    "doctor": "Check Python, packages, adapters, GPUs, the history store and the site server.",
}

ADAPTERS, WITH_COMMANDS = "egs.adapters", "egs.commands"
"""Entry-point groups: all adapters, and those that have commands of their own (`egs NAME --help` lists them)."""

STARTING = ("run", "profile")
"""Those that start a command: what follows it is the command's own."""

MODULES = {
    **dict.fromkeys(("ps", "abort", "pause", "resume", "preempt"), "control"),
    **dict.fromkeys(("queue", "release", "drain", "undrain"), "site"),
    "attach": "logs",
}
"""Where the command is not in a module of its own name."""

EXIT_BUG, EXIT_INPUT, EXIT_INTERRUPTED = 1, 2, 130


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the `egs` script: runs one command line and exits the process."""
    sys.exit(run(list(sys.argv[1:] if argv is None else argv)))


def run(args: list[str]) -> int:
    """Run one command line and return its exit code; never raises for what a command did."""
    try:
        app = build_app(_asked_for(args or _being_completed()))
        returned = app(args, prog_name="egs", standalone_mode=False, obj=tuple(args))
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_stdout()
        return EXIT_BUG
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else EXIT_BUG if end.code else 0
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:
        return _report(error, args)
    return returned if isinstance(returned, int) else 0


def build_app(asked_for: str | None = None) -> typer.Typer:
    """The app with every command listed, of which only `asked_for` is imported and can run."""
    app = typer.Typer(name="egs", no_args_is_help=True, rich_markup_mode="rich")
    app.callback()(_options)
    for name, summary in COMMANDS.items():
        command = _load(name) if name == asked_for else _listed
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            settings = {"allow_interspersed_args": name not in STARTING}
            app.command(name, help=None if name == asked_for else summary, context_settings=settings)(command)
    if asked_for is not None and asked_for not in COMMANDS:
        from egs_core.adapter import Commanding, load_able

        commands = load_able(asked_for, Commanding, "be called: it has no commands").commands()
        app.add_typer(commands, name=asked_for, help=_summary(asked_for))
    elif asked_for is None:
        for entry in entry_points(group=WITH_COMMANDS):
            app.command(entry.name, help=_summary(entry.name))(_listed)
    return app


def _summary(adapter: str) -> str:
    """What an adapter's distribution says of itself; read without importing it."""
    found = next((entry for entry in entry_points(group=ADAPTERS) if entry.name == adapter), None)
    summary = found.dist.metadata["Summary"] if found is not None and found.dist is not None else ""
    return f"{summary}." if summary else f"Commands of the adapter {adapter}."


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"egs {__version__}")
        raise typer.Exit


def _options(
    _version: Annotated[bool, typer.Option("--version", callback=_show_version, help="Show the version.")] = False,
) -> None:
    """Pipelines that stop wasting GPUs. Every command has its own --help; most take --json."""


def _listed() -> None:
    """Stands for a command that was not asked for: `--help` lists it, nothing runs it."""


def _asked_for(args: Sequence[str]) -> str | None:
    first = next((arg for arg in args if not arg.startswith("-")), None)
    is_known = first in COMMANDS or any(entry.name == first for entry in entry_points(group=ADAPTERS))
    return first if is_known else None


def _being_completed() -> list[str]:
    """The words of the line that a shell asks to complete, as Typer's scripts hand them on."""
    line = os.environ.get("_TYPER_COMPLETE_ARGS") or os.environ.get("COMP_WORDS") or ""
    return line.split()[1:]


def _load(name: str) -> Callable[..., Any] | typer.Typer:
    """The function of a command, or a group. A module that cannot be imported is an error of that command alone."""
    try:
        command: Callable[..., Any] | typer.Typer = getattr(
            import_module(f"egs_core.cli.{MODULES.get(name, _python_name(name))}"), _python_name(name)
        )
    except ImportError as error:
        missing = (error.name or "").split(".")[0]
        remedy = "reinstall egs-core" if missing in ("", "egs_core") else f"pip install {missing}"
        raise EgsError(f"egs {name}: cannot be loaded: {error} ({remedy})") from error
    return command


def _python_name(command: str) -> str:
    return command.replace("-", "_")


def _report(error: Exception, args: Sequence[str] = ()) -> int:
    """Say on stderr what went wrong, in one line, and return the exit code that belongs to it. args: that were run."""
    if os.environ.get("EGS_DEBUG") == "1":
        traceback.print_exception(error)
    if isinstance(error, EgsError):
        return _fail(str(error), EXIT_INPUT)
    if isinstance(error, typer.Abort):
        return EXIT_INTERRUPTED
    if hasattr(error, "format_message"):  # typer's own: an unknown option, a bad value; empty when it showed the help
        message = _in_plain_words(error, str(error.format_message()))
        return _fail(f"{message} (see: {_help_of(error, args)} --help)", EXIT_INPUT) if message else EXIT_INPUT
    if isinstance(error, OSError) and error.filename is not None:
        return _fail(f"{error.filename}: {error.strerror}", EXIT_INPUT)
    problem = f"this is a bug in egs {__version__}: {type(error).__name__}: {error}"
    return _fail(f"{problem} (run it again with EGS_DEBUG=1 and report what it prints)", EXIT_BUG)


def _in_plain_words(error: Exception, message: str) -> str:
    """Typer's message; where pydantic has said what is wrong with a value, in the words of all other errors; of what is
    missing with what it can be."""
    wanted = getattr(getattr(error, "param", None), "help", None)
    if isinstance(wanted, str) and message.startswith("Missing "):
        return f"{message.rstrip('.')}: {wanted}"
    found = getattr(error.__cause__, "errors", None)
    if found is None:
        return message
    first = found()[0]
    sentence, problem = str(first["msg"]), problem_of(first)
    return message.replace(sentence, f"{problem}, not {first['input']!r}") if problem.startswith("must ") else message


def _help_of(error: Exception, args: Sequence[str]) -> str:
    """The command whose help tells more; typer does not say it of an option without its value."""
    context = getattr(error, "ctx", None)
    if context is not None:
        return str(context.command_path)
    path = ["egs"]
    command: Any = typer.main.get_command(build_app(_asked_for(args)))
    for word in args:
        command = getattr(command, "commands", {}).get(word)
        if command is None:
            break
        path.append(word)
    return " ".join(path)


def _fail(message: str, code: int) -> int:
    print("error: " + " ".join(message.split()), file=sys.stderr)
    return code


def _discard_stdout() -> None:
    """Who reads stdout has gone: give the interpreter's last flush somewhere to go, so that it stays quiet."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
