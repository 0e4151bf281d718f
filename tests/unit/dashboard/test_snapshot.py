"""What the dashboard's tables show of a site, and what has changed of it."""

from __future__ import annotations

import json

import msgspec
import pytest

from egs_core.client import messages as c
from egs_core.client.hosts import HostView
from egs_core.client.overview import Overview, QueueView
from egs_core.dashboard.feed import event
from egs_core.dashboard.measured import Use
from egs_core.dashboard.snapshot import NOTHING, SECTIONS, Change, Snapshot, change, snapshot

EVIL = '<script>alert("1")</script>\u2028]]>&'


def run(number: int, state: str, **more: object) -> c.RunView:
    fields: dict[str, object] = {
        "id": str(number),
        "name": f"job{number}",
        "user": "ann",
        "state": state,
        "version": 1,
        "gpus": 1,
        "cpus": 0,
        "memory_bytes": 0,
        "queue": "images",
        "priority": 0,
        "submitted_at": 1000.2,
    }
    return c.RunView.model_validate(fields | more)


def site(**more: object) -> Overview:
    """Two GPUs, of which a run holds one, and another team the other one; one run waits."""
    held = run(1, "running", started_at=1010.0, lease=c.Lease(token=1, devices=("0",)))
    both = {"state": "held", "free": 0, "host": "a"}
    waits = run(2, "waiting", reason="needs 1 GPU", starts_in_s=59.9)
    both = {"state": "held", "free": 0, "host": "a"}
    fields: dict[str, object] = {
        "now": 1100.0,
        "devices": (
            {"id": "0", "label": "emulated", "run": "1", "runs": ("1",), "memory_bytes": 1 << 33} | both,
            {"id": "1", "others": True} | both,
        ),
        "hosts": (HostView(name="a", state="own", devices=("0", "1"), runs=("1", "2")),),
        "queues": (QueueView(name="images", team="vision", gpus=1, used=1, waiting=1, starts_in_s=59.9),),
        "running": (held,),
        "running_count": 1,
        "waiting": (waits,),
        "waiting_count": 1,
    }
    return Overview.model_validate(fields | more)


def applied(snapshots: list[Snapshot], changes: list[Change]) -> dict[str, list[list[object]]]:
    """What a page shows after these changes, by the rule of page.js."""
    shown: dict[str, dict[str, list[object]]] = {name: {} for name in SECTIONS}
    for one in changes:
        for name, part in json.loads(msgspec.json.encode(one))["sections"].items():
            rows = shown[name] | part.get("rows", {})
            shown[name] = {key: rows[key] for key in part["order"]} if "order" in part else rows
    assert len(snapshots) == len(changes)
    return {name: list(rows.values()) for name, rows in shown.items()}


def rows_of(found: Snapshot) -> dict[str, list[list[object]]]:
    return {name: [list(row) for row in rows.values()] for name, rows in found.rows.items()}


def test_each_row_has_a_cell_for_each_column() -> None:
    found = snapshot(site(drivers=(run(3, "running", id="r3", framework="ray"),)), {})
    assert set(found.rows) == set(SECTIONS)
    for name, rows in found.rows.items():
        assert rows, name
        for row in rows.values():
            assert len(row) == len(SECTIONS[name].columns), name


def test_what_is_shown() -> None:
    """Who holds what since when, what another team has without its name, why something waits, what is measured."""
    found = snapshot(site(), {"0": Use(0.37, 1 << 32)})
    mine, theirs = found.rows["devices"].values()
    assert mine == ("0", "held", "1 (job1, ann)", 1010.0, 0.37, "4.0 GiB", "emulated")
    assert theirs == ("1", "held", "another team's", None, None, "", "")
    assert found.rows["queues"]["images"] == ("images", "vision", "1", "1", "1", 1160.0)
    assert found.rows["waiting"]["2"][2:5] == ("needs 1 GPU", 1160.0, 1000.0)
    assert found.rows["running"]["1"][-1] == "abort"
    assert found.rows["waiting"]["2"][-2:] == ("0", "pause priority abort")
    assert found.totals == "0 of 2 emulated GPUs free; 1 running, 1 waiting"


def test_an_emulated_gpu_has_no_memory() -> None:
    """What a part of it is reckoned by is not shown as if it were there; that of a real one is."""
    assert snapshot(site(), {}).rows["devices"]["a/0"][5] == ""
    real = c.Device(id="0", label="NVIDIA A100", memory_bytes=1 << 33, state="free", host="a")
    assert snapshot(site(devices=(real,)), {}).rows["devices"]["a/0"][5] == "8 GiB"


def test_what_others_use_is_not_shown() -> None:
    """Neither how much a GPU computes that another team has a part of, nor what is used of a queue for all."""
    queue = QueueView(name="common", gpus=2)
    found = snapshot(site(queues=(queue,)), {"0": Use(0.37, 1 << 32), "1": Use(0.93, 1 << 32)})
    assert [row[4:6] for row in found.rows["devices"].values()] == [(0.37, "4.0 GiB"), (None, "")]
    assert found.rows["queues"]["common"][3] == ""


def test_a_budget_that_is_used_up_is_said_where_the_quota_is() -> None:
    queues = (QueueView(name="common"), QueueView(name="images", gpus=1, is_used_up=True))
    found = snapshot(site(queues=queues), {})
    assert [row[2] for row in found.rows["queues"].values()] == ["no bound", "1, budget used up"]


def test_a_bound_is_said() -> None:
    found = snapshot(site(running_count=700, waiting_count=10_000), {})
    assert found.totals.endswith("; shown: the first 1 that run and the first 1 that wait")


@pytest.mark.parametrize("seconds", [0.0, 1.0, 3600.0])
def test_time_alone_changes_no_row(seconds: float) -> None:
    """What starts at a moment, and has been held since one, is the same row a second later."""
    first = site()
    later = first.model_copy(update={"now": first.now + seconds})
    waits = later.waiting[0].model_copy(update={"starts_in_s": 59.9 - seconds})
    queue = later.queues[0].model_copy(update={"starts_in_s": 59.9 - seconds})
    later = later.model_copy(update={"waiting": (waits,), "queues": (queue,)})
    news = change(snapshot(first, {}), snapshot(later, {}), later.now)
    assert (news.sections, news.totals) == ({}, None)


def test_changes_one_after_the_other_give_the_last_snapshot() -> None:
    """Rows that come, go, change places and change: a page that was told each change shows what one shows that was told
    all of it now; and a change names only rows that differ."""
    two, three, four = (run(number, "waiting", reason=f"why {number}") for number in (2, 3, 4))
    changed = three.model_copy(update={"gpus": 2.0})
    waits = [(two,), (two, three, four), (four, two, three), (four, three), (four, changed), ()]
    snapshots = [snapshot(site(waiting=one, waiting_count=len(one)), {}) for one in waits]
    changes = [change(before, after, 0) for before, after in zip([NOTHING, *snapshots], snapshots, strict=False)]
    for count in range(1, len(snapshots) + 1):
        assert applied(snapshots[:count], changes[:count]) == rows_of(snapshots[count - 1])
    assert [sorted(one.sections["waiting"].rows) for one in changes[1:]] == [["3", "4"], [], [], ["3"], []]
    assert "devices" not in changes[1].sections


def test_an_event_is_one_whatever_the_names() -> None:
    """No text can end an event or begin another: it is one line, and what was in it comes out of it."""
    evil = f"{EVIL}\r\n\nevent: ended\ndata: 1\n\n"
    found = snapshot(site(waiting=(run(2, "waiting", name=evil, user=evil, reason=evil),)), {})
    written = event("change", change(NOTHING, found, 0))
    assert written.count(b"\n") == 3
    assert written.count(b"\r") == 0
    data = json.loads(written.split(b"data: ", 1)[1])
    assert data["sections"]["waiting"]["rows"]["2"][:3] == [f"2 {evil}", evil, evil]
