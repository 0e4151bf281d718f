"""What rules make of tasks of frameworks' drivers: how long they take and what their code tells, and only told. Without
clock and process, and once at a real server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from egs_core.cli.app import run
from egs_core.client import messages as c
from egs_core.client.http import SiteClient
from egs_core.engine import messages as m
from egs_core.engine.specs import UNLIMITED, QueueSpec
from egs_core.graph.columns import GPU, Graph
from egs_core.server.pools import Pools
from egs_core.server.principals import Principal
from egs_core.server.runs import Refusal
from egs_core.server.steps import at_once
from egs_core.server.watching.rules import Alert
from egs_core.server.watching.tasks import TaskTimes
from egs_core.site import messages as s
from egs_core.site import wire
from egs_core.site.whereabouts import LEAST_KEPT
from egs_core.watch_rules import SAMPLES
from tests.unit.server.real_site import RealSite, wait_for
from tests.unit.server.test_pools import EPOCH, NODE, ONE_GPU, ROOT, Client
from tests.unit.server.watched_site import Site, ok

OVER = "[{name: over, when: {over_learned: 2}, do: [ACTIONS], queues: [QUEUES]}]"
VISION = Principal("ann", "submitter", ("vision",))
SPEECH = Principal("ben", "viewer", ("speech",))


class World:
    """A site with one rule, and a pool in which drivers run tasks of one GPU, whose name is "train"."""

    def __init__(self, actions: str = "alert, stop, hook", queues: str = "", when: str = "over_learned: 2") -> None:
        rules = OVER.replace("over_learned: 2", when).replace("ACTIONS", actions).replace("QUEUES", queues)
        self.site = Site(rules)
        queue = QueueSpec("research", nominal=(UNLIMITED, UNLIMITED, UNLIMITED))
        self.pools, self.times, self.now = Pools((queue,), EPOCH, 0.0, {"research": "vision"}), TaskTimes(), 0.0
        self.driver = Client(self.pools, VISION, "nightly", queue="research")
        self.driver.report(NODE, m.WorkloadSubmitted("w", "etl"))
        self._tasks = 0

    def begin(self, name: str = "train") -> None:
        graph = Graph()
        graph.add_task(f"{name}-{self._tasks}", (), ((GPU, ONE_GPU, None),), name=name)
        self.driver.send(wire.Growing("w", self._tasks, graph))
        self._tasks += 1
        self.driver.poll()

    def tell(self, *tasks: s.Where) -> None:
        self.driver.send(wire.Told(tasks))

    def see(self, seconds: float, told: Callable[[float], s.Where | None] = lambda _: None) -> list[Alert]:
        """It is so much later, with a look each second; the driver gives signs of life. told: what a task tells at a
        time."""
        alerts: list[Alert] = []
        until = self.now + seconds
        while self.now < until:
            self.now += 1.0
            if (where := told(self.now)) is not None:
                self.tell(where)
            self.pools.at(self.now)
            self.driver.poll()
            alerts += self.site.see_tasks(self.pools.watched(self.times))
        return alerts

    def learn(self, count: int = SAMPLES, seconds: float = 30.0) -> None:
        for _ in range(count):
            self.begin()
            self.see(seconds)
            self.driver.end_one()
            self.see(1)


def test_a_task_that_takes_much_longer_than_its_like_is_told() -> None:
    """Twenty took 30 s: after 60 s the next one is told, once, with the numbers, whose it is, and the driver's number;
    one of another name is not known."""
    world = World("alert")
    world.learn()
    world.begin()
    world.begin("other")
    assert world.see(59) == []
    (alert,) = world.see(30)
    assert (alert.rule, alert.subject) == ("over", f"{world.driver.id}/train-{SAMPLES}")
    words = f"task train-{SAMPLES} of driver {world.driver.id} (ray: etl, ann) has taken 6"
    assert alert.text.startswith(words), alert.text
    assert "more than 2 times its P99 of 30 s" in alert.text
    assert world.site.rules.view(world.site.logic.book, ROOT).rules[0].unknown == 1


def test_with_fewer_than_twenty_nothing_is_known() -> None:
    """Nor do those count that did not succeed."""
    world = World()
    world.learn(SAMPLES - 1)
    world.begin()
    world.see(5)
    grant = world.driver.held.pop(next(iter(world.driver.held)))
    world.driver.report(m.PhaseEnded(grant.phase, grant.attempt, "failed"))
    world.begin()
    assert world.see(200) == []
    assert world.site.did() == []


def test_the_framework_stops_its_tasks_and_a_hook_hears_of_it() -> None:
    """`stop` finds nothing to do, and says why; the server's log has the alert and the hook, under the rule's name."""
    world = World()
    world.learn()
    world.begin()
    world.see(62)
    called = f"{world.driver.id}/train-{SAMPLES}"
    assert world.site.did() == [("alert", called, "done"), ("stop", called, "left"), ("hook", called, "done")]
    assert world.site.logged() == [("rule over", "alert", called), ("rule over", "hook", called)]
    (left,) = [one for one in world.site.rules.view(world.site.logic.book, ROOT).done if one.outcome == "left"]
    assert "is a task of a framework, which starts and stops it" in left.text
    assert world.driver.asked == []


def test_others_do_not_see_it() -> None:
    """A team's viewer sees its own tasks alone, as its own runs: neither what holds nor what was done."""
    world = World()
    world.learn()
    world.begin()
    world.see(62)
    book = world.site.logic.book
    for who, is_seen in ((VISION, True), (ROOT, True), (SPEECH, False)):
        found = world.site.rules.view(book, who)
        assert bool(found.seen) is is_seen, who
        assert bool(found.done) is is_seen, who


def test_a_rule_of_other_queues_leaves_it_alone() -> None:
    world = World(queues="interactive")
    world.learn()
    world.begin()
    assert world.see(100) == []
    assert world.site.rules.view(world.site.logic.book, ROOT).rules[0].looked_at == 0


def test_a_task_that_tells_no_more_is_told_of() -> None:
    """One that goes on telling is left alone, and so is one that has never told; each is told of once."""
    world = World("alert, stop", when="no_progress_for: 30s")
    for _ in range(2):
        world.begin()
    assert world.see(60, lambda now: s.Where(0, step=now)) == []
    (alert,) = world.see(60, lambda now: s.Where(0, step=now) if now < 70 else None)
    assert alert.subject == f"{world.driver.id}/train-0"
    assert alert.text.endswith("has told of no more work for 30 s, at least 30s"), alert.text
    assert world.site.did()[1:] == [("stop", alert.subject, "left")]
    assert world.site.rules.view(world.site.logic.book, ROOT).rules[0].unknown == 1
    world.tell(s.Where(0, step=99.0, ago_s=25.0))  # by a driver that has come back: it was told earlier
    world.see(4)
    assert not world.site.rules.view(world.site.logic.book, ROOT).seen
    assert world.see(2) == []  # it was told of a moment ago
    assert world.site.rules.view(world.site.logic.book, ROOT).seen[0].subject == alert.subject


def test_a_loss_that_is_nan_or_does_not_fall_is_told_of() -> None:
    """As that of a run: NaN at once, a loss that only jitters after the window; one that falls is left alone."""
    world = World("alert", when="loss: nan")
    world.begin()
    assert world.see(70, lambda now: s.Where(0, now, 1.0, losses=int(now), total=now, squares=now)) == []
    (alert,) = world.see(70, lambda now: s.Where(0, now, 1.0, is_nan=True, losses=70, total=70.0, squares=70.0))
    assert alert.text.endswith("tells a loss that is NaN, for 1m")

    def losing(value: Callable[[int], float]) -> list[Alert]:
        world = World("alert", when="loss_not_falling_for: 60s")
        world.begin()
        losses = [value(number) for number in range(1, 121)]

        def told(now: float) -> s.Where:
            so_far = losses[: int(now)]
            return s.Where(
                0, now, so_far[-1], losses=len(so_far), total=sum(so_far), squares=sum(one * one for one in so_far)
            )

        return world.see(120, told)

    assert losing(lambda number: 10.0 / number) == []
    (alert,) = losing(lambda number: 1.0 + 0.01 * (number % 3))
    assert "has a loss that has not fallen in 1m" in alert.text


def test_a_task_that_begins_again_begins_anew() -> None:
    """What its attempt before has told is nobody's: neither its silence nor its NaN."""
    world = World("alert", when="loss: nan")
    world.begin()
    world.see(5, lambda _: s.Where(0, is_nan=True))
    (grant,) = world.driver.held.values()
    world.driver.held.clear()
    world.driver.report(m.PhaseEnded(grant.phase, grant.attempt, "preempted"))
    world.driver.poll()
    (again,) = world.driver.held.values()
    assert again.attempt == 2
    assert world.see(100) == []
    assert world.site.rules.view(world.site.logic.book, ROOT).rules[0].unknown == 1


def test_a_task_whose_gpus_do_not_compute_is_told_of() -> None:
    """By what NVML says of the site's devices, where the task has said that it has these: of one that has others, or
    has not said, and while one of its devices is not measured, nothing is known."""
    world = World("alert, stop", when="idle_for: 30s")
    world.pools._drivers[world.driver.id].seat.report(m.NodeAdded("n", cpus=8.0, gpus=4))
    for _ in range(3):
        world.begin()

    def look(seconds: int, *busy: float | None) -> list[Alert]:
        alerts: list[Alert] = []
        for _ in range(seconds):
            world.now += 1.0
            world.pools.at(world.now)
            world.driver.poll()
            found = [ok(str(number), busy=share) for number, share in enumerate(busy)]
            alerts += world.site.see_tasks(world.pools.watched(world.times), found=found)
        return alerts

    def unknown() -> int | None:
        return world.site.rules.view(world.site.logic.book, ROOT).rules[0].unknown

    assert look(40, 0.0, 0.0, 0.0) == []
    assert unknown() == 3
    world.driver.send(wire.Told(placed=(s.Placed(0, ("0",)), s.Placed(1, ("1", "2")), s.Placed(2, ("GPU-elsewhere",)))))
    assert look(29, 1.0, 0.0, 1.0) == []
    assert unknown() == 1
    (alert,) = look(40, 0.0, 0.0, 1.0)
    assert alert.subject == f"{world.driver.id}/train-0"
    assert "holds 1 GPU, of which none has computed for 30 s, at least 30s" in alert.text, alert.text
    assert world.site.did()[1:] == [("stop", alert.subject, "left")]
    look(1, 0.0, 0.0, None)
    assert unknown() == 2
    grant = world.driver.held[0]
    world.driver.held.pop(0)
    world.driver.report(m.PhaseEnded(grant.phase, grant.attempt, "preempted"))  # it has other devices next time
    look(1, 0.0, 0.0, 0.0)
    assert unknown() == 2


def test_people_see_where_tasks_are() -> None:
    """`egs why`, `egs ps` and the page of a driver's tasks have the latest; of tasks that have ended nothing is shown,
    of others' nothing is taken, and what is no number is refused."""
    world = World()
    for _ in range(2):
        world.begin("train\x1b")
    other = Client(world.pools, VISION, "other", queue="research")
    other.send(wire.Told((s.Where(0, step=7.0), s.Where(-1, step=7.0), s.Where(99, step=7.0))))
    view = world.pools.view(ROOT, world.driver.id)
    assert (view.tasks and view.tasks.told, view.doing) == ((), "running")
    world.see(5)
    world.tell(s.Where(0, step=12.0, loss=0.5, ago_s=1.0), s.Where(1, is_nan=True))
    view = world.pools.view(ROOT, world.driver.id)
    assert view.tasks is not None
    assert [(one.task, one.words, one.told_at) for one in view.tasks.told] == [
        ("train?-1", "loss is NaN", 5.0),
        ("train?-0", "step 12, loss 0.5", 4.0),
    ]
    assert view.doing == "running: train?-1: loss is NaN"
    found = at_once(world.pools.tasks_steps(ROOT, world.driver.id)).tasks
    assert [(one.progress, one.told_at) for one in found] == [("step 12, loss 0.5", 4.0), ("loss is NaN", 5.0)]
    world.driver.end_one()
    view = world.pools.view(ROOT, world.driver.id)
    assert view.tasks is not None
    assert [one.task for one in view.tasks.told] == ["train?-1"]
    assert at_once(world.pools.tasks_steps(ROOT, world.driver.id)).tasks[0].progress == ""
    for field in ('"step":-1', '"squares":-1', '"loss":NaN', '"step":1e999', '"task":"x"'):
        item = f'{{"i":"told","tasks":[{{"task":1,{field}}}]}}'
        body = f'{{"epoch":"{EPOCH}","seq":{world.driver.seq + 1},"items":[{item}]}}'
        with pytest.raises(Refusal):
            world.pools.batch(VISION, world.driver.id, body.encode())


def test_what_is_kept_is_bounded() -> None:
    """Of tasks that have ended it goes when there are many."""
    world = World()
    for number in range(1200):
        world.begin()
        world.tell(s.Where(number, step=1.0))
        world.driver.end_one()
    (driver,) = world.pools._drivers.values()
    assert len(driver.whereabouts._told) <= LEAST_KEPT
    world.begin()
    world.tell(s.Where(1200, step=1.0))
    assert [task for task, _ in driver.whereabouts.latest(9)] == [1200]
    assert len(driver.whereabouts._told) == 1


def test_names_of_drivers_steer_no_terminal() -> None:
    """A task may be called anything."""
    world = World("alert")
    world.learn()
    world.begin("train\x1b[2J")
    world.see(1)
    (task,) = [one.task for one in world.pools.watched(world.times)]
    assert task.called == f"{world.driver.id}/train?[2J-{SAMPLES}"


def test_a_driver_that_leaves_takes_its_tasks_along() -> None:
    """What it has told of their like stays known for the next driver of the user."""
    world = World("alert")
    world.learn()
    world.begin()
    world.see(61)
    world.driver.leave()
    assert world.pools.watched(world.times) == []
    world.driver = Client(world.pools, VISION, "next", queue="research")
    world.driver.report(NODE, m.WorkloadSubmitted("w", "etl"))
    world._tasks = 0
    world.begin()
    assert [one.subject for one in world.see(62)] == [f"{world.driver.id}/train-0"]


def test_check_says_what_a_rule_looks_at(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those that look at tasks of frameworks, too, and what they then do not do."""
    file = tmp_path_factory.mktemp("rules") / "watch.yaml"
    unsaved = "{name: save, when: {unsaved_for: auto}, do: [checkpoint]}"
    over = "{name: over, when: {over_learned: 2}, do: [stop]}"
    told = "{name: nan, when: {loss: nan}, do: [hook, requeue]}, {name: idle, when: {idle_for: 5m}, do: [hook]}"
    file.write_text(f"rules: [{unsaved}, {over}, {told}]")
    assert run(["watch", "check", str(file)]) == 0
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "note: save: of commands of `egs run` alone, not of tasks of a framework",
        "note: over, nan: of tasks of a framework they only tell: alert, hook",
    ]


class FarPools:
    """The pools of a server, over its socket."""

    def __init__(self, client: SiteClient) -> None:
        self._client = client

    def join(self, _who: Principal, ask: c.DriverRequest) -> c.Driver:
        return self._client.join(ask)

    def batch(self, _who: Principal, driver: str, body: bytes) -> bytes:
        return self._client.send("POST", f"/v1/drivers/{driver}/batch", body, 60.0)

    def poll(self, _who: Principal, driver: str, ask: c.Poll) -> tuple[wire.Message, ...]:
        found = self._client.send("POST", f"/v1/drivers/{driver}/poll", ask.model_dump_json().encode(), 60.0)
        return msgspec.json.decode(found, type=wire.Messages).messages

    def leave(self, _who: Principal, driver: str, ask: c.Leave) -> None:
        self._client.leave(driver, ask)

    def validate(self) -> None:
        """The server's own affair."""


@pytest.mark.slow
def test_a_served_site_tells_of_a_drivers_task_that_takes_too_long(tmp_path: Path) -> None:
    """`egs serve --rules`, and a driver that joins over its socket as those of Ray and of Airflow do: twenty tasks take
    two seconds or so, then one goes on; `egs watch` shows what holds and the alert that would have gone out, for the
    queue of the rule."""
    rule = "{name: over, when: {over_learned: 2}, do: [alert], queues: [q]}"
    (tmp_path / "watch.yaml").write_text(f"alerts: {{webhook: 'http://127.0.0.1:9'}}\nrules: [{rule}]")
    (tmp_path / "queues.yaml").write_text("queues: [{name: q}]")
    site = RealSite(tmp_path / "site", gpus=1)
    try:
        site.start("--rules", str(tmp_path / "watch.yaml"), "--queues", str(tmp_path / "queues.yaml"))
        pools: Any = FarPools(site.client)
        driver = Client(pools, Principal("me"), "nightly", queue="q")
        driver.report(m.NodeAdded("n", cpus=64.0, gpus=SAMPLES), m.WorkloadSubmitted("w", "etl"))

        def begin(count: int) -> None:
            graph = Graph()
            for number in range(driver.size, driver.size + count):
                graph.add_task(f"train-{number}", (), ((GPU, ONE_GPU, None),), name="train")
            driver.send(wire.Growing("w", driver.size, graph))
            driver.size += count
            wait_for(lambda: held() == count, "they run")

        def held() -> int:
            driver.poll()
            return len(driver.held)

        def rules() -> dict[str, Any]:
            driver.poll()
            found: dict[str, Any] = site.told("watch")
            return found

        begin(SAMPLES)
        wait_for(lambda: rules()["rules"][0]["looked_at"] == SAMPLES, "they are seen")
        while driver.held:
            driver.end_one()
        begin(1)
        (seen,) = wait_for(lambda: rules()["seen"], "it takes too long")
        assert seen["subject"] == f"{driver.id}/train-{SAMPLES}"
        assert f"task train-{SAMPLES} of driver {driver.id} (ray: etl, " in seen["text"]
        assert "more than 2 times its P99 of" in seen["text"]
        assert [(one["action"], one["outcome"]) for one in rules()["done"]] == [("alert", "would")]
        driver.leave()
        wait_for(lambda: not site.told("watch")["seen"], "it is gone")
    finally:
        site.close()
