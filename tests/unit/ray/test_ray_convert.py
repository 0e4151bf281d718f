"""Conversion of static Ray graphs: every edge, nothing twice, hints, and one clear error for the rest. No Ray runs."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import pytest
import ray
from hypothesis import given, settings
from hypothesis import strategies as st
from ray.dag import DAGNode, InputNode, MultiOutputNode

import egs_core as egs
from egs_core.errors import InputError
from egs_core.graph.columns import CPU, GIB, GPU, Shape
from egs_ray.convert import convert
from egs_ray.payload import Converted, Given, Produced

Pair = namedtuple("Pair", "left right")


@ray.remote
def load(*args: Any, **kwargs: Any) -> Any:
    return args, kwargs


@ray.remote(num_gpus=1, num_cpus=2, memory=GIB)
def fit(*args: Any, **kwargs: Any) -> Any:
    return args, kwargs


class Model:
    def predict(self, x: int) -> int:
        return x


def edges(converted: Converted) -> set[tuple[str, str]]:
    ids = converted.graph.ids
    return {(ids[p], ids[t]) for t, parents in enumerate(converted.graph.parents) for p in parents}


SHAPES = ("plain", "keyword", "list", "tuple", "dict", "nested", "named tuple", "set", "key")


def wrap(node: DAGNode, how: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """One way of passing a node to `bind`."""
    return {
        "plain": ((node,), {}),
        "keyword": ((), {"x": node}),
        "list": (([1, node],), {}),
        "tuple": (((node, "b"),), {}),
        "dict": (({"k": node},), {}),
        "nested": ((), {"x": [{"a": (1, [node])}]}),
        "named tuple": ((Pair(1, node),), {}),
        "set": (({node},), {}),
        "key": (({node: 1},), {}),
    }[how]


@st.composite
def plans(draw: st.DrawFn) -> list[list[tuple[int, str]]]:
    """For each task the (earlier task, way of passing it) pairs of its arguments; repeats are likely."""
    count = draw(st.integers(1, 9))
    return [
        draw(st.lists(st.tuples(st.integers(0, i - 1), st.sampled_from(SHAPES)), max_size=5)) if i else []
        for i in range(count)
    ]


@settings(max_examples=200, deadline=None)
@given(plans())
def test_edges_equal_an_independent_walk(plan: list[list[tuple[int, str]]]) -> None:
    """Every edge that was bound is in the graph, once, and no other; every task is there once, parents first."""
    nodes: list[DAGNode] = []
    for number, sources in enumerate(plan):
        args: list[Any] = []
        for source, how in sources:
            positional, keyword = wrap(nodes[source], how)
            args.extend([*positional, keyword])
        nodes.append(load.bind(number, *args))
    converted = convert(MultiOutputNode(nodes))
    numbers = [payload.args[0] for payload in converted.nodes]  # which bound node each task is
    assert sorted(numbers) == list(range(len(plan)))
    for task, parents in enumerate(converted.graph.parents):
        assert len(parents) == len(set(parents))
        assert all(parent < task for parent in parents)
        assert {numbers[p] for p in parents} == {source for source, _ in plan[numbers[task]]}


def test_names_are_stable_and_count_per_function() -> None:
    """Task ids are function name and number in argument order, the same for the same graph built again."""

    def build() -> Converted:
        first = load.bind()
        return convert(fit.bind(load.bind(first), [fit.bind(first)]), name="p")

    assert build().graph.ids == ["load-0", "load-1", "fit-0", "fit-1"]
    assert build().graph.ids == build().graph.ids
    assert build().graph.names == ["load", "load", "fit", "fit"]
    assert edges(build()) == {("load-0", "load-1"), ("load-0", "fit-0"), ("load-1", "fit-1"), ("fit-0", "fit-1")}


def test_options_are_kept_and_become_shapes() -> None:
    """Ray's options go through verbatim (max_calls into the decorator) and size the task's phase."""
    bound = fit.options(num_gpus=0.5, name="half", max_retries=7, scheduling_strategy="SPREAD").bind()
    payload = convert(bound).nodes[0]
    assert payload.options["num_gpus"] == 0.5
    assert (payload.options["name"], payload.options["max_retries"]) == ("half", 7)
    assert payload.options["scheduling_strategy"] == "SPREAD"
    graph = convert(MultiOutputNode([bound, fit.bind(), load.bind()])).graph
    assert graph.phase_kind == [GPU, GPU, CPU]
    assert [graph.shapes[i] for i in graph.phase_shape] == [Shape(2000, 500, GIB), Shape(2000, 1000, GIB), Shape(1000)]
    assert "max_calls" not in convert(fit.bind()).nodes[0].options


def test_hints_give_phases_and_options() -> None:
    """A function with egs.gpu() is CPU, GPU, CPU; fewer CPUs in the GPU phase; the hints are in the task's options."""

    @egs.task(gpus=1, cpus=4, gpu_cpus=1, gpu_memory="20GiB", preload=egs.modules("json"), max_runtime="2h")
    def train(x: int) -> int:
        with egs.gpu():
            return x

    graph = convert(ray.remote(train).bind(1)).graph
    assert graph.phase_kind == [CPU, GPU, CPU]
    assert graph.shapes[graph.phase_shape[0]] == Shape(4000)
    assert graph.shapes[graph.phase_shape[1]] == Shape(1000, 1000, 0, 20 * GIB)
    options = graph.options_of(0)
    assert options.max_runtime_s == 7200.0
    assert options.warm_key
    assert options.warmup_s > 0


def test_limits_that_ray_can_keep_are_passed_on() -> None:
    """GPU time and deadline; also a cost: whether there are prices a session knows, see `test_ray_flavors_told`."""

    @egs.task(max_gpu_time="1h", deadline="2h", max_cost=5)
    def train() -> None:
        """Nothing."""

    options = convert(ray.remote(train).bind()).graph.options_of(0)
    assert (options.max_gpu_s, options.deadline_s, options.max_cost) == (3600.0, 7200.0, 5.0)


def test_members_of_a_gang_must_not_wait_for_each_other() -> None:
    """They could never start together: an error that names the gang, at conversion."""

    @ray.remote
    @egs.task(gang="shards")
    def shard(*args: Any) -> Any:
        return args

    with pytest.raises(InputError, match="gang 'shards' wait for each other"):
        convert(shard.bind(shard.bind()))
    graph = convert(MultiOutputNode([shard.bind(), shard.bind()])).graph
    assert [graph.options_of(task).gang for task in range(graph.n_tasks)] == ["shards", "shards"]


def test_a_need_that_is_stated_twice_must_be_the_same() -> None:
    """Ray's option and the hint agree, or the error names both; one alone counts."""

    @ray.remote(num_cpus=3)
    @egs.task(cpus=1)
    def torn() -> None: ...

    @ray.remote(num_cpus=3)
    @egs.task(cpus=3)
    def agreed() -> None: ...

    with pytest.raises(InputError, match=r"num_cpus=3 and egs\.task cpus=1"):
        convert(torn.bind())
    assert convert(agreed.bind()).nodes[0].cpus == 3.0


def test_phase_functions_with_durations() -> None:
    """Phase functions give exactly their kinds; expect gives the durations."""
    steps = egs.task(gpus=1, expect=(1, "2s"))(egs.phases(len, egs.on_gpu(abs, cpus=0.5), name="two"))
    graph = convert(ray.remote(steps).bind([])).graph
    assert (graph.phase_kind, graph.phase_duration_s) == ([CPU, GPU], [1.0, 2.0])
    assert graph.shapes[graph.phase_shape[1]].cpu_milli == 500


def test_inputs_are_no_tasks() -> None:
    """InputNode and its parts become stand-ins, by attribute, key and index; the graph has the tasks only."""
    with InputNode() as given_input:
        root = load.bind(given_input, given_input.rate, given_input["k"], [given_input[0]])
    converted = convert(root)
    assert converted.graph.ids == ["load-0"]
    whole, rate, key, first = converted.nodes[0].args
    assert (whole, rate) == (Given(), Given("__getattr__", "rate"))
    assert (key, first) == (Given("__getitem__", "k"), [Given("__getitem__", 0)])


def test_several_outputs() -> None:
    """MultiOutputNode is no task; its items are the output, in order, repeats included."""
    one = load.bind()
    assert convert(MultiOutputNode([one, fit.bind(one), one])).output == [Produced(0), Produced(1), Produced(0)]


def test_long_chain() -> None:
    """Three thousand tasks in a row convert: the walk does not recurse."""
    node = load.bind()
    for _ in range(3000):
        node = load.bind(node)
    assert convert(node).graph.parents[-1] == (2999,)


class Box:
    def __init__(self, node: DAGNode) -> None:
        self.node = node


def test_actor_is_named() -> None:
    """An actor cannot be said by a task graph: the error names it."""
    with pytest.raises(InputError, match="p: actor 'Model' holds its resources") as caught:
        convert(load.bind(ray.remote(Model).bind().predict.bind(1)), name="p")
    assert "\n" not in str(caught.value)


def test_hidden_node_is_named() -> None:
    """A node inside some object's attribute would be a lost edge: an error names both tasks."""
    with pytest.raises(InputError, match=r"p: fit-0: task 'load' is hidden"):
        convert(fit.bind(Box(load.bind())), name="p")


def test_other_bad_input() -> None:
    """No graph, no task, an impossible number of GPUs: each one clear error."""
    with pytest.raises(InputError, match="int is not a Ray graph"):
        convert(3)
    with pytest.raises(InputError, match="has no task"):
        convert(InputNode())
    with pytest.raises(InputError, match=r"fit-0: num_gpus=1\.5"):
        convert(fit.options(num_gpus=1.5).bind())


def test_missing_private_api_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Ray's nodes do not show their functions, conversion says so instead of guessing."""
    monkeypatch.setenv("EGS_RAY_WITHOUT", "dag")
    with pytest.raises(InputError, match="do not show their functions"):
        convert(load.bind())
