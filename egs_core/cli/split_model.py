"""`egs split-model FILE --devices DEVICES.yaml`: which operator of a model on which device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from egs_core.cli.graph import format_bytes
from egs_core.errors import InputError
from egs_core.graph.source import read_bytes
from egs_core.model import (
    OBJECTIVES,
    Devices,
    Instance,
    Objective,
    Operators,
    Split,
    read_devices,
    read_operators,
    split,
)
from egs_core.model.loss import busy_s, used_bytes
from egs_core.yaml_file import read_text

MOST_FILE_BYTES = 1 << 30
INFEASIBLE = 1
MODELS = (".onnx", ".pt", ".pt2", ".pth", ".safetensors")
"""Endings of files that have a model's weights, and no times."""


def split_model(
    file: Annotated[Path, typer.Argument(help="The model's graph: JSON with nodes and edges.")],
    devices: Annotated[Path, typer.Option(help="The devices and the link between them, a YAML file.")],
    objective: Annotated[
        str, typer.Option(help="What shall be short: request (one request, from start to end) or stream (the pace).")
    ] = "request",
    seed: Annotated[int, typer.Option(help="Of the search; the same seed gives the same assignment.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Split a model's operators over devices: little latency, little idle memory, and no device's memory exceeded.

    Exit code 1 when they do not fit.
    """
    chosen = _objective(objective)
    instance = Instance(_read_operators(file), _read_devices(devices))
    found = split(instance, chosen, seed)
    if as_json:
        typer.echo(json.dumps(summary(instance, found, chosen, seed)))
    else:
        _show(instance, found, chosen)
    return 0 if found.assignment is not None else INFEASIBLE


def summary(instance: Instance, found: Split, objective: Objective, seed: int) -> dict[str, Any]:
    """What `--json` prints; without an assignment all that depends on one is null."""
    loss, assignment = found.loss, found.assignment
    names = [device.name for device in instance.devices.devices]
    by_node = None
    if assignment is not None:
        by_node = {node: names[d] for node, d in zip(instance.operators.ids, assignment, strict=True)}
    return {
        "feasible": assignment is not None,
        "reason": found.reason,
        "objective": objective,
        "seed": seed,
        "loss": loss and loss.loss,
        "lambda_s": instance.lambda_s,
        "latency_s": loss and loss.latency_s,
        "idle_bytes": loss and loss.idle_bytes,
        "cut_edges": loss and loss.cut_edges,
        "optimal": found.is_best,
        "devices": None if assignment is None else _device_rows(instance, assignment),
        "assignment": by_node,
    }


def _device_rows(instance: Instance, assignment: list[int]) -> list[dict[str, Any]]:
    used, busy = used_bytes(instance, assignment), busy_s(instance, assignment)
    return [
        {
            "name": device.name,
            "operators": assignment.count(d),
            "used_bytes": used[d],
            "memory": device.memory,
            "busy_s": busy[d],
        }
        for d, device in enumerate(instance.devices.devices)
    ]


def _show(instance: Instance, found: Split, objective: Objective) -> None:
    console = Console()
    if found.assignment is None or found.loss is None:
        console.print(Text(f"infeasible: {found.reason}"))
        return
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("device", "operators", "used", "of", "computes s"):
        table.add_column(name, justify="left" if name == "device" else "right")
    for row in _device_rows(instance, found.assignment):
        sizes = (format_bytes(row["used_bytes"]), format_bytes(row["memory"]))
        table.add_row(Text(row["name"]), f"{row['operators']:,}", *sizes, f"{row['busy_s']:.6g}")
    loss = found.loss
    what = "one request" if objective == "request" else "between two requests"
    least = ", the least there is" if found.is_best else ""
    console.print(Text(f"{loss.latency_s:.6g} s {what}; loss {loss.loss:.6g} s{least}"))
    console.print(table)
    idle_s, edges = loss.loss - loss.latency_s, "edge" if loss.cut_edges == 1 else "edges"
    console.print(
        Text(
            f"{format_bytes(loss.idle_bytes)} idle on devices in use: {idle_s:.3g} s of the loss "
            f"(lambda {instance.lambda_s:.6g} s); {loss.cut_edges:,} {edges} between devices; --json has all"
        )
    )


def _objective(name: str) -> Objective:
    for known in OBJECTIVES:
        if name == known:
            return known
    raise InputError("--objective", f"must be one of {', '.join(OBJECTIVES)}, not {name!r}")


def _read_operators(path: Path) -> Operators:
    if path.suffix.lower() in MODELS:
        hint = 'write its graph as JSON: {"nodes": [{"id", "bytes", "seconds"}], "edges": [{"from", "to", "bytes"}]}'
        raise InputError(str(path), "models themselves are not read", hint)
    return read_operators(read_bytes(path, MOST_FILE_BYTES), str(path))


def _read_devices(path: Path) -> Devices:
    return read_devices(read_text(path, "devices"), str(path))
