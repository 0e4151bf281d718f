"""A framework's past in neutral words, and the records that come of it, whatever the framework."""

from __future__ import annotations

from egs_core.audit.build import audit
from egs_core.audit.observed import observed_of
from egs_core.runlog.past import Attempt, Needs, Offer, Past, PastRun, PastTask
from egs_core.runlog.records import Capacity, ColdStart, Ended, Header, Held, Ready, Started

GPU = Needs(cpus=1.0, gpus=1.0)
BEGIN_S = 1_000.0


def past_of(*attempts: Attempt, ended_s: float | None = 20.0) -> Past:
    """A run of one GPU task, submitted at 1,000 s, on a node that is there since long before."""
    run = PastRun("run", "pipeline", BEGIN_S, None if ended_s is None else BEGIN_S + ended_s)
    run.tasks, run.attempts = [PastTask("a", "a", GPU)], list(attempts)
    return Past("slurm", BEGIN_S + 100.0, "here", [run], [Offer(0.0, "node", 8.0, 2)])


def attempt(number: int, *times: float | None, outcome: str = "succeeded") -> Attempt:
    ready_s, started_s, code_s, ended_s = (None if time is None else BEGIN_S + time for time in times)
    return Attempt("a", number, ready_s, started_s, code_s, ended_s, outcome, GPU, "node")


def test_an_attempt_is_ready_started_cold_and_ended() -> None:
    """Each with its time since the first submission, in the order of time; a ready time after the start is moved."""
    made = past_of(attempt(1, 5.0, 3.0, 4.5, 9.0)).records()
    assert [r for r in made if isinstance(r, Ready | Started | ColdStart | Ended)] == [
        Ready(3.0, "run", "a"),
        Started(3.0, "run", "a", node="node", cpus=1.0, gpus=1.0),
        ColdStart(3.0, 4.5, "run", "a"),
        Ended(9.0, "run", "a"),
    ]


def test_what_had_not_ended_with_its_run_was_aborted_and_what_never_started_skipped() -> None:
    """An end is never made up while the run goes on."""
    cut, waiting = attempt(1, 0.0, 1.0, None, None), attempt(2, 2.0, None, None, None)
    ends = [(r.t, r.attempt, r.outcome) for r in past_of(cut, waiting).records() if isinstance(r, Ended)]
    assert ends == [(20.0, 1, "aborted"), (20.0, 2, "skipped")]
    assert not [r for r in past_of(cut, waiting, ended_s=None).records() if isinstance(r, Ended)]


def test_capacity_is_that_of_the_time_that_was_measured() -> None:
    """From the first submission to the last end, or to now while anything goes on; a node that left is gone."""
    done, going = attempt(1, 0.0, 1.0, None, 9.0), attempt(1, 0.0, 1.0, None, None)
    past = past_of(done)
    past.offers.append(Offer(BEGIN_S + 5.0, "node"))
    assert [(r.t, r.gpus) for r in past.records() if isinstance(r, Capacity)] == [(0.0, 2), (5.0, 0), (20.0, 0)]
    still = past_of(going, ended_s=None)
    assert [(r.t, r.gpus) for r in still.records() if isinstance(r, Capacity)] == [(0.0, 2), (100.0, 2)]


def test_a_start_on_a_node_of_a_known_flavor_says_it() -> None:
    """Of what holds GPUs; nothing where the node's flavor is not known."""
    past = past_of(attempt(1, 0.0, 1.0, None, 9.0))
    past.flavors = {"node": "A100", "other": "T4"}
    assert [r.flavor for r in past.records() if isinstance(r, Started)] == ["A100"]
    past.runs[0].attempts[0].needs = Needs(cpus=1.0)
    assert [r.flavor for r in past.records() if isinstance(r, Started)] == [""]
    past.flavors = {}
    assert [r.flavor for r in past.records() if isinstance(r, Started)] == [""]


def test_an_audit_reads_it() -> None:
    """GPU time held, a wait with its reason, and what the framework said of itself."""
    one = attempt(1, 0.0, 4.0, None, 10.0)
    one.held = ((BEGIN_S, "executor", "queued"),)
    past = past_of(one)
    past.notes, past.tasks_lost, past.edges_known = ["a note"], 3, True
    observed = observed_of(past)
    assert isinstance(observed.header, Header)
    assert (observed.header.driver, observed.edges_known, observed.tasks_lost) == ("slurm", True, 3)
    told = audit(observed, simulated=False)
    assert told.total.held_s == 6.0
    assert "a note" in told.unknown
    assert any(isinstance(record, Held) for record in observed.records)
