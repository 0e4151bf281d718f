"""What a session tells its site of flavors, and what it takes from the history; no Ray is started."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from egs_core import notices
from egs_core.engine import messages as m
from egs_core.engine.specs import FlavorSpec
from egs_core.errors import InputError
from egs_core.graph.columns import CPU, GPU, Graph, Shape, TaskOptions
from egs_core.history.opened import open_history
from egs_core.history.rows import HistoryRow
from egs_core.runlog.records import Header
from egs_core.site import Learning
from egs_ray.session.flavors import Flavors, checked_objective

A100, L4, NONE = (m.NodeAdded(name, 2.0, gpus, flavor=name) for name, gpus in (("A100", 1), ("L4", 1), ("", 0)))


def test_only_where_gpus_are_of_several_and_only_once(tmp_path: Path) -> None:
    """With the prices of the site's file; nodes without GPUs do not count, and none are told while a script's own tasks
    wait for tickets. One alone is told where there is a file, for its price."""
    file = tmp_path / "flavors.yaml"
    file.write_text("flavors: [{name: a100, gpu_hour: 4.0, speed: 2.0}]")
    flavors = Flavors(str(file))
    assert Flavors(None).changed([A100, NONE], has_tickets=False) is None
    assert flavors.changed([NONE, replace(NONE, gpus=1)], has_tickets=True) is None
    assert flavors.changed([A100, NONE], has_tickets=True) == m.FlavorsChanged((FlavorSpec("A100", 4.0, speed=2.0),))
    told = flavors.changed([A100, L4, NONE], has_tickets=False)
    assert told == m.FlavorsChanged((FlavorSpec("A100", 4.0, speed=2.0), FlavorSpec("L4")))
    assert flavors.names == ["A100", "L4"]
    assert flavors.changed([L4, A100], has_tickets=False) is None
    assert flavors.changed([L4, A100], has_tickets=True) == m.FlavorsChanged(())


def test_a_cost_is_a_limit_where_there_are_prices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elsewhere it is left out, with one line for the process, however many tasks say it."""
    monkeypatch.setattr(notices, "_said", set())
    file = tmp_path / "flavors.yaml"
    file.write_text("flavors: [{name: a100, gpu_hour: 4.0}]")
    graph = Graph()
    for name in ("one", "two"):
        graph.add_task(name, (), ((GPU, Shape(100, 1000), None),), name, options=TaskOptions(max_cost=5.0))
    with_prices, without = Flavors(str(file)), Flavors(str(file))
    with_prices.changed([A100], has_tickets=False)
    without.changed([L4], has_tickets=False)
    assert with_prices.applied(graph) is graph
    assert capsys.readouterr().err == ""
    for flavors in (without, Flavors(None)):
        found = flavors.applied(graph)
        assert [found.options_of(task).max_cost for task in range(2)] == [None, None]
    assert graph.options_of(0).max_cost == 5.0
    assert capsys.readouterr().err == f"egs: {notices.MAX_COST_UNUSED}\n"


def test_memory_is_the_files_and_what_no_gpu_has_is_not_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the longest name that means the flavor. A need that is more than any GPU has is left out, with one line, where
    the memory of all is known."""
    monkeypatch.setattr(notices, "_said", set())
    file = tmp_path / "flavors.yaml"
    file.write_text("flavors: [{name: mig, memory: 5GiB}, {name: mig-1g.10gb, memory: 10GiB}, {name: a100}]")
    flavors = Flavors(str(file))
    names = ("MIG-1g.10gb", "MIG-1g.5gb", "A100", "")
    assert [flavors.memory_of(name) for name in names] == [10 << 30, 5 << 30, None, None]
    graph, slices = Graph(), replace(A100, gpu_memory_bytes=10 << 30)
    for name, need in (("small", 8 << 30), ("large", 20 << 30)):
        graph.add_task(name, (), ((CPU, Shape(100), None), (GPU, Shape(100, 1000, 0, need), None)), name)
    assert flavors.fitted(graph, [slices, replace(A100, gpu_memory_bytes=None), NONE]) is graph
    assert flavors.fitted(graph, [NONE]) is graph
    assert capsys.readouterr().err == ""
    found = flavors.fitted(graph, [slices, NONE])
    assert [found.shapes[number].gpu_memory_bytes for number in found.phase_shape] == [0, 8 << 30, 0, 0]
    assert [graph.shapes[number].gpu_memory_bytes for number in graph.phase_shape] == [0, 8 << 30, 0, 20 << 30]
    said = "large: its gpu_memory of 20 GiB is not kept: the largest GPU has 10 GiB"
    assert capsys.readouterr().err == f"egs: {said}\n"


def test_what_is_wrong_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="one of finish, cost"):
        checked_objective("fastest")
    with pytest.raises(InputError, match="cannot be read"):
        Flavors(str(tmp_path / "none.yaml"))


def test_seconds_on_each_flavor_are_in_the_graph(tmp_path: Path) -> None:
    """Of GPU phases, on flavors on which the history has them; without names of flavors nothing is looked up."""
    url = f"sqlite:///{tmp_path}/history.db"
    shape = Shape(100, 1000)
    store = open_history(url)
    store.record([HistoryRow("dag", "job", 0, shape, s, f) for s, f in ((10.0, "A100"), (30.0, "L4"))])
    store.record([HistoryRow("dag", "load", 0, Shape(1000), 5.0)])
    learning = Learning(tmp_path / "log.jsonl", Header(), url)
    graph = Graph()
    graph.add_task("job-0", (), ((GPU, shape, None),), "job")
    graph.add_task("load-0", (), ((CPU, Shape(1000), None),), "load")
    known = learning.believe("dag", graph, flavors=["A100", "L4", "H100"])
    assert known.phase_flavor_s == {0: pytest.approx({"A100": 10.0, "L4": 30.0})}
    assert known.phase_duration_s[1] == pytest.approx(5.0)
    spread = learning.on_flavors("dag", graph, ["A100"])[0]["A100"]
    assert spread[0] == pytest.approx(10.0)
    assert spread[1] > 10.0
    assert learning.believe("dag", graph).phase_flavor_s == {}
    learning.close()
