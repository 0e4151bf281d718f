"""Gangs of runs: they come one by one, and start together or not at all.

    run 5 ─ come ─┐                                    ┌─► 5 granted
    run 6 ─ come ─┼─ whole ─ each might start ─► engine┼─► 6 granted     in one decision, or none of them
    run 7 ─ come ─┘                                    └─► 7 granted
            └─ not whole in time: all end

The members are runs of one user, of one queue and priority. Until all have come one that ends only leaves; from then on
one that does not succeed ends the others, as the engine has it. Here is who is in which gang, and what it waits for;
what follows from that is done by `book`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from egs_core.client import messages as c
from egs_core.engine.explain import describe_shape
from egs_core.engine.rules.topology import NODE
from egs_core.engine.state.nodes import UNTRACKED, Node
from egs_core.errors import listed
from egs_core.graph.columns import DEFAULT_OPTIONS, Shape, TaskOptions
from egs_core.server.runs import WHOLE_DEVICE, GangPlace, Refusal, Run

ALIKE = {"queue": "--queue", "priority": "--priority", "requeue": "--requeue"}  # what all members of a gang have


AGAIN_S = 30.0  # after a start of the server: who waits for it to come asks again in less


class Gangs:
    """The gangs with members that have not ended. open_runs: all of a site, in order of their numbers. not_before: none
    is given up earlier; None: while nobody can come, for no server is there yet."""

    def __init__(self, open_runs: Iterable[Run]) -> None:
        self.not_before: float | None = None
        self._members: dict[str, dict[str, Run]] = {}
        self._gathering: dict[tuple[str, str], str] = {}  # user, name -> number of the gang that is not whole yet
        for run in open_runs:
            self.note(run)

    def note(self, run: Run) -> None:
        """It has come, if it is of a gang."""
        if run.gang is not None:
            self._members.setdefault(run.gang.number, {})[run.id] = run
            if not run.gang.is_whole:
                self._gathering[run.user, run.gang.name] = run.gang.number

    def drop(self, run: Run) -> None:
        """It has ended."""
        if run.gang is None:
            return
        members = self._members.get(run.gang.number, {})
        members.pop(run.id, None)
        if not members:
            self._members.pop(run.gang.number, None)
            if self._gathering.get((run.user, run.gang.name)) == run.gang.number:
                del self._gathering[run.user, run.gang.name]

    def members(self, run: Run) -> list[Run]:
        """Those of its gang that have not ended, in order of their numbers; of a run without a gang itself."""
        return [run] if run.gang is None else list(self._members.get(run.gang.number, {}).values())

    def starters(self, run: Run) -> list[Run]:
        """Those that start together with it; none while not all have come."""
        return self.members(run) if run.gang is None or run.gang.is_whole else []

    def place_for(self, run: Run, ask: c.Gang, now: float) -> GangPlace:
        """The place of a new run, in the gang of that name which its user has begun, or in one that it begins. Raises
        Refusal where it would not be like the others."""
        number = self._gathering.get((run.user, ask.name))
        if number is None:
            return GangPlace(ask.name, ask.size, run.id, now + ask.wait_s)
        first = next(iter(self._members[number].values()))
        assert first.gang is not None
        if ask.size != first.gang.size:
            raise Refusal(422, f"gang: {ask.name!r} was begun by run {first.id} with size {first.gang.size}")
        for field, option in ALIKE.items():
            if getattr(run, field) != getattr(first, field):
                text = f"gang: run {first.id} of gang {ask.name!r} was started with another {option}: name the same"
                raise Refusal(422, text)
        return first.gang

    def enter(self, run: Run, place: GangPlace) -> list[Run]:
        """It has come; those whose place has changed: all of them, when it is the last."""
        run.gang = place
        self.note(run)
        members = self.members(run)
        if len(members) < place.size:
            return []
        del self._gathering[run.user, place.name]
        hosts = tuple([one.host for one in members])
        hosts = hosts if len(set(hosts)) > 1 else ()
        for rank, one in enumerate(members):
            one.gang = msgspec.structs.replace(place, is_whole=True, rank=rank, hosts=hosts)
        return members

    def form(self, runs: Sequence[Run], name: str, now: float) -> None:
        """These new runs, in this order, are one of their own: all have come."""
        hosts = tuple([run.host for run in runs])
        for rank, run in enumerate(runs):
            run.gang = GangPlace(name, len(runs), runs[0].id, now, is_whole=True, rank=rank, hosts=hosts)
            self.note(run)

    def check_order(self, run: Run, place: GangPlace, runs: dict[str, Run]) -> None:
        """Raises Refusal for a new run that would start after one that cannot start before it."""
        pending, seen = [one for one, _ in run.after], set[str]()
        while pending:
            before = runs[pending.pop()]
            for one in self.members(before):
                if one.gang is not None and one.gang.number == place.number:
                    text = f"after: run {before.id} waits for gang {place.name!r}, of which this run is to be"
                    raise Refusal(422, f"{text}: neither would ever start")
                if one.id not in seen:
                    seen.add(one.id)
                    pending += [other for other, _ in one.after]

    def check_room(self, run: Run, place: GangPlace, node: Node) -> None:
        """Raises Refusal for a new run with which the members that have come need more of its host than there is: those
        that have come wait on, for another in its place. A bound: whether what is enough in sum can be placed is seen
        when all have come, and then all are refused."""
        there = [one for one in self._members.get(place.number, {}).values() if one.host == run.host]
        shapes = [one.shape for one in [*there, run]]
        total = Shape(*[sum(amounts) for amounts in zip(*map(_amounts, shapes), strict=True)])
        most = Shape(node.cpu_milli, node.gpus * WHOLE_DEVICE, node.memory_bytes)
        has_memory = node.memory_bytes == UNTRACKED or total.memory_bytes <= most.memory_bytes
        if total.cpu_milli <= most.cpu_milli and total.gpu_milli <= most.gpu_milli and has_memory:
            return
        text = f"gang: with this run {len(shapes)} members of gang {place.name!r} need {describe_shape(total)} at once"
        offers = describe_shape(msgspec.structs.replace(most, memory_bytes=max(0, most.memory_bytes)))
        raise Refusal(422, f"{text}, and {node.name} has {offers} in all: those that have come wait on")

    def overdue(self, now: float) -> list[list[Run]]:
        """The members of each gang that was not whole in time."""
        if self.not_before is None or self.not_before > now:
            return []
        return [members for members in self._waiting() if _until(members) <= now]

    def next_due(self) -> float | None:
        """When the next gang is given up that is not whole."""
        until = min(map(_until, self._waiting()), default=None)
        return None if until is None or self.not_before is None else max(until, self.not_before)

    def _waiting(self) -> list[list[Run]]:
        return [list(self._members[number].values()) for number in self._gathering.values()]


def gang_options(run: Run) -> TaskOptions:
    """What the engine is told of its gang: of a request's parts also that each is on a host of its own."""
    if run.gang is None:
        return DEFAULT_OPTIONS
    return TaskOptions(gang=run.gang.name, gang_apart=NODE if run.is_request else "")


def _amounts(shape: Shape) -> tuple[int, int, int]:
    return shape.cpu_milli, shape.gpu_milli, shape.memory_bytes


def _until(members: Sequence[Run]) -> float:
    place = members[0].gang
    assert place is not None, "a member of a gang has a place in it"
    return place.until


def come_words(place: GangPlace, members: Sequence[Run]) -> str:
    """How many of a gang have come, and which."""
    names = listed([f"{one.id} ({one.name})" for one in members], 4)
    return f"{len(members)} of {place.size} have come: {names}"


def check_together(members: Sequence[Run]) -> None:
    """Raise AssertionError where some of a gang hold devices, not about to give them back, and others hold none; or
    where they were not granted at one moment."""
    held = [run for run in members if run.lease is not None and not run.stop]
    if not held:
        return
    without = [run.id for run in members if run.lease is None]
    assert not without, f"of gang {held[0].gang} runs {[run.id for run in held]} hold devices, {without} do not"
    moments = {run.lease.granted_at for run in held if run.lease is not None}
    assert len(moments) == 1, f"gang {held[0].gang} was granted at {sorted(moments)}"
