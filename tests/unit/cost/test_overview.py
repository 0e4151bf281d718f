"""Several histories in one report: what was held, used and wasted by whom and when, and what would save most."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from egs_core.audit.observed import header_of, observed_in
from egs_core.cli.app import run
from egs_core.cost.overview import Overview
from egs_core.cost.prices import parse_prices
from egs_core.runlog import records as r
from egs_core.runlog.io import read_run, write_run
from tests.unit.audit.contended import ran

Out = pytest.CaptureFixture[str]
H = 3600.0
MONDAY = 1_795_996_800.0  # 2026-11-30, 0:00 UTC
HEADER = r.Header(run_id="one", driver="ray", mode="off", started_at=MONDAY - H, label="the cluster")
OTHER = r.Header(run_id="two", driver="airflow", mode="off", started_at=MONDAY + 8 * H, notes=("slots count as GPUs",))


def task(name: str, start_h: float, hours: float, *more: r.Record, gpus: float = 2.0, **end: Any) -> list[r.Record]:
    """One that holds GPUs for so long, of a workload `w`."""
    needs = (("gpu", 1.0, gpus, 0),)
    start = [
        r.TaskAdded(0.0, "w", name, name.split("-")[0], phases=needs),
        r.Started(start_h * H, "w", name, gpus=gpus),
    ]
    return [*start, *more, r.Ended((start_h + hours) * H, "w", name, **end)]


def first() -> list[r.Record]:
    """From an hour before a Monday on: eight GPU hours of `fit`, half of them before and after its use and a quarter a
    cold start; four of `eval` that fail, and two of it that say nothing of their use."""
    use = r.ColdStart(0.0, H, "w", "fit-1"), r.Used(H, 2 * H, "w", "fit-1")
    return [
        r.Capacity(0.0, "n", 8, 4),
        r.WorkloadSubmitted(0.0, "w", "train", "ann", "images"),
        *task("fit-1", 0, 4, *use),
        *task("eval-1", 0, 2, outcome="failed"),
        *task("eval-2", 4, 1),
        r.WorkloadEnded(5 * H, "w"),
    ]


def second() -> list[r.Record]:
    """Six GPU hours of another user's, the last of which has not ended."""
    names = [r.WorkloadSubmitted(0.0, "w", "etl", "ben", "text")]
    return [
        *names,
        *task("copy-1", 0, 2, r.Used(0.0, 2 * H, "w", "copy-1")),
        *task("copy-2", 2, 1)[:2],
        r.Ready(3 * H, "w", "x"),
    ]


def overview(**more: Any) -> Overview:
    found = Overview(lambda queue: {"images": "vision"}.get(queue, ""), **more)
    found.add("one.jsonl", HEADER, first())
    found.add("two.jsonl", OTHER, second())
    return found


def test_all_that_is_held_is_used_or_wasted_in_one_way() -> None:
    """In all, and below each source, framework, team, user and week; the weeks part at Monday, 0:00 UTC. What failed is
    lost with all that it held."""
    found = overview()
    total = found.total
    assert (total.held_h, total.used_h, total.cold_h, total.idle_h, total.lost_h) == (20, 10, 2, 4, 4)
    assert (total.attempts, total.lost_attempts, found.offered_h) == (5, 1, 20)
    rows = {kind: {name: (row.held_h, row.wasted_h) for name, row in found.rows(kind)} for kind in found.by}
    assert rows["source"] == {"one.jsonl": (14, 10), "two.jsonl": (6, 0)}
    assert rows["framework"] == {"ray": (14, 10), "airflow": (6, 0)}
    assert rows["team"] == {"vision": (14, 10), "(none)": (6, 0)}
    assert rows["user"] == {"ann": (14, 10), "ben": (6, 0)}
    assert rows["week"] == {"2026-11-23": (4, 4), "2026-11-30": (16, 6)}
    for kind in found.by:
        assert sum(row.attempts for _, row in found.rows(kind)) == 5


def test_the_changes_that_would_save_most() -> None:
    """By money where there are prices; each kind of waste in each task is one, at most three are told."""
    ways = [(one.kind, one.pipeline, one.task, one.gpu_h, one.cost) for one in overview().changes()]
    assert ways == [
        ("idle", "train", "fit", 4, None),
        ("lost", "train", "eval", 4, None),
        ("cold", "train", "fit", 2, None),
    ]
    days = "{since: 2026-11-01, on_demand: 1}, {since: 2026-11-30, on_demand: 9}"
    text = f"currency: EUR\nflavors: [{{name: a, prices: [{days}]}}]\n"
    priced = overview(prices=parse_prices(text))
    assert [(one.kind, one.cost) for one in priced.changes()] == [("idle", 36), ("lost", 20), ("cold", 2)]
    assert priced.total.cost == 4 + 16 * 9
    assert "1 of 2 attempts failed or were stopped" in priced.changes()[1].words
    assert overview(gpu_price=2.0).total.cost_wasted == 20


def test_what_is_not_told_is_said() -> None:
    """Of tasks that say nothing of their use it is not known what was idle."""
    assert overview().notes()[-1].startswith("40% of the GPU time was held by tasks that do not say when they use")
    assert Overview(str).changes() == []


def test_no_change_is_advised_for_next_to_nothing() -> None:
    """What saves less than a thousandth of all that was held is left out, the rest stays."""
    found = overview()
    *rest, least = found.changes()
    found.total.held_h = 1001 * least.gpu_h
    assert found.changes() == rest


def test_names_without_end_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("egs_core.cost.overview.MOST_NAMES", 3)
    found = Overview(str)
    for number in range(9):
        records = [r.WorkloadSubmitted(0.0, "w", f"p{number}", f"u{number}"), *task(f"t{number}-1", 0, 1)]
        found.add(f"s{number}", HEADER, records)
    assert {name: row.held_h for name, row in found.rows("user")} == {"u0": 2, "u1": 2, "u2": 2, "(others)": 12}
    assert found.total.held_h == 18


def test_from_the_command_line(tmp_path: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables and JSON of several run logs, with prices and teams from files, in any order of records; the caveats that
    a history had when it was written into a log; and what is wrong in one line."""
    monkeypatch.delenv("COLUMNS", raising=False)
    logs = [str(tmp_path / "one.jsonl"), str(tmp_path / "two.jsonl")]
    write_run(Path(logs[0]), HEADER, first()[::-1])
    write_run(Path(logs[1]), OTHER, second())
    (tmp_path / "prices.yaml").write_text(
        "currency: EUR\nflavors: [{name: a, prices: [{since: 2026-11-01, on_demand: 3}]}]"
    )
    (tmp_path / "queues.yaml").write_text(
        "teams: [{name: vision}]\nqueues: [{name: images, team: vision}, {name: text}]"
    )
    files = ("--prices", str(tmp_path / "prices.yaml"), "--queues", str(tmp_path / "queues.yaml"))
    assert run(["audit", *logs, "--overview", *files]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(
        "GPU hours: 20.00 offered, 20.00 held, 10.00 used, 2.00 cold, 4.00 idle, 4.00 lost; cost: 60.00 EUR, 30.00 of"
    )
    assert "1. up to 4.00 GPU h, 12.00 EUR: let fit of train hold its GPUs only while it uses them" in shown
    assert "two.jsonl: slots count as GPUs" in shown
    assert run(["audit", *logs, "--overview", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["total"]["held_h"], set(told["by_team"]), told["total"]["cost"]) == (20, {"images", "text"}, None)
    assert [one["kind"] for one in told["changes"]] == ["idle", "lost", "cold"]
    for wrong, problem in (
        ((*logs, logs[0], "--overview"), "one.jsonl: is of the same run as"),
        (("--overview",), "egs audit --overview: needs a source"),
        ((*logs, "--overview", "--job", "w"), "--job: does nothing with --overview"),
        ((*logs, "--overview", *files, "--gpu-price", "2"), "--gpu-price, --prices: both say"),
        ((*logs, *files), "--prices, --queues: do nothing without --overview"),
        ((str(tmp_path / "none.jsonl"), "--overview"), "none.jsonl: no such file"),
    ):
        assert run(["audit", *wrong]) == 2
        assert problem in capsys.readouterr().err


def test_a_log_keeps_the_caveats_of_its_history(tmp_path: Path) -> None:
    """What a live audit says of tasks that are lost, and what else a reader must know, an audit of its run log says."""
    seen = msgspec.structs.replace(ran(), notes=("waits begin when a worker asks",), tasks_lost=7)
    write_run(tmp_path / "log.jsonl", header_of(seen), seen.records)
    again = observed_in(read_run(tmp_path / "log.jsonl"))
    assert (again.notes, again.tasks_lost) == (seen.notes, 7)
