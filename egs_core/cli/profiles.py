"""`egs kubernetes lint`, and the profile of `egs kubernetes controller`: files in which users say what a cluster has.

Which file that is an adapter knows: the one that offers `Profiling`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from egs_core.adapter import ProfileFault, Profiling, adapter_names, installed_adapters, load_able
from egs_core.errors import InputError

On = Annotated[str, typer.Option("--on", help="Adapter whose profile it is; by default the one that has profiles.")]


def lint(
    profiles: Annotated[list[Path] | None, typer.Argument(metavar="PROFILE...", help="Profiles of sites.")] = None,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema of a profile, for editors.")] = False,
    on: On = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Say all that is wrong with profiles: file, line, and what to do. Exit code 2 where something is.

    Changes nothing: the files are read, and no connection is made.
    """
    if schema == bool(profiles):
        problem = "prints the schema, and reads no file" if schema else "no profile is named"
        raise InputError("--schema" if schema else "PROFILE", problem, "egs kubernetes lint site.yaml, or --schema")
    adapter = profiling(on)
    if schema:
        typer.echo(json.dumps(adapter.profile_schema(), indent=2))
        return 0
    found = {str(path): adapter.profile_faults(path) for path in profiles or ()}
    if as_json:
        files = [{"file": name, "faults": msgspec.to_builtins(faults)} for name, faults in found.items()]
        typer.echo(json.dumps({"files": files}))
    else:
        for name, faults in found.items():
            typer.echo("\n".join(map(line_of, faults)) if faults else f"{name}: nothing is wrong")
    return 2 if any(found.values()) else 0


def profiling(on: str) -> Profiling:
    """The adapter that has profiles. Raises InputError where none is installed, or several are and none is named."""
    able = [name for name, one in installed_adapters().items() if isinstance(one, Profiling)]
    if not on and len(able) != 1:
        problem = f"{len(able)} installed adapters have profiles"
        hint = "install one that has them" if not able else f"name one with --on: {', '.join(able)}"
        raise InputError("--on", f"{problem} (installed: {', '.join(adapter_names()) or 'none'})", hint)
    return load_able(on or able[0], Profiling, "read profiles")


def line_of(fault: ProfileFault) -> str:
    """As every error of a file is told."""
    line, field = f" line {fault.line}" if fault.line else "", f": {fault.field}" if fault.field else ""
    return f"error: {fault.file}{line}{field}: {fault.problem} ({fault.remedy})"
