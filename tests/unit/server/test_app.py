"""The protocol over HTTP, in process: who may ask, what is bounded, what each refusal says."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from egs_core.client.processes import process
from egs_core.server.access import Access
from egs_core.server.app import Site, make_app
from egs_core.server.bounds import MOST_BODY_BYTES
from egs_core.server.store import SqlStore
from egs_core.server.writer import Turns, Writer
from tests.unit.server.asgi import Peer, Running
from tests.unit.server.site_world import OFFER

OWN = f"uid:{os.getuid()}"
OTHER = "uid:4242"  # no user of this host
TCP = "127.0.0.1"


class Served:
    """A site in this process. client(peer): somebody at the other end of a Unix socket, or of TCP."""

    def __init__(self, folder: Path) -> None:
        self.store = SqlStore(folder, time.time())
        self.access = Access(self.store)
        turns = Turns(self.store, OFFER)
        self.running = Running(make_app(Site(lambda changed: Writer(turns, changed), self.access)))
        self.main = self.client(OWN)

    def client(self, peer: str, token: str = "") -> Peer:
        return Peer(self.running, peer, token)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    found = Served(tmp_path_factory.mktemp("site"))
    with found.running:
        yield found
    found.store.close()


def request(key: str, **more: object) -> dict[str, object]:
    own = process(os.getpid())
    assert own is not None
    return {"key": key, "supervisor": own.model_dump(), "name": "job", **more}


def test_whoever_is_named_by_the_kernel_needs_no_token(served: Served) -> None:
    """The run is of the user at the other end of the socket."""
    view = served.client(OTHER).post("/v1/runs", json=request("kernel-key", gpus=1)).json()
    assert (view["user"], view["state"]) == ("uid4242", "granted")
    assert served.client(OTHER).post(f"/v1/runs/{view['id']}/abort", json={}).json()["outcome"] == "aborted"


def test_tcp_needs_a_token(served: Served) -> None:
    """Nobody, a wrong token, an expired one, another kind: 401. A good one: its user."""
    now = time.time()
    good = served.access.own_token(now)
    kept = served.store.tokens()[-1].digest
    expired = served.access.own_token(now - 400 * 86400)
    assert served.client(TCP, good).get("/v1/runs").status_code == 200
    for token in ("", "x", kept, expired, good[:-1], good + "x", f"{good} {good}"):
        assert served.client(TCP, token).get("/v1/runs").status_code == 401, token
    assert served.client(TCP).get("/v1/runs", headers={"Authorization": f"Basic {good}"}).status_code == 401
    assert served.client(TCP).get(f"/v1/runs?token={good}").status_code == 401


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded", "X-Real-IP", "X-Remote-User"])
def test_no_header_says_who_asks(served: Served, header: str) -> None:
    assert served.client(TCP).get("/v1/runs", headers={header: "uid:0"}).status_code == 401


def test_every_route_but_health_wants_to_know_who_asks(served: Served) -> None:
    """Also those that do not exist for the asker: nothing can be found out without a name."""
    nobody = served.client(TCP)
    assert nobody.get("/healthz").json()["ok"] is True
    for method, path in (
        ("GET", "/v1/runs"),
        ("GET", "/v1/queue"),
        ("GET", "/v1/runs/1"),
        ("POST", "/v1/runs"),
        ("POST", "/v1/runs/1/beat"),
        ("POST", "/v1/runs/1/claim"),
        ("POST", "/v1/runs/1/end"),
        ("POST", "/v1/runs/1/abort"),
        ("POST", "/v1/runs/1/pause"),
        ("POST", "/v1/runs/1/resume"),
    ):
        assert nobody.request(method, path, json={}).status_code == 401, path


def test_another_users_run_is_not_ones_own(served: Served) -> None:
    """A user sees it, and changes nothing; an operator may."""
    view = served.main.post("/v1/runs", json=request("owner-key")).json()
    other = served.client(OTHER)
    assert other.get(f"/v1/runs/{view['id']}").status_code == 200
    refused = other.post(f"/v1/runs/{view['id']}/abort", json={})
    assert (refused.status_code, "only that user and operators" in refused.json()["detail"]) == (403, True)
    theirs = other.post("/v1/runs", json=request("their-key")).json()
    assert served.main.post(f"/v1/runs/{theirs['id']}/abort", json={}).json()["outcome"] == "aborted"


def test_what_is_wrong_is_said(served: Served) -> None:
    """4xx with what to change: unknown fields, amounts, runs, verbs, versions, processes, bodies."""
    main = served.main
    extra = main.post("/v1/runs", json=request("extra-key", argv=["--password", "x"]))
    assert (extra.status_code, extra.json()["detail"][0]["loc"]) == (422, ["body", "argv"])
    assert main.post("/v1/runs", content=b"{").status_code == 422
    assert "fits nowhere" in main.post("/v1/runs", json=request("large-key", gpus=9)).json()["detail"]
    gone = {**request("ghost-key"), "supervisor": {"pid": os.getpid(), "started": 1}}
    assert "must run on the server's host" in main.post("/v1/runs", json=gone).json()["detail"]
    assert main.get("/v1/runs/999").json()["detail"].startswith("there is no run '999'")
    assert main.post("/v1/runs/1/explode", json={}).status_code == 422
    assert "this server has version 1" in main.get("/v1/runs", headers={"EGS-Protocol": "2"}).json()["detail"]


def test_a_long_body_is_refused(served: Served) -> None:
    """With a length, and in pieces without one."""
    long = b" " * (MOST_BODY_BYTES + 1)
    assert served.main.post("/v1/runs", content=long).status_code == 413
    assert served.main.post("/v1/runs", content=(long[:1000] for _ in range(400))).status_code == 413


def test_the_protocol_is_described(served: Served) -> None:
    """OpenAPI, of all routes."""
    paths = served.main.get("/openapi.json").json()["paths"]
    assert {"/v1/runs", "/v1/queue", "/v1/runs/{run}/claim", "/healthz"} <= paths.keys()


def test_an_end_is_refused_while_a_process_of_the_lease_lives(served: Served) -> None:
    """The server looks itself: here this very process is named as one of the lease."""
    parent, own = process(os.getppid()), process(os.getpid())
    assert parent is not None
    assert own is not None
    ask = {**request("alive-key", gpus=1), "supervisor": parent.model_dump()}
    view = served.main.post("/v1/runs", json=ask).json()
    run, token = view["id"], view["lease"]["token"]
    assert served.main.post(f"/v1/runs/{run}/claim", json={"token": token}).status_code == 200
    named = [own.model_dump()]
    assert served.main.post(f"/v1/runs/{run}/beat", json={"token": token, "processes": named}).status_code == 200
    end = {"token": token, "outcome": "succeeded", "exit_code": 0}
    refused = served.main.post(f"/v1/runs/{run}/end", json=end)
    assert (refused.status_code, str(os.getpid()) in refused.json()["detail"]) == (409, True)
    served.main.post(f"/v1/runs/{run}/beat", json={"token": token, "processes": []})
    assert served.main.post(f"/v1/runs/{run}/end", json=end).json()["outcome"] == "succeeded"


def test_a_driver_over_http(served: Served) -> None:
    """It needs a token over TCP; it is listed with its user; a poll is answered when something is told, an operator's
    word say; what the server does not know (any more) is 410, and a body has bounds that fit its route."""
    ask = {"key": "driver-key", "framework": "ray", "pool": "cluster", "name": "train"}
    assert served.client(TCP).post("/v1/drivers", json=ask).status_code == 401
    assert served.main.post("/v1/drivers", json=ask | {"framework": "An other"}).status_code == 422
    driver = served.client(OTHER).post("/v1/drivers", json=ask).json()
    assert served.client(OTHER).post("/v1/drivers", json=ask).json()["id"] == driver["id"]
    path, poll = f"/v1/drivers/{driver['id']}", {"epoch": driver["epoch"]}
    (view,) = [run for run in served.main.get("/v1/runs").json()["runs"] if run["framework"]]
    assert (view["id"], view["user"], view["name"], view["state"]) == (driver["id"], "uid4242", "train", "idle")
    assert served.client(OTHER).post(f"{path}/poll", json=poll).json() == {"messages": []}
    assert served.main.post(f"{path}/poll", json=poll).status_code == 410
    control = {"reason": "enough"}
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(lambda: served.client(OTHER).post(f"{path}/poll", json={**poll, "wait_s": 30}).json())
        assert served.main.post(f"/v1/runs/{driver['id']}/abort", json=control).json()["state"] == "stopping"
        (message,) = waiting.result(60)["messages"]
    assert (message["asked"]["verb"], message["asked"]["reason"]) == ("abort", "enough")
    many = {"epoch": driver["epoch"], "seq": 1, "items": [{"i": "mark", "number": n} for n in range(20_000)]}
    assert len(json.dumps(many)) > MOST_BODY_BYTES
    assert served.client(OTHER).post(f"{path}/batch", json=many).json() == {"answers": [], "messages": []}
    assert served.client(OTHER).post(f"{path}/leave", json=poll).json() == {"id": driver["id"]}
    for what in ("poll", "leave"):
        assert served.client(OTHER).post(f"{path}/{what}", json=poll).status_code == 410
    assert served.main.post(f"/v1/runs/{driver['id']}/abort", json=control).status_code == 404
