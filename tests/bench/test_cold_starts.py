"""The benchmark of phases and cold starts: its variants on a small stream, its bound by hand, its files."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import cold_starts
from benchmarks.cold_starts import VARIANTS, cluster, figures_of, for_itself, least_makespan_s, main, run
from benchmarks.overlay import Beliefs, make_stream, make_templates
from egs_core.graph.columns import CPU, Graph, Shape, TaskOptions
from egs_core.graph.load import LoadedWorkload
from egs_core.testing.engine_bench import cpu, gpu, graph_of


def workflow(width: int = 8) -> Graph:
    """work_1 … work_n → merge."""
    graph = Graph()
    for number in range(width):
        graph.add_task(f"work_{number}", (), ((CPU, Shape(), 10.0),))
    graph.add_task("merge", tuple(range(width)), ((CPU, Shape(), 1.0),))
    return graph


def stream() -> tuple[list[LoadedWorkload], Beliefs]:
    templates = make_templates([("app", workflow())], 1)
    return make_stream(templates, 3, 16, 1.2, 1), Beliefs(make_stream(templates, 3, 16, 1.0, 1000))


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_runs_to_the_end(name: str) -> None:
    """Figures in their ranges; a variant without preload has none, one without kept processes starts all cold."""
    workloads, beliefs = stream()
    variant = VARIANTS[name]
    found = figures_of(run(variant, workloads, beliefs), variant, workloads)
    assert found["makespan_s"] >= least_makespan_s(workloads, 16) - 1e-6
    assert 0.0 <= found["wastage_effective_by_volume"] <= found["wastage_effective_by_time"] <= 1.0
    assert (found["preloads"] > 0) == variant.preload
    if variant.preload:
        assert found["gpu_phases_warm"] >= 0.95
    if not variant.keep and not variant.split:
        keyed = sum(bool(w.graph.options_of(task).warm_key) for w in workloads for task in range(w.graph.n_tasks))
        assert (found["gpu_phases_warm"], found["cold_starts"]) == (0.0, keyed)


def test_no_process_serves_another_task_where_each_is_for_itself() -> None:
    """Keys differ between tasks and between submissions; tasks without one get none."""
    key = TaskOptions(warm_key="k", warmup_s=1.0)
    graph = graph_of({"a": (), "b": (), "c": ()}, {n: (gpu(),) for n in "ab"}, {"a": key, "b": key})
    copies = [for_itself(LoadedWorkload(name, "w", "", "", 0.0, graph)) for name in ("x", "y")]
    keys = [copy.graph.options_of(task).warm_key for copy in copies for task in range(3)]
    assert keys == ["k#x#0", "k#x#1", "", "k#y#0", "k#y#1", ""]
    assert graph.options_of(0) == key


def test_what_no_variant_can_beat_by_hand() -> None:
    """10 s of path that arrive 3 s after the first; with one GPU the 16 s of both GPU phases are longer."""
    graph = graph_of({"a": (), "b": ("a",)}, {"a": (cpu(2.0),), "b": (gpu(8.0),)})
    two = [LoadedWorkload(name, "w", "", "", at, graph) for name, at in (("x", 1.0), ("y", 4.0))]
    assert (least_makespan_s(two, 2), least_makespan_s(two, 1)) == (13.0, 16.0)


def measured(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The program on the small workflow."""
    monkeypatch.setattr(cold_starts, "load_graphs", lambda: [("app", workflow())])
    monkeypatch.setattr(sys, "argv", ["cold_starts", "--workloads", "2", "--loads", "1.2", *arguments])
    return main()


def test_table_and_json_say_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One row a variant and one for the bound; ratios are to `native` on the same streams."""
    path = tmp_path / "found.json"
    assert measured(monkeypatch, "--seeds", "2", "--variants", "native;egs", "--json", str(path)) == 0
    printed = capsys.readouterr().out.splitlines()
    found = json.loads(path.read_text())
    assert [row["variant"] for row in found["rows"]] == ["native", "egs", "bound"]
    assert len(printed) == 3
    part = found["loads"]["1.2"]
    assert part["variants"]["native"]["times_native"] == 1.0
    assert 1.0 < part["variants"]["egs"]["times_native"] <= part["most_times_native"]
    assert f"x native {part['variants']['egs']['times_native']:.2f}" in printed[1]


def test_an_unknown_variant_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, and the list of those there are."""
    with pytest.raises(SystemExit) as end:
        measured(monkeypatch, "--variants", "magic")
    assert end.value.code == 2
    assert "egs - preload" in capsys.readouterr().err


def test_the_plot_is_a_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A PNG with one bar for each variant and load."""
    pytest.importorskip("matplotlib")
    path = tmp_path / "found.png"
    assert measured(monkeypatch, "--variants", "native;egs", "--plot", str(path)) == 0
    assert path.read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_plot_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line that says what to install, exit code 2."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert measured(monkeypatch, "--variants", "egs", "--plot", str(tmp_path / "found.png")) == 2
    assert "pip install matplotlib" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_cluster_is_as_stated() -> None:
    """16 GPUs on 4 nodes: loads are counted against these."""
    assert [node.gpus for node in cluster()] == [4, 4, 4, 4]
