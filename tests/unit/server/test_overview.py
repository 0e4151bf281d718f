"""What a site tells at once to whoever looks at it all the time: whose, how much, and by which token."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import msgspec
import pytest

from egs_core.engine import Engine
from egs_core.server.access import user_name
from egs_core.server.book import CONFIG
from egs_core.server.logic import SiteLogic
from egs_core.server.overview import MOST_IN_A_STEP, MOST_WAITING, overview, overview_steps
from egs_core.server.principals import Principal
from egs_core.server.runs import Device, SiteFacts
from tests.unit.server.real_app import CAN_BE_OTHERS, FILE, RealApp
from tests.unit.server.site_steps import ANN, end, request, start
from tests.unit.server.site_world import OFFER


@pytest.fixture
def app() -> Iterator[RealApp]:
    found = RealApp(FILE)
    yield found
    found.close()


def test_who_the_server_takes_one_for(app: RealApp) -> None:
    """And since when there is the site."""
    seen = [app.token("viewer", "vision", "ann").get("/v1/me").told, app.admin.get("/v1/me").told]
    assert 0.0 <= time.time() - seen[0].pop("since") < 600.0
    assert seen[0] == {"name": "ann", "role": "viewer", "team": "vision", "every_team": False}
    assert (seen[1]["role"], seen[1]["every_team"]) == ("admin", True)
    assert app.over_tcp().get("/v1/me").status == 401


def test_an_admin_whom_the_file_has_in_a_team() -> None:
    """By the socket and by a token: bound to no team, and with the team's queue where none is named."""
    app = RealApp(FILE.replace("uid70001", user_name(os.getuid())))
    try:
        token = app.over_tcp(app.site.access.own_token(time.time()))
        for number, asker in enumerate((app.admin, token)):
            run = asker.submit(f"admin-key-{number}", gpus=0).told
            assert (run["queue"], run["team"]) == ("images", "vision")
            assert [asker.get("/v1/me").told[name] for name in ("team", "every_team")] == ["", True]
    finally:
        app.close()


def test_a_team_sees_its_own(app: RealApp) -> None:
    """Its runs and queues, and who holds what of all devices; of another team's run nothing but that a GPU is held."""
    ann, bob = app.token("submitter", "vision", "ann"), app.token("submitter", "speech", "bob")
    ann.submit("vision-1", gpus=1, name="secret")
    bob.submit("speech-1", gpus=2, name="long", expected_s=60)
    waits = bob.submit("speech-2", gpus=1, name="next").told["id"]
    answer = bob.get("/v1/overview")
    found = answer.told
    assert b"secret" not in answer.body
    assert ([one["state"] for one in found["devices"]], found["devices"][0]["run"]) == (["held"] * 3, "")
    assert [one["name"] for one in found["running"]] == ["long"]
    assert [(one["id"], one["kind"]) for one in found["waiting"]] == [(waits, "capacity")]
    queues = {one["name"]: (one["used"], one["waiting"]) for one in found["queues"]}
    assert queues == {"common": (None, 0), "sounds": (2, 1)}
    assert app.token("agent").get("/v1/overview").status == 403


def test_what_others_use_is_not_a_teams_to_see(app: RealApp) -> None:
    """Of a queue for all no use, and of a GPU that others have a part of that they do; an admin sees how much."""
    bob = app.token("submitter", "speech", "bob")
    bob.submit("speech-1", gpus=0.25, queue="common")
    seen = bob.get("/v1/overview").told
    assert [one["others"] for one in seen["devices"]] == [False] * 3
    app.token("submitter", "vision", "ann").submit("vision-1", gpus=0.5, queue="common")
    found = [asker.get("/v1/overview").told for asker in (bob, app.admin)]
    held = [[one for one in seen["devices"] if one["state"] == "held"] for seen in found]
    assert [[(len(one["runs"]), one["others"]) for one in devices] for devices in held] == [[(1, True)], [(2, False)]]
    used = [{one["name"]: one["used"] for one in seen["queues"]} for seen in found]
    assert used == [{"common": None, "sounds": 0}, {"common": 0.75, "images": 0, "sounds": 0}]


def test_what_all_of_a_team_are_shown_is_not_what_one_of_them_sees_besides() -> None:
    """Somebody's own run of another team is seen by that user, and by nobody for whom no run is an own one."""
    site = SiteLogic(SiteFacts("site", 1000.0), Engine(CONFIG))
    site.offer(OFFER)
    site.submit(Principal("ann", "submitter", ("vision",)), request(1))
    ann = Principal("ann", "viewer", ("speech",))
    assert overview(site.book, ann).running_count == 1
    nobody = overview(site.book, msgspec.structs.replace(ann, name=""))
    assert (nobody.running_count, nobody.running, nobody.devices[0].runs) == (0, (), ())
    assert nobody.devices[0].state == "held"


def test_however_much_waits_the_answer_has_a_bound(app: RealApp) -> None:
    app.admin.submit("holds-all", gpus=3, queue="common")
    for number in range(MOST_WAITING + 5):
        assert app.admin.submit(f"waits-{number:04}", gpus=1, queue="common").status == 200
    found = app.admin.get("/v1/overview").told
    assert (len(found["waiting"]), found["waiting_count"]) == (MOST_WAITING, MOST_WAITING + 5)
    assert all(one["reason"] for one in found["waiting"])
    assert found["waiting"][0]["id"] == "2"


def test_the_more_wait_the_fewer_are_explained(app: RealApp, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an answer costs the server is bounded: all are listed, in their order, and the first ones say why."""
    monkeypatch.setattr("egs_core.server.overview.MOST_COMPARED", 60)
    app.admin.submit("holds-all", gpus=3, queue="common")
    for number in range(19):
        app.admin.submit(f"waits-{number:04}", gpus=1, queue="common")
    found = app.admin.get("/v1/overview").told["waiting"]
    assert [bool(one["reason"]) for one in found] == [True] * 3 + [False] * 16


def test_a_token_instead_of_the_process_that_asks(app: RealApp) -> None:
    """Over the socket whoever wants to be known by a token alone is: never as the user whose process it is, also where
    the token is no good; and nobody becomes more by it than the token is."""
    root = app.over_socket(0) if CAN_BE_OTHERS else None
    if root is None:
        pytest.skip("only root can be another user")
    by_token = {"EGS_By_Token": "1"}
    assert root.get("/v1/me").told["role"] == "admin"
    for bad in ("Bearer ", "Bearer x", "Basic x", None):
        assert root.get("/v1/me", **by_token, Authorization=bad).status == 401, bad
        run = {"key": "by-token-key", "supervisor": {"pid": 1, "started": 1}, "gpus": 1}
        assert root.post("/v1/runs", run, **by_token, Authorization=bad).status == 401, bad
    viewer = f"Bearer {app.token('viewer', 'vision', 'ann').token}"
    assert root.get("/v1/me", **by_token, Authorization=viewer).told["name"] == "ann"
    assert root.post("/v1/tokens", {"role": "admin"}, **by_token, Authorization=viewer).status == 403
    assert app.over_socket(70003).get("/v1/me", **by_token).status == 401


def test_who_wants_a_gpu_waits_for_one_step_of_it_at_most(site_of_many: SiteLogic) -> None:
    """A page of many runs is made in steps of bounded length, between which others are answered: one that ends there is
    not shown as running, one that begins comes with the next page; without that it is what one step would tell."""
    site = site_of_many
    whole, steps = overview(site.book, ANN), overview_steps(site.book, ANN)
    assert len(whole.running) == MOST_IN_A_STEP + 1
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as told:
            found = told.value
            break
        count += 1
        if count == 2:
            last = site.view(ANN, whole.running[-1].id)
            end(site, last)
            assert site.submit(ANN, request(500)).lease is not None
    assert count == 3
    assert [one.id for one in found.running] == [one.id for one in whole.running[:-1]]
    assert overview(site.book, ANN).running[-1].name == "job500"


@pytest.fixture
def site_of_many() -> SiteLogic:
    """With one run more than a step shows, each on a device of its own."""
    logic = SiteLogic(SiteFacts("site", 1000.0), Engine(CONFIG))
    number = MOST_IN_A_STEP + 1
    devices = tuple([Device(str(one)) for one in range(number)])
    logic.offer(msgspec.structs.replace(OFFER, devices=devices))
    for one in range(1, number + 1):
        start(logic, one)
    return logic
