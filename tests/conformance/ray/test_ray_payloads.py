"""What conversion gives runs on a real Ray by plain `.remote()`, and gives what the functions give in Python."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import ray
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ray.dag import DAGNode, InputNode, MultiOutputNode

from egs_ray.convert import convert, submit_all

pytestmark = pytest.mark.usefixtures("ray_address")


def total(number: int, *args: Any, **kwargs: Any) -> int:
    """Sums what it is given, following references as a task body would."""

    def value(item: Any) -> int:
        if isinstance(item, ray.ObjectRef):
            return value(ray.get(item))
        if isinstance(item, dict):
            return sum(2 * value(x) for x in item.values())
        if isinstance(item, list | tuple):
            return sum(3 * value(x) for x in item)
        return int(item)

    return number + value([*args, kwargs])


remote_total = ray.remote(num_cpus=0.1)(total)
WAYS: dict[str, Callable[[Any], tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "plain": lambda x: ((x,), {}),
    "keyword": lambda x: ((), {"k": x}),
    "list": lambda x: (([1, x],), {}),
    "dict": lambda x: (({"a": (x, 2)},), {}),
}


@st.composite
def plans(draw: st.DrawFn) -> list[tuple[list[tuple[int, str]], float]]:
    """For each task its arguments, as (earlier task, way of passing it), and its share of a GPU."""
    count = draw(st.integers(1, 6))
    return [
        (
            draw(st.lists(st.tuples(st.integers(0, i - 1), st.sampled_from(sorted(WAYS))), max_size=3)) if i else [],
            draw(st.sampled_from([0, 0, 0, 0.5])),
        )
        for i in range(count)
    ]


def arguments(sources: list[tuple[int, str]], earlier: list[Any]) -> tuple[list[Any], dict[str, Any]]:
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for source, way in sources:
        positional, keyword = WAYS[way](earlier[source])
        args.extend(positional)
        kwargs.update(keyword)
    return args, kwargs


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(plans())
def test_results_equal_direct_evaluation(plan: list[tuple[list[tuple[int, str]], float]]) -> None:
    """A random graph, converted and submitted payload by payload, gives what calling the functions gives."""
    nodes: list[DAGNode] = []
    values: list[int] = []
    for number, (sources, gpus) in enumerate(plan):
        args, kwargs = arguments(sources, nodes)
        nodes.append(remote_total.options(num_gpus=gpus).bind(number, *args, **kwargs))
        args, kwargs = arguments(sources, values)
        values.append(total(number, *args, **kwargs))
    assert ray.get(submit_all(convert(MultiOutputNode(nodes)))) == values


@ray.remote(num_gpus=1)
def gpus_seen(x: int) -> tuple[int, int]:
    return x, len(ray.get_gpu_ids())


def test_gpu_options_reach_ray() -> None:
    """A graph that `execute` refuses (num_gpus sets max_calls) runs, and its task holds its GPU."""
    assert ray.get(submit_all(convert(gpus_seen.bind(gpus_seen.options(num_gpus=0).bind(5))))) == ((5, 0), 1)


@ray.remote
def pick(*values: Any) -> list[Any]:
    return list(values)


def test_inputs_as_execute_has_them() -> None:
    """One value, several, keyword, attribute and key inputs arrive as `execute` passes them."""
    with InputNode() as given_input:
        one = pick.bind(given_input, [given_input])
    with InputNode() as given_input:
        several = pick.bind(given_input[0], given_input.rate, given_input["rate"])
    with InputNode() as given_input:
        part = pick.bind(given_input.real)
    for node, args, kwargs in ((one, (3,), {}), (several, (1,), {"rate": 2}), (part, (7,), {})):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # execute is deprecated, and the reference here
            expected = ray.get(node.execute(*args, **kwargs))
        assert ray.get(submit_all(convert(node), *args, **kwargs)) == expected


@ray.remote(num_returns=2)
def halves(x: int) -> tuple[int, int]:
    return x // 2, x - x // 2


def test_several_returns() -> None:
    """A task with two returns gives its consumer a list of two references."""
    assert ray.get(submit_all(convert(remote_total.bind(0, halves.bind(7))))) == 3 * 3 * 7
