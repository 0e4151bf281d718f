"""Programs of `torch.export` (.pt2) as graphs: the shapes that they have been exported with, or times of a CPU."""

from __future__ import annotations

import logging
import math
import operator
import time
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

from egs_core.errors import InputError
from egs_core.model_files.drawn import Drawn, DrawnOperator

PRODUCTS = {"mm", "bmm", "matmul", "linear", "mv", "dot"}
ADDED_PRODUCTS = {"addmm", "baddbmm", "addmv"}  # the first input is what is added to the product
CONVOLUTIONS = {"conv1d", "conv2d", "conv3d", "convolution"}


def read_program(path: Path, measure: int = 0) -> Drawn:
    """The graph of a program; what only takes parts of results belongs to who made them. measure: how often it is run
    on this CPU, after a first time, for the median seconds of each operator. Raises InputError.

    torch reads the file, and may run what somebody put into it: only for files that are trusted."""
    program = load_program(path)
    drawn = _drawn(program)
    if measure:
        seconds = _measured(program, measure, str(path))
        for one in drawn.operators:
            one.seconds = seconds.get(one.id, 0.0)
    return drawn


def load_program(path: Path) -> Any:
    """torch's program. Raises InputError for a file that is none."""
    torch: Any = import_module("torch")
    told = logging.getLogger("torch.export")
    level = told.level
    told.setLevel(logging.CRITICAL)  # it logs a traceback of each file that is not its own
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of tensors that share a buffer, which nobody writes to here
            return torch.export.load(path)
    except Exception as error:  # of zip files, of pickles, of torch's own schema
        line = " ".join(str(error).split())[:200] or type(error).__name__
        hint = "write one by torch.export.save(torch.export.export(model, inputs), FILE)"
        raise InputError(str(path), f"is no program of torch.export: {line}", hint) from None
    finally:
        told.setLevel(level)


def _drawn(program: Any) -> Drawn:
    weights = _weights(program)
    operators = dict[Any, DrawnOperator]()
    makers = dict[Any, Any]()  # a node, and the one whose result it is, or is a part of
    unknown = 0
    for node in program.graph_module.graph.nodes:
        if node.op != "call_function" or not _tensors(node):
            continue
        if node.target is operator.getitem:
            makers[node] = makers.get(node.args[0], node.args[0])
            continue
        one = operators[node] = DrawnOperator(
            node.name, inputs={}, is_view=bool(getattr(node.target, "is_view", False))
        )
        makers[node] = node
        for source in node.all_input_nodes:
            size = sum(_size(value) for value in _tensors(source))
            maker = makers.get(source)
            if maker in operators:
                other = operators[maker].id
                one.inputs[other] = one.inputs.get(other, 0) + size
            elif source.name in weights:
                one.weight_bytes += size
            else:
                one.outside_bytes += size
        one.output_bytes = sum(_size(value) for value in _tensors(node))
        one.flops = _flops(node)
        unknown += any(_shape(value) is None for value in _tensors(node))
    return Drawn("torch.export", list(operators.values()), unknown)


def _weights(program: Any) -> set[str]:
    """Names of the inputs that are no user's: parameters, buffers and constants."""
    users = set(program.graph_signature.user_inputs)
    return {n.name for n in program.graph_module.graph.nodes if n.op == "placeholder" and n.name not in users}


def _tensors(node: Any) -> list[Any]:
    value = node.meta.get("val")
    values = value if isinstance(value, list | tuple) else [value]
    return [one for one in values if hasattr(one, "shape")]


def _number(size: Any) -> int | None:
    """Of a dimension: what it was in the example where the program leaves it open."""
    if isinstance(size, int):
        return size
    hint = getattr(getattr(size, "node", None), "hint", None)
    return int(hint) if hint is not None else None


def _shape(value: Any) -> list[int] | None:
    found = [_number(size) for size in value.shape]
    return None if None in found else [size for size in found if size is not None]


def _size(value: Any) -> int:
    shape = _shape(value)
    return 0 if shape is None else math.prod(shape) * int(value.element_size())


def _flops(node: Any) -> float:
    """Floating-point operations; two for a multiplication and its addition, one for each value of all else."""
    if getattr(node.target, "is_view", False):
        return 0.0
    name = str(node.target).removeprefix("aten.").partition(".")[0]
    inputs = [(_shape(tensors[0]) or []) for one in node.args if (tensors := _tensors_of(one))]
    made = float(sum(math.prod(_shape(value) or [0]) for value in _tensors(node)[:1]))
    if name in PRODUCTS and inputs and inputs[0]:
        return 2 * made * inputs[0][-1]
    if name in ADDED_PRODUCTS and len(inputs) > 1 and inputs[1]:
        return 2 * made * inputs[1][-1]
    if name in CONVOLUTIONS and len(inputs) > 1:
        return 2 * made * math.prod(inputs[1][1:])
    if name.startswith("conv_transpose") and len(inputs) > 1:
        return 2.0 * math.prod(inputs[0]) * math.prod(inputs[1][1:])
    if "scaled_dot_product" in name and len(inputs) > 1:
        query, key = inputs[:2]
        return 4.0 * math.prod(query) * key[-2]  # scores, and values weighed by them
    return made


def _tensors_of(argument: Any) -> list[Any]:
    return _tensors(argument) if hasattr(argument, "meta") else []


def _measured(program: Any, times: int, place: str) -> dict[str, float]:
    """Median seconds of each operator, by name."""
    torch: Any = import_module("torch")
    took: dict[str, list[float]] = {}

    class Timed(torch.fx.Interpreter):  # type: ignore[misc, name-defined, unused-ignore]  # torch may be missing
        def run_node(self, n: Any) -> Any:
            begun = time.perf_counter()
            result = super().run_node(n)
            took.setdefault(n.name, []).append(time.perf_counter() - begun)
            return result

    inputs = list(flat_inputs(program, place))
    with torch.no_grad():
        for _ in range(times + 1):
            Timed(program.graph_module).run(*inputs)
    return {name: median(values[1:]) for name, values in took.items()}


def flat_inputs(program: Any, place: str) -> Iterator[Any]:
    """What the program's graph takes, in its order: weights, and the example inputs. Raises InputError without."""
    if program.example_inputs is None:
        raise InputError(place, "has no example inputs, so it cannot be run", "export it again, and save it with them")
    users = iter(import_module("torch.utils._pytree").tree_leaves(program.example_inputs))
    for spec in program.graph_signature.input_specs:
        if spec.kind.name == "USER_INPUT":
            yield next(users)
        else:
            yield (
                program.state_dict[spec.target] if spec.target in program.state_dict else program.constants[spec.target]
            )
