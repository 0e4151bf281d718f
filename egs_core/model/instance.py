"""What is split over what: a model's operators from JSON, devices from YAML; every error names the place.

devices:
  - name: gpu0
    memory: 20GiB                # or a number of bytes
    speed: 1.0                   # operators take their seconds, divided by this
  - name: gpu1
    memory: 20GiB
link_bytes_s: 12GB               # between any two of them, in each direction
link_latency_s: 20us             # of each transfer
"""

from __future__ import annotations

import heapq
import json
import re
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import Annotated

import msgspec
from pydantic import Field, ValidationError

from egs_core.errors import InputError, listed
from egs_core.graph.places import did_you_mean, hint_of, join
from egs_core.graph.source import json_errors
from egs_core.validation_words import first_of, problem_of, with_others
from egs_core.yaml_file import FileModel, Seconds, Size, input_error, line_of, read_yaml, shown_path

MOST_SECONDS = 1e12
"""Of an operator; so that no sum overflows."""
MOST_DEVICES = 1000
MOST_MEMORY = 1 << 50
"""Of a device: sums over all of them are whole numbers of 64 bits."""

Name = Annotated[str, Field(min_length=1)]
Bounded = Annotated[Seconds, Field(le=MOST_SECONDS)]


class Node(FileModel):
    """An operator as a file has it. bytes: that its weights and buffers hold; seconds: on a device of speed 1."""

    id: Name
    bytes: Size
    seconds: Bounded


class Edge(FileModel):
    """A tensor from one operator to another. bytes: that go over a link where the two are on different devices."""

    source: Annotated[str, Field(alias="from")]
    target: Annotated[str, Field(alias="to")]
    bytes: Size


class _Graph(FileModel):
    nodes: Annotated[tuple[Node, ...], Field(min_length=1)]
    edges: tuple[Edge, ...] = ()


class Device(FileModel):
    """One device as a user writes it."""

    name: Name
    """Name of the device, as the assignment names it."""
    memory: Annotated[Size, Field(gt=0, le=MOST_MEMORY)]
    """Memory for operators, in bytes or as `20GiB`."""
    speed: Annotated[float, Field(ge=1e-6, le=1e6, allow_inf_nan=False)] = 1.0
    """Operators take their seconds divided by this."""


class Devices(FileModel):
    """All devices, and what connects each two of them."""

    devices: Annotated[tuple[Device, ...], Field(min_length=1, max_length=MOST_DEVICES)]
    """The devices."""
    link_bytes_s: Annotated[Size, Field(gt=0)] | None = None
    """Bytes a second from one device to another; may be left out for a single device."""
    link_latency_s: Bounded = 0.0
    """Seconds that each transfer takes besides."""

    @cached_property
    def total_memory(self) -> int:
        return sum(device.memory for device in self.devices)

    def transfer_s(self, size_bytes: int) -> float:
        """Seconds of an edge between two devices."""
        return (
            self.link_latency_s if self.link_bytes_s is None else size_bytes / self.link_bytes_s + self.link_latency_s
        )


class Operators(msgspec.Struct, frozen=True):
    """A model's graph in columns. edges: numbers of both operators and bytes, as the file has them; order: the stable
    topological order, by number."""

    ids: tuple[str, ...]
    sizes: tuple[int, ...]
    seconds: tuple[float, ...]
    edges: tuple[tuple[int, int, int], ...]
    order: tuple[int, ...]

    @property
    def total_bytes(self) -> int:
        return sum(self.sizes)

    @property
    def total_s(self) -> float:
        return sum(self.seconds)


class Instance(msgspec.Struct, frozen=True):
    """One problem: which device each operator goes to."""

    operators: Operators
    devices: Devices

    @property
    def lambda_s(self) -> float:
        """What holding all memory of all devices idle would cost, in seconds."""
        return 0.01 * self.operators.total_s


def read_operators(data: bytes, place: str = "model") -> Operators:
    """The operators of a JSON text. Raises InputError that names `place` and the place in it."""
    document = _document(data, place)
    if not isinstance(document, dict):
        raise InputError(place, "must be an object with nodes and edges", '{"nodes": […], "edges": […]}')
    try:
        graph = _Graph.model_validate(document)
    except ValidationError as error:
        raise _input_error(error, place) from None
    return operators_of(graph.nodes, graph.edges, place)


def _document(data: bytes, place: str) -> object:
    """The value of a JSON text. msgspec has the better words for what is no JSON; what it says of a number that is too
    large has no place, so that this one goes on as infinite, and is refused where it stands."""
    with json_errors(place, data=data):
        try:
            msgspec.json.decode(data)
        except msgspec.ValidationError:
            if re.search(rb"[0-9][eE]|[0-9.]{300}", data) is None:
                raise
        try:
            return json.loads(data, object_pairs_hook=_each_once)
        except InputError as error:
            raise InputError(place, error.problem, error.hint) from None
        except ValueError:
            raise InputError(place, "has a whole number with thousands of digits") from None


def _each_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        own = f" of {_short(str(found['id']))}" if "id" in found else ""
        raise InputError("", f"the key {_short(twice)}{own} is there twice", "leave one")
    return found


def operators_of(nodes: Sequence[Node], edges: Sequence[Edge], place: str) -> Operators:
    """The same in columns. Raises InputError for an id that is there twice, an edge to nowhere and a cycle."""
    number: dict[str, int] = {}
    for i, node in enumerate(nodes):
        if number.setdefault(node.id, i) != i:
            first = f"the first is nodes[{number[node.id]}]"
            raise InputError(join(place, f"nodes[{i}].id"), f"a second node {_short(node.id)}", first)
    found = []
    for i, edge in enumerate(edges):
        for key, name in (("from", edge.source), ("to", edge.target)):
            if name not in number:
                where = join(place, f"edges[{i}].{key}")
                raise InputError(where, f"unknown node {_short(name)}", did_you_mean(name, number))
        found.append((number[edge.source], number[edge.target], edge.bytes))
    ids = tuple([node.id for node in nodes])
    order = topological_order(len(ids), found)
    if len(order) < len(ids):
        around = [_short(ids[i]) for i in cycle_among(set(range(len(ids))) - set(order), found)]
        raise InputError(join(place, "edges"), f"a cycle: {listed(around)}", "a model's graph has none")
    sizes, seconds = (tuple([getattr(node, name) for node in nodes]) for name in ("bytes", "seconds"))
    return Operators(ids, sizes, seconds, tuple(found), tuple(order))


def topological_order(count: int, edges: Sequence[tuple[int, int, int]]) -> list[int]:
    """The stable one: of the operators whose predecessors are all behind, the first in the file comes next. So a file
    that is in an order keeps it. Kahn (1962), with a heap; operators on a cycle, or behind one, are left out."""
    waits_for, successors = [0] * count, [[] for _ in range(count)]  # type: tuple[list[int], list[list[int]]]
    for source, target, _ in edges:
        waits_for[target] += 1
        successors[source].append(target)
    ready = [i for i in range(count) if not waits_for[i]]
    order = []
    while ready:
        order.append(i := heapq.heappop(ready))
        for j in successors[i]:
            waits_for[j] -= 1
            if not waits_for[j]:
                heapq.heappush(ready, j)
    return order


def cycle_among(left: set[int], edges: Sequence[tuple[int, int, int]]) -> list[int]:
    """The operators of one cycle in its direction; each of `left` has a predecessor in it."""
    before = {target: source for source, target, _ in edges if source in left and target in left}
    i, seen = min(left), dict[int, None]()
    while i not in seen:
        seen[i] = None
        i = before[i]
    walked = list(seen)
    return walked[walked.index(i) :][::-1]


def read_devices(text: str, place: str = "devices") -> Devices:
    """The devices of a YAML text. Raises InputError that names `place` and the line."""
    data, lines = read_yaml(text, place)
    if not isinstance(data, dict):
        raise InputError(place, "needs a list of devices under `devices:`", "devices: [{name: gpu0, memory: 20GiB}]")
    try:
        found = Devices.model_validate(data)
    except ValidationError as error:
        raise input_error(error, lines, place, [*Device.model_fields, *Devices.model_fields]) from None
    names: set[str] = set()
    for i, device in enumerate(found.devices):
        if device.name in names:
            where = f"{place} line {line_of(('devices', i, 'name'), lines)}: devices[{i}].name"
            raise InputError(where, f"a second device {_short(device.name)}")
        names.add(device.name)
    if found.link_bytes_s is None and len(names) > 1:
        raise InputError(f"{place}: link_bytes_s", "is missing", "bytes a second between two devices, such as 12GB")
    return found


def _input_error(error: ValidationError, place: str) -> InputError:
    errors = error.errors(include_url=False, include_input=False)
    first = first_of(errors)
    known = [*Node.model_fields, "from", "to", *_Graph.model_fields]
    hint = with_others(hint_of(first, known), errors, shown_path)
    return InputError(join(place, shown_path(first["loc"])), problem_of(first), hint)


def _short(name: str) -> str:
    return repr(name) if len(name) <= 60 else repr(name[:60]) + "…"
