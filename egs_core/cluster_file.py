"""A cluster from one YAML file: its nodes, and what their flavors cost; every error names the file and the line.

flavors:
  - name: v100
    gpu_hour: 2.48               # price of a device, and of a CPU, for an hour, in any one currency
    cpu_hour: 0.03
  - name: k80
    gpu_hour: 0.45
    speed: 0.25                  # of the reference, which takes as long as phases are said to take
  - name: a100-mig
    mig: 40GiB                   # its devices are split into MIG profiles; so much memory has each

nodes:
  - name: fast                   # with a count: fast-0, fast-1 …
    count: 9
    flavor: v100
    cpus: 64
    gpus: 4
    memory: 256GiB
    gpu_memory: 16GiB            # of each device
    topology: {rack: r1, zone: a}
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from pydantic import Field, ValidationError

from egs_core.engine.specs import FlavorSpec
from egs_core.errors import InputError
from egs_core.flavors import Amount, Flavor, Name
from egs_core.graph.places import did_you_mean
from egs_core.sim.config import SimNode
from egs_core.yaml_file import FileModel, Size, input_error, line_of, read_text, read_yaml

MOST_NODES = 10_000


class ClusterFile(msgspec.Struct, frozen=True):
    """What a file describes."""

    nodes: tuple[SimNode, ...]
    flavors: tuple[FlavorSpec, ...] = ()


class Nodes(FileModel):
    """One node, or `count` equal ones."""

    name: Name
    """Name of the node; with `count`, the start of the names: `fast-0`, `fast-1` …"""
    count: Annotated[int, Field(ge=1, le=MOST_NODES)] | None = None
    """How many equal nodes."""
    flavor: str = ""
    """Kind of hardware, one of `flavors`."""
    cpus: Amount
    """CPUs of a node."""
    gpus: Annotated[int, Field(ge=0, le=MOST_NODES)] = 0
    """GPUs of a node."""
    memory: Size | None = None
    """Main memory of a node."""
    gpu_memory: Size | None = None
    """Memory of each GPU."""
    topology: dict[Name, Name] = Field(default_factory=dict)
    """Where the node is: level to name, for gangs that must be close together."""

    def to_nodes(self) -> list[SimNode]:
        names = [self.name] if self.count is None else [f"{self.name}-{i}" for i in range(self.count)]
        groups = tuple(self.topology.items())
        node = SimNode("", self.cpus, self.gpus, self.memory, self.gpu_memory, flavor=self.flavor, topology=groups)
        return [msgspec.structs.replace(node, name=name) for name in names]


class _File(FileModel):
    nodes: Annotated[tuple[Nodes, ...], Field(min_length=1)]
    """The nodes."""
    flavors: tuple[Flavor, ...] = ()
    """The kinds of hardware; without them all nodes are equally fast and cost nothing."""


def load_cluster(path: Path) -> ClusterFile:
    """The cluster of a file. Raises InputError that names file and line."""
    return parse_cluster(read_text(path, "nodes"), str(path))


def parse_cluster(text: str, place: str = "cluster") -> ClusterFile:
    """The cluster of a YAML text. Raises InputError that names `place` and the line."""
    data, lines = read_yaml(text, place)
    if not isinstance(data, dict):
        raise InputError(place, "needs a list of nodes under `nodes:`", "nodes: [{name: a, cpus: 8, gpus: 2}]")
    try:
        file = _File.model_validate(data)
    except ValidationError as error:
        known = [*Nodes.model_fields, *Flavor.model_fields, *_File.model_fields]
        raise input_error(error, lines, place, known) from None
    flavors = [flavor.name for flavor in file.flavors]
    for number, entry in enumerate(file.nodes):
        if flavors and entry.flavor and entry.flavor not in flavors:
            where = f"{place} line {line_of(('nodes', number, 'flavor'), lines)}"
            raise InputError(where, f"unknown flavor {entry.flavor!r}", did_you_mean(entry.flavor, flavors))
    nodes = [node for entry in file.nodes for node in entry.to_nodes()]
    names = [node.name for node in nodes]
    if twice := next((name for name in names if names.count(name) > 1), None) if len(set(names)) < len(names) else None:
        raise InputError(place, f"a second node {twice!r}")
    if len(nodes) > MOST_NODES:
        raise InputError(place, f"describes {len(nodes)} nodes", f"at most {MOST_NODES}")
    return ClusterFile(tuple(nodes), tuple([flavor.to_spec() for flavor in file.flavors]))
