"""Attacks on another team's runs, keys, leases and log, and on what is written; numbered on from `test_attacks.py`."""

from __future__ import annotations

import os
import re
import time

import pytest

from egs_core.client.processes import lease_mark
from egs_core.server.access import user_name
from tests.unit.server.attacked import LEASE_VERBS, NOT_THERE, OTHERS, VERBS, Teams, refused, two_teams

site = pytest.fixture(scope="module")(two_teams)


# --- another team's run ---


@pytest.mark.parametrize("verb", [*VERBS, *LEASE_VERBS])
def test_another_teams_run(site: Teams, verb: str) -> None:
    """16. Each verb, by each role of the other team, on a run that it is not to see: the answer is that for no
    run at all, so nothing is found out by asking."""
    told = LEASE_VERBS.get(verb, {})
    for asker in site.everywhere():
        answer = asker.post(f"/v1/runs/{site.run['id']}/{verb}", told)
        nothing = asker.post(f"/v1/runs/99999/{verb}", told)
        refused(answer, 404, NOT_THERE)
        assert (nothing.status, nothing.detail) == (404, answer.detail.replace(site.run["id"], "99999"))
    assert site.is_untouched()


def test_another_teams_run_is_not_to_be_seen(site: Teams) -> None:
    """17. By its number, in `ps`, also of what has ended, in the queue; its devices are held, by nobody named."""
    for asker in site.everywhere():
        refused(asker.get(f"/v1/runs/{site.run['id']}"), 404, NOT_THERE)
        for path in ("/v1/runs", "/v1/runs?ended=true", "/v1/queue"):
            assert site.run["id"] not in [one["id"] for one in asker.get(path).told["runs"]]
        held = [one for one in asker.get("/v1/runs").told["devices"] if one["state"] == "held"]
        assert sorted(one["run"] for one in held) == ["", site.own["id"]]


def test_what_explains_a_wait_names_no_other_team(site: Teams) -> None:
    """18. Why, and behind whom: without the other team's names, in `why`, the queue and `--check`; also where the own
    run's name looks like the label of the other's."""
    waits = site.vision.submit("vision-waits", gpus=3, name="also secret").told
    name = f"{site.run['id']} (secret project)"
    own = site.speech.submit("speech-waits", gpus=3, name=name).told
    try:
        for asker in (site.speech, site.seer, site.operator):
            view = asker.get(f"/v1/runs/{own['id']}").told
            assert view["kind"] == "capacity"
            assert "of other teams" in view["reason"]
            told = [view["reason"], own["reason"], *(one["reason"] for one in asker.get("/v1/queue").told["runs"])]
            told.append(site.speech.submit("check-key", gpus=3).told["reason"])
            assert not [one for one in told if "secret" in one or "ann" in one], told
            assert not [one for one in told if f"run {waits['id']} " in one or f"'{waits['id']}'" in one], told
        assert "also secret" not in site.speech.get("/v1/queue").body.decode()
        told_all = site.app.admin.get(f"/v1/runs/{own['id']}").told["reason"]
        assert "also secret" in told_all
        assert f"run {waits['id']} came first" in told_all
    finally:
        for run in (waits, own, site.speech.submit("check-key", gpus=3).told):
            site.app.admin.post(f"/v1/runs/{run['id']}/abort")


def test_waiting_for_another_teams_run(site: Teams) -> None:
    """19. `--after` would tell how it ends: for the other team there is no such run."""
    answer = site.speech.submit("after-other", after=[{"run": site.run["id"], "when": "any"}])
    refused(answer, 422, NOT_THERE)
    assert answer.detail == site.speech.submit("after-none", after=[{"run": "99", "when": "any"}]).detail.replace(
        "99", site.run["id"]
    )


def test_another_teams_queue(site: Teams) -> None:
    """20. Its quota is not used by others, also not by a run that is moved, and its name is not told."""
    for verb in ("/v1/runs", "/v1/check"):
        own = {"key": "queue-key", "supervisor": {"pid": os.getpid(), "started": 1}}
        if verb == "/v1/check":
            refused(site.speech.post(verb, {**own, "queue": "images"}), 422, "there are common, sounds")
    refused(site.speech.submit("their-queue", queue="images"), 422, "there are common, sounds")
    waits = site.speech.submit("moved-queue", gpus=3).told
    refused(site.speech.post(f"/v1/runs/{waits['id']}/update", {"queue": "images"}), 422, "there are common, sounds")
    assert site.speech.post(f"/v1/runs/{waits['id']}/update", {"queue": "common"}).told["team"] == "speech"
    site.speech.post(f"/v1/runs/{waits['id']}/abort")
    run = site.speech.submit("common-queue", queue="common").told
    assert run["team"] == "speech", "in a queue of nobody a run is of its submitter's team"
    site.speech.post(f"/v1/runs/{run['id']}/abort")


def test_a_viewer_changes_nothing(site: Teams) -> None:
    """21. Of its own team too: it submits nothing, asks for no forecast, and no verb is its own."""
    refused(site.seer.submit("viewer-key"), 403, "role submitter or operator or admin")
    supervisor = {"pid": os.getpid(), "started": 1}
    refused(site.seer.post("/v1/check", {"key": "viewer-check", "supervisor": supervisor}), 403)
    for verb in VERBS:
        refused(site.seer.post(f"/v1/runs/{site.own['id']}/{verb}"), 403, "may change it")
    for verb, told in LEASE_VERBS.items():
        refused(site.seer.post(f"/v1/runs/{site.own['id']}/{verb}", told), 403)
    assert site.seer.get(f"/v1/runs/{site.own['id']}").told["state"] == "granted"


def test_a_submitter_changes_only_its_own(site: Teams) -> None:
    """22. A colleague's run is to be seen, and left alone; an operator of the team may end it."""
    carl = site.app.token("submitter", "speech", "carl")
    run = carl.submit("carls-key").told
    refused(site.speech.post(f"/v1/runs/{run['id']}/abort"), 403, "of carl, team speech")
    assert site.operator.post(f"/v1/runs/{run['id']}/abort").told["outcome"] == "aborted"


def test_nobody_speaks_for_anothers_supervisor(site: Teams) -> None:
    """23. With the right fencing token, as operator or admin: a lease's heartbeats, claim and end are its holder's."""
    run = site.own
    token = run["lease"]["token"]
    for asker in (site.operator, site.app.admin):
        for verb, told in LEASE_VERBS.items():
            refused(asker.post(f"/v1/runs/{run['id']}/{verb}", {**told, "token": token}), 403, "own supervisor")
    assert site.speech.get(f"/v1/runs/{run['id']}").told["state"] == "granted"


def test_an_agent_does_nothing_else(site: Teams) -> None:
    """24. A token of a host neither reads nor writes what is of users."""
    agent = site.app.token("agent")
    for path in ("/v1/runs", "/v1/queue", f"/v1/runs/{site.run['id']}", "/v1/log", "/v1/tokens"):
        refused(agent.get(path), 403)
    refused(agent.submit("agent-key"), 403)
    for verb, told in (*((one, {}) for one in VERBS), *LEASE_VERBS.items()):
        assert agent.post(f"/v1/runs/{site.run['id']}/{verb}", told).status in (403, 404)
    assert site.is_untouched()


# --- keys, leases ---


def test_anothers_idempotency_key(site: Teams) -> None:
    """29. The key of another user's request, replayed: a run of one's own, never theirs."""
    answer = site.speech.submit("vision-key").told
    assert (answer["id"] != site.run["id"], answer["user"], answer["team"]) == (True, "bob", "speech")
    assert site.speech.submit("vision-key").told["id"] == answer["id"]
    site.speech.post(f"/v1/runs/{answer['id']}/abort")


def test_the_lease_of_another_run(site: Teams) -> None:
    """30. Its fencing token with one's own run, to claim or end it; and tokens that never were."""
    other = site.run["lease"]["token"]
    for token in (other, 0, -1, 2**63, 10**40):
        refused(site.speech.post(f"/v1/runs/{site.own['id']}/claim", {"token": token}), 409)
        told = {"token": token, "outcome": "succeeded", "exit_code": 0}
        refused(site.speech.post(f"/v1/runs/{site.own['id']}/end", told), 409)
    assert site.is_untouched()


def test_the_mark_of_a_lease_is_no_token(site: Teams) -> None:
    """31. `EGS_LEASE` names a lease's processes and gives no right, not even to its own run."""
    for run in (site.run, site.own):
        mark = lease_mark(run["id"], run["lease"]["token"], run["site"])
        assert run["lease"]["mark"] == mark
        refused(site.app.over_tcp(mark).get(f"/v1/runs/{run['id']}"), 401)


def test_a_supervisor_that_is_not_here(site: Teams) -> None:
    """32. A process that is not there, of another start, or number 1 with a made-up start: its run would be watched."""
    for pid, started in ((2**30, 1), (os.getpid(), 1), (1, 10**12)):
        told = {"key": "ghost-key", "supervisor": {"pid": pid, "started": started}}
        refused(site.speech.post("/v1/runs", told), 422, "supervisor")


# --- what is written ---


@pytest.mark.parametrize(
    "name", ["a\nb", "a\rb", "\x1b[2J", "a\x00b", "\x9b31m", "\u202egnp.exe", "a\u2028b", "x" * 201]
)
def test_a_name_that_writes_lines_of_its_own(site: Teams, name: str) -> None:
    """43. Names and reasons with line ends, escapes for terminals, or characters that turn the others around."""
    refused(site.speech.submit("name-key", name=name), 422, "name")
    refused(site.speech.post(f"/v1/runs/{site.own['id']}/pause", {"reason": name}), 422, "reason")
    refused(site.speech.submit("queue-key", queue=name), 422, "queue")


def test_markup_in_a_name(site: Teams) -> None:
    """44. SQL, HTML and formats are a name like others: kept and told as they are."""
    name = "'; DROP TABLE runs; -- <script>{0} %s ${x}"
    run = site.speech.submit("markup-key", name=name).told
    assert site.speech.get(f"/v1/runs/{run['id']}").told["name"] == name
    site.speech.post(f"/v1/runs/{run['id']}/abort", {"reason": name})
    assert site.operator.get("/v1/log?limit=1").told["entries"][0]["text"] == name


def test_the_log_tells_who_from_where_and_what(site: Teams) -> None:
    """45. Each change has its line, with the token it was made by; a refused one has none; nobody can write into it."""
    run = site.speech.submit("logged-key").told
    site.vision.post(f"/v1/runs/{run['id']}/abort")
    site.operator.post(f"/v1/runs/{run['id']}/abort", {"reason": "not today"})
    found = [one for one in site.operator.get("/v1/log?limit=1000").told["entries"] if one["subject"] == run["id"]]
    assert [(one["verb"], one["role"], one["text"]) for one in found] == [
        ("submit", "submitter", ""),
        ("abort", "operator", "not today"),
    ]
    assert found[0]["who"] == "bob"
    assert all(re.fullmatch(r"127\.0\.0\.1 port \d+, token [0-9a-f]{12}", one["origin"]) for one in found)
    assert all(abs(one["at"] - time.time()) < 3600 for one in found)
    assert site.app.admin.post("/v1/log", {"who": "bob"}).status == 405


def test_the_log_of_another_team(site: Teams) -> None:
    """46. An operator reads the lines of its own team only; a viewer and a submitter none."""
    teams = {one["team"] for one in site.operator.get("/v1/log?limit=1000").told["entries"]}
    assert teams == {"speech"}
    for asker in (site.seer, site.speech):
        refused(asker.get("/v1/log"), 403, "role operator or admin")
    assert {"vision", "speech", ""} <= {one["team"] for one in site.app.admin.get("/v1/log?limit=1000").told["entries"]}


@OTHERS
def test_the_log_names_the_user_of_the_host(site: Teams) -> None:
    """47. Over the socket it has the user id that the kernel told."""
    run = site.app.over_socket(70002).submit("socket-log").told
    site.app.over_socket(0).post(f"/v1/runs/{run['id']}/abort")
    found = [one for one in site.app.admin.get("/v1/log?limit=1000").told["entries"] if one["subject"] == run["id"]]
    assert [(one["who"], one["origin"]) for one in found] == [
        ("uid70002", "socket, uid 70002"),
        (user_name(0), "socket, uid 0"),
    ]
