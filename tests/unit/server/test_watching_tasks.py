"""What rules make of tasks of frameworks' drivers: only how long they take, and only told. Without clock and process,
and once at a real server."""

from __future__ import annotations

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
from egs_core.server.watching.rules import Alert
from egs_core.server.watching.tasks import TaskTimes
from egs_core.site import wire
from egs_core.watch_rules import SAMPLES
from tests.unit.server.real_site import RealSite, wait_for
from tests.unit.server.test_pools import EPOCH, NODE, ONE_GPU, ROOT, Client
from tests.unit.server.watched_site import Site

OVER = "[{name: over, when: {over_learned: 2}, do: [ACTIONS], queues: [QUEUES]}]"
VISION = Principal("ann", "submitter", ("vision",))
SPEECH = Principal("ben", "viewer", ("speech",))


class World:
    """A site with one rule, and a pool in which drivers run tasks of one GPU, whose name is "train"."""

    def __init__(self, actions: str = "alert, stop, hook", queues: str = "") -> None:
        self.site = Site(OVER.replace("ACTIONS", actions).replace("QUEUES", queues))
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

    def see(self, seconds: float) -> list[Alert]:
        """It is so much later, with a look each second; the driver gives signs of life."""
        alerts: list[Alert] = []
        until = self.now + seconds
        while self.now < until:
            self.now += 1.0
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
    rules = "rules: [{name: idle, when: {idle_for: 5m}, do: [stop]}, {name: over, when: {over_learned: 2}, do: [stop]}]"
    file.write_text(rules)
    assert run(["watch", "check", str(file)]) == 0
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "note: idle: of commands of `egs run` alone, not of tasks of a framework",
        "note: over: of tasks of a framework they only tell: alert, hook",
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
