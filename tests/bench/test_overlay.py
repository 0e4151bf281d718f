"""The rule that lays GPU phases over workflows: what it draws, that it repeats, and what is believed of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec
import pytest

from benchmarks.overlay import (
    MEAN_GPU_TASK_S,
    Beliefs,
    Template,
    category_of,
    gpu_seconds,
    load_graphs,
    make_stream,
    make_templates,
    used_in_merged,
)
from egs_core.errors import InputError
from egs_core.graph.columns import CPU, GPU, Graph, Shape
from egs_core.graph.load import LoadedWorkload
from egs_core.runlog import records as r
from egs_core.testing.engine_bench import cpu, gpu, graph_of


def fan(width: int = 12) -> Graph:
    """split → work_1 … work_n → merge; nearly all of the time is in `work`."""
    graph = Graph()
    graph.add_task("split", (), ((CPU, Shape(), 2.0),))
    for number in range(width):
        graph.add_task(f"work_{number:03d}", (0,), ((CPU, Shape(), 10.0 + number),))
    graph.add_task("merge", tuple(range(1, width + 1)), ((CPU, Shape(), 1.0),))
    return graph


def templates(seed: int = 1) -> list[Template]:
    return make_templates([("app", fan()), ("other", fan(3))], seed)


@pytest.mark.parametrize(
    ("name", "category"),
    [("work_ID0012", "work_ID"), ("align-3", "align"), ("MAP (sample_1)", "MAP"), ("7", "7"), ("a.1_2", "a")],
)
def test_a_category_is_a_name_without_its_serial_numbers(name: str, category: str) -> None:
    """Whatever is left when numbers and samples at the end are gone; never nothing."""
    assert category_of(name) == category


def test_the_category_with_most_work_is_on_gpus_and_takes_a_minute() -> None:
    """In each application; times are stretched so that the mean of its GPU tasks is the stated one."""
    for seed in range(20):
        for template in templates(seed):
            assert template.categories["work"].is_gpu
            on_gpu = [s for s, name in zip(template.seconds, template.names, strict=True) if _is_gpu(template, name)]
            assert sum(on_gpu) / len(on_gpu) == pytest.approx(MEAN_GPU_TASK_S)


def _is_gpu(template: Template, name: str) -> bool:
    return template.categories[name].is_gpu


def test_drawn_phases_keep_to_the_rule() -> None:
    """GPU tasks: CPU, GPU, CPU with one GPU held in the middle only, or the GPU alone; warm-ups of 2 to 60 s."""
    seen = set()
    for seed in range(20):
        for workload in make_stream(templates(seed), 3, 16, 1.0, seed):
            graph = workload.graph
            for task in range(graph.n_tasks):
                phases = graph.phases_of(task)
                kinds = tuple(graph.phase_kind[p] for p in phases)
                seen.add(kinds)
                for p in phases:
                    assert (graph.shapes[graph.phase_shape[p]].gpu_milli == 1000) == (graph.phase_kind[p] == GPU)
                options = graph.options_of(task)
                assert bool(options.warm_key) == (GPU in kinds)
                assert not options.warm_key or 2.0 <= options.warmup_s <= 60.0
    assert seen == {(CPU,), (GPU,), (CPU, GPU, CPU)}


def test_a_stream_repeats_with_its_seed_and_arrives_at_its_load() -> None:
    """The same seed gives the same submissions; GPU-seconds that arrive for each there is are about the load."""
    first, again, other = (make_stream(templates(), 400, 16, 1.2, seed) for seed in (7, 7, 8))
    assert [msgspec.structs.asdict(w.graph) for w in first[:5]] == [msgspec.structs.asdict(w.graph) for w in again[:5]]
    assert [w.arrival_s for w in first] == [w.arrival_s for w in again] != [w.arrival_s for w in other]
    load = sum(map(gpu_seconds, first)) / (16 * first[-1].arrival_s)
    assert load == pytest.approx(1.2, rel=0.2)


def test_beliefs_are_quantiles_of_an_earlier_stream() -> None:
    """Median and 95 % of the phases of one category at one place; merged tasks have their own; unknown ones a prior."""
    graphs = [graph_of({"x": ()}, {"x": (cpu(s), gpu(2 * s))}) for s in (1.0, 2.0, 3.0)]
    beliefs = Beliefs([LoadedWorkload(str(i), "w", "", "", 0.0, graph) for i, graph in enumerate(graphs)])
    split = LoadedWorkload("a", "w", "", "", 0.0, graph_of({"x": ()}, {"x": (cpu(9.0), gpu(9.0))}))
    assert (beliefs(split, 0), beliefs(split, 1)) == ((2.0, 3.0), (4.0, 6.0))
    merged = LoadedWorkload("a", "w", "", "", 0.0, graph_of({"x": (), "new": ()}, {"x": (gpu(9.0),)}))
    assert beliefs(merged, 0) == (6.0, 9.0)
    assert beliefs(merged, 1) == (MEAN_GPU_TASK_S, 3 * MEAN_GPU_TASK_S)


def test_when_a_merged_task_used_its_gpu() -> None:
    """Started at 10 s, cold for 3 s, 2 s of CPU: the GPU phase of 4 s is from 15 to 19 s."""
    workload = LoadedWorkload("w", "w", "", "", 0.0, graph_of({"x": ()}, {"x": (cpu(2.0), gpu(4.0), cpu(1.0))}))
    records = [r.Started(10.0, "w", "x", gpus=1.0), r.ColdStart(10.0, 13.0, "w", "x")]
    assert list(used_in_merged([workload], records)) == [r.Used(15.0, 19.0, "w", "x")]


def write_workflow(folder: Path, name: str, seconds: float = 5.0) -> None:
    """A WfFormat document of three tasks."""
    listed = [{"id": f"t{i}", "name": f"work_{i}", "parents": ["t0"] if i else [], "children": []} for i in range(3)]
    runs = [{"id": f"t{i}", "runtimeInSeconds": seconds} for i in range(3)]
    workflow = {"specification": {"tasks": listed, "files": []}, "execution": {"tasks": runs}}
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps({"name": name, "schemaVersion": "1.5", "workflow": workflow}))


def test_workflows_come_from_the_folder_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The application is the name before the dash; one without times is left out, and none at all is an error."""
    monkeypatch.setenv("EGS_DATA", str(tmp_path))
    with pytest.raises(InputError, match="no workflow with times"):
        load_graphs()
    write_workflow(tmp_path / "workflows", "bwa-small.json")
    write_workflow(tmp_path / "workflows", "idle-small.json", seconds=0.0)
    [(app, graph)] = load_graphs()
    assert (app, graph.names, graph.parents) == ("bwa", ["work_0", "work_1", "work_2"], [(), (0,), (0,)])


def test_without_a_folder_or_a_generator_it_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """One error with a hint that names both."""
    monkeypatch.delenv("EGS_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "wfcommons", None)
    with pytest.raises(InputError, match="pip install wfcommons"):
        load_graphs()
