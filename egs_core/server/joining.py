"""Hosts that join a site, what their agents report, and what an operator says of one that is silent.

An agent speaks for the one host that its token is bound to. What it finds there means what the server finds on its own
host: a lease ends when its supervisor and all its processes were twice seen to be gone, and while nothing is heard of
the agent nothing ends at all.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from egs_core.client import hosts as h
from egs_core.engine import messages as m
from egs_core.errors import counted
from egs_core.server.book import Book, LogLine
from egs_core.server.hosts import OWN, JoinedHost
from egs_core.server.principals import OPERATING, Principal
from egs_core.server.request_hosts import leave
from egs_core.server.runs import NOT_ADMITTED, Device, Refusal, Run

ANSWERS_S = 5.0  # an agent that was heard so lately lives: no other one takes its place
GONE = "an operator has said that its host is gone"


def join(book: Book, who: Principal, ask: h.HostOffer) -> JoinedHost:
    """A host offers its devices, or its agent has been started anew. Raises Refusal."""
    need_agent(who, ask.host)
    if ask.host in (book.offer.host, book.views.name_of(OWN)):
        raise Refusal(409, f"{ask.host} is the name of the server's own host: set EGS_HOST to another on one of both")
    ids = tuple([device.id for device in ask.devices])
    if len(set(ids)) < len(ids):
        raise Refusal(422, "devices: one is named twice")
    known = book.hosts.find(ask.host)
    if known is not None:
        _check_place(book, known, ids)
    before = book.hosts.all.get(ask.host)
    devices = tuple([Device(one.id, one.label, one.memory_bytes, one.flavor) for one in ask.devices])
    session = before.session + 1 if before else 1
    host = JoinedHost(ask.host, devices, ask.cpus, ask.memory_bytes, ask.watched, session)
    is_same = known is not None and _ids(known) == ids
    drained = book.drained_of(host.name) if is_same else ()
    book.lines.append(LogLine(book.now, who, "join", host.name, "", f"{counted(len(devices), 'device')}"))
    _tell_apart(book)
    book.hosts.put(host)
    book.add_host(host, drained)
    return host


def _check_place(book: Book, known: JoinedHost, ids: tuple[str, ...]) -> None:
    """Leases name devices by their place in the list: it must stay as it is while one is held."""
    heard = book.hosts.heard.get(known.name)
    if heard is not None and book.now - heard < ANSWERS_S:
        raise Refusal(409, f"an agent of host {known.name} answers already: end that one first", ANSWERS_S)
    held = next((run for run in book.open_runs() if run.host == known.name and run.lease), None)
    if held is not None and ids != _ids(known):
        there = ", ".join(ids) or "none"
        problem = f"run {held.id} holds devices of {', '.join(_ids(known)) or 'none'}, and now there are {there}"
        raise Refusal(409, f"{problem}: start with the same devices as before until it has ended")


def _ids(host: JoinedHost) -> tuple[str, ...]:
    return tuple([device.id for device in host.devices])


def _tell_apart(book: Book) -> None:
    """The first host joins: what waits is told to the engine anew, for its own host alone, in its order."""
    if book.has_several:
        return
    waiting = [book.by_task[book.engine.state.task_of[phase]] for phase in book.engine.ready_order()]
    placed = {run.id for run in waiting}
    rest = [run for run in book.open_runs() if run.id not in placed]
    book.flavors.is_apart = True
    book.add_node(book.drained)
    told = set[int]()
    for run in [*waiting, *rest]:
        if run.is_open and run.task != NOT_ADMITTED and run.task not in told and not _holds(book, run):
            book.readmit(run)
            told.update(one.task for one in book.gangs.members(run))
    book.tell_estimates([run for run in book.by_task.values() if run.is_open])


def _holds(book: Book, run: Run) -> bool:
    """Whether it has a lease, or another of its gang has one."""
    return any(one.lease is not None for one in book.gangs.members(run))


def heard(book: Book, who: Principal, ask: h.Report) -> bool:
    """A report of a host's agent: from now on it is heard of. Whether what was found counts: not a second time. Raises
    Refusal (410) for one whose place another has taken: it has to join, or to end."""
    need_agent(who, who.host)
    host = book.hosts.find(who.host)
    if host is None or host.session != ask.session:
        raise Refusal(410, f"host {who.host} is not joined by this agent any more")
    is_new = ask.number > book.hosts.numbers.get(host.name, -1)
    places = {device.id: number for number, device in enumerate(host.devices)}
    if is_new:
        before = book.hosts.closed(host)
        book.hosts.numbers[host.name] = ask.number
        if book.hosts.is_silent(host.name):
            book.hosts.back[host.name] = book.now
        book.hosts.heard[host.name] = book.now
        found = {places[one.device]: one.processes for one in ask.occupied if one.device in places}
        book.hosts.occupied[host.name] = found
        if before != book.hosts.closed(host):
            _changed(book, host)
    return is_new


def note_silent(book: Book) -> None:
    """Those of which nothing has been heard for too long: what runs there goes on, nothing new is granted."""
    for name in book.hosts.fell_silent(book.now):
        if host := book.hosts.find(name):
            _changed(book, host)


def _changed(book: Book, host: JoinedHost) -> None:
    book.add_host(host, book.drained_of(host.name))
    for run in book.open_runs():
        book.admit_if_due(run)


def forget(book: Book, who: Principal, name: str) -> None:
    """An operator says that nothing of EGS runs on it any more: its runs end as lost, its devices leave the site.
    Raises Refusal, also while its agent is heard."""
    who.need(OPERATING, "to forget a host")
    if who.teams is not None:
        raise Refusal(403, "to forget a host needs a token that is bound to no team: the devices are everybody's")
    host = book.hosts.find(name)
    if host is None:
        known = ", ".join(one.name for one in book.hosts.joined()) or "none"
        raise Refusal(404, f"there is no host {name!r} that has joined; there are {known}")
    if not book.hosts.is_silent(name):
        raise Refusal(409, f"the agent of host {name} answers: end it first, then say so again")
    book.lines.append(LogLine(book.now, who, "forget host", name))
    for run in [one for one in book.open_runs() if one.host == name]:
        if not leave(book, run):
            _lose(book, run)
    book.hosts.put(replace(host, is_gone=True))
    book.handle(m.NodeLost(name))


def _lose(book: Book, run: Run) -> None:
    if not run.is_open:
        return
    run.why = GONE
    if run.is_claimed:
        book.finish(run, "lost", None)
    else:
        book.abort(run, GONE, "lost")


def need_agent(who: Principal, host: str) -> None:
    """Raises Refusal (403) for whoever does not speak for this host."""
    who.need(("agent",), "to speak for a host")
    if who.host != host:
        raise Refusal(403, f"this token is for host {who.host}, not for {host}: ask an admin for one of that host")


def views(rows: Iterable[tuple[str, str, tuple[str, ...], tuple[str, ...]]]) -> h.Hosts:
    return h.Hosts(hosts=tuple([h.HostView(name=n, state=s, devices=d, runs=r) for n, s, d, r in rows]))
