"""The page of the command line: every command of `egs`, of the adapters below it, and of `airflow egs`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from typer.models import ArgumentInfo, OptionInfo, ParameterInfo

from egs_airflow.cli import get_cli_commands
from egs_core.adapter import Commanding, installed_adapters
from egs_core.cli import app
from scripts.reference.markdown import MissingText, code, table
from scripts.reference.types import type_name

INTRO = """# Commands

Exit codes of `egs`: 0 done, 1 a failed check or a bug, 2 an input that you can correct (one line says what and where),
130 interrupted. `EGS_DEBUG=1` adds a traceback.
"""


def commands_page() -> str:
    """All commands with their arguments and options."""
    parts = [INTRO]
    for name in app.COMMANDS:
        parts += commands_of(f"egs {name}", app._load(name))
    for adapter, one in installed_adapters().items():
        if isinstance(one, Commanding):
            parts += commands_of(f"egs {adapter}", one.commands())
    parts += [airflow_command(one) for group in get_cli_commands() for one in group.subcommands]
    return "\n".join(parts)


def commands_of(title: str, found: Callable[..., Any] | typer.Typer) -> list[str]:
    """A command, or each of a group, and the group itself where it does something."""
    if not isinstance(found, typer.Typer):
        return [command(title, found)]
    group = found.registered_callback
    itself = group.callback if group is not None and group.invoke_without_command is True else None
    return ([command(title, itself)] if itself else []) + [
        command(f"{title} {one.name}", one.callback) for one in found.registered_commands if one.callback
    ]


def command(title: str, function: Callable[..., Any]) -> str:
    """One command from the signature of its function."""
    summary = inspect.getdoc(function)
    if not summary:
        raise MissingText(f"`{title}` has no help")
    return _section(title, summary, list(parameters(title, function)))


def parameters(title: str, function: Callable[..., Any]) -> Iterator[tuple[str, str, str, str]]:
    """One row a parameter: how it is written, type, default, help."""
    hints = get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        annotation = hints[name]
        if annotation is typer.Context:
            continue
        info = next((one for one in get_args(annotation)[1:] if isinstance(one, ParameterInfo)), None)
        if get_origin(annotation) is not Annotated or info is None or not info.help:
            raise MissingText(f"`{title}`: {name} has no help")
        kind = "flag" if get_args(annotation)[0] is bool else type_name(get_args(annotation)[0])
        yield code(_written(name, info)), kind, _default(parameter.default), info.help


def _written(name: str, info: ParameterInfo) -> str:
    if isinstance(info, ArgumentInfo):
        return info.metavar or name.upper()
    assert isinstance(info, OptionInfo)
    stated = [text for text in (info.default, *(info.param_decls or ())) if isinstance(text, str)]  # as Typer reads it
    return ", ".join(sorted(stated, key=len)) or "--" + name.replace("_", "-")


def _default(value: object) -> str:
    if value is inspect.Parameter.empty:
        return "required"
    return "" if value in (None, "", False) else code(f"{value:g}" if isinstance(value, float) else value)


def airflow_command(one: Any) -> str:
    """One command of Airflow's own command line."""
    rows = []
    for arg in one.args:
        options = arg.kwargs
        kind = "flag" if options.get("action") == "store_true" else type_name(options.get("type") or str)
        default = "" if options.get("default") in (None, "") else code(options["default"])
        required = "" if arg.flags[0].startswith("-") else "required"
        rows.append((code(", ".join(arg.flags)), kind, default or required, _sentence(options["help"])))
    return _section(f"airflow egs {one.name}", _sentence(one.help), rows)


def _sentence(text: str) -> str:
    """Airflow's own help texts end without a full stop; so do those of its providers."""
    return text if text.endswith(".") else f"{text}."


def _section(title: str, summary: str, rows: list[tuple[str, str, str, str]]) -> str:
    shown = table(("argument or option", "value", "default", "meaning"), rows) if rows else ""
    return f"## {title}\n\n{summary}\n\n{shown}"
