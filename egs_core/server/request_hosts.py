"""On which hosts the GPUs of a request are, where that is not the host where it is asked for.

    --gpus 4 --hosts 2               2 GPUs each on the two hosts that have room for them, else should have it first
    --gpus 4 --on gpu01 --on gpu02   2 GPUs each on these

They are chosen when it is asked for: from then on each part waits for its own host.
"""

from __future__ import annotations

import msgspec

from egs_core.client import requests as q
from egs_core.engine.rules.fit import lacking
from egs_core.errors import counted
from egs_core.server.admission import check_fits
from egs_core.server.book import Book
from egs_core.server.hosts import OWN
from egs_core.server.principals import Principal
from egs_core.server.runs import Refusal, Run


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
        raise Refusal(422, f"gpus: {ask.gpus:g} cannot be as many whole ones on each of {count} hosts")
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
    waiting = dict.fromkeys(every, 0.0)
    for run in book.open_runs():
        if run.lease is None and not run.inside:
            waiting[run.host] = waiting.get(run.host, 0.0) + run.gpus
    best = sorted(able, key=lambda host: (_rank(book, part, host), waiting[host], -_free(book, host)))[:count]
    return [host for host in every if host in best]


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
