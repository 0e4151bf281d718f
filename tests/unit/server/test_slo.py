"""What a site says of its objectives: which runs count and when, who is told, and that counters and report agree."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from egs_core.cli.app import run
from egs_core.client import messages as c
from egs_core.engine import Engine
from egs_core.engine.specs import QueueSpec
from egs_core.server.book import CONFIG
from egs_core.server.logic import SiteLogic
from egs_core.server.metrics import Beside, families
from egs_core.server.principals import Principal
from egs_core.server.runs import Refusal, SiteFacts
from egs_core.server.slo import events_of, slos_of
from egs_core.server.tally import Tally
from egs_core.server.writer import Turns
from egs_core.slo import Objectives
from tests.unit.server.real_app import FILE, RealApp
from tests.unit.server.site_steps import ANN, end, request, start
from tests.unit.server.site_world import OFFER, MemoryStore

ROOT = Principal("root", "admin")
PROMISED = {"q": Objectives(wait_p95=60, jct_p95=300, deadline_share=0.5).slos()}
Figures = dict[str, tuple[int, int]]


class Site:
    """A site without a server, and what it counts."""

    def __init__(self) -> None:
        self.logic = SiteLogic(SiteFacts("site", 1000.0), Engine(CONFIG))
        self.logic.offer(OFFER, (QueueSpec("q"),))
        self.tally = Tally(["q"])
        self.tally.slos.objectives = PROMISED

    def commit(self) -> None:
        self.tally.committed((), self.logic.take().runs, self.logic.now, 0.001)

    def told(self) -> Figures:
        """Of each objective how many events there were, and how many bad ones; the counters say the same, when
        somebody asks for the metrics."""
        self.commit()
        families(self.logic.book, self.tally, Beside(), ROOT)
        slos = self.tally.slos
        counted = {name: (count, slos.errors[key, name]) for (key, name), count in slos.events.items()}
        found = {one.slo: (one.events, one.bad) for one in slos_of(self.logic.book, PROMISED, ROOT).slos if one.events}
        assert found == counted
        return found


def test_a_wait_counts_from_the_moment_at_which_it_was_ones_turn() -> None:
    """All GPUs are held for 100 s: who came at once has waited too long, who came late has not; what waits for another
    run, waits for nobody's GPU."""
    site = Site()
    first = start(site.logic, 1, 3, queue="q")
    site.logic.submit(ANN, request(2, 1, queue="q"))
    site.logic.submit(ANN, request(3, 1, queue="q", after=[{"run": first.id, "when": "any"}]))
    site.commit()
    site.logic.at(50.0)
    site.logic.submit(ANN, request(4, 1, queue="q"))
    site.logic.at(100.0)
    end(site.logic, first)
    for number in ("2", "3", "4"):
        lease = site.logic.view(ANN, number).lease
        assert lease is not None, number
        site.logic.claim(ANN, number, c.Claim(token=lease.token))
    assert site.told()["wait_p95"] == (4, 1)


def test_a_run_has_waited_since_its_turn_whatever_its_place() -> None:
    """All GPUs are held for 600 s. Given another priority after 236 s it has waited 600 s all the same, on its page,
    for the objective and in the histogram; what was held for 100 s of it has waited 500 s; what has not claimed its
    GPUs waits anew."""
    site = Site()
    first = start(site.logic, 1, 3, queue="q")
    changed, held = [site.logic.submit(ANN, request(number, 1, queue="q")) for number in (2, 3)]
    site.commit()
    site.logic.at(236.0)
    site.logic.update(ANN, changed.id, c.Change(priority=5))
    site.logic.control(ANN, held.id, "pause", c.Control())
    site.commit()
    site.logic.at(336.0)
    site.logic.control(ANN, held.id, "resume", c.Control())
    site.commit()
    assert [site.tally.open[one.id].waits_since for one in (changed, held)] == [0.0, 100.0]
    site.logic.at(600.0)
    end(site.logic, first)
    for one in (changed, held):
        lease = site.logic.view(ANN, one.id).lease
        assert lease is not None
        site.logic.claim(ANN, one.id, c.Claim(token=lease.token))
    runs = site.logic.book.runs
    assert [runs[one.id].waited_s for one in (changed, held)] == [600.0, 500.0]
    assert site.told()["wait_p95"] == (3, 2)
    assert site.tally.waits["q", ""].sum == 1100.0


def test_ends_count_for_times_and_deadlines() -> None:
    """Of what succeeded the time since it was asked for; of what had a deadline whether it succeeded in time. What its
    user ended says nothing of the site."""
    site = Site()
    in_time, late, broken, given_up = (
        start(site.logic, number, 0, queue="q", deadline_s=400.0) for number in (1, 2, 3, 4)
    )
    site.commit()
    site.logic.at(200.0)
    end(site.logic, in_time)
    end(site.logic, broken, code=1)
    site.logic.control(ANN, given_up.id, "abort", c.Control())
    end(site.logic, given_up, code=143)
    site.commit()
    site.logic.at(500.0)
    end(site.logic, late)
    assert site.told() == {"wait_p95": (4, 0), "jct_p95": (2, 1), "deadline_share": (3, 2)}
    (deadline,) = [one for one in slos_of(site.logic.book, PROMISED, ROOT).slos if one.slo == "deadline_share"]
    assert deadline.budget_left == pytest.approx(1 - (2 / 3) / 0.5)


def test_what_is_late_counts_as_soon_as_it_is_and_once() -> None:
    """All GPUs are held, for longer than is promised of waits, ends and by a deadline. Whoever waits a minute and a bit
    has failed then, is not counted again when it has its GPUs, and not taken back when its user gives it up; held back
    it waits for nothing. The moment at which it failed is told as that whenever one looks."""
    site = Site()
    first = start(site.logic, 1, 3, queue="q", deadline_s=200.0)
    late, given_up, held = [site.logic.submit(ANN, request(number, 1, queue="q")) for number in (2, 3, 4)]
    site.logic.control(ANN, held.id, "pause", c.Control())
    site.logic.at(60.0)
    assert site.told() == {"wait_p95": (1, 0)}
    site.logic.at(61.0)
    assert site.told() == {"wait_p95": (3, 2)}
    site.logic.control(ANN, given_up.id, "abort", c.Control())
    site.logic.at(201.0)
    assert site.told() == {"wait_p95": (3, 2), "deadline_share": (1, 1)}
    site.logic.at(301.0)
    end(site.logic, first)
    lease = site.logic.view(ANN, late.id).lease
    assert lease is not None
    end(site.logic, site.logic.claim(ANN, late.id, c.Claim(token=lease.token)))
    assert site.told() == {"wait_p95": (3, 2), "jct_p95": (3, 3), "deadline_share": (1, 1)}
    (waits,) = [slo for slo in PROMISED["q"] if slo.kind == "wait"]
    events = sorted(events_of(waits, site.logic.book.runs.values(), 301.0))
    assert events == [(0.0, True), (60.0, False), (60.0, False)]


def test_what_was_late_before_the_server_started_is_not_counted_again() -> None:
    """Counters begin anew with a process, and what another has told Prometheus it is not told twice; the runs are as
    late as they were. What becomes late from then on counts, and a grant that the start itself gives, too."""
    store, clock = MemoryStore(), [0.0]

    def server() -> Turns:
        found = Turns(store, OFFER, (QueueSpec("q"),), clock=lambda: clock[0])
        found.tally.slos.objectives = PROMISED
        return found

    def told(turns: Turns) -> Figures:
        turns.take([])
        families(turns.logic.book, turns.tally, Beside(), ROOT)
        slos = turns.tally.slos
        return {name: (count, slos.errors[key, name]) for (key, name), count in slos.events.items()}

    first = server()
    first.take([lambda logic: start(logic, 1, 3, queue="q"), lambda logic: logic.submit(ANN, request(2, 2, queue="q"))])
    clock[0] = 30.0
    first.take([lambda logic: logic.submit(ANN, request(3, 1, queue="q"))])
    clock[0] = 61.0
    assert told(first) == {"wait_p95": (2, 1)}
    second = server()
    assert told(second) == {}
    clock[0] = 91.0
    assert told(second) == {"wait_p95": (1, 1)}
    (report,) = [one for one in slos_of(second.logic.book, PROMISED, ROOT).slos if one.slo == "wait_p95"]
    assert (report.events, report.bad) == (3, 2)


def test_who_makes_way_for_another_waits_once_more() -> None:
    """Its second wait counts beside the first, once it is too long: in the counters and in the report."""
    site = Site()
    low = start(site.logic, 1, 3, queue="q", requeue=True)
    site.commit()
    high = site.logic.submit(ANN, request(2, 3, queue="q", priority=9))
    assert low.lease is not None
    site.logic.end(ANN, low.id, c.End(token=low.lease.token, outcome="evicted", exit_code=143))
    site.commit()
    lease = site.logic.view(ANN, high.id).lease
    assert lease is not None
    site.logic.claim(ANN, high.id, c.Claim(token=lease.token))
    site.logic.at(61.0)
    assert site.told() == {"wait_p95": (3, 1)}


def test_while_none_is_at_risk_objectives_change_no_decision() -> None:
    """Nothing of them is in the engine's state."""
    with_them, without = Site(), Site()
    without.tally.slos.objectives = {}
    for site in (with_them, without):
        start(site.logic, 1, 1, queue="q")
        site.commit()
    assert with_them.logic.snapshot() == without.logic.snapshot()


@pytest.fixture(scope="module")
def app() -> Iterator[RealApp]:
    promised = "    slo: {wait_p95: 10m}\n"
    file = "".join(
        f"{line}\n{promised if '- name: ' in line and part == 'queues' else ''}" for part, line in parts(FILE)
    )
    found = RealApp(file)
    yield found
    found.close()


def test_the_command_shows_what_is_left(
    app: RealApp, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that had its GPUs at once leaves the whole budget; other queues have no runs to speak of."""
    monkeypatch.setenv("EGS_URL", f"http://127.0.0.1:{app.port}")
    monkeypatch.setenv("EGS_TOKEN", app.admin.token)
    monkeypatch.delenv("COLUMNS", raising=False)  # which pytest's own processes have: rows would be folded
    asker = app.token("submitter", "vision")
    view = asker.submit("slo-at-once", gpus=1, queue="images")
    assert view.status == 200, view.body
    path, token = f"/v1/runs/{view.told['id']}", view.told["lease"]["token"]
    assert asker.post(f"{path}/claim", {"token": token}).status == 200
    assert run(["slo", "--json"]) == 0
    told = {one["queue"]: one for one in json.loads(capsys.readouterr().out)["slos"]}
    assert (told["images"]["events"], told["images"]["bad"], told["images"]["budget_left"]) == (1, 0, 1.0)
    assert (told["sounds"]["events"], told["sounds"]["budget_left"]) == (0, None)
    assert run(["slo"]) == 0
    shown = capsys.readouterr().out
    assert re.match(r"counted in the last \d+ (s|min): of wait objectives each wait, .*; a budget", shown), shown
    assert "0.95 within 600 s" in shown
    assert re.search(r"promised +counted +bad", shown), shown
    assert "100%" in shown


def parts(text: str) -> Iterator[tuple[str, str]]:
    """Each line with the key at the top of the file under which it stands."""
    part = ""
    for line in text.splitlines():
        part = line.rstrip(":") if line and not line.startswith(" ") else part
        yield part, line


def test_a_team_is_told_of_its_own_queues(app: RealApp) -> None:
    """By the route and by the metrics; queues that several share say how others' runs fare."""
    for asker, queues in (
        (app.admin, {"common", "images", "sounds"}),
        (app.token("viewer"), {"common", "images", "sounds"}),
        (app.token("viewer", "vision"), {"images"}),
    ):
        answer = asker.get("/v1/slo")
        assert {one["queue"] for one in answer.told["slos"]} == queues
        lines = asker.get("/metrics").body.decode().splitlines()
        told = [line for line in lines if line.startswith("egs_slo_objective_ratio{")]
        assert {line.split('queue="')[1].split('"')[0] for line in told} == queues
    assert app.over_tcp().get("/v1/slo").status == 401
    with pytest.raises(Refusal):
        slos_of(Site().logic.book, PROMISED, Principal("far", "agent"))
