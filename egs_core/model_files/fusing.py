"""Batch norms folded into the convolutions before them, in a program of `torch.export`: as it would run then.

    convolution (w, b) ─► batch norm (mean, variance, scale, shift)      two passes over the image, and what both hold
    convolution (w', b')                                                 one

Only what runs as exported for inference: a convolution that nothing else reads, and whose numbers are inputs of the
program as they are. The output is the same but for rounding.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import msgspec

CONVOLUTIONS = {"conv1d", "conv2d", "conv3d", "convolution"}
NORMS = {"batch_norm", "_native_batch_norm_legit_no_training"}
TRANSPOSED = 6  # of the arguments of `convolution`
TRAINING, SEVERAL = 5, "_native_batch_norm_legit_no_training"  # of those of `batch_norm`; what gives three results


class Fold(msgspec.Struct, frozen=True):
    """convolution, norm: their nodes. weight, bias: of the convolution then. saved_bytes: less weights to hold."""

    convolution: Any
    norm: Any
    weight: Any
    bias: Any
    saved_bytes: int


def folds_of(graph_module: Any, values: Sequence[Any]) -> list[Fold]:
    """What can be folded, of a program's graph with these inputs, weights among them."""
    fuse = import_module("torch.nn.utils.fusion").fuse_conv_bn_weights
    nodes = list(graph_module.graph.nodes)
    given = dict(zip([node for node in nodes if node.op == "placeholder"], values, strict=True))
    found = []
    for node in nodes:
        if node.op != "call_function" or _name(node) not in NORMS or not _is_for_inference(node):
            continue
        before, (scale, shift, mean, variance) = node.args[0], node.args[1:5]
        if getattr(before, "op", "") != "call_function" or _name(before) not in CONVOLUTIONS or len(before.users) > 1:
            continue
        weight, bias = before.args[1], before.args[2] if len(before.args) > 2 else None
        taken = [one for one in (weight, bias, scale, shift, mean, variance) if one is not None]
        is_transposed = _name(before) == "convolution" and before.args[TRANSPOSED]
        if is_transposed or mean is None or variance is None or any(one not in given for one in taken):
            continue
        eps = node.args[6] if _name(node) == SEVERAL else node.args[7]
        numbers = [None if one is None else given[one] for one in (weight, bias, mean, variance)]
        made = fuse(*numbers, eps, *(None if one is None else given[one] for one in (scale, shift)))
        alone = [one for one in (scale, shift, mean, variance) if one is not None and len(one.users) == 1]
        saved = sum(_bytes(given[one]) for one in alone) - (0 if bias is not None else _bytes(made[1]))
        found.append(Fold(before, node, made[0].detach(), made[1].detach(), saved))
    return found


def folded(graph_module: Any, folds: Sequence[Fold]) -> Any:
    """What runs the graph so: an interpreter, with `run` as torch's."""
    fx: Any = import_module("torch.fx")
    instead = {one.convolution: (one.weight, one.bias) for one in folds}
    norms = {one.norm for one in folds}

    class Folded(fx.Interpreter):  # type: ignore[misc]  # torch has no types where it is not installed
        def run_node(self, node: Any) -> Any:
            if node in norms:
                passed = self.env[node.args[0]]
                return (passed, None, None) if _name(node) == SEVERAL else passed
            if node not in instead:
                return super().run_node(node)
            args, kwargs = self.fetch_args_kwargs_from_env(node)
            return self.call_function(node.target, (args[0], *instead[node], *args[3:]), kwargs)

    return Folded(graph_module)


def _is_for_inference(node: Any) -> bool:
    if _name(node) != SEVERAL:
        return len(node.args) > 7 and not node.args[TRAINING]
    return all(user.target is operator.getitem and (user.args[1] == 0 or not user.users) for user in node.users)


def _name(node: Any) -> str:
    return str(getattr(node.target, "__name__", "")).partition(".")[0]


def _bytes(one: Any) -> int:
    return int(one.numel() * one.element_size())
