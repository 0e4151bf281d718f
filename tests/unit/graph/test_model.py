"""Our own format: models, sizes, and the way into columns and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from egs_core.errors import InputError
from egs_core.graph.columns import CPU, GPU, Graph, Shape, TaskOptions
from egs_core.graph.load import LoadedWorkload, decode_workload, encode_workload
from egs_core.graph.model import File, Phase, Task, Workload
from egs_core.graph.validate import validate

GIB = 1024**3


def sample() -> Workload:
    """Two tasks with everything that a task can carry."""
    train = Task(
        id="train",
        name="fit",
        parents=("load",),
        phases=(
            Phase(kind="cpu", cpus=2.5, memory="2GiB", duration_s=1.0),
            Phase(kind="gpu", gpus=0.5, cpus=0, gpu_memory="20GiB", duration_s=None),
        ),
        stage="training",
        priority=-3,
        max_wait_s=60,
        max_runtime_s=7200,
        warm_key="torch",
        warmup_s=4.5,
        warm_cpus=0.5,
        warm_memory="1GiB",
        gang="g",
        retries=2,
        inputs=("data",),
        outputs=("model",),
    )
    files = (File(id="data", size_bytes="1KiB"), File(id="model", size_bytes=7))
    return Workload(id="w", tenant="team", tasks=(Task(id="load", outputs=("data",)), train), files=files)


def test_a_workload_becomes_columns() -> None:
    """Every field of the format arrives in its column, in whole units."""
    graph = sample().to_graph()
    assert (graph.ids, graph.names, graph.parents) == (["load", "train"], ["load", "fit"], [(), (0,)])
    assert (graph.phase_offsets, graph.phase_kind) == ([0, 1, 3], [CPU, CPU, GPU])
    shapes = [graph.shapes[s] for s in graph.phase_shape]
    assert shapes == [Shape(), Shape(2500, 0, 2 * GIB), Shape(0, 500, 0, 20 * GIB)]
    assert graph.phase_duration_s == [None, 1.0, None]
    wanted = TaskOptions(
        stage="training",
        priority=-3,
        max_wait_s=60,
        max_runtime_s=7200,
        warm_key="torch",
        warmup_s=4.5,
        warm_cpu_milli=500,
        warm_memory_bytes=GIB,
        gang="g",
        retries=2,
    )
    assert graph.options == {1: wanted}
    assert (graph.inputs, graph.outputs, graph.file_sizes) == ({1: (0,)}, {0: (0,), 1: (1,)}, [1024, 7])


def test_columns_become_the_same_workload() -> None:
    """from_graph is the inverse of to_graph."""
    workload = sample()
    assert Workload.from_graph(workload.to_graph(), id="w", tenant="team") == workload


def test_models_are_frozen_and_know_their_fields() -> None:
    """A typing error in a field's name is not swallowed, and a model does not change."""
    with pytest.raises(ValidationError, match="extra"):
        Task.model_validate({"id": "a", "priorty": 1})
    with pytest.raises(ValidationError, match="frozen"):
        sample().id = "other"  # type: ignore[misc]  # bad on purpose


def test_to_graph_names_a_wrong_parent_and_the_nearest_id() -> None:
    """The error of a typing slip contains the remedy."""
    workload = Workload(id="w", tasks=(Task(id="load"), Task(id="b", parents=("loda",))))
    with pytest.raises(InputError, match=r"tasks\[1\]\.parents\[0\]: unknown task 'loda' .*'load'"):
        workload.to_graph()


def test_a_small_share_is_not_rounded_to_nothing() -> None:
    """A ten-thousandth of a CPU still holds the smallest unit."""
    assert Phase(cpus=0.0001).to_shape() == Shape(1)


AMOUNTS = st.integers(1, 64_000)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Random valid graphs that use every column."""
    files = draw(st.integers(0, 4))
    sizes = draw(st.lists(AMOUNTS, min_size=files, max_size=files))
    graph = Graph(file_ids=[f"f{i}" for i in range(files)], file_sizes=sizes)
    for task in range(draw(st.integers(1, 8))):
        above = draw(st.sets(st.integers(0, task - 1), max_size=3)) if task else set[int]()
        phases = draw(
            st.lists(st.tuples(st.booleans(), AMOUNTS, st.none() | st.floats(0, 1e6)), min_size=1, max_size=3)
        )
        shaped = [
            (GPU, Shape(n % 3000, 1000 * (n % 4 + 1), n, n), s) if gpu else (CPU, Shape(n, 0, n * 7), s)
            for gpu, n, s in phases
        ]
        options = TaskOptions(priority=draw(st.integers(-5, 5)), stage=draw(st.text(max_size=3)))
        name = f"{task}:{draw(st.text(st.characters(codec='utf-8'), max_size=4))}"
        number = graph.add_task(name, tuple(sorted(above)), tuple(shaped), draw(st.sampled_from(["", "n"])), options)
        if files:
            graph.inputs[number] = (draw(st.integers(0, files - 1)),)
            graph.outputs[number] = (draw(st.integers(0, files - 1)),)
    return graph


@given(graphs(), st.text(st.characters(codec="utf-8"), min_size=1, max_size=5))
def test_encoding_and_decoding_keeps_everything(graph: Graph, name: str) -> None:
    """What is written as our own JSON is read back equal: every column, any text in ids and names."""
    validate(graph)
    loaded = LoadedWorkload("w", name, "team", "queue", 2.5, graph)
    assert decode_workload(encode_workload(loaded), "memory") == loaded
