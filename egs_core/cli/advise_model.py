"""`egs advise --model`: would a model fit a cheaper GPU with weights in fewer bits, pruned or fused, and how far
would it move?"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import typer

from egs_core.cli.rows import print_rows
from egs_core.engine.specs import FlavorSpec
from egs_core.errors import InputError
from egs_core.model_files.narrowing import FUSED, HALF_PRUNED, TWO_OF_FOUR, Narrowed, narrowed
from egs_core.profiling.tiers import TIGHT
from egs_core.units import format_bytes

COLUMNS = ("tried", "weights", "needs at least", "output differs by", "request here", "cheapest GPU", "an hour")
NO_MEMORY = "no memory of a GPU is known: --flavors FILE says it, as `{name: t4, memory: 16GiB, gpu_hour: 0.4}`"
PRUNED = (
    f"{HALF_PRUNED}: zeros by themselves save neither memory nor time; {TWO_OF_FOUR} does, in products of matrices on "
    "NVIDIA's GPUs from Ampere on. Either loses less where the model is trained on afterwards"
)
NOT_APPLIED = "nothing is applied: the difference is that of its example inputs; what matters is your own measure of it"


def advise_model(path: Path, specs: Mapping[str, FlavorSpec], memory: Mapping[str, int], *, as_json: bool) -> None:
    """Print it. specs, memory: of the flavors in the site's file. Raises InputError."""
    if path.suffix.lower() != ".pt2":
        problem = "only programs of torch.export can be tried"
        raise InputError(str(path), problem, "torch.export.save(torch.export.export(model, inputs), 'model.pt2')")
    if find_spec("torch") is None:
        raise InputError(str(path), "reading it needs torch, which is not installed", "pip install 'egs-core[model]'")
    found = narrowed(path)
    rows = [_row(one, specs, memory) for one in found]
    if as_json:
        typer.echo(json.dumps({"model": str(path), "kinds": rows}, indent=2))
        return
    print_rows(COLUMNS, [_shown(row) for row in rows])
    if not memory:
        typer.echo(NO_MEMORY)
    if saving := _saving(rows):
        typer.echo(saving)
    typer.echo(PRUNED)
    typer.echo(NOT_APPLIED)


def _row(one: Narrowed, specs: Mapping[str, FlavorSpec], memory: Mapping[str, int]) -> dict[str, Any]:
    fits = [name for name, size in memory.items() if one.needs_bytes <= TIGHT * size and not one.problem]
    best = min(fits, key=lambda name: (specs[name].gpu_hour, memory[name], name), default="")
    price = specs[best].gpu_hour if best else None
    return {**msgspec.structs.asdict(one), "flavor": best, "gpu_hour": price, "fits": sorted(fits)}


def _shown(row: Mapping[str, Any]) -> tuple[str, ...]:
    difference = "-" if row["difference"] is None else f"{row['difference']:.2%}"
    difference = f"not known: {row['problem']}" if row["problem"] else difference
    seconds = "-" if row["seconds"] is None else f"{row['seconds'] * 1e3:.3g} ms"
    price = "-" if not row["gpu_hour"] else f"{row['gpu_hour']:g}"
    sizes = format_bytes(row["weight_bytes"]), format_bytes(row["needs_bytes"])
    return row["kind"], *sizes, difference, seconds, row["flavor"] or "-", price


def _saving(rows: list[dict[str, Any]]) -> str:
    """Of the cheapest kind against the model as it is; of kinds that cost as much the one that differs least."""
    own, *others = rows
    able = [row for row in others if row["flavor"]]
    if not able:
        return ""
    best = min(able, key=lambda row: (row["gpu_hour"], row["difference"]))
    if not own["flavor"]:
        return f"as exported it fits no GPU of the file; with {_words(best)} it fits {best['flavor']}"
    if not own["gpu_hour"] or best["gpu_hour"] >= own["gpu_hour"]:
        return "nothing of this saves money here: as exported it fits a GPU that costs as little"
    much = 1 - best["gpu_hour"] / own["gpu_hour"]
    where = f"{best['flavor']} instead of {own['flavor']}"
    moved = f"the output differs by {best['difference']:.2%}"
    return f"{_words(best)}: {where}, {much:.0%} less for an hour, and {moved}"


def _words(row: Mapping[str, Any]) -> str:
    kind = str(row["kind"])
    return kind if kind in (FUSED, HALF_PRUNED, TWO_OF_FOUR) else f"weights in {kind}"
