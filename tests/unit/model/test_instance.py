"""What files say: read, put in order, and refused with the place."""

from __future__ import annotations

import json

import pytest

from egs_core.errors import InputError
from egs_core.model import read_devices, read_operators
from egs_core.model.instance import topological_order

NODE = '{"id": "a", "bytes": 1, "seconds": 1}'


def graph(*edges: tuple[str, str], nodes: str = "abc") -> bytes:
    """A graph of operators named by letters."""
    found = [{"id": name, "bytes": "1 KiB", "seconds": "20ms"} for name in nodes]
    return json.dumps({"nodes": found, "edges": [{"from": a, "to": b, "bytes": 8} for a, b in edges]}).encode()


def test_operators_and_devices_are_read() -> None:
    """Sizes and times in units or as numbers; speed, latency and edges have their defaults."""
    operators = read_operators(graph(("a", "b")))
    assert (operators.ids, operators.sizes, operators.seconds) == (("a", "b", "c"), (1024,) * 3, (0.02,) * 3)
    assert operators.edges == ((0, 1, 8),)
    text = "devices:\n - {name: x, memory: 20GiB}\n - {name: y, memory: 5, speed: 2}\nlink_bytes_s: 12.5GB"
    devices = read_devices(text)
    assert [(d.memory, d.speed) for d in devices.devices] == [(20 << 30, 1.0), (5, 2.0)]
    assert (devices.link_bytes_s, devices.link_latency_s, devices.total_memory) == (12_500_000_000, 0.0, (20 << 30) + 5)
    assert read_operators(f'{{"nodes": [{NODE}]}}'.encode()).edges == ()
    assert read_devices("devices: [{name: x, memory: 1}]").transfer_s(5) == 0.0


@pytest.mark.parametrize(
    ("edges", "order"),
    [
        ([], "abcd"),
        ([("a", "b"), ("b", "c")], "abcd"),  # the file is in order: it stays
        ([("d", "a"), ("d", "b")], "cdab"),
        ([("c", "a")], "bcad"),  # of those that are ready the first in the file, a as soon as it is
    ],
)
def test_the_order_is_stable(edges: list[tuple[str, str]], order: str) -> None:
    """Kahn's with ties by the file's order, whatever the order of the edges."""
    for arranged in (edges, edges[::-1]):
        found = read_operators(graph(*arranged, nodes="abcd"))
        assert "".join(found.ids[i] for i in found.order) == order


def test_what_is_behind_a_cycle_is_left_out() -> None:
    """`topological_order` gives what has an order."""
    assert topological_order(4, [(1, 2, 0), (2, 1, 0), (2, 3, 0)]) == [0]


@pytest.mark.parametrize(
    ("text", "place", "problem"),
    [
        ("", "model", "JSON is truncated"),
        ("[]", "model", "must be an object"),
        ("\x08\x07onnx", "model", "not JSON"),
        ('{"nodes": []}', "model: nodes", "at least one entry"),
        ('{"edges": []}', "model: nodes", "is missing"),
        ('{"nodes": 5}', "model: nodes", "must be a list"),
        (f'{{"nodes": [{NODE}], "edge": []}}', "model: edge", "unknown field"),
        ('{"nodes": [{"id": "a", "bytes": 1}]}', "model: nodes[0].seconds", "is missing"),
        ('{"nodes": [{"id": "a", "bytes": 1, "seconds": 1, "name": 2}]}', "model: nodes[0].name", "unknown field"),
        ('{"nodes": [{"id": "", "bytes": 1, "seconds": 1}]}', "model: nodes[0].id", "must not be empty"),
        ('{"nodes": [{"id": 7, "bytes": 1, "seconds": 1}]}', "model: nodes[0].id", "must be text"),
        ('{"nodes": [{"id": "a", "bytes": -1, "seconds": 1}]}', "model: nodes[0].bytes", "zero or more"),
        ('{"nodes": [{"id": "a", "bytes": 1.5, "seconds": 1}]}', "model: nodes[0].bytes", "whole number"),
        ('{"nodes": [{"id": "a", "bytes": 1, "seconds": -1}]}', "model: nodes[0].seconds", "zero or more"),
        ('{"nodes": [{"id": "a", "bytes": 1, "seconds": NaN}]}', "model", "NaN"),
        ('{"nodes": [{"id": "a", "bytes": 1, "seconds": "nan"}]}', "model: nodes[0].seconds", "not a duration"),
        ('{"nodes": [{"id": "a", "bytes": 1, "seconds": 1e300}]}', "model: nodes[0].seconds", "at most"),
        ('{"nodes": [{"id": "a", "bytes": true, "seconds": 1}]}', "model: nodes[0].bytes", "must be a number"),
        (f'{{"nodes": [{NODE}, {NODE}]}}', "model: nodes[1].id", "a second node 'a'"),
        (f'{{"nodes": [{NODE}], "edges": [{{"from": "a"}}]}}', "model: edges[0].to", "is missing"),
        (
            f'{{"nodes": [{NODE}], "edges": [{{"from": "b", "to": "a", "bytes": 1}}]}}',
            "model: edges[0].from",
            "unknown node 'b'",
        ),
        (
            f'{{"nodes": [{NODE}], "edges": [{{"from": "a", "to": "a", "bytes": 1}}]}}',
            "model: edges",
            "a cycle: 'a'",
        ),
    ],
)
def test_what_is_wrong_with_a_graph_is_named(text: str, place: str, problem: str) -> None:
    """One error, with the place in the file and the problem."""
    with pytest.raises(InputError) as caught:
        read_operators(text.encode())
    assert caught.value.place == place
    assert problem in caught.value.problem


def test_a_cycle_is_named_in_its_direction_without_what_is_behind_it() -> None:
    """a leads into the cycle and e out of it: neither is on it."""
    with pytest.raises(InputError) as caught:
        read_operators(graph(("a", "b"), ("b", "c"), ("c", "d"), ("d", "b"), ("d", "e"), nodes="abcde"))
    walked = caught.value.problem.removeprefix("a cycle: ").replace("'", "").split(", ")
    assert "".join(walked) in ("bcd", "cdb", "dbc")


@pytest.mark.parametrize(
    ("text", "place", "problem"),
    [
        ("", "devices", "needs a list of devices"),
        ("devices: []", "devices line 1: devices", "at least one entry"),
        ("devices: [{name: a}]", "devices line 1: devices[0].memory", "is missing"),
        ("devices: [{name: a, memry: 1}]", "devices line 1: devices[0].memry", "unknown field"),
        ("devices:\n- {name: a, memory: 0}", "devices line 2: devices[0].memory", "more than 0"),
        ("devices:\n- {name: a, memory: -5}", "devices line 2: devices[0].memory", "zero or more"),
        ("devices:\n- {name: a, memory: 20G}", "devices line 2: devices[0].memory", "not a size"),
        ("devices:\n- {name: a, memory: 9000PB}", "devices line 2: devices[0].memory", "at most"),
        ("devices:\n- {name: a, memory: 1, speed: 0}", "devices line 2: devices[0].speed", "or more"),
        ("devices:\n- {name: a, memory: 1, speed: .nan}", "devices line 2: devices[0].speed", "finite number"),
        ("devices:\n- {name: a, memory: 1, sped: 1}", "devices line 2: devices[0].sped", "unknown field"),
        ("devices:\n- {name: a, memory: 1}\nlink: 5", "devices line 3: link", "unknown field"),
        ("devices:\n- {name: a, memory: 1}\n- {name: a, memory: 2}", "devices line 3: devices[1].name", "a second"),
        ("devices:\n- {name: a, memory: 1}\n- {name: b, memory: 2}", "devices: link_bytes_s", "is missing"),
        ("link_bytes_s: 0\ndevices:\n- {name: a, memory: 1}", "devices line 1: link_bytes_s", "more than 0"),
        ("link_latency_s: -1\ndevices:\n- {name: a, memory: 1}", "devices line 1: link_latency_s", "zero or more"),
        ("link_bytes_s: .inf\ndevices:\n- {name: a, memory: 1}", "devices line 1: link_bytes_s", "large"),
        ("devices: [", "devices line 1", "is no YAML"),
    ],
)
def test_what_is_wrong_with_devices_is_named_with_its_line(text: str, place: str, problem: str) -> None:
    """One error, with the line and the problem."""
    with pytest.raises(InputError) as caught:
        read_devices(text)
    assert caught.value.place == place
    assert problem in caught.value.problem


def test_a_field_that_is_misspelt_is_named_and_not_what_it_should_have_been() -> None:
    """Both are wrong, one missing and one unknown; the nearest name says what to write, also in a model's file."""
    with pytest.raises(InputError) as found:
        read_devices("devices: [{name: a, memry: 20GiB}]")
    assert found.value.hint == "did you mean 'memory'?"
    with pytest.raises(InputError) as found:
        read_operators(b'{"nodes": [{"id": "a", "byts": 1, "seconds": 1}], "edges": []}')
    assert (found.value.place, found.value.hint) == ("model: nodes[0].byts", "did you mean 'bytes'?")
