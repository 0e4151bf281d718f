"""What Ray says of itself, in each of its three shapes, becomes the same run log. The files are of a real Ray 2.60.0.

Four GPU tasks behind four CPU tasks on one GPU, an actor with three calls, a nested task, a failure, a task that needs
eight GPUs, and one that still ran when the driver left.
"""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from egs_core.audit.accounts import gpu_time_by_task
from egs_core.audit.observed import AuditRequest
from egs_core.audit.waits import longest_waits
from egs_core.errors import InputError
from egs_core.runlog.records import Ended, Header, Record, Started, TaskAdded
from egs_core.runlog.timeline import build_timeline
from egs_ray.audit.exported import job_of, take_event, take_rows
from egs_ray.audit.read import dashboard_url, past_with_notes, read_events, read_history
from egs_ray.audit.records import past_of
from egs_ray.audit.seen import Seen

FILES = Path(__file__).parents[2] / "fixtures" / "ray_history"
AT_S = 1795294781.5  # when the dashboard was asked


def from_dashboard() -> Seen:
    answers = json.loads((FILES / "dashboard.json").read_text())
    seen = Seen()
    for what in ("nodes", "workers", "jobs", "tasks"):
        take_rows(seen, what, answers[what]["data"]["result"]["result"])
    take_rows(seen, "actors", answers["actors"]["data"]["actors"].values())
    return seen


def pushed() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FILES / "pushed.events.jsonl").read_text().splitlines()]


def from_pushed(events: list[dict[str, Any]]) -> Seen:
    seen = Seen()
    for event in events:
        take_event(seen, event)
    return seen


SHAPES = {
    "state API": lambda: past_with_notes(from_dashboard(), "made", AT_S).records(),
    "pushed": lambda: past_with_notes(from_pushed(pushed()), "made").records(),
    "exported": lambda: read_history(AuditRequest(events=FILES / "event_EXPORT_ALL.log")).records(),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_what_ran(shape: str) -> None:
    """The same tasks with the same needs and ends, whichever way they were told."""
    records: list[Record] = SHAPES[shape]()
    names = sorted(r.name for r in records if isinstance(r, TaskAdded))
    expected = ["<lambda>"] * 2 + ["A", "A.__init__"] + ["A.m"] * 3 + ["boom", "nested"] + ["prep"] * 5 + ["train"] * 7
    assert names == sorted(expected)
    added = {r.task: r for r in records if isinstance(r, TaskAdded)}
    outcomes = {(added[r.task].name, r.outcome) for r in records if isinstance(r, Ended)}
    assert ("boom", "failed") in outcomes
    assert {outcome for name, outcome in outcomes if name in ("train", "prep", "nested", "A.m")} == {"succeeded"}
    started = [r for r in records if isinstance(r, Started) and r.gpus]
    assert sorted(added[r.task].name for r in started) == ["<lambda>", "A", "A.__init__"] + ["train"] * 4


def test_flavors_are_the_accelerator_types_of_nodes() -> None:
    """As Ray counts them among a node's resources; a task without GPUs is of none, a node that says none neither."""
    seen = from_dashboard()
    assert past_with_notes(seen, "made", AT_S).flavors == {}
    for node in seen.nodes.values():
        node.offers({"CPU": node.cpus, "GPU": node.gpus, "accelerator_type:A100": 1.0})
    started = [r for r in past_with_notes(seen, "made", AT_S).records() if isinstance(r, Started)]
    assert {(r.flavor, r.gpus > 0) for r in started if r.node} == {("A100", True), ("", False)}


@pytest.mark.parametrize("shape", SHAPES)
def test_gpu_time(shape: str) -> None:
    """One GPU was never held twice; the actor held it unused until its first call and after its last."""
    line = build_timeline(SHAPES[shape]())
    actor = next(row for row in gpu_time_by_task(line) if row.name == "A")
    assert actor.held_s == pytest.approx(actor.used_s + actor.idle_s)
    assert 0 < actor.used_s < actor.held_s
    assert sum(row.held_s for row in gpu_time_by_task(line)) <= line.window[1] - line.window[0]
    assert max(c.gpus for c in line.capacities) == 1


@pytest.mark.parametrize("shape", SHAPES)
def test_waits(shape: str) -> None:
    """Nobody has eight GPUs; the tasks behind the busy GPU waited for it."""
    waits = longest_waits(build_timeline(SHAPES[shape]()), 20)
    assert next(wait for wait in waits if wait.gpus == 8).nobody_has
    behind = [wait for wait in waits if wait.name == "train" and wait.wait_s > 0.3]
    assert len(behind) == 3
    assert all(wait.reason.startswith("no free GPU while train") for wait in behind)
    assert all(wait.arguments_s > 1 for wait in behind)


def test_cold_start_is_held_time() -> None:
    """The process that Ray started for a GPU task held that GPU from its launch: the state API tells of both."""
    line = build_timeline(SHAPES["state API"]())
    (running,) = [hold for hold in line.holds if hold.demand.gpus and not hold.outcome]
    assert running.cold[0][1] - running.cold[0][0] == pytest.approx(0.713, abs=0.01)
    assert running.start_s == running.cold[0][0]


def test_same_run_by_state_api_and_push() -> None:
    """Two tellings of one run agree on every start and end to a few milliseconds."""
    started = []
    for name in ("state API", "pushed"):
        line = build_timeline(SHAPES[name]())
        started.append({(h.task, h.attempt): h.end_s - h.start_s for h in line.holds if h.outcome == "succeeded"})
    one, other = started
    both = one.keys() & other.keys()
    assert len(both) >= 17
    assert all(one[key] == pytest.approx(other[key], abs=0.01) for key in both)


def test_order_and_repeats_of_events_do_not_matter() -> None:
    """Several processes push, and a batch that was not answered comes again."""
    events = pushed()
    expected = past_of(from_pushed(events)).records()
    for seed in range(5):
        mixed = [*events, *events[:40]]
        random.Random(seed).shuffle(mixed)
        assert past_of(from_pushed(mixed)).records() == expected


def test_protobuf_names_are_read_too() -> None:
    """A Ray that is told to keep the protobuf's field names says the same."""
    kept = [_snake(event) for event in pushed()]
    assert "task_definition_event" in {key for event in kept for key in event}
    assert past_of(from_pushed(kept)).records() == past_of(from_pushed(pushed())).records()


def _snake(value: Any) -> Any:
    if isinstance(value, list):
        return [_snake(item) for item in value]
    if not isinstance(value, dict):
        return value
    kept = ("CPU", "GPU")
    return {k if k in kept else re.sub(r"(?<=[a-z])([A-Z])", r"_\1", k).lower(): _snake(v) for k, v in value.items()}


def test_jobs_are_called_as_the_hook_calls_them() -> None:
    """The script's name is the pipeline's, so the history of both is one."""
    history = past_of(from_pushed(pushed()))
    header = history.header("x")
    assert header == Header(
        run_id="x", driver="ray", policy="native", mode="off", started_at=header.started_at, edges_known=False
    )
    assert header.started_at == pytest.approx(1795294765.006, abs=0.001)
    assert {getattr(r, "workload", "train-01000000") for r in history.records()} == {"train-01000000"}


def test_unknown_events_do_no_harm() -> None:
    """What a newer Ray may send is left alone; a known event with a broken inside is an error that says which."""
    seen = Seen()
    assert not take_event(seen, {"eventType": "PLATFORM_EVENT", "platformEvent": {"x": [1]}})
    assert not take_event(seen, {})
    assert seen == Seen()
    ends = [{"state": "RUNNING"}]
    insides: list[Any] = [{"taskId": "%%%"}, {"taskId": "AQAAAA==", "stateTransitions": ends}, [], None]
    for broken in insides:
        with pytest.raises(ValueError, match="TASK_LIFECYCLE_EVENT"):
            take_event(seen, {"eventType": "TASK_LIFECYCLE_EVENT", "taskLifecycleEvent": broken})


def test_events_belong_to_jobs() -> None:
    """Tasks, actors and drivers to theirs, nodes and workers to none."""
    found = {job_of(event) for event in pushed()}
    assert found == {"01000000", ""}


def test_without_the_submitters_word() -> None:
    """A driver that does not push leaves tasks of which only a start is known: in no figure, and said."""
    events = [e for e in pushed() if "DEFINITION" not in e["eventType"] or "TASK" not in e["eventType"]]
    found = past_with_notes(from_pushed(events), "made")
    assert not any(isinstance(record, TaskAdded) for record in found.records())
    assert any("their submitters did not report" in note for note in found.notes)


def test_bundles_are_counted_and_said() -> None:
    """A task in a placement group asks for GPU_group_<id>, and for the same as GPU_group_<index>_<id>."""
    seen = from_dashboard()
    rows = json.loads((FILES / "dashboard.json").read_text())["tasks"]["data"]["result"]["result"]
    row = next(r for r in rows if r["name"] == "train")
    needs = {"CPU_group_0_ab12": 2.0, "CPU_group_ab12": 2.0, "GPU_group_ab12": 1.0, "GPU_group_0_ab12": 1.0}
    take_rows(seen, "tasks", [{**row, "required_resources": {**needs, "bundle_group_ab12": 0.001}}])
    task = seen.tasks[row["task_id"], 1]
    assert (task.cpus, task.gpus, task.in_bundle) == (2, 1, True)
    assert any("placement group" in note for note in past_with_notes(seen, "made").notes)


@pytest.mark.parametrize(
    ("lines", "place", "said"),
    [
        ('{"source_type": "EXPORT_TASK", "event_data": {"task_id": 5}}\n', ":1", "EXPORT_TASK"),
        ('\n{"source_type": "EXPORT_NODE"}\n', ":2", "EXPORT_NODE"),
        ("{}\nnot json\n", ":2", "is not JSON"),
        ("[1]\n", ":1", "an event is a JSON object"),
        ("{}\n", "", "has no event of Ray"),
        ("", "", "has no event of Ray"),
    ],
)
def test_broken_files_name_the_line(lines: str, place: str, said: str, tmp_path: Path) -> None:
    """File and line of what cannot be read."""
    file = tmp_path / "x.events.jsonl"
    file.write_text(lines)
    with pytest.raises(InputError, match=re.escape(said)) as caught:
        read_events(file)
    assert caught.value.place == f"{file}{place}"


def test_half_a_line_at_the_end_is_left_out(tmp_path: Path) -> None:
    """What a process that was killed was writing."""
    whole = (FILES / "pushed.events.jsonl").read_bytes()
    (tmp_path / "cut.events.jsonl").write_bytes(whole + whole[:50])
    assert read_events(tmp_path).tasks == from_pushed(pushed()).tasks


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8265"),
        ("head:8266", "http://head:8266"),
        ("http://head:8265/", "http://head:8265"),
        ("https://ray.example/cluster/", "https://ray.example:443/cluster"),
        ("http://[::1]:8265", "http://[::1]:8265"),
    ],
)
def test_addresses(address: str, url: str) -> None:
    """As people write them."""
    assert dashboard_url(address) == url
