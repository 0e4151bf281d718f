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

from egs_core.cli.printable import printable
from egs_core.errors import InputError, listed
from egs_core.graph.model import FORMAT, VERSION
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
from egs_core.model.stages import workload_of
from egs_core.model_files import ENDINGS, Drawn, Rates, read_model
from egs_core.model_files.drawn import FLOP_S, MEMORY_BYTES_S
from egs_core.units import format_bytes
from egs_core.yaml_file import read_text

MOST_FILE_BYTES = 1 << 30
INFEASIBLE = 1
MOST_STRETCHES = 6  # of a device, that are named
WEIGHTS = (".pt", ".pth", ".safetensors")
"""Endings of files that have a model's weights, and no graph."""
FILES_OF = {"--dim": "ONNX", "--measure": ".pt2"}
"""Which files an option is for, where it is not for both kinds that are no JSON."""


def split_model(
    file: Annotated[
        Path, typer.Argument(help="The model: ONNX, a program of torch.export (.pt2), or JSON with nodes and edges.")
    ],
    devices: Annotated[Path, typer.Option(help="The devices and the link between them, a YAML file.")],
    objective: Annotated[
        str, typer.Option(help="What shall be short: request (one request, from start to end) or stream (the pace).")
    ] = "request",
    seed: Annotated[int, typer.Option(help="Of the search; the same seed gives the same assignment.")] = 0,
    dim: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SIZE", help="Size of a dimension that an ONNX model leaves open, else 1. Repeatable."
        ),
    ] = None,
    flop_s: Annotated[
        float | None,
        typer.Option(help=f"Operations a second of a device of speed 1, for a model's times. Default: {FLOP_S:g}."),
    ] = None,
    memory_bytes_s: Annotated[
        float | None,
        typer.Option(help=f"Bytes a second of its memory, for a model's times. Default: {MEMORY_BYTES_S:g}."),
    ] = None,
    measure: Annotated[
        int, typer.Option(min=0, max=1000, help="Run a .pt2 so often on this CPU, and take its times instead.")
    ] = 0,
    profile: Annotated[
        Path | None, typer.Option(metavar="OUT", help="Write the graph of a model there, as JSON that FILE may be.")
    ] = None,
    workload: Annotated[
        Path | None,
        typer.Option(metavar="OUT", help="Write the plan there as a workload: stages as tasks, or a gang in a stream."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Split a model's operators over devices: little latency, little idle memory, and no device's memory exceeded.

    Exit code 1 when they do not fit.
    """
    chosen = _objective(objective)
    given = {"--dim": dim, "--flop-s": flop_s, "--memory-bytes-s": memory_bytes_s, "--measure": measure}
    links, rates = _read_devices(devices), _rates(flop_s, memory_bytes_s)  # wrong ones are told before a model is run
    drawn = _read_drawn(file, given | {"--profile": profile})
    instance = Instance(_read_operators(file) if drawn is None else drawn.to_operators(str(file), rates), links)
    if drawn is not None and profile is not None:
        _write("--profile", profile, json.dumps(drawn.profile(rates)) + "\n")
    found = split(instance, chosen, seed)
    if workload is not None and found.assignment is not None:
        staged = workload_of(instance, found.assignment, chosen, file.stem or "model")
        document = {"format": FORMAT, "version": VERSION, **staged.model_dump(exclude_defaults=True)}
        _write("--workload", workload, json.dumps(document, indent=1) + "\n")
    told = None if drawn is None else drawn.summary()
    if as_json:
        typer.echo(json.dumps({**summary(instance, found, chosen, seed), "model": told}))
    else:
        if told is not None:
            _show_model(told)
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
    for number, device in enumerate(instance.devices.devices):
        if number in found.assignment:
            line = f"{device.name}: {stretches(instance, found.assignment, number)}"
            Console(soft_wrap=True).print(Text(printable(line)))
    idle_s, edges = loss.loss - loss.latency_s, "edge" if loss.cut_edges == 1 else "edges"
    console.print(
        Text(
            f"{format_bytes(loss.idle_bytes)} idle on devices in use: {idle_s:.3g} s of the loss "
            f"(lambda {instance.lambda_s:.6g} s); {loss.cut_edges:,} {edges} between devices; --json has all"
        )
    )


def stretches(instance: Instance, assignment: list[int], device: int) -> str:
    """The operators of a device, as the first and last of each stretch of the stable order that is on it."""
    found: list[list[str]] = []
    before = None
    for operator in instance.operators.order:
        if assignment[operator] == device:
            if before != device:
                found.append([])
            found[-1].append(instance.operators.ids[operator])
        before = assignment[operator]
    return listed([one[0] if len(one) == 1 else f"{one[0]} to {one[-1]}" for one in found], MOST_STRETCHES)


def _objective(name: str) -> Objective:
    for known in OBJECTIVES:
        if name == known:
            return known
    raise InputError("--objective", f"must be one of {', '.join(OBJECTIVES)}, not {name!r}")


def _read_operators(path: Path) -> Operators:
    if path.suffix.lower() in WEIGHTS:
        raise InputError(str(path), "has weights, and no graph", "export the model: ONNX, or .pt2 by torch.export.save")
    data = read_bytes(path, MOST_FILE_BYTES)
    if path.suffix.lower() != ".json" and data.lstrip()[:1] not in (b"{", b"["):
        kinds = "expected ONNX (.onnx), a program of torch.export (.pt2), or JSON with nodes and edges"
        raise InputError(str(path), "is no model that can be read", kinds)
    return read_operators(data, str(path))


def _read_devices(path: Path) -> Devices:
    return read_devices(read_text(path, "devices"), str(path))


def _read_drawn(path: Path, given: dict[str, Any]) -> Drawn | None:
    """The graph of a model's file; None for JSON, for which the options of models are refused."""
    if path.suffix.lower() in ENDINGS:
        return read_model(path, _sizes(given["--dim"] or []), given["--measure"])
    if wrong := [name for name, value in given.items() if value]:
        kinds = FILES_OF.get(wrong[0], "ONNX or .pt2")
        raise InputError(wrong[0], f"{path} is no {kinds} file", "a JSON profile says bytes and seconds itself")
    return None


def _sizes(words: list[str]) -> dict[str, int]:
    found = {}
    for word in words:
        name, _, size = word.rpartition("=")
        if not name or not size.isdecimal() or not 0 < int(size) <= 1 << 40:
            raise InputError("--dim", f"{word!r} is no dimension with its size", "write NAME=SIZE, as batch=8")
        found[name] = int(size)
    return found


def _rates(flop_s: float | None, memory_bytes_s: float | None) -> Rates:
    for name, value in (("--flop-s", flop_s), ("--memory-bytes-s", memory_bytes_s)):
        if value is not None and not 0 < value < float("inf"):
            raise InputError(name, f"must be more than 0, not {value:g}")
    return Rates(FLOP_S if flop_s is None else flop_s, MEMORY_BYTES_S if memory_bytes_s is None else memory_bytes_s)


def _write(option: str, path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise InputError(option, f"{path} cannot be written: {error.strerror or error}") from None


def _show_model(told: dict[str, Any]) -> None:
    how = "measured on this CPU" if told["seconds"] == "measured" else "estimated from operations and bytes"
    open_ones = ", ".join(f"{name}={size}" for name, size in told["dimensions"].items())
    parts = [
        f"{told['kind']}: {told['operators']:,} operators, {format_bytes(told['weight_bytes'])} of weights, "
        f"{told['flops'] / 1e9:,.3g} GFLOP a request; times are {how}",
        *([f"open dimensions taken as {open_ones} (--dim)"] if open_ones else []),
        *(
            [f"{told['unknown_sizes']:,} operators with outputs of unknown size, counted as 0"]
            * bool(told["unknown_sizes"])
        ),
    ]
    Console(soft_wrap=True).print(Text("; ".join(parts)))
