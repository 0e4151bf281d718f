"""ONNX models as graphs: shapes by ONNX's own inference, weights by their stated shapes; no weight is loaded."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from egs_core.errors import InputError, listed
from egs_core.model_files.drawn import Drawn, DrawnOperator, unique

VIEWS = {"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"}
PACKED = {"INT4": 0.5, "UINT4": 0.5, "FLOAT4E2M1": 0.5, "INT2": 0.25, "UINT2": 0.25}  # bytes of one, side by side
STRING_BYTES = 16


class _Value:
    """A tensor. shape: None where it is not known; source: the operator that makes it, "" for one of outside."""

    def __init__(self, shape: list[int] | None, item_bytes: float, source: str = "", is_weight: bool = False) -> None:
        self.shape, self.item_bytes, self.source, self.is_weight = shape, item_bytes, source, is_weight

    @property
    def count(self) -> int:
        return math.prod(self.shape) if self.shape is not None else 0

    @property
    def size(self) -> int:
        return math.ceil(self.count * self.item_bytes)


def read_onnx(path: Path, sizes: Mapping[str, int]) -> Drawn:
    """The graph of an ONNX model; dimensions that it leaves open have the size that `sizes` names, else 1. What
    `Constant` gives is a weight. Raises InputError for what is none, and for a size of a dimension that it has not."""
    onnx: Any = import_module("onnx")
    place = str(path)
    try:
        model = onnx.load(path, load_external_data=False)
    except OSError as error:
        raise InputError(place, f"cannot be read: {error.strerror or error}") from None
    except Exception as error:  # of protobuf, and of ONNX's own reader
        raise InputError(place, f"is no ONNX model: {_line(error)}") from None
    if not model.graph.node:
        raise InputError(place, "is no ONNX model, or one without an operator")
    taken = _close(model.graph, sizes, place)
    try:
        if model.functions:
            model = import_module("onnx.inliner").inline_local_functions(model)
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except Exception as error:
        raise InputError(place, f"ONNX cannot tell the shapes in it: {_line(error)}") from None
    return _Drawing(onnx, model.graph, place).drawn(taken)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _close(graph: Any, sizes: Mapping[str, int], place: str) -> dict[str, int]:
    """Give dimensions of inputs that are open a size; which got which, by name."""
    weights = {one.name for one in graph.initializer}
    taken: dict[str, int] = {}
    for value in [one for one in graph.input if one.name not in weights]:
        for number, dim in enumerate(value.type.tensor_type.shape.dim):
            if not dim.HasField("dim_value") or dim.dim_value < 0:
                name = dim.dim_param or f"{value.name}[{number}]"
                taken[name] = dim.dim_value = sizes.get(name, 1)
    if unknown := sorted(sizes.keys() - taken.keys()):
        raise InputError("--dim", f"{place} has no open dimension {unknown[0]!r}", f"open: {listed(sorted(taken))}")
    for value in [*graph.value_info, *graph.output]:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in taken:
                dim.dim_value = taken[dim.dim_param]
    return taken


class _Drawing:
    def __init__(self, onnx: Any, graph: Any, place: str) -> None:
        self._onnx, self._graph, self._place = onnx, graph, place
        self._values: dict[str, _Value] = {}
        self._note(graph)

    def _note(self, graph: Any) -> None:
        """Shapes of all tensors of a graph; what the file holds is a weight."""
        for info in [*graph.input, *graph.value_info, *graph.output]:
            self._values[info.name] = self._described(info.type.tensor_type)
        for weight in graph.initializer:
            self._values[weight.name] = self._weight(weight)
        for weight in graph.sparse_initializer:
            self._values[weight.values.name] = self._weight(weight.values)

    def _described(self, tensor: Any) -> _Value:
        dims = tensor.shape.dim
        known = tensor.HasField("shape") and all(one.HasField("dim_value") for one in dims)
        return _Value([one.dim_value for one in dims] if known else None, self._item_bytes(tensor.elem_type))

    def _weight(self, tensor: Any) -> _Value:
        return _Value(list(tensor.dims), self._item_bytes(tensor.data_type), is_weight=True)

    def _item_bytes(self, kind: int) -> float:
        names = self._onnx.TensorProto.DataType
        name = names.Name(kind) if kind in names.values() else "UNDEFINED"
        if name in PACKED:
            return PACKED[name]
        if name in ("STRING", "UNDEFINED"):
            return STRING_BYTES if name == "STRING" else 0
        return float(self._onnx.helper.tensor_dtype_to_np_dtype(kind).itemsize)

    def drawn(self, dimensions: dict[str, int]) -> Drawn:
        found, ids, unknown = list[DrawnOperator](), set[str](), 0
        for node in self._graph.node:
            if node.op_type == "Constant":
                self._constant(node)
                continue
            one = DrawnOperator(unique(node.name or f"{node.op_type}:{next(iter(node.output), '')}", ids), inputs={})
            one.is_view = node.op_type in VIEWS
            inputs = [self._values.get(name, _Value(None, 0)) for name in dict.fromkeys(_read(node)) if name]
            for value in inputs:
                if value.is_weight:
                    one.weight_bytes += value.size
                elif value.source:
                    one.inputs[value.source] = one.inputs.get(value.source, 0) + value.size
                else:
                    one.outside_bytes += value.size
            outputs = [self._made(name, one.id) for name in node.output if name]
            one.output_bytes = sum(value.size for value in outputs)
            one.flops = self._flops(node)
            for body in _bodies(node):
                self._body(body, one)
            unknown += any(value.shape is None for value in outputs)
            found.append(one)
        return Drawn("ONNX", found, unknown, dimensions)

    def _made(self, name: str, source: str) -> _Value:
        value = self._values.setdefault(name, _Value(None, 0))
        value.source = source
        return value

    def _constant(self, node: Any) -> None:
        for attribute in node.attribute:
            if attribute.name == "value":
                self._values[node.output[0]] = self._weight(attribute.t)
            else:  # some numbers
                self._values[node.output[0]] = _Value([len(attribute.floats) + len(attribute.ints) + 1], 8, "", True)

    def _body(self, graph: Any, one: DrawnOperator) -> None:
        """What `If`, `Loop` and `Scan` run: its weights, and its work, once."""
        self._note(graph)
        one.weight_bytes += sum(self._weight(weight).size for weight in graph.initializer)
        for node in graph.node:
            one.flops += self._flops(node)
            for body in _bodies(node):
                self._body(body, one)

    def _flops(self, node: Any) -> float:
        """Floating-point operations; two for a multiplication and its addition, one for each value of all else."""
        shapes = [self._values[name].shape if name in self._values else None for name in node.input]
        outputs = [self._values[name] for name in node.output if name in self._values]
        made = float(outputs[0].count) if outputs else 0.0
        kind = node.op_type

        def shape(number: int) -> list[int]:
            return (shapes[number] if number < len(shapes) else None) or []

        if kind in ("Conv", "ConvInteger", "QLinearConv"):
            return 2 * made * math.prod(shape(3 if kind == "QLinearConv" else 1)[1:])
        if kind == "ConvTranspose":
            return 2.0 * math.prod(shape(0)) * math.prod(shape(1)[1:])
        if kind in ("MatMul", "MatMulInteger", "QLinearMatMul", "Gemm"):
            turned = any(a.name == "transA" and a.i for a in node.attribute)
            return 2 * made * (shape(0)[0 if turned else -1] if shape(0) else 0)
        if kind in ("LSTM", "GRU", "RNN"):
            return 2.0 * math.prod(shape(0)[:2]) * (math.prod(shape(1)) + math.prod(shape(2)))
        if kind == "Attention" and len(shape(0)) > 2 and len(shape(1)) > 2:
            return 4 * made * shape(1)[-2]  # scores, and values weighed by them
        if kind == "Einsum":
            return _einsum_flops(node, shapes)
        return 0.0 if kind in VIEWS else made


def _einsum_flops(node: Any, shapes: Sequence[list[int] | None]) -> float:
    equation = next((a.s.decode() for a in node.attribute if a.name == "equation"), "")
    sizes: dict[str, int] = {}
    for letters, dims in zip(equation.replace(" ", "").split("->")[0].split(","), shapes, strict=False):
        sizes.update(zip(letters.replace("...", ""), dims or [], strict=False))
    return 2.0 * math.prod(sizes.values())


def _bodies(node: Any) -> Iterator[Any]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _read(node: Any) -> Iterator[str]:
    """Names of the tensors that a node reads, also of those that its bodies read from around it."""
    yield from node.input
    for body in _bodies(node):
        own = {one.name for one in [*body.input, *body.initializer]}
        own |= {name for inner in body.node for name in inner.output}
        yield from (name for inner in body.node for name in _read(inner) if name not in own)
        yield from (one.name for one in body.output if one.name not in own)
