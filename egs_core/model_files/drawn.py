"""A model's graph as it was drawn from its file, and the operators to split that come of it.

    bytes     weights that the operator reads, and what it hands on (all of it held at once: an upper bound)
    seconds   measured; else the longer of   floating-point operations ÷ flop_s
                                             (weights + what comes in + what goes out) ÷ memory_bytes_s
    an edge   all that goes from one operator to the other

A weight that several operators read counts for each of them, so that a device's memory is enough wherever they go.
"""

from __future__ import annotations

from typing import Any

import msgspec

from egs_core.errors import InputError
from egs_core.model.instance import MOST_SECONDS, Edge, Node, Operators, operators_of

FLOP_S, MEMORY_BYTES_S = 10e12, 500e9


class Rates(msgspec.Struct, frozen=True):
    """Of a device of speed 1: floating-point operations a second, and bytes a second from and to its memory."""

    flop_s: float = FLOP_S
    memory_bytes_s: float = MEMORY_BYTES_S


class DrawnOperator(msgspec.Struct):
    """One operator. inputs: what comes from which other one, in bytes; seconds: None where they were not measured;
    is_view: it only looks at its input in another shape, and so holds and takes nothing."""

    id: str
    weight_bytes: int = 0
    output_bytes: int = 0
    flops: float = 0.0
    inputs: dict[str, int] = {}
    outside_bytes: int = 0
    is_view: bool = False
    seconds: float | None = None


class Drawn(msgspec.Struct):
    """A model's operators, each before those that read from it. kind: of the file; unknown: how many have outputs
    whose size the file does not tell, counted as nothing; dimensions: sizes taken for those that it leaves open."""

    kind: str
    operators: list[DrawnOperator]
    unknown: int = 0
    dimensions: dict[str, int] = {}

    def summary(self) -> dict[str, Any]:
        """What `--json` tells of it."""
        measured = any(one.seconds is not None for one in self.operators)
        return {
            "kind": self.kind,
            "operators": len(self.operators),
            "seconds": "measured" if measured else "estimated",
            "weight_bytes": sum(one.weight_bytes for one in self.operators),
            "flops": sum(one.flops for one in self.operators),
            "unknown_sizes": self.unknown,
            "dimensions": self.dimensions,
        }

    def profile(self, rates: Rates) -> dict[str, list[dict[str, Any]]]:
        """The JSON profile: nodes and edges, as `egs split-model` reads it."""
        nodes = [
            {"id": one.id, "bytes": _held(one), "seconds": min(_seconds(one, rates), MOST_SECONDS)}
            for one in self.operators
        ]
        edges = [
            {"from": source, "to": one.id, "bytes": size}
            for one in self.operators
            for source, size in one.inputs.items()
        ]
        return {"nodes": nodes, "edges": edges}

    def to_operators(self, place: str, rates: Rates) -> Operators:
        """To split. Raises InputError that names `place` where the file has no operator."""
        if not self.operators:
            raise InputError(place, "the model has no operator")
        profile = self.profile(rates)
        nodes = [Node(**node) for node in profile["nodes"]]
        return operators_of(nodes, [Edge(**edge) for edge in profile["edges"]], place)


def _held(one: DrawnOperator) -> int:
    return one.weight_bytes + (0 if one.is_view else one.output_bytes)


def _seconds(one: DrawnOperator, rates: Rates) -> float:
    if one.seconds is not None:
        return one.seconds
    if one.is_view:
        return 0.0
    moved = one.weight_bytes + one.output_bytes + one.outside_bytes + sum(one.inputs.values())
    return max(one.flops / rates.flop_s, moved / rates.memory_bytes_s)


def unique(name: str, taken: set[str]) -> str:
    """The name, or with the first number that makes it new; it is taken from then on."""
    found, number = name, 1
    while found in taken:
        number += 1
        found = f"{name}#{number}"
    taken.add(found)
    return found
