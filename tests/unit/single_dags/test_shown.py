"""What is shown beside the figures: which instances they are of, and the plot."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.plots import drawing_library
from benchmarks.single_dags_figures import Run, plot, summarise
from benchmarks.single_dags_instances import NAMED, Instance, differs_from_named
from egs_core.errors import InputError
from egs_core.graph.columns import Graph
from egs_core.graph.load import LoadedWorkload


def instances_of(*names: str) -> list[Instance]:
    return [Instance(name, LoadedWorkload(name, name, "", "", 0.0, Graph())) for name in names]


def test_other_instances_than_the_named_ones_are_said() -> None:
    """Nothing for the whole list; one more and one less by name."""
    assert differs_from_named(instances_of(*NAMED)) == []
    assert differs_from_named(instances_of(*NAMED[1:], "new")) == ["+ new", f"- {NAMED[0]}"]


def test_a_plot_has_a_panel_for_each_network_and_kind_of_knowledge(tmp_path: Path) -> None:
    """Also where a side was measured in some of them only."""
    pytest.importorskip("matplotlib")
    runs = [
        Run("i", network, durations, slots, side, 11.0, 1.1, 1.1, 0.0)
        for network in ("instant", "125MB/s")
        for durations in ("exact", "blind")
        for slots in (4, 8)
        for side in (("egs", "heft", "b-level") if durations == "exact" else ("egs", "heft"))
    ]
    plot({"rows": summarise(runs)}, tmp_path / "dags.png")
    assert (tmp_path / "dags.png").stat().st_size > 5000


def test_without_the_library_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """An input error that says what to install."""
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(InputError, match="matplotlib"):
        drawing_library()
