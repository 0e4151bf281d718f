"""A program of `torch.export` with its weights in fewer bits, pruned, or with batch norms fused: what it holds then,
how far its output moves, and how long a request takes on this CPU. Tried with the program's example inputs; nothing is
changed or written.

    as exported   its own weights
    bfloat16      weights, and what goes through them
    int8          weights of two and more dimensions, each output channel with a scale of its own; they are rounded and
                  computed with as exported: so the output is that of rounded weights, and the time is not known
    int4          the same in groups of 128 with a scale each
    fused         batch norms folded into the convolutions before them
    half pruned   of each weight of two and more dimensions the smaller half is zero: held, and computed with, as before
    2:4 pruned    of each four in a row of a matrix the two smallest, which GPUs leave out (NVIDIA's from Ampere on):
                  half of the matrix and two bits for each that is left; in float32 of each two the smaller one, which
                  is all that they know there, and four bits; the time is not known here
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

from egs_core.model_files.fusing import folded, folds_of
from egs_core.model_files.torch_file import flat_inputs, load_program, read_program

GROUP = 128
SCALE_BYTES = 2
BITS = {"int8": 8, "int4": 4}
AS_EXPORTED, FUSED = "as exported", "batch norms fused"
HALF_PRUNED, TWO_OF_FOUR = "half pruned", "2:4 pruned"
PRUNED_SHARE = 0.5
FOURS = {2: (4, 2), 4: (2, 4)}
"""How GPUs leave zeros out, by the bytes of a number: of so many in a row a half, and bits for each that is left; those
of float32 as torch stores them (`torch.sparse.to_sparse_semi_structured`)."""


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

    def run(given: list[Any], interpreter: Any = None) -> list[Any]:
        with torch.no_grad():
            made = (interpreter or torch.fx.Interpreter(program.graph_module)).run(*given)
        return [one.float().flatten() for one in import_module("torch.utils._pytree").tree_leaves(made) if _floats(one)]

    def timed(given: list[Any], interpreter: Any = None) -> float:
        took = []
        for _ in range(times):
            begun = time.perf_counter()
            run(given, interpreter)
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
    found.append(_in_fused(torch, program.graph_module, values, found[0], before, run, timed))
    for kind, prune in ((HALF_PRUNED, _half_pruned), (TWO_OF_FOUR, _two_of_four)):
        given, held = list(values), 0
        for number, (one, is_weight) in enumerate(zip(values, weights, strict=True)):
            size = _bytes(one) if is_weight else 0
            if is_weight and _floats(one) and one.dim() > 1:
                given[number], size = prune(one)
            held += size
        seconds = timed(given) if kind == HALF_PRUNED else None
        found.append(_told(Narrowed(kind, held, held + through, _difference(torch, before, run(given)), seconds)))
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


def _in_fused(
    torch: Any,
    graph_module: Any,
    values: list[Any],
    own: Narrowed,
    before: list[Any],
    run: Callable[[list[Any], Any], list[Any]],
    timed: Callable[[list[Any], Any], float],
) -> Narrowed:
    folds = folds_of(graph_module, values)
    saved = sum(one.saved_bytes for one in folds)
    sizes = own.weight_bytes - saved, own.needs_bytes - saved
    if not folds:
        return Narrowed(FUSED, *sizes, problem="no batch norm follows a convolution that only it reads")
    interpreter = folded(graph_module, folds)
    moved = _difference(torch, before, run(values, interpreter))
    return _told(Narrowed(FUSED, *sizes, moved, timed(values, interpreter)))


def _half_pruned(weight: Any) -> tuple[Any, int]:
    """The weight with its smaller half zero, and its bytes: those of before, as zeros are numbers."""
    prune: Any = import_module("torch.nn.utils.prune")
    return prune.L1Unstructured(PRUNED_SHARE).prune(weight.detach()), _bytes(weight)


def _two_of_four(weight: Any) -> tuple[Any, int]:
    """The matrix with the smaller half of each few zero, and its bytes as a GPU holds it. As it was where it is no
    matrix of whole fours, or of a type that GPUs do not leave zeros out of."""
    row, bits = FOURS.get(weight.element_size(), (0, 0))
    if not row or weight.dim() != 2 or weight.shape[1] % 4:
        return weight, _bytes(weight)
    parts = weight.detach().reshape(-1, row)
    least = parts.abs().float().topk(row // 2, dim=1, largest=False).indices
    kept = parts.numel() // 2
    return parts.scatter(1, least, 0.0).reshape(weight.shape), kept * weight.element_size() + -(-kept * bits // 8)


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
