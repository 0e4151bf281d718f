"""From the runs that a site server keeps to uses of GPUs: runs from the start of their command to its end, GPU requests
as long as they had their GPUs, used while a command ran in them; and from what it tells of drivers' tasks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Protocol

from egs_core.client.driver_use import UsedBy
from egs_core.client.messages import Device, RunView
from egs_core.client.outlines import Outline
from egs_core.cost.uses import Use
from egs_core.runlog.steps import Interval, clip, union


class Placed(Protocol):
    """What was on a host, on GPUs of a flavor."""

    @property
    def host(self) -> str: ...

    @property
    def flavor(self) -> str: ...


def uses_of_runs(
    runs: Iterable[RunView] | Iterable[Outline], now: float, devices: Iterable[Device] = ()
) -> Iterator[Use]:
    """What each held, in all of its starts, until now where it does so still. runs: all that the server keeps; now:
    second since 1970; devices: of the site, by which hosts with unlike ones are known."""
    known: list[RunView | Outline] = [*runs]
    mixed = unlike_hosts(devices)
    inside: dict[str, list[Interval]] = defaultdict(list)
    for run in known:
        if run.inside:
            inside[run.inside] += [held for held, _, _ in _attempts(run, now)]
    for run in known:
        if run.inside or run.framework:
            continue
        for held, gpus, part in _attempts(run, now):
            used = union(clip(inside[run.id], *held)) if run.is_request else [held]
            if gpus and held[1] > held[0]:
                yield Use(run.team, run.name, run.name, run.user, node_of(part, mixed), gpus, held, tuple(used))


def _attempts(run: RunView | Outline, now: float) -> Iterator[tuple[Interval, float, Placed]]:
    """Each of its starts: from when to when, with how many GPUs, and where."""
    for one in run.earlier:
        yield (one.started_at, one.ended_at), one.gpus, one
    if run.started_at is not None:
        yield (run.started_at, _end_of(run, now)), run.gpus, run


def uses_of_drivers(rows: Iterable[UsedBy]) -> Iterator[Use]:
    """What tasks of frameworks' drivers held: in each stretch as many GPUs as there were on average."""
    for one in rows:
        length_s = one.end - one.start
        used = one.start, one.start + length_s * min(1.0, one.used / one.held)
        gpus, held = one.held / length_s, (one.start, one.end)
        yield Use(one.team, one.framework, one.framework, "", one.place, gpus, held, (used,) if one.used else ())


def unlike_hosts(devices: Iterable[Device]) -> frozenset[str]:
    """Those whose devices are not all of one flavor."""
    flavors: dict[str, set[str]] = defaultdict(set)
    for one in devices:
        flavors[one.host].add(one.flavor)
    return frozenset(host for host, found in flavors.items() if len(found) > 1)


def node_of(run: Placed, unlike: frozenset[str]) -> str:
    """Where it held its GPUs, as prices are found: HOST/FLAVOR where the host has unlike ones."""
    return f"{run.host}/{run.flavor}" if run.flavor and run.host in unlike else run.host


def _end_of(run: RunView | Outline, now: float) -> float:
    return now if run.ended_at is None else run.ended_at
