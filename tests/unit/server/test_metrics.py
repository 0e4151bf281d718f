"""`GET /metrics`: who gets what, names and units by Prometheus's conventions, and the files made for it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from prometheus_client.parser import text_string_to_metric_families

from egs_core import __version__
from egs_core.budgets import Budget
from egs_core.engine.specs import QueueSpec
from egs_core.server.leader import NotActive
from egs_core.server.metrics import Beside, families, standby_families, text_of
from egs_core.server.pools import DriverCount, Pools
from egs_core.server.principals import Principal
from egs_core.server.tally import Tally
from tests.unit.server.real_app import CAN_BE_OTHERS, FILE, Answer, RealApp
from tests.unit.server.real_site import PATIENCE_S, wait_for
from tests.unit.server.site_steps import ANN, end, request, start
from tests.unit.server.site_world import OFFER
from tests.unit.server.test_pools import NODE, Client
from tests.unit.server.told_metrics import ROOT, Samples, samples, site_of, spending_of, told


@pytest.fixture(scope="module")
def app() -> Iterator[RealApp]:
    found = RealApp(FILE)
    yield found
    found.close()


def value(found: Samples, name: str, **labels: str) -> float:
    return found[name, frozenset(labels.items())]


def scraped(answer: Answer) -> Samples:
    assert (answer.status, answer.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    return samples(answer.body.decode())


def teams_in(found: Samples) -> set[str]:
    return {text for _, labels in found for name, text in labels if name == "team"}


# --- over HTTP ---


def test_a_viewers_token_is_needed_over_tcp(app: RealApp) -> None:
    """401 for nobody and a wrong token; a host's agent sees nothing; what an agent passes on is not answered either."""
    for asker in (app.over_tcp(), app.over_tcp("egs_wrong")):
        refused = asker.get("/metrics")
        assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer")
    agent = app.token("agent")
    assert agent.get("/metrics").status == 403
    assert agent.get("/metrics", EGS_Peer="70001 ann").status == 403
    assert app.token("viewer").get("/metrics").status == 200


def test_what_a_real_server_tells(app: RealApp) -> None:
    """Two runs, one that waits, an ended one, and a driver: as the site's own commands show them."""
    before = scraped(app.admin.get("/metrics"))
    asker = app.token("submitter", "vision")
    held = [asker.submit(f"metric-{n}", gpus=n, queue=queue).told for n, queue in ((1, "images"), (2, "common"))]
    tokens = [run["lease"]["token"] for run in held]
    for run, token in zip(held, tokens, strict=True):
        assert asker.post(f"/v1/runs/{run['id']}/claim", {"token": token}).status == 200
    waits = asker.submit("metric-wait", gpus=1, queue="images").told
    ask = {"key": "metric-driver", "framework": "ray", "pool": "p", "name": "train", "queue": "common"}
    driver = asker.post("/v1/drivers", ask)
    assert driver.status == 200, driver.body
    found = scraped(app.token("viewer").get("/metrics"))
    assert value(found, "egs_devices", host="host", state="held") == 3
    assert value(found, "egs_devices_held", source="run", queue="common", team="vision") == 2
    assert value(found, "egs_runs", queue="images", team="vision", state="waiting") == 1
    assert value(found, "egs_drivers", source="ray", queue="common", team="vision") == 1
    assert value(found, "egs_queue_used_gpus", queue="images") == 1
    assert value(found, "egs_grants_total", queue="images", team="vision") == 1
    assert value(found, "egs_oldest_wait_seconds", queue="images", team="vision") >= 0
    assert value(found, "egs_leader") == 1
    assert value(found, "egs_build_info", version=__version__) == 1
    assert value(found, "egs_commit_seconds_count") > value(before, "egs_commit_seconds_count")
    assert value(found, "egs_journal_entries") > value(before, "egs_journal_entries")
    assert asker.post(f"/v1/runs/{waits['id']}/abort").status == 200
    for run, token in zip(held, tokens, strict=True):
        done = asker.post(f"/v1/runs/{run['id']}/end", {"token": token, "outcome": "failed", "exit_code": 3})
        assert done.status == 200, done.body
    after = scraped(app.admin.get("/metrics"))
    for outcome, count in (("aborted", 1), ("failed", 1), ("succeeded", 0)):
        assert value(after, "egs_runs_ended_total", queue="images", team="vision", outcome=outcome) == count
    names = [f"egs_gpu_{kind}_seconds_total" for kind in ("held", "used", "wasted")]
    gpu_s = [value(after, name, queue="common", team="vision") for name in names]
    assert gpu_s[0] >= value(found, names[0], queue="common", team="vision") > 0
    assert gpu_s[0] == pytest.approx(gpu_s[1] + gpu_s[2])
    assert gpu_s[1] > 0


def test_whoever_waits_for_a_change_is_a_client(app: RealApp) -> None:
    """A heartbeat that is held back counts until it is answered."""
    asker = app.token("submitter", "vision")
    view = asker.submit("metric-poll", hold=True).told
    beat = {"token": 0, "seen": view["version"], "wait_s": 30}

    def clients() -> float:
        return value(scraped(app.admin.get("/metrics")), "egs_long_poll_clients")

    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(asker.post, f"/v1/runs/{view['id']}/beat", beat)
        wait_for(lambda: clients() == 1, "the heartbeat waits")
        assert asker.post(f"/v1/runs/{view['id']}/abort").status == 200
        assert waiting.result(PATIENCE_S).status == 200
    wait_for(lambda: clients() == 0, "nobody waits")


@pytest.mark.skipif(not CAN_BE_OTHERS, reason="only root can be other users")
def test_over_the_socket_a_user_sees_what_its_role_sees(app: RealApp) -> None:
    """Without a token: the kernel names the peer, here a user of team speech."""
    vision = app.over_socket(70001).submit("socket-run", gpus=1).told
    assert (vision["team"], vision["queue"]) == ("vision", "images")
    mine, all_of_it = scraped(app.over_socket(70003).get("/metrics")), scraped(app.over_socket(0).get("/metrics"))
    assert teams_in(mine) <= {"speech"}
    assert value(all_of_it, "egs_devices_held", source="run", queue="images", team="vision") == 1
    assert app.over_socket(70001).post(f"/v1/runs/{vision['id']}/abort").status == 200


def test_a_server_that_stands_by_says_so_to_whoever_it_knows() -> None:
    """Leader 0 and its version; 401 for others, as at the active one."""
    is_active = True

    def check() -> None:
        if not is_active:
            raise NotActive("this server stands by")

    app = RealApp(check_active=check)
    try:
        viewer = app.token("viewer")
        is_active = False
        assert set(scraped(viewer.get("/metrics"))) == {
            ("egs_leader", frozenset()),
            ("egs_build_info", frozenset({("version", __version__)})),
        }
        assert value(scraped(viewer.get("/metrics")), "egs_leader") == 0
        assert app.over_tcp().get("/metrics").status == 401
        assert viewer.get("/v1/runs").status == 503
    finally:
        app.close()


# --- what is told ---


def test_names_and_units_are_prometheuss() -> None:
    """At least 15 families, all `egs_`, each with a text; seconds, bytes and counts; counters alone end in `_total`."""
    found = families(site_of().book, Tally(), Beside(), ROOT)
    assert len({one.name for one in found}) == len(found) >= 15
    for one in found:
        assert re.fullmatch(r"egs_[a-z]+(_[a-z]+)*", one.name), one.name
        assert one.documentation, one.name
        assert not re.search(r"_(ms|milliseconds|minutes|hours|h|gib|mib|percent|total)$", one.name), one.name
        assert all(
            not label.startswith("__") and label != "le"
            for sample in one.samples
            for label in sample.labels
            if one.type != "histogram"
        )
    written = text_of(found).decode()
    kinds = {one.name: one.type for one in text_string_to_metric_families(written)}
    totals = set(re.findall(r"^# TYPE (\S+) counter$", written, re.M))
    assert all(name.endswith("_total") for name in totals)
    assert {kinds["egs_wait_seconds"], kinds["egs_commit_seconds"]} == {"histogram"}
    assert {one.name for one in standby_families()} <= {one.name for one in found}


def test_a_team_gets_its_own_series_alone() -> None:
    """Of every family: runs, waits, totals, quotas, drivers; and not what the server is busy with. A queue without a
    team is of several: its usage is nobody's to see. Devices and hosts are."""
    site = site_of(
        QueueSpec("common"), QueueSpec("images"), QueueSpec("sounds"), teams={"images": "vision", "sounds": "speech"}
    )
    vision, speech = Principal("v", "submitter", ("vision",)), Principal("s", "submitter", ("speech",))
    tally = Tally(site.book.queues)
    for number, (who, queue) in enumerate(
        [(vision, "images"), (vision, "common"), (speech, "sounds"), (speech, "common")], 1
    ):
        site.submit(who, request(number, 1, queue=queue))
    tally.committed((), site.take().runs, site.now, 0.001)
    drivers = [DriverCount("ray", "sounds", "speech", 1, 2, 1.0), DriverCount("ray", "common", "vision", 3, 0, 3.0)]
    steps = {("hot", "drain", "done"): 2}
    beside = Beside(drivers, {"common": 3000, "sounds": 1000}, clients=7, steps=steps)
    every, own = (told(site, who, tally, beside) for who in (ROOT, Principal("eve", "viewer", ("speech",))))
    assert teams_in(every) == {"vision", "speech", ""}
    assert teams_in(own) == {"speech"}
    assert {text for name, labels in own for label, text in labels if label == "queue" and "_queue_" in name} == {
        "sounds"
    }
    assert value(own, "egs_queue_used_gpus", queue="sounds") == 2
    assert value(own, "egs_tasks", source="ray", queue="sounds", team="speech", state="waiting") == 2
    server = {name for name, _ in every} - {name for name, _ in own}
    assert {"egs_commit_seconds_count", "egs_journal_entries", "egs_long_poll_clients"} <= server
    assert value(every, "egs_rule_steps_total", rule="hot", action="drain", outcome="done") == 2
    assert "egs_rule_steps_total" in server
    assert {key: one for key, one in own.items() if key[0] in ("egs_devices", "egs_hosts")} == {
        key: one for key, one in every.items() if key[0] in ("egs_devices", "egs_hosts")
    }
    assert all(every[key] == one for key, one in own.items()), "what it sees are the same figures"


def test_quota_is_told_with_what_is_borrowed() -> None:
    """Two queues of a cohort: 2.5 of a nominal 1 are used, 1.5 borrowed; parts count as parts, other pools too."""
    specs = [QueueSpec(name, cohort="all", nominal=(-1, 1000, -1)) for name in ("ours", "theirs")]
    site = site_of(*specs, QueueSpec("free"))
    start(site, 1, 1, queue="ours")
    start(site, 2, 0.5, queue="ours")
    found = told(site, beside=Beside(used_milli={"ours": 1000}))
    assert [value(found, f"egs_queue_{kind}_gpus", queue="ours") for kind in ("nominal", "used", "borrowed")] == [
        1,
        2.5,
        1.5,
    ]
    assert value(found, "egs_queue_borrowed_gpus", queue="theirs") == 0
    assert ("egs_queue_nominal_gpus", frozenset({("queue", "free")})) not in found, "it is promised nothing"


def test_budgets_are_told_to_whom_they_concern() -> None:
    """In seconds, of a queue and of a team; of a queue of several teams only to who sees all."""
    site = site_of(QueueSpec("common"), QueueSpec("images"), teams={"images": "vision"})
    budgets = (
        Budget(1.0, ("common",), queue="common", is_shared=True),
        Budget(0.5, ("images",), queue="images"),
        Budget(8.0, ("images",), team="vision", then="warn"),
    )
    site.views.spending = spending_of(*budgets, milli={"common": 1000, "images": 2000})
    every, own = told(site), told(site, Principal("eve", "viewer", ("vision",)))
    rows = [("common", ""), ("images", "vision"), ("", "vision")]
    names = ("egs_budget_gpu_seconds", "egs_budget_used_gpu_seconds", "egs_budget_stopped")
    found = [[value(every, name, queue=queue, team=team) for name in names] for queue, team in rows]
    assert found == [[3600, 1800, 0], [1800, 3600, 1], [28800, 3600, 0]]
    assert {labels for name, labels in own if name in names} == {
        frozenset({("queue", queue), ("team", team)}) for queue, team in rows[1:]
    }
    other = told(site, Principal("sam", "viewer", ("speech",)))
    assert not [name for name, _ in other if name in names]


def test_budgets_of_money_are_told_in_their_currency() -> None:
    """Beside those of hours, of which they are none; whether they are used up stands in one series for both."""
    site = site_of(QueueSpec("images"), QueueSpec("videos"), teams={"images": "vision", "videos": "vision"})
    hours = Budget(1.0, ("videos",), queue="videos")
    money = Budget(0.0, ("images",), queue="images", cost=2.5, currency="EUR")
    site.views.spending = spending_of(hours, money, milli={"images": 2000})
    every, other = told(site), told(site, Principal("sam", "viewer", ("speech",)))
    where = {"queue": "images", "team": "vision"}
    names = ("egs_budget_cost", "egs_budget_used_cost")
    assert [value(every, name, **where, currency="EUR") for name in names] == [2.5, 3.0]
    assert value(every, "egs_budget_stopped", **where) == 1
    labels = [dict(labels)["queue"] for name, labels in every if name == "egs_budget_gpu_seconds"]
    assert labels == ["videos"]
    assert not [name for name, _ in other if name in names]


def test_names_may_hold_anything() -> None:
    """Quotes, backslashes, line ends, what looks like a sample: each comes back as it was, and as a label alone."""
    hostile = ['"', "\\", "a\nb", '"} 1\negs_leader 5', "\\n", "ü\u2028\u202e{}", "{{ $labels }}", "\r\n# HELP x"]
    site = site_of(*[QueueSpec(name) for name in hostile], teams={name: f"team {name}" for name in hostile})
    for number, name in enumerate(hostile, 1):
        if name.isprintable():  # the protocol takes no other
            site.submit(Principal("ann"), request(number, 0, queue=name))
    drivers = [DriverCount("ray", name, f"team {name}", 1, 1, 1.0) for name in hostile]
    found = told(site, beside=Beside(drivers))
    assert {text for _, labels in found for name, text in labels if name == "queue"} == set(hostile)
    assert {text for _, labels in found for name, text in labels if name == "team"} == {
        f"team {name}" for name in hostile
    }
    assert [one for (name, _), one in found.items() if name == "egs_leader"] == [1]


def test_no_run_is_a_label() -> None:
    """A hundred runs of other names and users: not one series more than one of them makes; nor do queues that the
    server's file has no more."""

    def series(count: int) -> set[tuple[str, frozenset[tuple[str, str]]]]:
        site = site_of()
        site.offer(OFFER, tuple(QueueSpec(f"queue{number}") for number in range(1, count + 1)))
        for number in range(1, count + 1):
            who = Principal(f"user{number}")
            site.submit(who, request(number, 0, name=f"name{number}", queue=f"queue{number}"))
        site.offer(OFFER, ())
        tally = Tally()
        tally.committed((), site.take().runs, 0.0, 0.001)
        return set(told(site, ROOT, tally))

    assert series(100) == series(1)


def test_tasks_of_drivers_are_counted_by_queue_and_team() -> None:
    """A real engine of a pool with two GPUs: two of five tasks run. The driver of another queue has nothing."""
    pools = Pools((QueueSpec("a"), QueueSpec("b")), "e", 0.0, {"a": "vision"})
    pools.at(0.0)
    first = Client(pools, ANN, "one", queue="a")
    Client(pools, ANN, "two", queue="b")
    first.report(NODE)
    first.submit(5)
    counts, used = pools.counts()
    assert counts == [DriverCount("ray", "a", "vision", 2, 3, 2.0), DriverCount("ray", "b", "", 0, 0, 0.0)]
    assert used == {"a": 2000, "b": 0}


def test_a_wait_is_in_the_histogram_of_its_queue() -> None:
    """Cumulative buckets, with a sum: one run waited for 100 s."""
    site, tally = site_of(), Tally()
    view = start(site, 1, 3)
    site.submit(ANN, request(2, 3))
    tally.committed((), site.take().runs, site.now, 0.001)
    site.at(100.0)
    assert value(told(site, ROOT, tally), "egs_oldest_wait_seconds", queue="", team="") == 100
    end(site, view)
    tally.committed((), site.take().runs, site.now, 0.001)
    found = told(site, ROOT, tally)
    buckets = {
        bound: value(found, "egs_wait_seconds_bucket", queue="", team="", le=bound)
        for bound in ("60.0", "300.0", "+Inf")
    }
    assert buckets == {"60.0": 1, "300.0": 2, "+Inf": 2}
    assert value(found, "egs_wait_seconds_sum", queue="", team="") == 100
