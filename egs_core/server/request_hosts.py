"""On which hosts the GPUs of a request are, where that is not the host where it is asked for.

    --gpus 4 --hosts 2               2 GPUs each on the two hosts that have room for them, else should have it first
    --gpus 4 --on gpu01 --on gpu02   2 GPUs each on these

They are chosen when it is asked for. Those that the site has chosen are exchanged while it waits, where it would start
at once on others; a host that was named, or where a command waits for its GPUs, is kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from egs_core.client import requests as q
from egs_core.engine.rules.fit import lacking
from egs_core.errors import counted
from egs_core.server.admission import check_fits
from egs_core.server.book import Book
from egs_core.server.hosts import OWN
from egs_core.server.principals import Principal
from egs_core.server.runs import NOT_ADMITTED, Refusal, Run
from egs_core.server.trial import copy_of


def hosts_for(book: Book, who: Principal, ask: q.GpuRequest, part: Run) -> list[str]:
    """As runs name them. part: what is asked for, with the GPUs of one host. Raises Refusal where they cannot be."""
    named = [_named(book, one) for one in ask.on or ()]
    if len(set(named)) < len(named):
        raise Refusal(422, "on: a host is named twice")
    if named and ask.hosts is not None and ask.hosts != len(named):
        raise Refusal(422, f"hosts: {ask.hosts} are asked for, and --on names {len(named)}")
    if named == [who.host] or (not named and (ask.hosts or 1) == 1):
        return [who.host]
    if who.host:
        own = book.views.name_of(OWN)
        text = f"from host {who.host} GPUs of that host alone can be asked for: ask on host {own} for those of others"
        raise Refusal(403, f"on: {text}" if named else f"hosts: {text}")
    return named or _chosen(book, ask.hosts or 1, part)


def gpus_each(ask: q.GpuRequest) -> float:
    """On each host. Raises Refusal where they cannot be shared evenly."""
    count = ask.hosts or len(ask.on or ()) or 1
    if count > 1 and (ask.gpus % count or ask.gpus < count):
        most = math.ceil(ask.gpus / count) * count
        problem = f"gpus: {ask.gpus:g} cannot be as many whole ones on each of {count} hosts"
        raise Refusal(422, f"{problem}: it is the number for all of them together, as {most}")
    return ask.gpus / count


def _named(book: Book, name: str) -> str:
    hosts = {book.views.name_of(OWN): OWN} | {one.name: one.name for one in book.hosts.joined()}
    hosts |= {book.offer.host: OWN} if book.offer.host else {}
    if name not in hosts:
        raise Refusal(422, f"on: there is no host {name!r}; there are {', '.join(hosts)}")
    return hosts[name]


def _chosen(book: Book, count: int, part: Run) -> list[str]:
    """Of those that can ever have a part the best so many, in the site's order: with room now, with the least that
    waits for them, with the most that is free."""
    every = [OWN, *(one.name for one in book.hosts.joined())]
    able = [host for host in every if _fits(book, part, host)]
    if len(able) < count:
        there = f"{counted(len(able), 'host')} of the site can have {part.gpus:g} GPUs of it"
        raise Refusal(422, f"hosts: {there}, and {count} are asked for: `egs host list` shows all")
    best = _best_first(book, part, able)[:count]
    return [host for host in every if host in best]


def _best_first(book: Book, part: Run, hosts: Sequence[str]) -> list[str]:
    waiting = dict.fromkeys(hosts, 0.0)
    for run in book.open_runs():
        if run.lease is None and not run.inside and run.host in waiting:
            waiting[run.host] += run.gpus
    return sorted(hosts, key=lambda host: (_rank(book, part, host), waiting[host], -_free(book, host)))


def move(book: Book, parts: Sequence[Run]) -> None:
    """Parts of a request that waits are for other hosts from now on, if all start with that. It is tried on a copy,
    once for what is free at a time, so that none loses its place for nothing."""
    nodes = [book.views.node_of(part.host) for part in parts]
    if any(part.lease is not None or part.task == NOT_ADMITTED for part in parts):
        book.tried.pop(parts[0].whole, None)
        return
    stay = [
        bool(node and not lacking(node, part.shape)) or bool(book.commands[part.id])
        for part, node in zip(parts, nodes, strict=True)
    ]
    free = tuple([tuple(node.devices) for node in book.engine.state.nodes if node.alive])
    if all(stay) or book.tried.get(parts[0].whole) == free:
        return
    book.tried[parts[0].whole] = free
    taken = {part.host for part, stays in zip(parts, stay, strict=True) if stays}
    rest = [one for one in _others(book, parts[0], taken) if not _rank(book, parts[0], one)]
    if len(rest) < stay.count(False):
        return
    hosts = tuple([part.host if stays else rest.pop(0) for part, stays in zip(parts, stay, strict=True)])
    copy = copy_of(book)
    copied = [copy.runs[part.id] for part in parts]
    copy.rehost(copied, hosts)
    if all(run.lease is not None for run in copied):
        book.rehost(parts, hosts)


def leave(book: Book, run: Run) -> bool:
    """Its host leaves the site. Whether another one has been found for this part of a request that waits."""
    parts = book.gangs.members(run)
    if not run.roams or any(part.lease is not None or part.task == NOT_ADMITTED for part in parts):
        return False
    others = _others(book, run, {part.host for part in parts})
    if others:
        book.rehost(parts, tuple([others[0] if part is run else part.host for part in parts]))
    return bool(others)


def _others(book: Book, part: Run, taken: set[str]) -> list[str]:
    """Hosts that can ever have it, but for these, best first."""
    every = [OWN, *(one.name for one in book.hosts.joined())]
    return _best_first(book, part, [one for one in every if one not in taken and _fits(book, part, one)])


def _fits(book: Book, part: Run, host: str) -> bool:
    if book.views.node_of(host) is None:
        return False
    try:
        check_fits(book, msgspec.structs.replace(part, host=host))
    except Refusal:
        return False
    return True


def _rank(book: Book, part: Run, host: str) -> int:
    """0: room now; 1: later; 2: nothing starts there, as long as it is silent or drained."""
    node = book.views.node_of(host)
    if node is None or book.views.is_shut(host):
        return 2
    return 1 if lacking(node, part.shape) else 0


def _free(book: Book, host: str) -> int:
    node = book.views.node_of(host)
    return 0 if node is None else sum(max(0, free) for free in node.devices)
