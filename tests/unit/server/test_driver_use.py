"""What tasks of frameworks' drivers held, as the server adds it up: exactly, whoever leaves, and for whom."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from contextlib import suppress
from typing import Any

import pytest

from egs_core.cli.app import run
from egs_core.client.driver_use import DriverUse, path_of
from egs_core.dashboard.usage import SPANS
from egs_core.engine import messages as m
from egs_core.graph.columns import GPU, Graph, Shape
from egs_core.server.driver_use import FINE_S, MOST_KEYS, DriverUses, Stretches
from egs_core.server.pools import Pools
from egs_core.server.principals import Principal
from egs_core.server.runs import Refusal
from egs_core.server.steps import at_once
from egs_core.site import wire
from egs_core.site.held import Held
from egs_core.site.pooled import TTL_S
from tests.unit.server.real_app import FILE, RealApp
from tests.unit.server.test_pools import EPOCH, NODE, Client, wait

ANN, BEN = Principal("ann", teams=("red",)), Principal("ben", teams=("blue",))
ROOT = Principal("root", "admin")
HOUR = 3600.0


def use(pools: Pools, who: Principal = ROOT, over_s: float = HOUR) -> DriverUse:
    return at_once(pools.use_steps(who, over_s))


def sums(found: DriverUse) -> dict[str, Any]:
    """By team: GPU seconds held, and used."""
    held, used = defaultdict[str, float](float), defaultdict[str, float](float)
    for one in found.rows:
        assert 0.0 <= one.used <= one.held + 1e-6
        assert one.start < one.end <= found.now
        held[one.team] += one.held
        used[one.team] += one.used
    return {team: pytest.approx((held[team], used[team])) for team in held}


def test_from_the_grant_to_the_end_for_ones_own_teams() -> None:
    """One GPU from 10 s on, that begins to be used at 12 s when its driver hears of it, until 40 s; another from 20 s
    on, still. A team sees its own, also when its driver has left."""
    pools = Pools((), EPOCH, 1000.0)
    red, blue = Client(pools, ANN, "a"), Client(pools, BEN, "b")
    pools.at(10.0)
    red.submit(1)
    pools.at(12.0)
    red.poll()
    pools.at(20.0)
    blue.submit(1)
    blue.poll()
    pools.at(30.0)
    assert use(pools).gpus == 2.0
    assert use(pools, Principal("", teams=("blue",))).gpus == 1.0
    pools.at(40.0)
    red.poll()
    blue.poll()
    red.end_one()
    pools.at(50.0)
    assert sums(use(pools)) == {"red": (30.0, 28.0), "blue": (30.0, 30.0)}
    assert sums(use(pools, Principal("", teams=("red",)))) == {"red": (30.0, 28.0)}
    assert {(one.framework, one.place) for one in use(pools).rows} == {("ray", "n")}
    red.leave()
    blue.leave()
    pools.at(60.0)
    found = use(pools)
    assert (found.gpus, found.since, found.now) == (0.0, 1000.0, 1060.0)
    assert sums(found) == {"red": (30.0, 28.0), "blue": (30.0, 30.0)}
    with pytest.raises(Refusal):
        use(pools, Principal("far", "agent"))


def brings(client: Client, since_s: float) -> None:
    """A driver that comes with a task that has run for so long."""
    client.report(NODE, m.WorkloadSubmitted("w", "w", submission="job"))
    graph = Graph()
    graph.add_task("t0", (), ((GPU, Shape(0, 1000), 1.0),))
    client.send(wire.Growing("w", 0, graph, begun=(m.Begun(0, node="n", since_s=since_s, devices=(0,)),)))


def test_what_a_driver_brings_along_counts_since_it_began_and_once() -> None:
    """The server has started 100 s ago, the task 200 s: all of it counts, as the server before has left nothing. The
    driver is silent for too long, its task counts as given up; it went on all the time, as is known when the driver is
    back: no second twice."""
    pools = Pools((), EPOCH, 1000.0)
    pools.at(100.0)
    client = Client(pools, ANN, "a")
    brings(client, 200.0)
    assert sums(use(pools)) == {"red": (200.0, 200.0)}
    wait(pools, 100.0, 100.0 + 2 * TTL_S)
    assert use(pools).gpus == 0.0
    brings(Client(pools, ANN, "back"), 200.0 + 2 * TTL_S)
    wait(pools, 140.0, 150.0)
    assert sums(use(pools)) == {"red": (250.0, 250.0)}
    assert use(pools).gpus == 1.0


def test_what_was_counted_last_is_known_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three tasks that are remembered the one that ended first is forgotten; one that ended again is the newest."""
    monkeypatch.setattr("egs_core.server.driver_use.MOST_TASKS", 3)
    pools = Pools((), EPOCH, 0.0)
    owner = pools._drivers[Client(pools, ANN, "a").id]
    uses = DriverUses(0.0)
    parts = {name: Held(owner, ("w", name), 1, "n", 1.0, 0.0) for name in "abcd"}
    for at, name in enumerate("abcad", start=1):
        parts[name].until = float(at)
        uses.over(parts[name])
    assert {name: uses.counted_until(part) for name, part in parts.items()} == {
        "a": 4.0,
        "b": -math.inf,
        "c": 3.0,
        "d": 5.0,
    }


@pytest.mark.parametrize("seed", range(3))
def test_it_adds_up_to_what_was_held_at_each_moment(seed: int) -> None:
    """Drivers come, submit, end tasks, are silent, leave with and without tasks; between any two steps what they hold
    is known, and the sum of that is what is told, by fine stretches and by coarse ones."""
    chance, pools, now, total = random.Random(seed), Pools((), EPOCH, 0.0), 0.0, 0.0
    clients: list[Client] = []
    for step in range(200):
        verb = chance.choice(("come", "submit", "poll", "poll", "end", "leave", "wait", "wait"))
        one = chance.choice(clients) if clients else None
        try:
            if verb == "come" and len(clients) < 5:
                clients.append(Client(pools, chance.choice((ANN, BEN)), f"d{step}", pool=chance.choice(("x", "y"))))
            elif one is not None and verb == "submit":
                one.submit(chance.randint(1, 3))
            elif one is not None and verb == "poll":
                one.poll()
            elif one is not None and verb == "end" and one.held:
                one.end_one()
            elif one is not None and verb == "leave" and chance.random() < 0.3:
                clients.remove(one)
                one.leave()
        except Refusal:  # it was silent for too long
            clients = [other for other in clients if other is not one]
        held = sum(count.gpus for count in pools.counts()[0])
        assert use(pools).gpus == held
        passed = chance.choice((0.0, 0.5, 3.0, 40.0)) if verb == "wait" else 0.0
        begin, are_heard = now, chance.random() < 0.9
        while now < begin + passed:  # so that what a silent driver has ends at a moment that is known
            later = min(begin + passed, now + 4.0)
            total += sum(count.gpus for count in pools.counts()[0]) * (later - now)
            now = later
            pools.at(now)
            for client in clients if are_heard else ():
                with suppress(Refusal):
                    client.poll()
    assert total > 200.0
    for over_s in (2 * 86400.0, 7 * 86400.0):
        assert sum(one.held for one in use(pools, ROOT, over_s).rows) == pytest.approx(total)


def test_a_bug_in_what_is_counted_stops_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Tasks are granted as before, and it is said once."""
    monkeypatch.setattr("egs_core.site.held.Holdings.after", lambda *_: 1 / 0)
    pools = Pools((), EPOCH, 0.0)
    client = Client(pools, ANN, "a")
    client.submit(2)
    client.poll()
    assert len(client.held) == 2
    assert caplog.text.count("this is a bug") == 1
    assert use(pools).rows == ()


def test_what_is_kept_is_bounded() -> None:
    """By time, and by places: those of nodes that come and go are one from some number on, in which nothing is lost."""
    pools, kept = Pools((), EPOCH, 0.0), Stretches(FINE_S, HOUR)
    owner = pools._drivers[Client(pools, ANN, "a").id]
    for number in range(2 * MOST_KEYS):
        place = f"node-{number}"
        kept.add(("red", "ray", place), Held(owner, ("w", "t"), 1, place, 1.0, 0.0, 0.0), 10.0)
    assert len(kept.sums[0]) == MOST_KEYS + 1
    assert sum(held for held, _ in kept.sums[0].values()) == 20.0 * MOST_KEYS
    kept.add(("red", "ray", "n"), Held(owner, ("w", "t"), 1, "n", 1.0, 0.0, 0.0), 100 * HOUR)
    assert len(kept.sums) == HOUR / FINE_S + 1


def test_over_http(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """With a token; an agent's sees nothing, and a time is positive. `egs cost`, whose sums have runs and requests
    alone, says that there is more once a driver's task has held a GPU; the driver is found by its name."""
    app = RealApp(FILE)
    try:
        monkeypatch.setenv("EGS_URL", f"http://127.0.0.1:{app.port}")
        monkeypatch.setenv("EGS_TOKEN", app.admin.token)
        assert run(["cost"]) == 0
        assert "drivers" not in capsys.readouterr().err
        sharing = app.site.sharing
        with sharing._lock:
            driver = Client(sharing._pools, ROOT, "train.py")
            driver.submit(1)
            driver.poll()
        assert app.admin.get("/v1/runs/train.py?named=true").told["id"] == driver.id
        assert app.token("viewer", "speech").get("/v1/runs/train.py?named=true").status == 404
        assert run(["cost"]) == 0
        shown = capsys.readouterr()
        assert shown.out.startswith("GPU hours: 0.00 held")
        assert "note: tasks of frameworks' drivers held <0.01 GPU hours more, since the server started at" in shown.err
        assert run(["cost", "--month", "1999-11"]) == 0
        assert "drivers" not in capsys.readouterr().err
        with sharing._lock:
            driver.leave()
        assert app.token("viewer", "vision").get("/v1/driver-use?over=3600").told["rows"] == []
        assert app.admin.get("/v1/driver-use?over=0").status == 422
        assert [app.admin.get(path_of(over_s)).status for over_s in SPANS.values()] == [200] * len(SPANS)
        path = "/v1/driver-use?over=60"
        assert (app.token("agent").get(path).status, app.over_tcp().get(path).status) == (403, 401)
    finally:
        app.close()
