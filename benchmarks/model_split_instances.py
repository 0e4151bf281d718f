"""Graphs of models for `model_split`: shapes of public architectures with sizes and times from their arithmetic.

SYNTHETIC: weights, operations and activations follow from the stated dimensions (half precision, 50 TFLOP/s, 600 GB/s),
nothing was measured on a device. Each operator draws a factor of 0.8 to 1.25 for its time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import msgspec

from egs_core.model import Device, Devices, Instance
from egs_core.model.instance import Edge, Node, operators_of

FLOPS, MEMORY_BYTES_S = 50e12, 600e9
HALF = 2
TOKENS = 512


class Case(msgspec.Struct):
    name: str
    instance: Instance


class Drawing:
    """A graph that grows operator by operator."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self.nodes: list[Node] = []
        self._edges: list[Edge] = []
        self._gives: dict[str, int] = {}

    def add(self, name: str, weights: float, operations: float, gives: float, *inputs: str) -> str:
        """An operator. weights, gives: numbers of values it holds and hands on; operations: of one request."""
        at_least_s = (weights + gives + sum(self._gives[i] for i in inputs)) * HALF / MEMORY_BYTES_S
        seconds = (max(operations / FLOPS, at_least_s) + 2e-6) * self._rng.uniform(0.8, 1.25)
        self.nodes.append(Node(id=name, bytes=int((weights + gives) * HALF), seconds=seconds))
        self._edges += [Edge(**{"from": i, "to": name, "bytes": self._gives[i] * HALF}) for i in inputs]
        self._gives[name] = int(gives)
        return name

    def over(self, devices: Devices) -> Instance:
        return Instance(operators_of(self.nodes, self._edges, "drawn"), devices)


def transformer(layers: int, seed: int, width: int = 2048) -> Drawing:
    """Decoder: attention in five operators, a feed-forward part in two, both with their residual."""
    g, w, t = Drawing(seed), width, TOKENS
    x = g.add("embed", 32_000 * w, t * w, t * w)
    for k in range(layers):
        q, key, v = (g.add(f"{k}.{p}", w * w, 2 * t * w * w, t * w, x) for p in "qkv")
        a = g.add(f"{k}.attention", 0, 4 * t * t * w, t * w, q, key, v)
        o = g.add(f"{k}.out", w * w, 2 * t * w * w, t * w, a, x)
        up = g.add(f"{k}.up", 4 * w * w, 8 * t * w * w, 4 * t * w, o)
        x = g.add(f"{k}.down", 4 * w * w, 8 * t * w * w, t * w, up, o)
    g.add("head", 32_000 * w, 64_000 * t * w, 32_000, x)
    return g


def two_towers(layers: int, seed: int) -> Drawing:
    """An image and a text encoder that meet at the end (as CLIP's do)."""
    g, ends = Drawing(seed), []
    for tower, w, t in (("image", 1024, 576), ("text", 768, 77)):
        x = g.add(f"{tower}.embed", 600 * w, t * w, t * w)
        for k in range(layers):
            a = g.add(f"{tower}.{k}.attention", 4 * w * w, 8 * t * w * w + 4 * t * t * w, t * w, x)
            x = g.add(f"{tower}.{k}.mlp", 8 * w * w, 16 * t * w * w, t * w, a, x)
        ends.append(x)
    g.add("similarity", 1024 * 512, 1e6, 512, *ends)
    return g


def inception(blocks: int, seed: int) -> Drawing:
    """Blocks of four branches of different length, joined (as GoogLeNet's are)."""
    g, batch = Drawing(seed), 16
    size, channels = 35 * 35 * batch, 288
    x = g.add("stem", 5e5, 8e8 * batch, size * channels)
    for k in range(blocks):
        joined = []
        for branch, kernels in enumerate(([1], [1, 9], [1, 9, 9], [1])):
            y = x
            for step, kernel in enumerate(kernels):
                weights = channels * channels / 4 * kernel
                y = g.add(f"{k}.{branch}.{step}", weights, 2 * weights * size, size * channels / 4, y)
            joined.append(y)
        x = g.add(f"{k}.join", 0, size * channels, size * channels, *joined)
    g.add("head", channels * 1000, 2e6 * batch, 1000 * batch, x)
    return g


def experts(layers: int, seed: int, count: int = 8) -> Drawing:
    """Attention, a router, and experts side by side of which all run (a batch of many tokens)."""
    g, w, t = Drawing(seed), 1024, 2048
    x = g.add("embed", 32_000 * w, t * w, t * w)
    for k in range(layers):
        a = g.add(f"{k}.attention", 4 * w * w, 8 * t * w * w, t * w, x)
        r = g.add(f"{k}.router", w * count, 2 * t * w * count, t * w, a)
        done = [
            g.add(f"{k}.expert{e}", 8 * w * w, 16 * t / count * 2 * w * w, t * w / count * 2, r) for e in range(count)
        ]
        x = g.add(f"{k}.combine", 0, 2 * t * w, t * w, a, *done)
    g.add("head", 32_000 * w, 64_000 * t * w, 32_000, x)
    return g


def layered(count: int, seed: int) -> Drawing:
    """No architecture: operators with one to three inputs from the 24 before them."""
    g, rng, names = Drawing(seed), random.Random(seed + 1), list[str]()
    for i in range(count):
        inputs = rng.sample(names[-24:], min(len(names), rng.randint(1, 3)))
        names.append(g.add(f"n{i}", rng.uniform(0, 8e6), rng.uniform(1e8, 2e10), rng.uniform(1e4, 2e6), *inputs))
    return g


SHAPES: dict[str, Callable[[int, int], Drawing]] = {
    "transformer": lambda size, seed: transformer(max(1, (size - 2) // 7), seed),
    "two towers": lambda size, seed: two_towers(max(1, (size - 3) // 4), seed),
    "inception": lambda size, seed: inception(max(1, (size - 2) // 8), seed),
    "experts": lambda size, seed: experts(max(1, (size - 2) // 11), seed),
    "layered": layered,
}

GPUS = {
    "2 equal": [(1.0, 1.0)] * 2,
    "4 equal": [(1.0, 1.0)] * 4,
    "fast and slow": [(1.0, 1.0), (1.0, 1.0), (2.0, 0.5)],
    "small and fast": [(0.6, 2.0), (1.0, 1.0), (1.0, 1.0), (1.6, 0.6)],
}
"""Memory and speed of each device, in proportion."""


def devices_for(drawing: Drawing, kind: str, room: float, link_bytes_s: int) -> Devices:
    """Devices whose memory is `room` times what the model needs, together."""
    needed, largest = sum(node.bytes for node in drawing.nodes), max(node.bytes for node in drawing.nodes)
    unit = room * needed / sum(memory for memory, _ in GPUS[kind])
    found = [
        Device(name=f"gpu{d}", memory=max(int(memory * unit), largest) + 1, speed=speed)
        for d, (memory, speed) in enumerate(GPUS[kind])
    ]
    return Devices(devices=tuple(found), link_bytes_s=link_bytes_s, link_latency_s=20e-6)


def cases(sizes: list[int], seeds: int, first_seed: int = 0) -> Iterator[Case]:
    """Each shape in each size on each set of devices, with little and much room, over a slow and a fast link."""
    for size in sizes:
        for shape, draw in SHAPES.items():
            for number, kind in enumerate(GPUS):
                for seed in range(first_seed, first_seed + seeds):
                    room = (1.15, 1.6, 4.5)[(seed + number + size) % 3]
                    link = (12_000_000_000, 200_000_000_000)[(seed + number) % 2]
                    drawing = draw(size, seed)
                    name = f"{shape}, {len(drawing.nodes)} operators, {kind}, room {room}, link {link // 10**9} GB/s"
                    yield Case(f"{name}, seed {seed}", drawing.over(devices_for(drawing, kind, room, link)))
