"""The short way of submit, beat, claim and end, and of drivers' batches and polls, answers as FastAPI's routes do: each
request here takes both ways."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from egs_core.client.messages import PROTOCOL_HEADER
from egs_core.engine import messages as m
from egs_core.server.short import ShortWay
from egs_core.site import wire
from tests.unit.server.asgi import Running
from tests.unit.server.test_app import OWN, TCP, Served, request

Told = tuple[int, bytes, list[tuple[bytes, bytes]]]
UNLIKELY = b'{"key": "unlikely-key", "supervisor": {"pid": 1, "started": 0}}'


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    found = Served(tmp_path_factory.mktemp("site"))
    with found.running:
        yield found
    found.store.close()


def ask(app: Running, path: str, body: bytes | list[bytes], headers: list[tuple[bytes, bytes]], peer: str) -> Told:
    """The answer with its headers, which `Peer` does not tell."""
    status, told, answered = 0, b"", []
    original = app.app

    async def watched(scope: Any, receive: Any, send: Any) -> None:
        async def seen(message: Any) -> None:
            nonlocal status, told
            status = message.get("status", status)
            told += message.get("body", b"")
            answered.extend(message.get("headers", ()))
            await send(message)

        scope["headers"] = headers
        await original(scope, receive, seen)

    app.app = watched  # type: ignore[assignment]  # an ASGI application, too
    try:
        app.request(peer, "POST", path, {}, body if isinstance(body, list) else [body])
    finally:
        app.app = original
    return status, told, sorted(answered)


def both_ways(served: Served, *asked: Any) -> tuple[Told, Told]:
    routes = served.running.app.router.routes
    assert isinstance(routes[0], ShortWay)
    short = ask(served.running, *asked)
    way = routes.pop(0)
    try:
        return short, ask(served.running, *asked)
    finally:
        routes.insert(0, way)


JSON = (b"content-type", b"application/json")
WRONG = {
    "no JSON": b"{",
    "nothing": b"",
    "no object": b"[1, 2]",
    "no field": b"{}",
    "an unknown field": UNLIKELY[:-1] + b', "argv": ["x"]}',
    "a wrong kind": UNLIKELY[:-1] + b', "gpus": "many"}',
    "out of bounds": UNLIKELY[:-1] + b', "gpus": 4096}',
    "no number": UNLIKELY[:-1] + b', "cpus": NaN}',
    "half a character": UNLIKELY[:-1] + b', "name": "\\ud800"}',
    "no UTF-8": UNLIKELY[:-1] + b', "name": "\xff"}',
    "a control character": UNLIKELY[:-1] + b', "name": "\\u001b[2J"}',
    "deep": b"[" * 5000 + b"]" * 5000,
    "a long number": b'{"token": ' + b"9" * 5000 + b"}",
    "a process that is not there": UNLIKELY,
    "another encoding": UNLIKELY.decode().encode("utf-16"),
    "a claim": b'{"token": 1}',
    "an end": b'{"token": 1, "outcome": "succeeded", "exit_code": 0}',
    "a beat": b'{"seen": 3}',
    "twice": b'{"token": 1, "token": 2}',
    "a poll": b'{"epoch": "x"}',
    "a poll of no length": b'{"epoch": "x", "wait_s": NaN}',
    "a batch": b'{"epoch": "x", "seq": 1, "items": []}',
}


@pytest.mark.parametrize("body", WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_is_told_the_same(served: Served, body: bytes) -> None:
    """Status, text and headers, for each of the six, for runs and drivers that are not there and ids that cannot be, by
    somebody who is known and by nobody."""
    places = ["/v1/runs"]
    for one in ("999", "0" * 33, "x%2Fy", ""):
        places += [f"/v1/runs/{one}/{verb}" for verb in ("beat", "claim", "end")]
        places += [f"/v1/drivers/{one}/{verb}" for verb in ("batch", "poll")]
    for place in places:
        for peer in (OWN, TCP):
            short, long = both_ways(served, place, body, [JSON], peer)
            assert short == long, place
            assert short[0] >= 400 or place == "/v1/runs/"


HEADERS = {
    "another protocol": [JSON, (PROTOCOL_HEADER.lower().encode(), b"2")],
    "two protocols": [JSON, (b"egs-protocol", b"1"), (b"egs-protocol", b"2")],
    "no kind": [(b"accept", b"*/*")],
    "another kind": [(b"content-type", b"text/plain")],
    "for somebody else": [JSON, (b"egs-peer", b"0 root")],
    "a wrong token": [JSON, (b"authorization", b"Bearer x")],
    "an empty token": [JSON, (b"authorization", b"")],
    "no text": [JSON, (b"authorization", b"Bearer \xff\xfe")],
}


@pytest.mark.parametrize("headers", HEADERS.values(), ids=HEADERS.keys())
def test_who_asks_is_found_out_the_same(served: Served, headers: list[tuple[bytes, bytes]]) -> None:
    for body in (b'{"token": 1}', b"{", b"[]"):
        for peer in (OWN, TCP):
            short, long = both_ways(served, "/v1/runs/999/claim", body, headers, peer)
            assert short == long
            assert short[0] >= 400


def test_a_body_in_pieces_is_one(served: Served) -> None:
    for pieces in ([b'{"tok', b'en": 1}'], [b"", b'{"token": 1}'], [b'{"tok', b'en": "x"}']):
        short, long = both_ways(served, "/v1/runs/999/claim", pieces, [JSON], OWN)
        assert short == long
        assert short[0] in (404, 422)


def test_a_run_is_told_the_same(served: Served) -> None:
    """Each step told on the short way and again, unchanged, on the long one: field by field, in the same order."""
    main = served.main
    own = request("short-way-key", gpus=1, name="pré-\u2713")
    run = main.post("/v1/runs", json=own).json()
    token = run["lease"]["token"]
    beat = b'{"seen": -1}'
    for step in (None, ("claim", {"token": token}), ("end", {"token": token, "outcome": "failed", "exit_code": 3})):
        if step is not None:
            assert main.post(f"/v1/runs/{run['id']}/{step[0]}", json=step[1]).status_code == 200
        short, long = both_ways(served, f"/v1/runs/{run['id']}/beat", beat, [JSON], OWN)
        assert short == long
        assert (short[0], b"pr\xc3\xa9" in short[1]) == (200, True)


def test_a_driver_is_told_the_same(served: Served) -> None:
    """A batch, which has its answer once, and what is fetched then: the same told again on the long way."""
    ask = {"key": "short-way-driver", "framework": "test", "pool": "short"}
    driver = served.main.post("/v1/drivers", json=ask).json()
    node = wire.Reported(m.NodeAdded("n\u2713", cpus=1.0, gpus=2))
    items = (node, wire.Reported(m.WorkloadSubmitted("w")), wire.Workload("w"), wire.Workload("none"), wire.Mark(7))
    batch = msgspec.json.encode(wire.Batch(driver["epoch"], 1, items, 0))
    poll = msgspec.json.encode({"epoch": driver["epoch"]})
    for verb, body, wanted in (("batch", batch, b"open_tasks"), ("poll", poll, b'"mark":7')):
        short, long = both_ways(served, f"/v1/drivers/{driver['id']}/{verb}", body, [JSON], OWN)
        assert short == long
        assert (short[0], wanted in short[1], "n\u2713".encode() in short[1]) == (200, True, True)


def test_what_is_plain_takes_the_short_way(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not FastAPI's route: that one is not even called. A wrong request reaches it."""
    called: list[str] = []
    ask = {"key": "plain-driver-key", "framework": "test", "pool": "plain"}
    driver = served.main.post("/v1/drivers", json=ask).json()

    async def handle(self: APIRoute, *_: object) -> None:
        called.append(self.path)

    monkeypatch.setattr(APIRoute, "handle", handle)
    run = served.main.post("/v1/runs", json=request("plain-key")).json()
    for verb in ("beat", "claim", "end"):
        served.main.post(f"/v1/runs/{run['id']}/{verb}", json={"token": run["lease"]["token"], **_more(verb)})
    batch = msgspec.json.decode(msgspec.json.encode(wire.Batch(driver["epoch"], 1, ())))
    for verb, body in (("batch", batch), ("poll", {"epoch": driver["epoch"]})):
        assert served.main.post(f"/v1/drivers/{driver['id']}/{verb}", json=body).status_code == 200
    assert (called, run["state"]) == ([], "granted")
    served.main.post("/v1/runs", json={})
    assert called == ["/v1/runs"]


def _more(verb: str) -> dict[str, object]:
    return {"outcome": "succeeded", "exit_code": 0} if verb == "end" else {}


def test_the_description_is_that_of_the_routes(served: Served) -> None:
    """The short way adds nothing and hides nothing."""
    app = served.running.app
    assert isinstance(app, FastAPI)
    described, routes = app.openapi(), app.router.routes
    app.openapi_schema, way = None, routes.pop(0)
    try:
        assert app.openapi() == described
    finally:
        routes.insert(0, way)


def test_each_user_is_counted_on_the_short_way(served: Served) -> None:
    """Requests a second have their bound here, too."""
    rates = served.running.app.state.site.rates
    before, rates.rate = rates.rate, 0.001
    try:
        answer = served.client("uid:4243").post("/v1/runs/999/claim", json={"token": 1})
    finally:
        rates.rate = before
    assert (answer.status_code, "asks more than" in answer.json()["detail"]) == (429, True)
