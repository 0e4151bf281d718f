"""A program of `torch.export` with its weights in fewer bits: what it holds then, how far its output moves, and how
long a request takes on this CPU. Tried with the program's example inputs; nothing is changed or written.

    as exported   its own weights
    bfloat16      weights, and what goes through them
    int8          weights of two and more dimensions, each output channel with a scale of its own; they are rounded and
                  computed with as exported: so the output is that of rounded weights, and the time is not known
    int4          the same in groups of 128 with a scale each
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import import_module
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from egs_core.model_files.torch_file import flat_inputs, load_program, read_program

GROUP = 128
SCALE_BYTES = 2
BITS = {"int8": 8, "int4": 4}
AS_EXPORTED = "as exported"


class Narrowed(msgspec.Struct, frozen=True):
    """needs_bytes: weights, and the most that one operator reads and makes, so the least that a GPU must have.
    difference: of the outputs, as a share of their norm; None where they could not be had. seconds: of a request on
    this CPU; None where it was not run so. problem: why not."""

    kind: str
    weight_bytes: int
    needs_bytes: int
    difference: float | None = None
    seconds: float | None = None
    problem: str = ""


def narrowed(path: Path, times: int = 5) -> list[Narrowed]:
    """Of each kind, as exported first. times: requests for the median. Raises InputError for what is no program, or has
    no example inputs. torch reads the file: only for files that are trusted."""
    torch: Any = import_module("torch")
    program, place = load_program(path), str(path)
    values = list(flat_inputs(program, place))
    weights = [spec.kind.name != "USER_INPUT" for spec in program.graph_signature.input_specs]
    through = max((_passes(one) for one in read_program(path).operators), default=0)

    def run(given: list[Any]) -> list[Any]:
        with torch.no_grad():
            made = torch.fx.Interpreter(program.graph_module).run(*given)
        return [one.float().flatten() for one in import_module("torch.utils._pytree").tree_leaves(made) if _floats(one)]

    def timed(given: list[Any]) -> float:
        took = []
        for _ in range(times):
            begun = time.perf_counter()
            run(given)
            took.append(time.perf_counter() - begun)
        return median(took)

    own = [_bytes(one) for one, is_weight in zip(values, weights, strict=True) if is_weight]
    before = run(values)
    found = [Narrowed(AS_EXPORTED, sum(own), sum(own) + through, None, timed(values))]
    found.append(_in_half(torch, values, weights, through, before, run, timed))
    for kind, bits in BITS.items():
        given, held = list(values), 0
        for number, (one, is_weight) in enumerate(zip(values, weights, strict=True)):
            if is_weight and _floats(one) and one.dim() > 1:
                given[number], size = _rounded(torch, one, bits)
                held += size
            elif is_weight:
                held += _bytes(one)
        found.append(_told(Narrowed(kind, held, held + through, _difference(torch, before, run(given)))))
    return found


def _in_half(
    torch: Any,
    values: list[Any],
    weights: list[bool],
    through: int,
    before: list[Any],
    run: Callable[[list[Any]], list[Any]],
    timed: Callable[[list[Any]], float],
) -> Narrowed:
    given = [one.to(torch.bfloat16) if _floats(one) else one for one in values]
    held = sum(_bytes(one) for one, is_weight in zip(given, weights, strict=True) if is_weight)
    needs = held + through // 2
    try:
        return _told(Narrowed("bfloat16", held, needs, _difference(torch, before, run(given)), timed(given)))
    except Exception as error:  # of any operator: the graph names a type, or there is no kernel for this one
        line = str(error).splitlines()[0] if str(error) else type(error).__name__
        return Narrowed("bfloat16", held, needs, problem=line[:200])


def _rounded(torch: Any, weight: Any, bits: int) -> tuple[Any, int]:
    """The weight as it is after rounding, and the bytes of its integers and scales."""
    most = 2 ** (bits - 1) - 1
    rows = weight.float().reshape(weight.shape[0], -1)
    parts = list(rows.split(GROUP, dim=1)) if bits < 8 else [rows]
    rounded = []
    for part in parts:
        scale = part.abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / most
        rounded.append((part / scale).round().clamp(-most, most) * scale)
    size = -(-weight.numel() * bits // 8) + SCALE_BYTES * len(parts) * weight.shape[0]
    return torch.cat(rounded, dim=1).reshape(weight.shape).to(weight.dtype), size


def _difference(torch: Any, before: list[Any], after: list[Any]) -> float:
    """NaN or infinity where there are values that are no numbers."""
    first, second = torch.cat(before), torch.cat(after)
    return float((first - second).norm() / first.norm().clamp(min=1e-30))


def _told(one: Narrowed) -> Narrowed:
    if one.difference is None or isfinite(one.difference):
        return one
    return msgspec.structs.replace(one, difference=None, problem="its output has values that are no numbers")


def _floats(one: Any) -> bool:
    return hasattr(one, "is_floating_point") and bool(one.is_floating_point())


def _bytes(one: Any) -> int:
    return int(one.numel() * one.element_size()) if hasattr(one, "numel") else 0


def _passes(one: Any) -> int:
    return int(sum(one.inputs.values()) + one.outside_bytes + one.output_bytes)
