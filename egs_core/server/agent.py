"""What `egs serve --join` does: it offers this host's devices to a server, looks for processes of leases here, and
passes on what users of this host ask over its Unix socket, with their user ids.

    egs run ── Unix socket, the kernel names the user ──► agent ── the host's token, EGS-Peer ──► server
                                                            └── every second: what lives here ──► server

It keeps nothing: after `kill -9` it joins again, is told whom to look for, and commands have run on meanwhile. The
locks of the devices are its own.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from pydantic import ValidationError

from egs_core.client import hosts as h
from egs_core.client import messages as c
from egs_core.client.http import ANSWER_S, Refused, SiteClient, Unreachable, trusted_owners
from egs_core.client.places import Address
from egs_core.client.processes import Snapshot, is_alive
from egs_core.client.watching import DeviceHealth
from egs_core.errors import EgsError, InputError
from egs_core.server.app import LOOK_S, UsersOf, look_at_all
from egs_core.server.devices import strangers
from egs_core.server.logic import Watch
from egs_core.server.runs import Known, Offer
from egs_core.server.watching.readings import Readings
from egs_core.validation_words import problem_of

LOG = logging.getLogger("uvicorn.error")
END = re.compile(r"/v1/runs/([^/]+)/end")
MOST_AT_ONCE = 500  # findings in one report
MOST_LIVING = 20  # processes that are named of a lease
PLACE_S = 20.0  # how long it waits for an agent to be gone that was killed just now
UNKNOWN, REPLACED = (401, 403), 410


class Upstream:
    """The server, at one of its addresses; any thread. A connection is kept for each thread."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._addresses, self._owners = addresses, trusted_owners()
        self._current = 0
        self._local = threading.local()

    @property
    def url(self) -> str:
        return self._addresses[self._current].url

    def send(self, method: str, path: str, body: bytes | None, patience_s: float = ANSWER_S, peer: str = "") -> bytes:
        """Tries each address once. Raises as `SiteClient.send`."""
        for tried in itertools.count(1):
            number = self._current
            try:
                return self._client(number).send(method, path, body, patience_s, {h.PEER_HEADER: peer} if peer else {})
            except Unreachable:
                if tried >= len(self._addresses):
                    raise
                self._current = (number + 1) % len(self._addresses)
        raise AssertionError("counting has no end")

    def _client(self, number: int) -> SiteClient:
        clients: dict[int, SiteClient] = self._local.__dict__.setdefault("clients", {})
        if number not in clients:
            clients[number] = SiteClient(self._addresses[number], self._owners)
        return clients[number]


class Agent:
    """One host's. users_of: tells the processes on each device; None where the devices are nobody else's."""

    def __init__(self, upstream: Upstream, offer: Offer, users_of: UsersOf | None = None) -> None:
        self.upstream, self._users_of = upstream, users_of
        devices = [msgspec.to_builtins(one) for one in offer.devices]
        fields = {"host": offer.host, "devices": devices, "cpus": offer.cpus, "memory_bytes": offer.memory_bytes}
        try:
            self._offer = h.HostOffer.model_validate({**fields, "watched": offer.is_watched})
        except ValidationError as error:
            first = error.errors()[0]
            problem = f"cannot join: {'.'.join(map(str, first['loc']))}: {first['msg']}"
            raise InputError(f"host {offer.host!r}", problem) from None
        self._numbers = itertools.count(1)
        self._session = 0
        self._watches: tuple[h.WatchView, ...] = ()
        self._readings = Readings([one.id for one in offer.devices] if offer.is_watched else ())
        self._has_readings = self._wants_health = False

    def join(self) -> None:
        """Raises Refused, and Unreachable."""
        joined = h.Joined.model_validate_json(self._post("join", self._offer))
        self._session, self._watches = joined.session, joined.watches

    def join_first(self) -> None:
        """Until the server takes it; a server that does not answer yet is waited for. Raises EgsError for what will not
        be otherwise: a certificate that nobody trusts, a token that is refused, devices that are held."""
        until, has_told = time.monotonic() + PLACE_S, False
        while True:
            try:
                return self.join()
            except Refused as error:
                if error.status != 409 or time.monotonic() > until:
                    raise EgsError(f"egs serve --join: {error}") from None
            except Unreachable as error:
                if _is_about_trust(error):
                    raise EgsError(f"egs serve --join: {error}: EGS_CA names the certificate to trust") from None
                if not has_told:
                    LOG.warning("the server does not answer; waiting for it (%s)", error)
                    has_told = True
            time.sleep(LOOK_S / 2)

    def look(self) -> None:
        """One look at this host, told to the server, which says whom to look for the next time. Raises as `join`."""
        watched = self._watches
        found = [
            h.Found(run=one.run, token=one.token, supervisor=one.has_supervisor, living=one.living[:MOST_LIVING])
            for one in look_at_all([_watch(view) for view in watched])
        ]
        occupied, health = self._occupied(watched), self._health()
        for begin in range(0, max(1, len(found)), MOST_AT_ONCE):
            part = tuple(found[begin : begin + MOST_AT_ONCE])
            report = h.Report(
                session=self._session, number=next(self._numbers), found=part, occupied=occupied, health=health
            )
            try:
                told = h.Watches.model_validate_json(self._post("report", report))
            except (Refused, Unreachable):
                self._readings.give_back(health)
                raise
            health = ()
            self._watches, self._wants_health = told.watches, told.wants_health

    def _health(self) -> tuple[DeviceHealth, ...]:
        """Where the server wants to know: an older one would refuse it."""
        if not self._wants_health:
            return ()
        if not self._has_readings:
            self._has_readings = True
            self._readings.start()
        return tuple(self._readings.take())

    def _occupied(self, watched: Sequence[h.WatchView]) -> tuple[h.Occupied, ...]:
        if self._users_of is None:
            return ()
        holders: dict[str, list[Watch]] = {device.id: [] for device in self._offer.devices}
        for view in watched:
            for device in view.devices:
                holders[device].append(_watch(view))
        found = strangers(self._users_of(list(holders)), holders)
        return tuple([h.Occupied(device=one, processes=pids[: c.MOST_PROCESSES]) for one, pids in found.items()])

    def passed_on(self, method: str, path: str, body: bytes, peer: str) -> tuple[int, bytes]:
        """The status and the body that a user's request is answered with; peer: their user id and name. What is asked
        of processes is answered here: they are on this host."""
        route = path.partition("?")[0]
        try:
            problem = ""
            if method == "POST" and route == "/v1/runs":
                problem, status = self._unknown_supervisor(body), 422
            elif method == "POST" and (ends := END.fullmatch(route)):
                problem, status = self._still_runs(ends[1], body), 409
            if problem:
                return status, _detail(problem)
            return 200, self.upstream.send(method, path, body or None, ANSWER_S + c.MOST_WAIT_S, peer)
        except Refused as error:
            if error.status in (401, REPLACED):  # nothing that a user could mend
                return 503, _detail(f"the server does not know this host's agent now: {error}")
            return error.status, _detail(str(error))
        except Unreachable as error:
            return 503, _detail(str(error))

    def _unknown_supervisor(self, body: bytes) -> str:
        try:
            ask = c.RunRequest.model_validate_json(body)
        except ValidationError:
            return ""  # the server says what is wrong
        if is_alive(ask.supervisor):
            return ""
        problem = f"supervisor: there is no process {ask.supervisor.pid} here"
        return f"{problem}: the client must run on the agent's host, in its process namespace"

    def _still_runs(self, run: str, body: bytes) -> str:
        """What is left of a run whose end is told."""
        try:
            ask = c.End.model_validate_json(body)
        except ValidationError as error:  # of a newer client, whose processes nobody would have looked for
            return f"this host's agent cannot read that: {problem_of(error.errors()[0])}"
        now = h.Watches.model_validate_json(self._post("report", h.Report(session=self._session, number=0)))
        for view in now.watches:
            if (view.run, view.token) == (run, ask.token):
                there = Snapshot()
                left = there.running(there.living(view.named, view.mark, view.supervisor), ask.aside or ())
                return f"processes of its lease still run: {left[0].pid}" if left else ""
        return ""

    def _post(self, verb: str, ask: c.Ask) -> bytes:
        return self.upstream.send("POST", f"/v1/hosts/{verb}", ask.model_dump_json().encode())


async def follow(agent: Agent) -> EgsError:
    """Looks again and again, for as long as the server knows this agent; what ended that."""
    said = ""
    while True:
        try:
            await asyncio.to_thread(agent.look)
            if said:
                LOG.warning("the server answers again")
            said = ""
        except Refused as error:
            if error.status == REPLACED:
                try:
                    await asyncio.to_thread(agent.join)
                    continue
                except (Refused, Unreachable) as refusal:
                    error = refusal if isinstance(refusal, Refused) else error
            if error.status in (*UNKNOWN, 409):
                return EgsError(f"egs serve --join: {error}")
            said = _said(said, str(error))
        except Unreachable as error:
            said = _said(said, f"the server does not answer; what runs here goes on ({error})")
        except Exception as error:
            said = _said(said, f"this host could not be looked at: {type(error).__name__}: {error}")
        await asyncio.sleep(LOOK_S)


def _said(before: str, text: str) -> str:
    """The log has it once, until it changes."""
    if before != text:
        LOG.warning("%s", text)
    return text


def _watch(view: h.WatchView) -> Watch:
    named = tuple([Known(one.pid, one.started) for one in view.named])
    supervisor = Known(view.supervisor.pid, view.supervisor.started)
    return Watch(view.run, view.token, supervisor, view.claimed, named, view.mark)


def _detail(text: str) -> bytes:
    return msgspec.json.encode({"detail": text})


def _is_about_trust(error: BaseException) -> bool:
    """Whether TLS found a certificate that it does not trust."""
    return any(isinstance(one, ssl.SSLCertVerificationError) for one in _inner(error, 12))


def _inner(error: Any, depth: int) -> Iterator[BaseException]:
    if isinstance(error, BaseException) and depth:
        yield error
        for one in (error.__context__, error.__cause__, getattr(error, "reason", None), *error.args):
            yield from _inner(one, depth - 1)
