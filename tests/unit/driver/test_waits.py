"""What phases wait for, as it is written while they wait: quota is no waste, and what never starts is there too."""

from __future__ import annotations

import pytest

from egs_core.cli.why import waits_in_log
from egs_core.driver.run_records import RunRecords
from egs_core.engine import Engine
from egs_core.engine import messages as m
from egs_core.engine.state.lifecycle import RUNNING
from egs_core.graph.columns import GPU, Graph, Shape, TaskOptions
from egs_core.graph.load import LoadedWorkload
from egs_core.queues import parse_queues
from egs_core.runlog.metrics import summarise
from egs_core.runlog.records import Granted, Held, Ready, Record, Started
from egs_core.sim import SimConfig, SimNode, simulate

QUOTA = parse_queues("queues: [{name: team, nominal: {gpus: 1}}]")


def gpu_tasks(count: int, seconds: float = 10.0, gpus: int = 1) -> Graph:
    graph = Graph()
    for number in range(count):
        graph.add_task(f"t{number}", (), ((GPU, Shape(1000, 1000 * gpus), seconds),))
    return graph


class Site:
    """An engine whose records are written after each event, as a driver does it."""

    def __init__(self, gpus: int = 1) -> None:
        self.engine = Engine()
        self.records: list[Record] = []
        self.log = RunRecords(self.engine.state, lambda _, record: self.records.append(record), self.engine.explain)
        self.send(m.NodeAdded("n", cpus=8, gpus=gpus), 0.0)
        self.send(m.WorkloadSubmitted("w"), 0.0)

    def send(self, event: m.Event, now: float) -> None:
        decisions = self.engine.handle(event, now)
        self.log.after(event, now)
        for decision in decisions:
            if isinstance(decision, m.Grant):
                self.log.grant(decision, now)
                self.send(m.PhaseStarted(decision.phase, decision.attempt), now)
                self.log.started(decision, now, None)

    def holds(self, task: str) -> list[tuple[float, str]]:
        return [(x.t, x.kind) for x in self.records if isinstance(x, Held) and x.task == task]

    def count(self, kind: type[Record], task: str) -> int:
        return sum(isinstance(x, kind) and getattr(x, "task", "") == task for x in self.records)


def test_a_wait_for_quota_is_no_waste() -> None:
    """Two tasks of a queue with one of two GPUs: the other GPU is idle for 10 of 20 s because of the quota. Nothing is
    wasted; withheld says what it would be without the quota: 10 of 40 GPU seconds."""
    workload = LoadedWorkload("w", "w", "", "team", 0.0, gpu_tasks(2))
    config = SimConfig((SimNode("n", 8, 2),), queues=QUOTA, records=True)
    metrics = summarise(simulate([workload], config).records)
    gpu = metrics.kinds["gpu"].effective
    assert (metrics.makespan_s, gpu.by_volume) == (20, 0)
    assert gpu.withheld_by_volume == pytest.approx(0.25)
    assert metrics.wait_s_by_hold == {"quota": 10}


def test_a_reason_that_changes_is_written_when_it_does() -> None:
    """Held by the quota first; when the queue may use everything and another has the GPU, by capacity."""
    site = Site(gpus=2)
    site.send(m.QueuesChanged(QUOTA), 0.0)
    site.send(m.WorkloadSubmitted("v", queue="team"), 0.0)
    site.send(m.TasksAdded("v", gpu_tasks(2)), 0.0)
    site.send(m.TasksAdded("w", gpu_tasks(1)), 1.0)
    assert [kind for _, kind in site.holds("t1")] == ["quota"]
    site.send(m.QueuesChanged(()), 3.0)
    assert site.holds("t1") == [(0.0, "quota"), (3.0, "capacity")]
    text = next(x.reason for x in site.records if isinstance(x, Held))
    assert "queue 'team' has no quota for that" in text


def test_what_is_never_granted_is_in_the_log() -> None:
    """A task that fits no node, and one behind a task that never ends: ready, and why it waits."""
    site = Site()
    site.send(m.TasksAdded("w", gpu_tasks(2)), 0.0)
    site.send(m.TasksAdded("w", Graph()), 0.5)
    big = Graph()
    big.add_task("big", (), ((GPU, Shape(1000, 4000), 1.0),))
    site.send(m.TasksAdded("w", big), 1.0)
    assert site.count(Ready, "t1") == site.count(Ready, "big") == 1
    assert site.holds("t1") == [(0.0, "capacity")]
    assert site.holds("big") == [(1.0, "infeasible")]
    assert site.count(Granted, "t1") == 0


def test_a_grant_adds_no_second_ready() -> None:
    """Ready once for each, also for a child that is granted with the event that made it ready."""
    site = Site()
    graph = gpu_tasks(2)
    graph.add_task("child", (1,), ((GPU, Shape(1000, 1000), 1.0),))
    site.send(m.TasksAdded("w", graph), 0.0)
    for now in (10.0, 20.0, 30.0):
        end_what_runs(site, now)
    assert [site.count(Ready, task) for task in ("t0", "t1", "child")] == [1, 1, 1]
    assert [site.count(Granted, task) for task in ("t0", "t1", "child")] == [1, 1, 1]
    assert len(site.holds("t0")) == 1, "the task with a child goes first, the other one waits for it"


def test_a_hold_names_the_tasks_that_it_waits_for() -> None:
    """A gang waits for its member that has not come; who goes first for a GPU is not said, as it differs for each."""
    graph = gpu_tasks(1)
    for name, parents in (("a", ()), ("b", (0,))):
        graph.add_task(name, parents, ((GPU, Shape(1000, 500), 1.0),), options=TaskOptions(gang="g"))
    site = Site()
    site.send(m.TasksAdded("w", graph), 0.0)
    holds = [x for x in site.records if isinstance(x, Held)]
    assert [(x.task, x.kind, x.waiting_for) for x in holds] == [("a", "gang", ("b",))]
    (answer,) = waits_in_log([*site.records, Started(9.0, "w", "a")], ["a"], "log")
    assert answer["phases"][0]["reason"]["waiting_for"] == ["b"]


def test_a_pause_is_a_hold_until_it_is_taken_back() -> None:
    """Of the paused task only."""
    site = Site()
    site.send(m.TasksAdded("w", gpu_tasks(3)), 0.0)
    site.send(m.PauseRequested("task", "2", "op", "later"), 4.0)
    site.send(m.ResumeRequested("task", "2", "op"), 6.0)
    assert site.holds("t2") == [(0.0, "capacity"), (4.0, "paused"), (6.0, "capacity")]
    assert site.holds("t1") == [(0.0, "capacity")]


def end_what_runs(site: Site, now: float) -> None:
    state = site.engine.state
    (phase,) = [p for p, status in enumerate(state.status) if status == RUNNING]
    attempt = state.attempt[state.task_of[phase]]
    site.log.ended(phase, attempt, "succeeded", now)
    site.send(m.PhaseEnded(phase, attempt), now)


def test_what_is_written_for_all_that_wait_alike_is_true_of_each() -> None:
    """Three tasks wait for the same GPU, one after the other: whose turn is next is not said of all of them."""
    site = Site()
    site.send(m.TasksAdded("w", gpu_tasks(4)), 0.0)
    reasons = [x.reason for x in site.records if isinstance(x, Held)]
    assert reasons == ["needs 1 CPU, 1 GPU: n has 0 of 1 GPU wholly free"] * 3
    assert "2 ahead of it" in site.engine.explain(3).text


def test_a_hold_that_is_written_with_its_grant_has_no_words() -> None:
    """Nobody was asked while it waited, so nothing passes for the engine's reason; the grant says when and why."""
    site = Site()
    site.log = RunRecords(site.engine.state, lambda _, record: site.records.append(record))
    site.send(m.TasksAdded("w", gpu_tasks(2)), 0.0)
    end_what_runs(site, 10.0)
    assert [(x.t, x.kind, x.reason) for x in site.records if isinstance(x, Held)] == [(0.0, "capacity", "")]
    (answer,) = waits_in_log(site.records, ["t1"], "log")
    (phase,) = answer["phases"]
    assert (phase["waited_s"], phase["reason"]["kind"]) == (10.0, "capacity")
    assert phase["reason"]["text"] == "1 phase started before it on n, first t0; nothing else could have started then"
