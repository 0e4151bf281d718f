"""Tasks of drivers, and what is planned for them, as the server tells whoever looks at them."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from egs_core.engine import messages as m
from egs_core.graph.columns import GPU, Graph, TaskOptions
from egs_core.server import pools as module
from egs_core.server.pools import Pools
from egs_core.server.principals import Principal
from egs_core.server.runs import Refusal
from egs_core.server.steps import at_once
from egs_core.site import wire
from tests.unit.server.real_app import FILE, RealApp
from tests.unit.server.test_pools import EPOCH, NODE, ONE_GPU, Client, wait

ANN, BEN = Principal("ann", teams=("red",)), Principal("ben", teams=("blue",))
ROOT = Principal("root", "admin")


def graphed(pools: Pools, who: Principal, name: str, *, warm: bool = False) -> Client:
    """A driver with four tasks: fit and score after load, report after both; each takes ten seconds on a GPU."""
    client, graph = Client(pools, who, name), Graph()
    client.report(NODE, m.WorkloadSubmitted("w", "flow", submission="job"))
    parents: dict[str, tuple[int, ...]] = {"load": (), "fit": (0,), "score": (0,), "report": (1, 2)}
    for number, (task, needs) in enumerate(parents.items()):
        options = TaskOptions(warm_key=f"key{number}", warmup_s=5.0) if warm and number else TaskOptions()
        graph.add_task(f"{name}-{task}", needs, ((GPU, ONE_GPU, 10.0),), name=task, options=options)
    client.send(wire.Growing("w", 0, graph))
    client.poll()
    return client


def steps_of(found: Generator[None, None, Any]) -> tuple[Any, int]:
    """What it comes to, and after how many steps."""
    count = 0
    while True:
        try:
            next(found)
            count += 1
        except StopIteration as stop:
            return stop.value, count


def test_a_drivers_tasks() -> None:
    """Each with its state, parents and where it is; of what waits why. Each step has so many at most."""
    pools = Pools((), EPOCH, 1000.0)
    client = graphed(pools, ANN, "a")
    patch = pytest.MonkeyPatch()
    patch.setattr(module, "MOST_TASKS", 3)
    found, count = steps_of(pools.tasks_steps(ROOT, client.id))
    patch.undo()
    assert count == 2
    assert (found.framework, found.user, found.now) == ("ray", "ann", 1000.0)
    load, fit, score, report = found.tasks
    assert [one.state for one in found.tasks] == ["running", "pending", "pending", "pending"]
    assert (load.id, load.name, load.workload, load.node, load.devices) == ("a-load", "load", "flow", "n", (0,))
    assert (load.since, load.seconds, load.gpus) == (1000.0, 10.0, 1.0)
    assert (fit.parents, report.parents) == ((load.number,), (fit.number, score.number))
    pools.at(3.0)
    client.end_one()
    other = graphed(pools, ANN, "b")
    client.poll()
    tasks = {one.name: one for one in at_once(pools.tasks_steps(ROOT, client.id)).tasks}
    assert tasks["load"].state == "succeeded"
    assert [tasks[name].state for name in ("fit", "score")] == ["running", "running"]
    waits = at_once(pools.tasks_steps(ROOT, other.id)).tasks[0]
    assert (waits.state, waits.since) == ("waiting", 1003.0)
    assert "needs 1 GPU" in waits.why


def test_a_team_is_told_of_its_own_drivers() -> None:
    """Of another team's driver what it is told of none; in reasons no name of its tasks."""
    pools = Pools((), EPOCH, 1000.0)
    ann = graphed(pools, ANN, "secret")
    pools.at(1.0)
    ann.end_one()
    ben = graphed(pools, BEN, "own")
    ann.poll()
    for who in (BEN, Principal("", teams=("blue",))):
        with pytest.raises(Refusal) as refused:
            at_once(pools.tasks_steps(who, ann.id))
        assert refused.value.status == 404
    seen = at_once(pools.tasks_steps(Principal("", teams=("blue",)), ben.id))
    assert seen.tasks[0].why
    assert "secret" not in str(seen)
    plan = at_once(pools.ahead_steps(Principal("", teams=("blue",))))
    assert {one.driver for one in (*plan.loaded, *plan.kept, *plan.starts)} <= {ben.id}
    with pytest.raises(Refusal):
        at_once(pools.tasks_steps(ROOT, "r99"))


def test_what_is_planned() -> None:
    """What is loaded ahead for whom and where, and what starts next, when that which runs has ended."""
    pools = Pools((), EPOCH, 1000.0)
    client = graphed(pools, ANN, "a", warm=True)
    other = graphed(pools, BEN, "b")
    wait(pools, 0.0, 8.0, client, other)
    blocked = graphed(pools, BEN, "c")
    found, count = steps_of(pools.ahead_steps(ROOT))
    assert count == 1
    assert {(one.driver, one.task, one.node, one.state) for one in found.loaded} == {
        (client.id, "a-fit", "n", "loading"),
        (client.id, "a-score", "n", "loading"),
    }
    assert [(one.driver, one.task, one.gpus) for one in found.starts] == [(blocked.id, "c-load", 1.0)]
    assert 1010.0 <= (found.starts[0].at or 0.0) <= 1012.0
    own = at_once(pools.ahead_steps(Principal("", teams=("blue",))))
    assert (own.loaded, [one.driver for one in own.starts]) == ((), [blocked.id])


def test_over_http() -> None:
    """With a token; an agent's sees nothing."""
    app = RealApp(FILE)
    try:
        assert app.admin.get("/v1/ahead").told["loaded"] == []
        assert app.admin.get("/v1/drivers/r1/tasks").status == 404
        for path in ("/v1/ahead", "/v1/drivers/r1/tasks"):
            assert (app.token("agent").get(path).status, app.over_tcp().get(path).status) == (403, 401)
    finally:
        app.close()
