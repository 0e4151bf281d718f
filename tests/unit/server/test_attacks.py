"""Attacks on access, each a test against the running application, over TCP and over the Unix socket.

Two teams, vision and speech, with a queue each, and a run of each. Each docstring says what is tried; none may work.
Those that need another user of the host are skipped where the tests are not root.
"""

from __future__ import annotations

import http.client
import time
from typing import Any

import pytest

from egs_core.client import tokens as t
from egs_core.server.principals import Principal
from tests.unit.server.attacked import OTHERS, Teams, refused, two_teams
from tests.unit.server.real_app import CAN_BE_OTHERS

site = pytest.fixture(scope="module")(two_teams)


ADMIN = Principal("root", "admin")


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
