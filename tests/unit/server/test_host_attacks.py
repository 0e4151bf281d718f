"""Attacks with the token of a joined host, and on what only such a token may do: over TCP and the Unix socket of the
running application. Each docstring says what is tried; none may work."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from egs_core.client.processes import process
from tests.unit.server.real_app import FILE, Answer, Asker, RealApp

OFFERED: dict[str, Any] = {"host": "far", "devices": [{"id": "far-0"}], "cpus": 4, "memory_bytes": 1 << 30}


class Hosts:
    """A site with a run of ann's on the server's own host, one of hers on `far`, and the token of far's agent."""

    def __init__(self) -> None:
        self.app = RealApp(FILE)
        self.ann = self.app.token("submitter", "vision", "uid70001")
        self.agent = self.app.token("agent")
        self.session = self.agent.post("/v1/hosts/join", OFFERED).told["session"]
        assert self.agent.post("/v1/hosts/report", {"session": self.session, "number": 1}).status == 200
        self.here = self.ann.submit("here-key", gpus=1).told
        self.there = self.as_user("POST", "/v1/runs", "70001 uid70001", self.request("there-key")).told
        assert (self.there["host"], self.there["lease"]["devices"]) == ("far", ["far-0"])
        assert self.there["user"] == self.here["user"]

    def request(self, key: str, **more: Any) -> dict[str, Any]:
        own = process(os.getpid())
        assert own is not None
        return {"key": key, "supervisor": own.model_dump(), "name": "job", "gpus": 1, **more}

    def as_user(self, method: str, path: str, peer: str, told: Any = None) -> Answer:
        """What the agent asks for a user."""
        return self.agent.ask(method, path, told, None, EGS_Peer=peer)


@pytest.fixture(scope="module")
def site() -> Iterator[Hosts]:
    found = Hosts()
    yield found
    found.app.close()


def refused(answer: Answer, status: int, words: str) -> None:
    assert (answer.status, words in answer.detail) == (status, True), answer


def everybody(site: Hosts) -> list[Asker]:
    return [site.ann, site.app.token("operator"), site.app.admin, site.app.over_socket(os.getuid())]


def test_nobody_else_offers_devices(site: Hosts) -> None:
    """A submitter, an operator, an admin and the server's own user join as a host, or report for one; so does the agent
    for another one, and for the server's own."""
    for asker in everybody(site):
        refused(asker.post("/v1/hosts/join", OFFERED), 403, "needs the role agent")
        refused(asker.post("/v1/hosts/report", {"session": site.session, "number": 9}), 403, "needs the role agent")
    refused(site.agent.post("/v1/hosts/join", {**OFFERED, "host": "host"}), 403, "this token is for host far")


def test_nobody_else_says_who_asks(site: Hosts) -> None:
    """`EGS-Peer` with the token of a user, and over the socket: root is not had by saying so."""
    for asker in everybody(site):
        refused(asker.get("/v1/runs", EGS_Peer="0 root"), 403, "only a host's agent")
    assert site.app.over_tcp().get("/v1/runs", EGS_Peer="0 root").status == 401


def test_root_of_a_host_is_no_admin(site: Hosts) -> None:
    """root there, and who has the name of the server's own user, is a submitter: no token, no log, no drain, no host
    forgotten, no driver of a framework."""
    driver = {"key": "driver-key", "framework": "ray", "pool": "p", "name": "d", "queue": "common"}
    for peer in ("0 root", f"{os.getuid()} root"):
        asked: list[tuple[str, str, Any]] = [
            ("POST", "/v1/tokens", {"role": "admin"}),
            ("GET", "/v1/tokens", None),
            ("GET", "/v1/log", None),
            ("POST", "/v1/drain", {"target": "host"}),
            ("POST", "/v1/drivers", driver),
            ("POST", "/v1/runs/r1/abort", {}),
        ]
        for method, path, told in asked:
            refused(site.as_user(method, path, peer, told), 403, "over the socket of a joined host")
        refused(site.as_user("POST", "/v1/hosts/far/forget", peer, {}), 403, "role operator or admin")
        refused(site.as_user("POST", "/v1/hosts/join", peer, OFFERED), 403, "needs the role agent")
        assert site.as_user("POST", f"/v1/runs/{site.here['id']}/abort", peer, {}).status in (403, 404)


def test_an_agent_speaks_for_no_other_host(site: Hosts) -> None:
    """It says that it asks for ann, whose run is on the server's host: it is neither ended, claimed nor aborted, also
    where its lease is known; nor does a report about it change anything."""
    run, token = site.here["id"], site.here["lease"]["token"]
    for verb, told in (("claim", {}), ("beat", {}), ("end", {"outcome": "succeeded", "exit_code": 0})):
        asked = {**told, "token": token}
        refused(site.as_user("POST", f"/v1/runs/{run}/{verb}", "70001 uid70001", asked), 403, "is on host")
    for verb in ("abort", "pause", "resume", "release"):
        refused(site.as_user("POST", f"/v1/runs/{run}/{verb}", "70001 uid70001", {}), 403, "change it there")
    found = [{"run": run, "token": token, "supervisor": False}]
    for number in (2, 3, 4):
        told = {"session": site.session, "number": number, "found": found}
        assert site.agent.post("/v1/hosts/report", told).status == 200
    assert site.ann.get(f"/v1/runs/{run}").told["state"] == "granted"


def test_what_runs_on_a_host_is_spoken_for_from_there(site: Hosts) -> None:
    """ann's own token ends her run on the other host: the server could not look whether its processes are gone."""
    run, token = site.there["id"], site.there["lease"]["token"]
    told = {"token": token, "outcome": "succeeded", "exit_code": 0}
    refused(site.ann.post(f"/v1/runs/{run}/end", told), 403, "is on host far")
    refused(site.ann.post(f"/v1/runs/{run}/claim", {"token": token}), 403, "is on host far")


def test_another_team_is_not_seen_from_a_host(site: Hosts) -> None:
    assert site.as_user("GET", "/v1/runs", "70003 uid70003").told["runs"] == []
    refused(site.as_user("GET", f"/v1/runs/{site.there['id']}", "70003 uid70003"), 404, "there is no run")
    assert all(not one["runs"] for one in site.as_user("GET", "/v1/hosts", "70003 uid70003").told["hosts"])


@pytest.mark.parametrize("peer", ["", "0", "root", "-1 root", "0 a b", "99999999999 x", "0 " + "x" * 100, "1 \u00e4"])
def test_names_that_are_none(site: Hosts, peer: str) -> None:
    """So that no line of the log says more than there is."""
    refused(site.as_user("GET", "/v1/runs", peer), 400, "EGS-Peer")


def test_tokens_of_hosts(site: Hosts) -> None:
    """One for no host would be for all; one of another role, or with another name, would be two principals."""
    for told in ({"role": "agent"}, {"role": "submitter", "host": "far"}, {"role": "admin", "host": "far"}):
        refused(site.app.admin.post("/v1/tokens", told), 422, "speaks for one host")
    for more in ({"name": "ann"}, {"team": "vision"}):
        refused(site.app.admin.post("/v1/tokens", {"role": "agent", "host": "far", **more}), 422, "host's name")
    refused(site.app.admin.post("/v1/tokens", {"role": "agent", "host": "a b"}), 422, "pattern")


def test_a_revoked_agent_is_nobody(site: Hosts) -> None:
    """At once, and so are those for whom it asks. The host's devices are then silent."""
    other = site.app.admin.post("/v1/tokens", {"role": "agent", "host": "other"}).told
    asker = site.app.over_tcp(other["token"])
    assert asker.get("/v1/runs", EGS_Peer="70001 uid70001").status == 200
    assert site.app.admin.post(f"/v1/tokens/{other['id']}/revoke").status == 200
    assert asker.get("/v1/runs", EGS_Peer="70001 uid70001").status == 401
