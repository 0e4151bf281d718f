"""From a run log to spans: one a phase, linked along edges, with what the framework calls it; and what has no end."""

from __future__ import annotations

import random

from egs_core.client.messages import RunView
from egs_core.runlog.records import (
    ColdStart,
    Ended,
    Granted,
    Header,
    Held,
    PreloadEnded,
    PreloadStarted,
    Ready,
    Record,
    Started,
    TaskAdded,
    WorkloadEnded,
    WorkloadSubmitted,
)
from egs_core.trace.served import spans_of_runs
from egs_core.trace.span import Event, Span
from egs_core.trace.spans import spans_of

HEADER = Header(run_id="r", driver="ray", mode="on", policy="dependents", started_at=1000.0)
LOG: list[Record] = [
    WorkloadSubmitted(0.0, "w", "train", "ann", "images"),
    TaskAdded(0.0, "w", "1", "decode", phases=(("cpu", 1.0, 0.0, 0),)),
    TaskAdded(0.0, "w", "2", "fit", parents=("1",), phases=(("cpu", 1.0, 0.0, 0), ("gpu", 1.0, 1.0, 0))),
    Ready(0.0, "w", "1"),
    Started(1.0, "w", "1", node="n", cpus=1.0, framework_id="ray-1", pid=7),
    PreloadStarted(2.0, "w", "2", "n"),
    PreloadEnded(3.0, "w", "2", "warm"),
    Ended(4.0, "w", "1"),
    Ready(4.0, "w", "2"),
    Started(4.5, "w", "2", node="n", cpus=1.0),
    PreloadEnded(4.5, "w", "2", "used"),
    Ended(5.0, "w", "2"),
    Ready(5.0, "w", "2", 1),
    Held(5.0, "w", "2", 1, "capacity", "no free GPU"),
    Granted(7.0, "w", "2", 1, reason="longest_path"),
    Started(7.0, "w", "2", 1, node="n", devices=(0,), gpus=1.0, warm=True),
    ColdStart(7.0, 7.5, "w", "2", 1),
    Ended(8.0, "w", "2", 1, outcome="failed", reason="out of memory"),
    Ready(8.0, "w", "2", 0, 2),
    Started(8.0, "w", "2", 0, 2, node="n", cpus=1.0),
    Ended(9.0, "w", "2", 0, 2),
    WorkloadEnded(9.0, "w"),
]


def named(spans: list[Span]) -> dict[str, Span]:
    return {f"{span.name}.{span.attributes.get('egs.attempt', '')}": span for span in spans}


def test_a_span_a_phase_below_that_of_its_workload() -> None:
    """In the order of their starts; times since 1970; one trace."""
    spans = spans_of(HEADER, LOG)
    assert [(span.name, span.start_s, span.end_s) for span in spans] == [
        ("train", 1000.0, 1009.0),
        ("decode", 1001.0, 1004.0),
        ("preload fit", 1002.0, 1004.5),
        ("fit cpu", 1004.5, 1005.0),
        ("fit gpu", 1007.0, 1008.0),
        ("fit cpu", 1008.0, 1009.0),
    ]
    root = spans[0]
    assert (root.parent, {span.parent for span in spans[1:]}) == ("", {root.id})
    assert len({span.trace for span in spans}) == 1
    assert len({span.id for span in spans}) == len(spans)
    assert root.attributes == {
        "egs.workload": "w",
        "egs.run_id": "r",
        "egs.framework": "ray",
        "egs.mode": "on",
        "egs.policy": "dependents",
        "egs.queue": "images",
        "egs.tenant": "ann",
    }


def test_links_are_the_edges() -> None:
    """To what a task waited for, from phase to phase, and from a retry to the attempt before it."""
    found = named(spans_of(HEADER, LOG))
    decode, first, gpu, again = (found[name] for name in ("decode.1", "fit cpu.1", "fit gpu.1", "fit cpu.2"))
    assert [one.links for one in (decode, first, gpu, again)] == [(), (decode.id,), (first.id,), (gpu.id,)]


def test_a_phase_says_what_it_was() -> None:
    """What it held, why it waited and why it went, what its framework calls it, and what went wrong."""
    found = named(spans_of(HEADER, LOG))
    gpu, decode = found["fit gpu.1"], found["decode.1"]
    assert (gpu.error, decode.error) == ("out of memory", None)
    assert gpu.events == (Event("ready", 1005.0), Event("waits", 1005.0, {"egs.wait.reason": "capacity"}))
    assert {
        "egs.task": "2",
        "egs.phase": 1,
        "egs.phase.kind": "gpu",
        "egs.outcome": "failed",
        "egs.gpus": 1.0,
        "egs.devices": (0,),
        "egs.warm": True,
        "egs.cold_s": 0.5,
        "egs.used_s": 0.5,
        "egs.wait_s": 2.0,
        "egs.decided_by": "longest_path",
    }.items() <= gpu.attributes.items()
    assert (decode.attributes["egs.framework.id"], decode.attributes["process.pid"]) == ("ray-1", 7)
    assert found["preload fit."].attributes["egs.preload.outcome"] == "used"


def test_what_has_not_ended_ends_with_the_log() -> None:
    """And the order in which a log was written changes nothing, nor does a second reading: what is sent twice is there
    once."""
    whole = spans_of(HEADER, LOG)
    shuffled = LOG.copy()
    random.Random(5).shuffle(shuffled)
    assert [span.id for span in spans_of(HEADER, shuffled)] == [span.id for span in whole]
    cut = named(spans_of(HEADER, LOG[:16]))
    assert (cut["fit gpu.1"].end_s, cut["fit gpu.1"].attributes["egs.outcome"]) == (1007.0, "unfinished")
    assert spans_of(HEADER, []) == []


def view(number: str, **more: object) -> RunView:
    fields: dict[str, object] = {"name": "job", "user": "ann", "state": "ended", "version": 1, "gpus": 1.0, "cpus": 0.0}
    fields |= {"id": number, "site": "s", "memory_bytes": 0, "queue": "q", "priority": 0, "submitted_at": 5.0}
    return RunView.model_validate(fields | more)


def test_of_a_servers_runs() -> None:
    """A wait and a command each; what runs in a request is below it; what waits still waits until now."""
    runs = [
        view("1", started_at=6.0, ended_at=9.0, outcome="failed", exit_code=3),
        view("2", is_request=True, started_at=5.0),
        view("3", inside="2", started_at=7.0, ended_at=8.0, outcome="succeeded"),
        view("4", state="waiting"),
        view("5", framework="ray"),
    ]
    spans = list(spans_of_runs(runs, 10.0))
    assert [(span.name, span.start_s, span.end_s) for span in spans] == [
        ("job", 5.0, 9.0),
        ("wait", 5.0, 6.0),
        ("command", 6.0, 9.0),
        ("job", 5.0, 10.0),
        ("wait", 5.0, 5.0),
        ("command", 5.0, 10.0),
        ("job", 5.0, 8.0),
        ("wait", 5.0, 7.0),
        ("command", 7.0, 8.0),
        ("job", 5.0, 10.0),
        ("wait", 5.0, 10.0),
    ]
    assert (spans[0].error, spans[2].error, spans[6].error) == ("failed", "failed", None)
    assert spans[6].parent == spans[3].id
    assert [span.trace == spans[3].trace for span in spans] == [False] * 3 + [True] * 6 + [False] * 2
