"""WfFormat 1.5 and 1.6: what is read from it, what is written, and that nothing is lost on the way."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egs_core.errors import InputError
from egs_core.graph.columns import CPU, GPU, Graph, Shape, TaskOptions
from egs_core.graph.load import decode_workload
from egs_core.graph.validate import validate
from egs_core.graph.wfformat import write_document


def document(tasks: list[dict[str, Any]], runs: list[dict[str, Any]], version: str = "1.5") -> bytes:
    """A WfFormat document with two listed files."""
    files = [{"id": "in.txt", "sizeInBytes": 100}, {"id": "mid.txt", "sizeInBytes": 5}]
    execution = {"makespanInSeconds": 9, "executedAt": "2026-01-01", "tasks": runs, "machines": [{"nodeName": "m"}]}
    workflow = {"specification": {"tasks": tasks, "files": files}, "execution": execution}
    return json.dumps({"name": "flow", "schemaVersion": version, "author": {}, "workflow": workflow}).encode()


def sample(version: str = "1.5") -> Graph:
    """Three tasks; one edge is told by the parent only, one by the child only, one by both."""
    tasks = [
        {
            "id": "split_ID01",
            "name": "split_ID01",
            "parents": [],
            "children": ["work_ID02"],
            "outputFiles": ["mid.txt"],
        },
        {"id": "work_ID02", "name": "work_ID02", "parents": ["split_ID01"], "children": [], "inputFiles": ["mid.txt"]},
        {"id": "NF.MERGE_3", "name": "NF.MERGE", "parents": ["split_ID01", "work_ID02"], "inputFiles": ["unlisted"]},
    ]
    runs = [
        {"id": "work_ID02", "runtimeInSeconds": 2, "coreCount": 4, "memoryInBytes": 2048.0, "priority": 50},
        {"id": "split_ID01", "runtimeInSeconds": 0.5, "command": {"program": "split", "arguments": ["-n"]}},
        {"id": "NF.MERGE_3", "runtimeInSeconds": 0.0, "command": {"program": "cat a b > c\n sort c"}},
    ]
    return decode_workload(document(tasks, runs, version), "flow.json").graph


@pytest.mark.parametrize("version", ["1.5", "1.6"])
def test_every_field_arrives(version: str) -> None:
    """Edges from both sides, durations, cores, memory, files; priority of the old run is left out."""
    graph = sample(version)
    assert graph.ids == ["split_ID01", "work_ID02", "NF.MERGE_3"]
    assert graph.parents == [(), (0,), (0, 1)]
    assert graph.phase_duration_s == [0.5, 2.0, 0.0]
    assert [graph.shapes[s] for s in graph.phase_shape] == [Shape(), Shape(4000, 0, 2048), Shape()]
    assert graph.file_ids == ["in.txt", "mid.txt", "unlisted"]
    assert graph.file_sizes == [100, 5, 0]
    assert (graph.inputs, graph.outputs, graph.options) == ({1: (1,), 2: (2,)}, {0: (1,)}, {})
    assert graph.edge_bytes(0, 1) == 5


def test_the_category_is_the_program_else_the_name_else_the_id_without_its_number() -> None:
    """A one-word program names the code; a whole script does not; an id loses its serial number."""
    assert sample().names == ["split", "work", "NF.MERGE"]


def test_a_task_without_an_execution_entry_has_an_unknown_duration() -> None:
    """Unknown stays unknown, also when there is no execution at all."""
    task = {"id": "a", "name": "a", "parents": [], "children": []}
    assert decode_workload(document([task], []), "x").graph.phase_duration_s == [None]
    bare = {"name": "n", "schemaVersion": "1.6", "workflow": {"specification": {"tasks": [task]}}}
    assert decode_workload(json.dumps(bare).encode(), "x").graph.phase_duration_s == [None]


def test_a_wide_join_told_from_both_sides_is_quick_and_has_no_double_edges() -> None:
    """20,000 parents of one task, named by both ends, give 20,000 edges."""
    size = 20_000
    tasks = [{"id": f"t{i}", "parents": [], "children": ["join"]} for i in range(size)]
    tasks.append({"id": "join", "parents": [f"t{i}" for i in range(size)], "children": []})
    assert decode_workload(document(tasks, []), "x").graph.parents[-1] == tuple(range(size))


def test_what_is_written_has_the_fields_that_the_format_requires() -> None:
    """The written document has the members and types of the published schema, in both versions."""
    for version in ("1.5", "1.6"):
        written = json.loads(write_document(sample(), "flow", version=version))
        assert written["schemaVersion"] == version
        specification, execution = written["workflow"]["specification"], written["workflow"]["execution"]
        assert {"name", "id", "parents", "children"} <= set(specification["tasks"][0])
        assert specification["tasks"][0]["children"] == ["work_ID02", "NF.MERGE_3"]
        assert {"makespanInSeconds", "executedAt", "tasks"} <= set(execution)
        assert execution["tasks"][1]["coreCount"] == 4
        assert isinstance(execution["tasks"][1]["coreCount"], int)


def test_what_the_format_cannot_hold_is_an_error_naming_it() -> None:
    """GPU phases, several phases, options and an unknown version are refused, never dropped."""
    graph = Graph()
    graph.add_task("a", (), ((GPU, Shape(0, 1000), 1.0),))
    with pytest.raises(InputError, match=r"'a' .*one CPU phase"):
        write_document(graph, "n", "f")
    graph = Graph()
    graph.add_task("a", (), ((CPU, Shape(), 1.0), (CPU, Shape(), 1.0)))
    with pytest.raises(InputError, match="one CPU phase"):
        write_document(graph, "n", "f")
    graph = Graph()
    graph.add_task("a", options=TaskOptions(gang="g", priority=2))
    with pytest.raises(InputError, match="no place for priority, gang"):
        write_document(graph, "n", "f")
    graph = Graph()
    graph.add_task("a", (), ((CPU, Shape(8000), None),))
    with pytest.raises(InputError, match="unknown duration"):
        write_document(graph, "n", "f")
    with pytest.raises(InputError, match=r"version '1\.4'"):
        write_document(sample(), "n", version="1.4")


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Random graphs that WfFormat can hold."""
    files = draw(st.integers(1, 4))
    graph = Graph(file_ids=[f"f{i}" for i in range(files)], file_sizes=[i * 1000 for i in range(files)])
    for task in range(draw(st.integers(1, 10))):
        above = draw(st.sets(st.integers(0, task - 1), max_size=3)) if task else set[int]()
        seconds = draw(st.none() | st.floats(0, 1e6))
        cores = draw(st.sampled_from([1000, 2500, 64_000])) if seconds is not None else 1000
        shape = Shape(cores, 0, draw(st.integers(0, 10**12)) if seconds is not None else 0)
        graph.add_task(f"t{task}", tuple(sorted(above)), ((CPU, shape, seconds),), draw(st.sampled_from(["p", "q r"])))
        graph.inputs[task] = tuple(sorted(draw(st.sets(st.integers(0, files - 1), min_size=1))))
        graph.outputs[task] = (draw(st.integers(0, files - 1)),)
    return graph


@given(graphs(), st.sampled_from(["1.5", "1.6"]))
def test_a_round_trip_keeps_everything(graph: Graph, version: str) -> None:
    """Tasks, names, edges, durations, resources and files are the same after writing and reading."""
    validate(graph)
    again = decode_workload(write_document(graph, "n", version=version), "x").graph
    assert (again.ids, again.names, again.parents) == (graph.ids, graph.names, graph.parents)
    assert again.phase_duration_s == graph.phase_duration_s
    assert [again.shapes[s] for s in again.phase_shape] == [graph.shapes[s] for s in graph.phase_shape]
    assert (again.file_ids, again.file_sizes) == (graph.file_ids, graph.file_sizes)
    assert (again.inputs, again.outputs) == (graph.inputs, graph.outputs)
