"""`egs doctor`: what this installation has, what works, and what to do about what does not."""

from __future__ import annotations

import json
import os
import sys
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from egs_core.adapter import Check, Surface, adapter_distributions, adapter_names, combined, load_adapter
from egs_core.cli.rows import print_rows
from egs_core.cli.server_check import server_check
from egs_core.client.ready import shown
from egs_core.compat import installed_version
from egs_core.errors import EgsError
from egs_core.mode import VARIABLE, parse_mode
from egs_core.places import data_folder
from egs_core.surfaces import CAPABILITIES, OF_EGS, OWN

NO_DEVICES = "none visible; GPU phases are emulated"


class AdapterState(msgspec.Struct, frozen=True):
    """One installed adapter: what it can do, in all and with each of its surfaces, and how its own checks went."""

    name: str
    capabilities: dict[str, str]
    checks: list[Check]
    surfaces: list[Surface] = []


class Diagnosis(msgspec.Struct, frozen=True):
    """Everything `egs doctor` knows; `--json` prints it as it is. own: what can be used without any adapter."""

    ok: bool
    checks: list[Check]
    packages: dict[str, str]
    adapters: list[AdapterState]
    gpus: list[str]
    mode: str
    own: list[Surface] = []


def doctor(
    whole: Annotated[
        bool,
        typer.Option(
            "--all", help="Each check, what can be done on each framework, hints that are kept, all packages."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Check Python, packages, adapters, GPUs, the history store and the site server: a line for each part, and for all
    that is wrong. Exit code 1 when a check fails."""
    diagnosis = diagnose()
    if as_json:
        print(json.dumps(msgspec.to_builtins(diagnosis)))
    elif whole:
        _show(diagnosis, Console())
    else:
        _show_parts(diagnosis)
    return 0 if diagnosis.ok else 1


def diagnose() -> Diagnosis:
    """Look at this process's installation and environment; changes nothing."""
    gpus, gpu_check = visible_gpus()
    mode, mode_check = current_mode(dict(os.environ))
    adapters = [_adapter_state(name) for name in adapter_names()]
    checks = [python_check(sys.version_info[:3]), mode_check, gpu_check, history_check(), adapters_check(adapters)]
    checks += [server_check(), *ready_checks()]
    failed = [check for check in [*checks, *(c for a in adapters for c in a.checks)] if not check.ok]
    return Diagnosis(not failed, checks, installed_packages(), adapters, gpus, mode, list(OWN))


def python_check(found: tuple[int, int, int]) -> Check:
    """Whether this Python is one that EGS is tested on."""
    text = ".".join(map(str, found))
    supported = (3, 11) <= found[:2] <= (3, 13)
    return Check("python", supported, f"{text} at {sys.executable}" if supported else f"{text}; needs 3.11 to 3.13")


def ready_checks() -> list[Check]:
    """One for each keeper of processes that stand ready between runs, `egs run --keep-ready`."""
    found = []
    for answer in shown():
        words = [
            f"{one.pid} for {one.command} ({one.modules}), {one.size_bytes >> 20} MiB"
            + ("" if one.loaded_s is not None else ", loading")
            for one in answer.standing
        ]
        found.append(
            Check("stand ready", True, f"{'; '.join(words) or 'none now'}; all end with: kill {answer.keeper}")
        )
    return found


def current_mode(environment: dict[str, str]) -> tuple[str, Check]:
    """The mode that hooks on unmodified code would take, and where that was set."""
    stated = environment.get(VARIABLE, "")
    mode, problem = parse_mode(stated, "observe")
    if not stated.strip():
        return mode, Check("mode", True, f"observe (the default; {VARIABLE} is not set)")
    return mode, Check("mode", not problem, problem or f"{mode} (from {VARIABLE} in the environment)")


def visible_gpus() -> tuple[list[str], Check]:
    """The names of the devices that the driver shows. None is a normal state: GPU phases are then emulated."""
    try:
        import pynvml
    except ImportError:
        return [], Check("gpus", True, f"{NO_DEVICES} (nvidia-ml-py is not installed: pip install 'egs-core[gpu]')")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return [], Check("gpus", True, f"{NO_DEVICES} ({error})")
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        names = [_text(pynvml.nvmlDeviceGetName(handle)) for handle in handles]
    except pynvml.NVMLError as error:
        return [], Check("gpus", False, f"the driver answers, its devices do not: {error}")
    finally:
        pynvml.nvmlShutdown()
    return names, Check("gpus", True, ", ".join(names) or NO_DEVICES)


def history_check(folder: Path | None = None) -> Check:
    """Where durations of past runs are kept, and whether they can be read."""
    from egs_core.history.sql import FILE_NAME, SqlHistory

    path = (folder or data_folder()) / FILE_NAME
    if not path.exists():
        return Check("history", True, f"{path}: nothing recorded yet")
    history = SqlHistory.in_folder(path.parent)
    pipelines = history.pipelines()
    history.close()
    if history.problem is not None:
        return Check("history", False, f"{path}: {history.problem} (move it away: EGS then starts a new one)")
    return Check("history", True, f"{path}: {len(pipelines)} pipelines")


def installed_packages() -> dict[str, str]:
    """EGS's own distributions and the libraries they need, with versions; `missing` where there is none."""
    names = {"egs-core", *adapter_distributions()}
    for own in sorted(names):
        names |= _required_by(own)
    return {name: installed_version(name) or "missing" for name in sorted(names)}


def adapters_check(adapters: list[AdapterState]) -> Check:
    """Which frameworks `egs replay` and `egs demo` could use; a GPU server needs none."""
    if not adapters:
        return Check("adapters", True, "none installed: each framework has a distribution of its own (see the README)")
    return Check("adapters", True, ", ".join(adapter.name for adapter in adapters))


def _adapter_state(name: str) -> AdapterState:
    """Ask one adapter. One that breaks here is a failed check and takes nothing else down."""
    try:
        adapter = load_adapter(name)
        surfaces = list(adapter.surfaces())
        return AdapterState(name, combined(surfaces), adapter.doctor(), surfaces)
    except EgsError as error:
        return AdapterState(name, {}, [Check("load", False, str(error))])
    except Exception as error:  # an adapter is someone else's code
        return AdapterState(name, {}, [Check("load", False, f"{type(error).__name__}: {error}")])


def _required_by(distribution: str) -> set[str]:
    try:
        lines = requires(distribution) or []
    except PackageNotFoundError:
        return set()
    hard = [line for line in lines if "extra ==" not in line]
    return {line.split(";")[0].split("[")[0].rstrip(" <>=!~.,0123456789") for line in hard}


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _show_parts(diagnosis: Diagnosis) -> None:
    """What is wrong, each with a line; of what is right a line for each part."""
    checks = list(diagnosis.checks)
    for adapter in diagnosis.adapters:
        failed = [Check(f"{adapter.name}: {one.name}", False, one.detail) for one in adapter.checks if not one.ok]
        first, *more = adapter.checks or [Check("", True)]
        found = "; ".join([first.detail, *[f"{one.name}: {one.detail}" for one in more]])
        checks += failed or [Check(adapter.name, True, found)]
    own = [f"{name} {diagnosis.packages.get(name, '')}" for name in sorted({"egs-core", *adapter_distributions()})]
    checks.append(Check("packages", True, ", ".join(own)))
    checks.sort(key=lambda check: check.ok)
    print_rows(("", "check", "found"), [("ok" if one.ok else "no", one.name, one.detail) for one in checks])
    typer.echo("egs doctor --all has every check, and what can be done on each framework")


def _show(diagnosis: Diagnosis, console: Console) -> None:
    table = Table("", "check", "found", box=None, pad_edge=False)
    for check in diagnosis.checks:
        _add(table, "", check)
    for adapter in diagnosis.adapters:
        for check in adapter.checks:
            _add(table, f"{adapter.name}: ", check)
        _add_surfaces(table, adapter.name, adapter.surfaces)
    for surface in diagnosis.own:
        _add_surfaces(table, f"{OF_EGS} {surface.name}", [surface])
    console.print(table)
    console.print("packages: " + ", ".join(f"{name} {found}" for name, found in diagnosis.packages.items()))


def _add_surfaces(table: Table, name: str, surfaces: list[Surface]) -> None:
    for surface in surfaces if len(surfaces) > 1 else ():
        table.add_row("", f"{name}: {surface.name} is", escape(surface.use))
    for capability in CAPABILITIES if surfaces else ():
        table.add_row("", f"{name}: can {capability}", escape(_answers(surfaces, capability)))
    for surface in surfaces:
        if surface.hints:
            table.add_row("", f"{name}: hints, {surface.name}", escape(_kept(surface)))


def _answers(surfaces: list[Surface], capability: str) -> str:
    """One answer where all surfaces agree, else one a line."""
    answers = [surface.can[capability] for surface in surfaces]
    if len(set(answers)) == 1:
        return answers[0]
    return "\n".join(f"{surface.name}: {answer}" for surface, answer in zip(surfaces, answers, strict=True))


def _kept(surface: Surface) -> str:
    """The hints that a surface keeps, then those that it does not, each with the reason."""
    kept = [name for name in surface.hints if surface.has(name)]
    lost: dict[str, list[str]] = {}
    for name, answer in surface.hints.items():
        if name not in kept:
            lost.setdefault(answer.removeprefix("no: "), []).append(name)
    return "\n".join([", ".join(kept) or "none", *(f"not {', '.join(names)}: {why}" for why, names in lost.items())])


def _add(table: Table, prefix: str, check: Check) -> None:
    table.add_row("[green]ok[/]" if check.ok else "[red]no[/]", prefix + check.name, escape(check.detail))
