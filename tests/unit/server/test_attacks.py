"""Attacks on access, each a test against the running application, over TCP and over the Unix socket.

Two teams, vision and speech, with a queue each, and a run of each. Each docstring says what is tried; none may work.
Those that need another user of the host are skipped where the tests are not root.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from egs_core.client import tokens as t
from egs_core.client.http import SiteClient
from egs_core.client.places import Address
from egs_core.client.processes import lease_mark
from egs_core.errors import EgsError
from egs_core.server import access, serving
from egs_core.server.access import MOST_HEAD_BYTES, user_name
from egs_core.server.bounds import MOST_BODY_BYTES, Rates
from egs_core.server.principals import Principal
from tests.unit.server.real_app import CAN_BE_OTHERS, FILE, Answer, Asker, RealApp
from tests.unit.server.real_site import RealSite

ADMIN = Principal("root", "admin")
OTHERS = pytest.mark.skipif(not CAN_BE_OTHERS, reason="only root can be another user")
VERBS = ("abort", "pause", "resume", "update")
LEASE_VERBS: dict[str, dict[str, Any]] = {
    "beat": {"token": 0},
    "claim": {"token": 0},
    "end": {"token": 0, "outcome": "succeeded", "exit_code": 0},
}
NOT_THERE = "there is no run"


class Teams:
    """A site with two teams, and a run of each that has its lease."""

    def __init__(self) -> None:
        self.app = RealApp(FILE)
        self.vision = self.app.token("submitter", "vision", "ann")
        self.speech = self.app.token("submitter", "speech", "bob")
        self.seer = self.app.token("viewer", "speech")
        self.operator = self.app.token("operator", "speech")
        self.run = self.vision.submit("vision-key", gpus=1, name="secret project").told
        self.own = self.speech.submit("speech-key", gpus=1).told
        assert (self.run["team"], self.run["queue"]) == ("vision", "images")

    def is_untouched(self) -> bool:
        """Whether vision's run is as it was."""
        return bool(self.vision.get(f"/v1/runs/{self.run['id']}").told["state"] == "granted")

    def everywhere(self) -> list[Asker]:
        """Whoever is of the other team: by its tokens, and over the socket."""
        return [self.speech, self.seer, self.operator] + ([self.app.over_socket(70003)] if CAN_BE_OTHERS else [])


@pytest.fixture(scope="module")
def site() -> Iterator[Teams]:
    found = Teams()
    yield found
    found.app.close()


def refused(answer: Answer, status: int, words: str = "") -> None:
    assert (answer.status, words in answer.detail) == (status, True), answer


# --- who is it ---


@pytest.mark.parametrize(
    "name",
    ["X-Forwarded-For", "X-Forwarded-User", "X-Real-IP", "Forwarded", "X-Remote-User", "Remote-User", "Client", "Via"],
)
def test_a_header_that_names_the_peer(site: Teams, name: str) -> None:
    """1. Peer credentials smuggled in a header that proxies use."""
    for value in ("uid:0", "root", "for=127.0.0.1;by=uid:0"):
        refused(site.app.over_tcp().get("/v1/runs", **{name: value}), 401, "token")


def test_a_peer_smuggled_over_the_socket(site: Teams) -> None:
    """2. A user of the host claims to be another one, by header, query or a token that is no token."""
    if not CAN_BE_OTHERS:
        pytest.skip("only root can be another user")
    asker = site.app.over_socket(70003)
    for headers in (
        {"X-Forwarded-For": "uid:0"},
        {"Authorization": "Bearer uid:0"},
        {"Authorization": "Basic cm9vdDo="},
    ):
        made = asker.submit(f"smuggled-{len(headers)}", queue="common")
        assert made.told["user"] == "uid70003"
        assert site.run["id"] not in [one["id"] for one in asker.get("/v1/runs?uid=0", **headers).told["runs"]]
        assert asker.post(f"/v1/runs/{made.told['id']}/abort").status in (200, 409)


def test_no_token(site: Teams) -> None:
    """3. TCP without one, from loopback: the address is no name."""
    answer = site.app.over_tcp().get("/v1/runs")
    refused(answer, 401, "Authorization: Bearer")
    assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "token", ["x", "egs_", "null", "undefined", "0" * 64, "' OR 1=1 --", "*", "uid:0", "root", " "]
)
def test_a_guessed_token(site: Teams, token: str) -> None:
    """4. Words, SQL, names, patterns."""
    refused(site.app.over_tcp(token).get("/v1/runs"), 401)


def test_the_hash_as_a_token(site: Teams) -> None:
    """5. Whoever has read the database has only hashes, which are no tokens; the token is nowhere in it."""
    for kept in site.app.store.tokens():
        refused(site.app.over_tcp(kept.digest).get("/v1/runs"), 401)
    content = b"".join(one.read_bytes() for one in site.app.folder.glob("site.db*"))
    assert site.vision.token.encode() not in content


def test_a_token_with_more_or_less(site: Teams) -> None:
    """6. A good token with a character cut off, added, changed in case, sent twice, or with others beside it."""
    good = site.vision.token
    for token in (good[:-1], good + "x", good.swapcase(), f"{good} {good}", f"{good},{good}", f"x {good}", good[4:]):
        refused(site.app.over_tcp(token).get("/v1/runs"), 401)


@pytest.mark.parametrize("kind", ["Basic", "Token", "Digest", "", "Bearer:", "Negotiate"])
def test_another_kind_of_authorization(site: Teams, kind: str) -> None:
    """7. A good token under another scheme."""
    refused(site.app.over_tcp().get("/v1/runs", Authorization=f"{kind} {site.vision.token}".strip()), 401)


def test_a_token_where_logs_would_show_it(site: Teams) -> None:
    """8. In the query, a cookie, a header of another name: a token there is not taken."""
    good, nobody = site.vision.token, site.app.over_tcp()
    refused(nobody.get(f"/v1/runs?token={good}&access_token={good}&authorization=Bearer%20{good}"), 401)
    for name in ("Cookie", "X-Auth-Token", "EGS_TOKEN", "Proxy-Authorization"):
        refused(nobody.get("/v1/runs", **{name: f"Bearer {good}"}), 401)


def test_two_authorizations(site: Teams) -> None:
    """9. Two headers, the first bad: no way to have one checked and the other used."""
    for first, second in (("x", site.vision.token), (site.seer.token, "x")):
        lines = f"Authorization: Bearer {first}\r\nAuthorization: Bearer {second}\r\n"
        text = f"GET /v1/runs HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{lines}\r\n"
        answer = site.app.raw(text.encode())
        assert b" 200 " not in answer or first != "x", answer[:200]
        assert b"secret project" not in answer


def test_a_token_that_is_no_text(site: Teams) -> None:
    """10. Bytes that are no ASCII, a line folded into the next, a NUL: refused, and the server goes on."""
    for value in (b"\xff\xfe\x00", b"Bearer \xff\xff", b"Bearer a\r\n b", "Bearer \u00e9".encode()):
        request = b"GET /v1/runs HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: " + value + b"\r\n\r\n"
        assert site.app.raw(request).split(b" ")[1] in (b"400", b"401")
    assert site.vision.get("/v1/runs").status == 200


def test_an_expired_token(site: Teams) -> None:
    """11. To the second: a token is good before its end, and not at it."""
    now = time.time()
    made = site.app.access.new_token(ADMIN, t.TokenRequest(role="admin", expires_s=60), now)
    scope = {"client": ("127.0.0.1", 1)}
    assert site.app.access.of_request(scope, f"Bearer {made.token}", now + 59) is not None
    assert site.app.access.of_request(scope, f"Bearer {made.token}", now + 60) is None
    old = site.app.access.new_token(ADMIN, t.TokenRequest(role="admin", expires_s=60), now - 61)
    refused(site.app.over_tcp(old.token).get("/v1/runs"), 401)


def test_a_revoked_token(site: Teams) -> None:
    """12. From the answer on; on a connection that is kept open too; and after a restart."""
    made = site.app.admin.post("/v1/tokens", {"role": "viewer"}).told
    kept = http.client.HTTPConnection("127.0.0.1", site.app.port, timeout=60)
    statuses = []
    for _ in range(2):
        kept.request("GET", "/v1/queue", headers={"Authorization": f"Bearer {made['token']}"})
        with kept.getresponse() as answer:
            statuses.append((answer.status, answer.read())[0])
        assert site.app.admin.post(f"/v1/tokens/{made['id']}/revoke").told["revoked_at"] is not None
    kept.close()
    assert statuses == [200, 401]
    again = type(site.app.access)(site.app.store)
    assert again.of_request({"client": ("127.0.0.1", 1)}, f"Bearer {made['token']}", time.time()) is None


def test_every_route_wants_a_name(site: Teams) -> None:
    """13. No route but health and the description of the protocol answers nobody, and none tells what is there."""
    nobody = site.app.over_tcp()
    for path, methods in nobody.get("/openapi.json").told["paths"].items():
        for method in methods:
            real = path.replace("{run}", site.run["id"]).replace("{verb}", "abort").replace("{token}", "1")
            if path != "/healthz":
                refused(nobody.ask(method.upper(), real, {}), 401)
    assert site.is_untouched()


@OTHERS
def test_a_user_of_the_host_is_no_operator(site: Teams) -> None:
    """14. Over the socket another user is a submitter: no token for them, no log, no colleague's run."""
    one, other = site.app.over_socket(70001), site.app.over_socket(70002)
    run = one.submit("host-user").told
    refused(other.post(f"/v1/runs/{run['id']}/abort"), 403, "of uid70001")
    refused(other.post("/v1/tokens", {"role": "admin"}), 403, "role admin")
    refused(other.get("/v1/tokens"), 403)
    refused(other.get("/v1/log"), 403)
    assert one.post(f"/v1/runs/{run['id']}/abort").told["outcome"] == "aborted"


@OTHERS
def test_a_user_whom_no_team_names(site: Teams) -> None:
    """15. Sees nothing of a team, and cannot use its queue; the common one only."""
    stranger = site.app.over_socket(79999)
    assert stranger.runs() == []
    refused(stranger.submit("stranger-1", queue="images"), 422, "there is no queue 'images'; there are common")
    run = stranger.submit("stranger-2", queue="common").told
    assert (run["team"], stranger.runs()) == ("", [run["id"]])
    assert run["id"] not in site.vision.runs()
    stranger.post(f"/v1/runs/{run['id']}/abort")


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


# --- tokens make tokens ---


@pytest.mark.parametrize("role", ["viewer", "submitter", "operator", "agent"])
def test_no_role_makes_itself_more(site: Teams, role: str) -> None:
    """25. Only an admin makes, lists and revokes tokens; nobody less revokes an admin's."""
    asker = site.app.token(role)
    number = site.app.admin.get("/v1/tokens").told["tokens"][0]["id"]
    for wanted in ("viewer", role, "admin"):
        refused(asker.post("/v1/tokens", {"role": wanted}), 403, "role admin")
    refused(asker.get("/v1/tokens"), 403)
    refused(asker.post(f"/v1/tokens/{number}/revoke"), 403)
    assert site.app.admin.get("/v1/runs").status == 200


def test_a_token_of_one_name_and_two_teams(site: Teams) -> None:
    """26. Were it given, its runs in the other team would be its own here."""
    refused(site.app.admin.post("/v1/tokens", {"role": "viewer", "team": "speech", "name": "ann"}), 409, "'ann'")
    refused(site.app.admin.post("/v1/tokens", {"role": "viewer", "name": "ann"}), 409, "team 'vision'")
    theirs = {"role": "submitter", "team": "speech", "name": "uid70001"}
    refused(site.app.admin.post("/v1/tokens", theirs), 409, "'uid70001' is a user of team 'vision'")


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"role": "root"}, 422, "role"),
        ({}, 422, "role"),
        ({"role": "viewer", "expires_s": -1}, 422, "expires_s"),
        ({"role": "viewer", "expires_s": 1e30}, 422, "expires_s"),
        ({"role": "viewer", "digest": "0" * 64}, 422, "digest"),
        ({"role": "viewer", "token": "mine"}, 422, "token"),
        ({"role": "viewer", "team": "vison"}, 422, "there are vision, speech"),
        ({"role": "admin", "team": "vision"}, 422, "whole site"),
        ({"role": "viewer", "name": "a\nb"}, 422, "name"),
    ],
)
def test_a_token_that_cannot_be(site: Teams, fields: dict[str, Any], status: int, words: str) -> None:
    """27. Roles that are none, no end, a chosen secret, teams that are none, names that break a line."""
    refused(site.app.admin.post("/v1/tokens", fields), status, words)


def test_the_list_of_tokens_has_no_token(site: Teams) -> None:
    """28. Nor its hash: neither the list nor the log nor the answer to a revocation."""
    made = site.app.admin.post("/v1/tokens", {"role": "viewer"}).told
    digests = [one.digest for one in site.app.store.tokens()]
    told = [site.app.admin.get("/v1/tokens"), site.app.admin.get("/v1/log?limit=1000")]
    told.append(site.app.admin.post(f"/v1/tokens/{made['id']}/revoke"))
    for answer in told:
        assert made["token"] not in answer.body.decode()
        assert not [digest for digest in digests if digest in answer.body.decode()]


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


# --- paths and HTTP ---


@pytest.mark.parametrize(
    "path",
    [
        "/v1/runs/../tokens",
        "/v1/runs/..%2ftokens",
        "/v1//tokens",
        "//v1/tokens",
        "/V1/TOKENS",
        "/v1/tokens/",
        "/v1/tokens%00",
        "/v1/tokens;a=b",
        "/v1/./tokens",
        "/healthz/../v1/tokens",
        "/healthz?/v1/tokens",
        "/%76%31/tokens",
    ],
)
def test_a_path_with_a_trick(site: Teams, path: str) -> None:
    """33. No other way of writing a path has other rights."""
    for asker in (site.app.over_tcp(), site.seer):
        answer = asker.get(path)
        assert answer.status in (307, 400, 401, 403, 404, 405, 422) or answer.told.keys() == {
            "ok",
            "version",
            "protocol",
        }
        assert b"created_by" not in answer.body


@pytest.mark.parametrize(
    "run", ["1%2F..%2F2", "%2e%2e", "1%00", "*", "1 OR 1=1".replace(" ", "%20"), "%F0%9F%92%A9", "01"]
)
def test_a_run_number_with_a_trick(site: Teams, run: str) -> None:
    """34. It is looked up as it stands, and not found."""
    assert site.speech.get(f"/v1/runs/{run}").status in (404, 405)
    assert site.speech.post(f"/v1/runs/{run}/abort").status in (404, 405)
    assert site.is_untouched()


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "TRACE", "CONNECT", "OPTIONS", "PROPFIND"])
def test_another_method(site: Teams, method: str) -> None:
    """35. No method changes or tells more than those of the protocol; none is overridden by a header."""
    for path in (f"/v1/runs/{site.run['id']}", "/v1/tokens"):
        request = f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
        assert site.app.raw(request).split(b" ")[1] in (b"400", b"405")
    refused(site.speech.get(f"/v1/runs/{site.run['id']}", X_HTTP_Method_Override="DELETE"), 404)
    assert site.is_untouched()


def test_a_request_in_a_request(site: Teams) -> None:
    """36. Smuggling: two lengths, or a length beside chunks. What follows is never taken for another's request."""
    inner = f"POST /v1/runs/{site.run['id']}/abort HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{{}}"
    length = len(inner)
    for header in (
        "Content-Length: 0\r\nTransfer-Encoding: chunked",
        f"Content-Length: 0\r\nContent-Length: {length}",
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding: xchunked",
        "Content-Length: +5",
        "Content-Length: -1",
    ):
        request = f"POST /v1/runs/1/abort HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{header}\r\n\r\n0\r\n\r\n{inner}"
        for over_socket in (False, True) if os.getuid() != 0 else (False,):
            answer = site.app.raw(request.encode(), over_socket=over_socket)
            assert b"HTTP/1.1 200" not in answer, (header, answer)
    assert site.is_untouched()


def test_a_header_without_end(site: Teams) -> None:
    """37. Headers larger than a request may have are refused before anybody is asked who it is."""
    request = b"GET /v1/runs HTTP/1.1\r\nHost: x\r\nX: " + b"a" * (2 * MOST_HEAD_BYTES)
    with contextlib.suppress(ConnectionError):  # it has hung up while there was more
        assert b" 400 " in site.app.raw(request)
    assert site.vision.get("/healthz").status == 200


@pytest.mark.parametrize("is_known", [True, False])
def test_a_body_without_end(site: Teams, is_known: bool) -> None:
    """38. Longer than any request: with a length, and in chunks that state none; whether or not it has a token."""
    asker = site.speech if is_known else site.app.over_tcp()
    long = b'{"key": "' + b"a" * MOST_BODY_BYTES + b'"}'
    refused(asker.ask("POST", "/v1/runs", content=long), 413, str(MOST_BODY_BYTES))
    token = f"Authorization: Bearer {asker.token}\r\n" if is_known else ""
    head = (
        f"POST /v1/runs HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{token}Transfer-Encoding: chunked\r\n\r\n".encode()
    )
    chunk = b"8000\r\n" + b" " * 0x8000 + b"\r\n"
    assert b" 413 " in site.app.raw(head + chunk * 9 + b"0\r\n\r\n")


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "text/json", None]
)
def test_a_body_of_another_kind(site: Teams, kind: str | None) -> None:
    """39. What a page in a browser may send without asking is refused, though it is JSON; and says what to send."""
    body = b'{"reason": "csrf"}'
    answer = site.speech.ask("POST", f"/v1/runs/{site.own['id']}/abort", content=body, Content_Type=kind)
    refused(answer, 415, "application/json")
    assert site.speech.get(f"/v1/runs/{site.own['id']}").told["state"] == "granted"


def test_no_other_page_may_read(site: Teams) -> None:
    """40. A page in a browser gets no leave from the server, whatever its origin."""
    answer = site.speech.get("/v1/runs", Origin="http://evil.example", Host="evil.example")
    assert not [name for name in answer.headers if name.startswith("access-control-")]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"1",
        b'"x"',
        b"[" * 100_000,
        b'{"key": ' * 20_000,
        b'{"key": "\\ud800\\ud800", "supervisor": {"pid": 1, "started": 1}}',
        b'{"\\ud800": 1}',
        b'{"key": NaN}',
        b'{"key": 1e999}',
        b'{"cpus": NaN, "gpus": -Infinity}',
        b'{"gpus": ' + b"9" * 5000 + b"}",
        b"\xff\xfe{}",
        b"\x00",
        b'{"key": "aaaaaaaa", "key": "bbbbbbbb"}',
    ],
)
def test_a_body_that_is_no_request(site: Teams, body: bytes) -> None:
    """41. What is no JSON, too deep, no text, no number: 4xx with what is wrong, never a failure, and no echo of it."""
    answer = site.speech.ask("POST", "/v1/runs", content=body)
    assert answer.status in (400, 422), answer
    assert answer.detail
    assert len(answer.body) < 2000


def test_more_requests_than_a_server_can_answer() -> None:
    """42. One principal asks without pause: refused, with when to come back; others are answered meanwhile. Its
    heartbeats count as a tenth, and not as nothing."""
    app = RealApp(rates=Rates(1.0))
    try:
        flood = app.token("submitter", name="flood")
        run = flood.submit("flood-key").told
        answers = [flood.get("/v1/queue") for _ in range(20)]
        late = next(one for one in answers if one.status == 429)
        assert (late.headers["retry-after"], "ask less often" in late.detail) == ("1", True)
        assert app.admin.get("/v1/queue").status == 200
        statuses = [flood.post(f"/v1/runs/{run['id']}/beat", {}).status for _ in range(20)]
        assert 429 in statuses, "a flood of heartbeats is one too"
        assert app.over_tcp().get("/v1/runs").status == 401
    finally:
        app.close()


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (b"", b""),
        (b"", b"\r\n"),
        (b"GET /v1/runs HTTP/1.1\r\nHost: x\r\n", b"X: y\r\n"),
        (b"POST /v1/runs HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n", b" "),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", b"\r\n"),
    ],
)
@pytest.mark.parametrize("over_socket", [False, True])
def test_a_request_that_comes_byte_by_byte(
    begin: bytes, more: bytes, over_socket: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """51. Nothing, empty lines, headers and a body that never end, and the same after an answer: the server hangs up,
    and does not wait as long as somebody keeps it waiting."""
    monkeypatch.setattr(access, "HEAD_S", 0.5)
    monkeypatch.setattr(access, "BODY_S", 0.5)
    app = RealApp()
    try:
        answer = app.slowly(begin, more, over_socket=over_socket)
        assert (b"408 Request Timeout" in answer, b"not there in 0.5 s" in answer) == (True, True)
        assert app.admin.get("/v1/runs").status == 200
    finally:
        app.close()


def test_connections_of_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    """52. Somebody without a token opens connections without end, and asks nothing: the oldest of them are closed, so
    who has a token gets in, and stays in."""
    monkeypatch.setattr(access, "MOST_STRANGERS", 8)
    app = RealApp()
    opened: list[socket.socket] = []
    known = http.client.HTTPConnection("127.0.0.1", app.port, timeout=60)

    def asks() -> int:
        known.request("GET", "/v1/runs", headers={"Authorization": f"Bearer {app.admin.token}"})
        answer = known.getresponse()
        answer.read()
        return answer.status

    try:
        assert asks() == 200
        first = known.sock
        for _ in range(40):
            opened.append(app.connection())
        assert app.admin.get("/v1/runs").status == 200  # one more, after all of them
        for one in opened[:32]:
            one.settimeout(60)
            with contextlib.suppress(ConnectionError):
                assert one.recv(1) == b""
        assert (asks(), known.sock is first) == (200, True)
    finally:
        known.close()
        for one in opened:
            one.close()
        app.close()


def test_connections_of_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """53. The same over the socket, where everybody is known: a user who has too many loses the oldest."""
    monkeypatch.setattr(access, "MOST_OF_A_USER", 8)
    app = RealApp()
    opened: list[socket.socket] = []
    try:
        for _ in range(40):
            opened.append(app.connection(over_socket=True))
        assert app.admin.get("/v1/runs").status == 200
        for one in opened[:32]:
            one.settimeout(60)
            with contextlib.suppress(ConnectionError):
                assert one.recv(1) == b""
        assert app.over_socket(os.getuid()).get("/v1/runs").status == 200
    finally:
        for one in opened:
            one.close()
        app.close()


@pytest.mark.slow
def test_as_many_open_files_as_the_system_lets() -> None:
    """54. The usual bound of 1,024, which 512 commands would reach, is not the server's."""
    program = "import resource as r; from egs_core.server.serving import allow_connections as allow\n"
    program += "most = r.getrlimit(r.RLIMIT_NOFILE)[1]; r.setrlimit(r.RLIMIT_NOFILE, (64, most))\n"
    program += "allow(); print(r.getrlimit(r.RLIMIT_NOFILE) == (most, most))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=False)
    assert done.stdout == "True\n", done.stderr


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


# --- on the client's side ---


def test_a_link_in_the_sockets_place(site: Teams, tmp_path: Path) -> None:
    """48. The place of the socket is a link to another user's server: the client asks the kernel whose the
    server is, not the file system, and sends nothing."""
    link = tmp_path / "egs.sock"
    link.symlink_to(site.app.path)
    client = SiteClient(Address(f"unix://{link}", link), owners=frozenset({os.getuid() + 1}))
    with pytest.raises(EgsError, match="whom nobody trusts"):
        client.runs()
    client.close()


def test_a_link_where_the_server_makes_its_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """49. A link there, to a file that somebody needs: it is left alone, and so is what it leads to; one that leads to
    nothing is replaced, and nothing is made at its end."""
    monkeypatch.setenv("EGS_RUNTIME_DIR", str(tmp_path / "run"))
    (tmp_path / "run").mkdir()
    (tmp_path / "data").mkdir()
    victim, link = tmp_path / "victim", tmp_path / "run" / "egs.sock"
    victim.write_text("needed")
    victim.chmod(0o600)
    link.symlink_to(victim)
    path, made = serving.local_socket(tmp_path / "data")
    made.close()
    assert (path, victim.read_text(), victim.stat().st_mode & 0o777) == (
        tmp_path / "data" / "egs.sock",
        "needed",
        0o600,
    )
    link.unlink()
    link.symlink_to(tmp_path / "nothing")
    path, made = serving.local_socket(tmp_path / "data")
    made.close()
    assert (path, link.is_symlink(), (tmp_path / "nothing").exists()) == (link, False, False)


@pytest.mark.slow
def test_a_command_that_reads_its_environment(tmp_path: Path) -> None:
    """50. A command gets the mark of its lease and no token, though its `egs run` has one; the mark opens nothing."""
    real = RealSite(tmp_path / "site", gpus=1)
    try:
        real.start()
        token = real.told("token", "create", "--role", "submitter")["token"]
        program = "import os; print(os.environ.get('EGS_TOKEN'), os.environ['EGS_LEASE'])"
        command = ("run", "--gpus", "1", "--", sys.executable, "-c", program)
        done = real.egs(*command, EGS_URL=real.ready["url"], EGS_TOKEN=token)
        shown, mark = done.stdout.split()
        assert (shown, token in done.stdout + done.stderr) == ("None", False)
        refused = real.egs("ps", EGS_URL=real.ready["url"], EGS_TOKEN=mark)
        assert (refused.returncode, "the token in EGS_TOKEN is not known there" in refused.stderr) == (2, True)
    finally:
        real.close()
