"""Runs of a site that belong together: which those are, and the parts of their pages."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from egs_core.client.messages import RunView
from egs_core.client.outlines import Earlier, Outline
from egs_core.dashboard import mirror as module
from egs_core.dashboard.mirror import Mirror
from egs_core.dashboard.site_workloads import list_parts, workload_parts
from egs_core.dashboard.tree import tree
from egs_core.dashboard.views import encoded
from egs_core.report.html import tag
from tests.unit.dashboard.test_snapshot import EVIL
from tests.unit.dashboard.test_snapshot import run as view

NOW = 1000.0


def outline(number: int, name: str, state: str = "waiting", **more: Any) -> Outline:
    return Outline(str(number), name, "ann", state, 1.0, 900.0, host="n", **more)


def pipeline() -> list[Outline]:
    """load has ended; fit and score came after it: one runs, the other waits; report comes after both."""
    return [
        outline(1, "load", "ended", started_at=900.0, ended_at=910.0, outcome="succeeded", waited_s=0.0),
        outline(2, "fit", "running", started_at=910.0, follows=("1",), devices=("0",), waited_s=1.0),
        outline(3, "score", follows=("1",), expected_s=500.0),
        outline(4, "report", follows=("2", "3"), after=("2", "3"), expected_s=20.0),
    ]


def texts(parts: dict[str, bytes], name: str) -> str:
    """All that is to be read of a part."""

    def read(node: Any) -> str:
        return node if isinstance(node, str) else " ".join(map(read, node[2]))

    return " ".join(read(node) for node in json.loads(parts[name]))


def test_what_belongs_together() -> None:
    """What follows, starts together, or is in a request; also where that is told later. Nothing else."""
    mirror = Mirror()
    mirror.take([outline(9, "alone"), *reversed(pipeline())])
    assert mirror.workload_of("9") != mirror.workload_of("1")
    assert [run.id for run in mirror.members(str(mirror.workload_of("4")))] == ["1", "2", "3", "4"]
    mirror.take([outline(10, "rank"), outline(11, "rank", gang="10"), outline(12, "debug", inside="9")])
    mirror.take([outline(10, "rank", gang="10")])
    assert [run.id for run in mirror.members(str(mirror.workload_of("10")))] == ["10", "11"]
    assert mirror.workload_of("12") == mirror.workload_of("9")
    assert mirror.workload_of("99") is None
    assert len(mirror.workloads()) == 3
    before = mirror.changes(str(mirror.workload_of("4"))), mirror.changes(str(mirror.workload_of("10")))
    mirror.take([outline(3, "score", "running", started_at=950.0, follows=("1",))])
    assert mirror.changes(str(mirror.workload_of("4"))) > before[0]
    assert mirror.changes(str(mirror.workload_of("10"))) == before[1]


def test_the_oldest_are_forgotten(monkeypatch: Any) -> None:
    """Beyond a bound of ended ones; what is open stays, and what is left belongs together as before."""
    monkeypatch.setattr(module, "MOST_ENDED", 3)
    monkeypatch.setattr(module, "SLACK", 2)
    ended = [
        outline(n, "old", "ended", ended_at=float(n), outcome="succeeded", follows=(str(n - 1),)) for n in range(1, 7)
    ]
    mirror = Mirror([outline(99, "open"), *ended[:5]])
    assert mirror.bounded() is mirror
    mirror.take(ended[5:])
    left = mirror.bounded()
    assert set(left.runs) == {"99", "4", "5", "6"}
    assert left.workload_of("4") == left.workload_of("6")
    assert left.count > mirror.count


def test_the_page_of_a_workload() -> None:
    """Each run with its state, why it waits with the rule's numbers, and the critical path by what is believed."""
    waiting = {"3": RunView.model_validate(view(3, "waiting", reason="needs 1 GPU: n has 0 of 1 free").model_dump())}
    parts = encoded(workload_parts(pipeline(), NOW, waiting))
    assert "report and 3 more" in texts(parts, "title")
    assert "1 succeeded, 1 running, 1 waiting, 1 pending" in texts(parts, "title")
    assert "1 load → 3 score → 4 report" in texts(parts, "path")
    runs = texts(parts, "runs")
    for words in ("needs 1 GPU: n has 0 of 1 free", "waits for run 2, run 3", "3 score (critical path)", "n, GPU 0"):
        assert words in runs, words
    graph = parts["graph"].decode()
    assert (graph.count('["rect",'), graph.count('"edge critical"'), graph.count('"edge"')) == (4, 2, 2)
    later = encoded(workload_parts(pipeline(), NOW + 3, waiting))
    assert (later["graph"], later["runs"]) == (parts["graph"], parts["runs"])  # time alone draws nothing anew


def test_the_page_tells_of_evictions() -> None:
    """Each try that was evicted: when it started and stopped, where, and for whom; how many of which no more is known.
    Without evictions there is no such table."""
    before = Earlier(903.0, 909.0, 2.0, "n", waited_s=3.0, why="preempted for 15 (hi5): priority")
    run = outline(2, "fit", "running", started_at=910.0, evictions=2, earlier=(before,))
    found = texts(encoded(workload_parts([run], NOW, {})), "runs")
    for words in ("1970-01-01 00:15:03 UTC", "1970-01-01 00:15:09 UTC", "6\xa0s", "for 15 (hi5): priority"):
        assert words in found, words
    assert "1 eviction before, of which no more is known" in found
    assert "Evictions" not in texts(encoded(workload_parts(pipeline(), NOW, {})), "runs")


def test_how_runs_have_to_end_for_those_after_them() -> None:
    """A run that comes only where another fails hangs on a dashed edge with the word for it, and is in the table's
    why; it is not expected, however long it takes, nor what follows it, until the other one has failed."""
    runs = [
        outline(1, "train", "running", started_at=900.0, expected_s=200.0),
        outline(2, "tell", follows=("1",), after=("1",), when={"1": "failed"}, expected_s=5000.0),
        outline(3, "after", follows=("2",), after=("2",), expected_s=5000.0),
        outline(4, "clean", follows=("1",), after=("1",), when={"1": "any"}, expected_s=50.0),
        outline(5, "score", follows=("1",), after=("1",), expected_s=20.0),
    ]
    parts = encoded(workload_parts(runs, NOW, {}))
    graph = parts["graph"].decode()
    assert (graph.count('"edge conditional"'), graph.count('"edge critical conditional"')) == (1, 1)
    assert graph.count('"edge"') == 2
    assert [graph.count(f'"class":"when"}},["{word}"]') for word in ("failed", "any", "ok")] == [1, 1, 0]
    assert "dashed" in texts(parts, "graph")
    assert "1 train → 4 clean" in texts(parts, "path")
    for words in ("waits for run 1 to fail", "waits for run 1 (however it ends)", "waits for run 2"):
        assert words in texts(parts, "runs"), words
    runs[0] = outline(1, "train", "ended", started_at=900.0, ended_at=950.0, outcome="failed")
    failed = encoded(workload_parts(runs, NOW, {}))
    assert "1 train → 2 tell → 3 after" in texts(failed, "path")
    assert "dashed" not in texts(encoded(workload_parts(pipeline(), NOW, {})), "graph")


def test_how_long_runs_take_is_said_only_where_it_is_known() -> None:
    """Where nobody has said it and nothing of the name has run, the critical path says so, and of how many."""
    runs = [outline(1, "load"), outline(2, "fit", follows=("1",), after=("1",))]
    path = texts(encoded(workload_parts(runs, NOW, {})), "path")
    assert "unknown: 1 load → 2 fit" in path
    assert "how long 2 of them take is not known" in path
    assert "unknown" in texts(encoded(list_parts([runs], NOW)), "list")
    runs[0] = outline(1, "load", "ended", started_at=900.0, ended_at=920.0, outcome="succeeded")
    path = texts(encoded(workload_parts(runs, NOW, {})), "path")
    assert "at least 20\u00a0s: 1 load → 2 fit" in path
    assert "how long 1 of them takes is not known" in path
    runs[1] = outline(2, "fit", follows=("1",), after=("1",), expected_s=5.0)
    path = texts(encoded(workload_parts(runs, NOW, {})), "path")
    assert "25\u00a0s: 1 load → 2 fit" in path
    assert "known" not in path


def test_the_list_of_workloads() -> None:
    """What is open above the rest, each with a way to its page; nothing where no runs belong together."""
    old = [
        outline(7, "old", "ended", ended_at=950.0, outcome="succeeded"),
        outline(8, "newer", "ended", ended_at=990.0, outcome="failed", follows=("7",)),
    ]
    parts = encoded(list_parts([old, pipeline()], NOW))
    text = texts(parts, "list")
    assert text.index("4 report and 3 more") < text.index("8 newer and 1 more")
    assert '{"href":"/dashboard/workloads/4"}' in parts["list"].decode()
    driver = view(1, "waiting", id="r1", framework="ray", tasks={"running": 2, "waiting": 5})
    listed = encoded(list_parts([], NOW, [RunView.model_validate(driver.model_dump())]))
    assert "r1 job1 (ray) waiting 2 5 ann" in texts(listed, "drivers")
    assert '{"href":"/dashboard/workloads/r1"}' in listed["drivers"].decode()
    assert "egs run --after" in texts(encoded(list_parts([], NOW)), "list")


def test_names_are_texts() -> None:
    """A hostile name is a text of the tree: no element and no attribute comes of it but labels of the same words."""
    runs = [outline(1, EVIL), outline(2, EVIL, follows=("1",))]
    parts = encoded(workload_parts(runs, NOW, {})) | encoded(list_parts([runs], NOW))

    def walk(node: Any) -> None:
        if isinstance(node, str):
            return
        name, attributes, children = node
        names.add(name)
        assert not any(key.startswith("on") or key == "style" for key in attributes)
        for child in children:
            walk(child)

    names: set[str] = set()
    for part in parts.values():
        for node in json.loads(part):
            walk(node)
    assert "script" not in names
    assert f"1 {EVIL}" in texts(parts, "runs")


def test_markup_as_a_tree() -> None:
    """Elements with their attributes as written, and texts as they are read."""
    svg = tag("svg", tag("title", "a < b & c"), viewBox="0 0 1 1")
    assert tree(tag("p", svg, tag("br"), "x", class_="n")) == [
        ["p", {"class": "n"}, [["svg", {"viewBox": "0 0 1 1"}, [["title", {}, ["a < b & c"]]]], ["br", {}, []], "x"]]
    ]
    assert msgspec.json.decode(msgspec.json.encode(tree(tag("p", "\u2028")))) == [["p", {}, ["\u2028"]]]
