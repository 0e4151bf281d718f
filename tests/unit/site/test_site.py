"""The site protocol, met by the embedded site, by one behind a wire and by one at a server: all tests run on each."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from egs_core.engine import EngineConfig
from egs_core.engine import messages as m
from egs_core.graph.columns import CPU, GPU, Graph, Shape, TaskOptions
from egs_core.runlog import records as r
from egs_core.site import (
    AnyTold,
    Asked,
    Dropped,
    Ended,
    Grant,
    Granted,
    Joining,
    Order,
    PreloadBegun,
    PreloadOver,
    Settled,
    Site,
    Started,
    Stop,
    pooled,
)
from egs_core.site.embedded import EmbeddedSite
from egs_core.site.over_http import join
from egs_core.site.protocol import Holder
from egs_core.site.remote import RemoteSite
from egs_core.site.returning import ReturningSite
from egs_core.testing.wire_site import WireSite
from tests.unit.server.own_server import OwnServer

LIMIT_S = 120.0
WIDE = Shape(1000)


class Played:
    """A holder that notes all it is told, and does with it what a test says."""

    def __init__(self, make: Callable[..., Site], config: EngineConfig) -> None:
        self.told: list[AnyTold] = []
        self.records: list[r.Record] = []
        self.lost: list[BaseException] = []
        self.requests: list[Asked] = []
        self.act: Callable[[AnyTold], None] = lambda _: None
        self.inside = False
        self.changed = threading.Condition()
        self.site = make(config, self)
        self.site.start()

    def perform(self, decision: AnyTold, now: float) -> None:
        assert now >= 0
        assert not self.inside, "told inside an action or another decision"
        self.inside = True
        self.act(decision)
        self.inside = False
        with self.changed:
            self.told.append(decision)
            self.changed.notify_all()

    def record(self, record: r.Record) -> None:
        with self.changed:
            self.records.append(record)
            self.changed.notify_all()

    def asked(self, request: Asked) -> None:
        with self.changed:
            self.requests.append(request)
            self.changed.notify_all()

    def site_lost(self, error: BaseException) -> None:
        with self.changed:
            self.lost.append(error)
            self.changed.notify_all()

    def until(self, condition: Callable[[], object]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, LIMIT_S), self.told

    def begin(self, graph: Graph, cpus: float = 1.0, gpus: int = 0, workload: str = "w") -> int:
        """Submit a workload on a node of its own; the number of its first task."""

        def submit() -> int:
            self.inside = True  # nothing is told before this has ended
            self.site.report(m.NodeAdded("n", cpus=cpus, gpus=gpus))
            self.site.submit(m.WorkloadSubmitted(workload, workload))
            first = self.site.grow(workload, 0, graph).task
            self.inside = False
            return first

        return self.site.call(submit)

    def run_to_end(self, decision: AnyTold) -> None:
        if isinstance(decision, Grant):
            self.site.note(Granted(decision), Started(decision, self.site.now()))
            self.site.report(m.PhaseStarted(decision.phase, decision.attempt))
            self.site.note(Ended(decision.phase, decision.attempt))
            self.site.report(m.PhaseEnded(decision.phase, decision.attempt))

    def of(self, *kinds: type) -> list[AnyTold]:
        return [told for told in self.told if isinstance(told, kinds)]


@pytest.fixture(scope="module")
def server() -> Iterator[OwnServer]:
    with TemporaryDirectory(prefix="egs-") as folder:
        found = OwnServer(Path(folder))
        yield found
        found.close()


@pytest.fixture(params=[EmbeddedSite, WireSite, RemoteSite, ReturningSite])
def make(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, server: OwnServer
) -> Iterator[Callable[..., Played]]:
    """Makes holders on one kind of site; they are closed afterwards. At a server each has a pool of its own."""
    made: list[Played] = []

    def at_server(config: EngineConfig, holder: Holder) -> Site:
        monkeypatch.setattr(pooled, "CONFIG", config)
        return join(server.url, Joining("ray", uuid.uuid4().hex, "played"), holder)

    def returning(config: EngineConfig, holder: Holder) -> Site:
        monkeypatch.setattr(pooled, "CONFIG", config)
        joining = Joining("ray", uuid.uuid4().hex, "played")
        return ReturningSite(
            lambda inner, own, back: join(server.url, joining, inner, own, back=back), config, holder, "the server"
        )

    def play(config: EngineConfig | None = None) -> Played:
        kind = {RemoteSite: at_server, ReturningSite: returning}.get(request.param, request.param)
        made.append(Played(kind, config or EngineConfig(preload=False)))
        return made[-1]

    yield play
    for played in made:
        played.site.close()


def chain(length: int) -> Graph:
    graph = Graph()
    for number in range(length):
        graph.add_task(f"t-{number}", (number - 1,) if number else (), ((CPU, WIDE, 2.0),), name="t")
    return graph


def test_a_workload_runs_to_its_end(make: Callable[..., Played]) -> None:
    """Each task is granted once, in order, and nothing is told inside an action or a decision; then it has settled."""
    played = make()
    played.act = played.run_to_end
    played.begin(chain(20))
    played.until(lambda: played.of(Settled))
    assert [grant.task for grant in played.told if isinstance(grant, Grant)] == list(range(20))
    assert played.told[-1] == Settled("w")
    assert played.site.workload("w").open_tasks == 0


def test_a_grant_says_what_its_holder_needs(make: Callable[..., Played]) -> None:
    """Place, kind and last of the phases, devices, and how long what follows is expected to take."""
    graph = Graph()
    graph.add_task("a", (), ((CPU, WIDE, 1.0), (GPU, Shape(1000, 1000), 3.0)))
    graph.add_task("b", (0,), ((CPU, WIDE, 5.0),))
    played = make()
    played.act = played.run_to_end
    played.begin(graph, gpus=1)
    played.until(lambda: played.of(Settled))
    grants = [told for told in played.told if isinstance(told, Grant)]
    assert [(g.task, g.phase, g.index, g.is_last, g.is_gpu, g.devices, g.after_s) for g in grants] == [
        (0, 0, 0, False, False, (), 8.0),
        (0, 1, 1, True, True, (0,), 5.0),
        (1, 2, 0, True, False, (), 0.0),
    ]


def test_a_task_starts_again_on_a_flavor_that_it_may_still_have(make: Callable[..., Played]) -> None:
    """Tried on one of two nodes of unlike flavors, it is granted the other one, whatever the site knows of flavors."""
    graph, nodes = Graph(), [m.NodeAdded(name, gpus=1, flavor=name) for name in ("a", "b")]
    graph.add_task("fit", (), ((GPU, Shape(0, 1000), 1.0),))
    played = make()

    def act(told: AnyTold) -> None:
        if isinstance(told, Grant) and told.attempt == 1:
            left = {"a", "b"} - {told.node}
            played.site.report(m.FlavorsAllowed(told.task, tuple(left)))
            played.site.report(m.PhaseEnded(told.phase, told.attempt, "preempted"))
        else:
            played.run_to_end(told)

    played.act = act
    played.site.call(lambda: played.site.report(*nodes))
    played.begin(graph)
    played.until(lambda: played.of(Settled))
    assert sorted(told.node for told in played.told if isinstance(told, Grant)) == ["a", "b"]


def test_growing_again_by_the_same_call_adds_nothing(make: Callable[..., Played]) -> None:
    """`grow` is known by the place of its first task; a later block follows, a gap and an unknown workload are refused,
    and a refused call does not end the site."""
    played = make()
    first = played.begin(chain(3), cpus=0.0)
    grow = played.site.grow
    assert played.site.call(lambda: grow("w", 0, chain(3))).task == first
    more = Graph()
    more.add_task("u", (2,), ((CPU, WIDE, 1.0),))
    grown = played.site.call(lambda: grow("w", 3, more))
    assert (grown.task, grown.phase) == (first + 3, 3)
    assert played.site.workload("w").open_tasks == 4
    for workload, at in (("w", 9), ("x", 0)):
        with pytest.raises(ValueError, match=r"none can follow|unknown workload"):
            played.site.call(partial(grow, workload, at, more))
    assert played.site.is_alive


def test_what_is_stopped_and_what_is_dropped(make: Callable[..., Played]) -> None:
    """An abort stops what runs, by a Stop that awaits its end, and drops what waits; then the workload has settled."""
    played = make()
    first = played.begin(chain(3))
    played.until(lambda: played.of(Grant))
    grant = played.of(Grant)[0]
    assert isinstance(grant, Grant)
    played.site.report(m.PhaseStarted(grant.phase, grant.attempt))
    played.site.control(m.AbortRequested("workload", "w", "ann", "enough"))
    played.until(lambda: played.of(Stop) and played.of(Dropped))
    (stop,) = played.of(Stop)
    assert isinstance(stop, Stop)
    assert (stop.task, stop.requeue, stop.at_limit, stop.is_over) == (first, False, False, False)
    assert stop.reason == "aborted by ann: enough"
    assert sorted(t for told in played.told if isinstance(told, Dropped) for t in told.tasks) == [first + 1, first + 2]
    assert not played.of(Settled)
    played.site.report(m.PhaseEnded(grant.phase, grant.attempt, "aborted"))
    played.until(lambda: played.of(Settled))
    assert played.told[-1] == Settled("w", failed=True)


@pytest.mark.parametrize(("then", "outcome"), [("", "failed"), ("fail", "failed"), ("end", "succeeded")])
def test_a_limit_stops_for_good_and_says_so(make: Callable[..., Played], then: str, outcome: str) -> None:
    """What is past its limit is stopped with `at_limit`, by the site's own timer. It ends as `on_limit` says, with the
    same word in the run log and in `why`, whatever its holder calls it; what waits for it is dropped, or runs."""
    graph = Graph()
    graph.add_task("long", (), ((CPU, WIDE, 1.0),), options=TaskOptions(max_runtime_s=0.05, on_limit=then))
    graph.add_task("after", (0,), ((CPU, WIDE, 1.0),))
    played = make()

    def act(told: AnyTold) -> None:
        if isinstance(told, Grant) and told.task:
            played.run_to_end(told)
        elif isinstance(told, Grant):
            played.site.report(m.PhaseStarted(told.phase, told.attempt))
        elif isinstance(told, Stop):
            played.site.note(Ended(told.phase, told.attempt, "aborted"))
            played.site.report(m.PhaseEnded(told.phase, told.attempt, "aborted"))

    played.act = act
    played.begin(graph)
    played.until(lambda: played.of(Settled))
    (stop,) = played.of(Stop)
    assert isinstance(stop, Stop)
    assert (stop.at_limit, stop.requeue) == (True, False)
    end = next(record for record in played.records if isinstance(record, r.Ended))
    assert (end.outcome, end.reason) == (outcome, "over its limit of 0.05 s")
    why = played.site.why(0)
    assert (why.status, why.kind, why.text) == (outcome, "limit", f"ended: {outcome}: over its limit of 0.05 s")
    assert played.of(Dropped) == ([Dropped((1,))] if outcome == "failed" else [])


def test_a_stop_between_two_phases_awaits_no_end(make: Callable[..., Played]) -> None:
    """What runs nothing at the moment is over when its holder hears of it: `is_over`."""
    graph = Graph()
    graph.add_task("holds", (), ((GPU, Shape(0, 1000), 90.0),))
    graph.add_task("a", (), ((CPU, WIDE, 1.0), (GPU, Shape(1000, 1000), 3.0)))
    played = make()
    played.begin(graph, gpus=1)
    played.until(lambda: len(played.of(Grant)) == 2)
    played.site.report(m.PhaseEnded(1, 1), m.AbortRequested("task", "1"))
    played.until(lambda: played.of(Stop))
    (stop,) = played.of(Stop)
    assert isinstance(stop, Stop)
    assert (stop.task, stop.is_over, stop.at_limit) == (1, True, False)


def test_questions(make: Callable[..., Played]) -> None:
    """Why, how far, and the order of what is ready with what it would take; unknown names raise."""
    graph = Graph()
    for number, seconds in enumerate((1.0, 9.0, 4.0)):
        graph.add_task(f"t-{number}", (), ((CPU, WIDE, seconds),), name="t")
    played = make()
    first = played.begin(graph)
    played.until(lambda: played.of(Grant))
    order = played.site.order()
    assert isinstance(order, Order)
    assert not order.kept
    assert [(one.name, one.rank_s, one.attempt, one.workload) for one in order.ready] == [
        ("t-2", 4.0, 1, "w"),
        ("t-0", 1.0, 1, "w"),
    ]
    statuses = played.site.tasks([first, first + 1])
    assert [(one.status, one.index, one.attempt) for one in statuses] == [("ready", 0, 1), ("granted", 0, 1)]
    why = played.site.why(first)
    assert (why.status, why.kind) == ("ready", "capacity")
    played.site.control(m.PauseRequested("workload", "w"))
    assert played.site.workload("w").is_paused
    with pytest.raises(KeyError):
        played.site.workload("unknown")


def test_room_that_is_kept_is_in_the_order(make: Callable[..., Played]) -> None:
    """An overdue gang that does not fit yet has places kept for it: phase, node and time."""
    gang = Graph()
    for number in range(2):
        gang.add_task(f"g-{number}", (), ((CPU, WIDE, 1.0),), options=TaskOptions(gang="g", max_wait_s=0.0))
    played = make()
    played.begin(chain(1), cpus=2.0)
    played.until(lambda: played.of(Grant))
    played.site.report(m.PhaseStarted(0, 1))
    played.begin(gang, cpus=2.0, workload="second")
    order = played.site.order()
    assert {(one.task, one.node) for one in order.kept} == {(1, "n"), (2, "n")}
    assert [one.name for one in order.ready] == ["g-0", "g-1"]


def test_the_run_log_is_the_sites(make: Callable[..., Played]) -> None:
    """Notes become records with what the site knows; records pass as they stand; waits are written by the site."""
    played = make()
    played.act = played.run_to_end
    played.site.do(lambda: played.site.note(r.TaskAdded(0.0, "w", "t-0", "t", (), ())))
    played.begin(chain(2))
    played.until(lambda: played.of(Settled))
    played.site.call(lambda: None)
    kinds = [type(record).__name__ for record in played.records]
    one = ["Granted", "Started", "Ended"]
    assert [kind for kind in kinds if kind not in ("Ready", "Held")] == ["TaskAdded", "Capacity", *one, *one]
    granted = [record for record in played.records if isinstance(record, r.Granted)]
    assert [(record.workload, record.task, record.estimate_p50_s) for record in granted] == [
        ("w", "t-0", 2.0),
        ("w", "t-1", 2.0),
    ]
    started = next(record for record in played.records if isinstance(record, r.Started))
    assert (started.node, started.cpus) == ("n", 1.0)


def test_notes_of_a_preload(make: Callable[..., Played]) -> None:
    """A preload is told, and written from two notes."""
    graph, played = Graph(), make(EngineConfig())
    graph.add_task("busy", (), ((CPU, WIDE, 9.0),), options=TaskOptions(priority=1))
    graph.add_task("warm", (), ((CPU, WIDE, 9.0),), options=TaskOptions(warm_key="k", warmup_s=60.0, warm_cpu_milli=0))
    played.begin(graph)
    played.until(lambda: played.of(m.Preload))
    (decision,) = played.of(m.Preload)
    assert isinstance(decision, m.Preload)
    played.site.note(PreloadBegun(decision), PreloadOver(decision.task, "warm"))
    played.until(lambda: any(isinstance(record, r.PreloadEnded) for record in played.records))
    found = [record for record in played.records if isinstance(record, r.PreloadStarted | r.PreloadEnded)]
    assert [(type(record).__name__, record.task) for record in found] == [
        ("PreloadStarted", "warm"),
        ("PreloadEnded", "warm"),
    ]


def test_a_lost_site_is_told_once_and_actions_go_on(make: Callable[..., Played]) -> None:
    """When a holder's own work fails, it hears of it once; reports are then no use and no harm, actions still run,
    growing and questions raise."""
    played = make()

    def broken(_: AnyTold) -> None:
        raise ZeroDivisionError("here")

    played.act = broken
    played.begin(chain(2))
    played.until(lambda: played.lost)
    assert [str(error) for error in played.lost] == ["here"]
    assert not played.site.is_alive
    played.site.report(m.PhaseEnded(0, 1))
    played.site.note(Ended(0, 1))
    assert played.site.call(lambda: 7) == 7
    with pytest.raises(ConnectionError):
        played.site.call(lambda: played.site.grow("w", 2, chain(1)))
    with pytest.raises(TimeoutError):
        played.site.why(0)
    assert len(played.lost) == 1


def test_an_error_of_a_called_action_is_its_callers(make: Callable[..., Played]) -> None:
    """`call` raises what the action raises, and the site goes on; on the holder's thread it runs at once."""
    played = make()
    with pytest.raises(ZeroDivisionError):
        played.site.call(lambda: 1 / 0)
    assert played.site.call(lambda: played.site.call(lambda: 5)) == 5
    assert played.site.is_alive


def test_close_carries_out_what_was_given_and_ends_the_thread(make: Callable[..., Played]) -> None:
    """What was given before `close` is done; then calls raise, and closing again does no harm."""
    played = make()
    seen: list[int] = []
    for number in range(50):
        played.site.do(partial(seen.append, number))
    played.site.close()
    assert seen == list(range(50))
    with pytest.raises(TimeoutError):
        played.site.call(lambda: None)
    played.site.close()


def test_a_wire_repeats_what_it_tells() -> None:
    """The test double is one: each message came twice, and the holder was told once."""
    played = Played(WireSite, EngineConfig(preload=False))
    played.act = played.run_to_end
    played.begin(chain(5))
    played.until(lambda: played.of(Settled))
    played.site.close()
    assert isinstance(played.site, WireSite)
    assert played.site.repeated >= 6
    assert len(played.of(Grant)) == 5
