"""Which flavor a task should take, and whether to wait for a better one: list scheduling on unlike devices.

    fast   |####################|        a device that is held until its median
    slow   ·                             free
    task   ?==|                          4 times as fast there: started now on `slow` it would end later than
                                         if it waits for `fast`, so it waits, and the next in order may have `slow`

Of each flavor that offers what all phases of the task need, an offer says when it could start there, when it would end
(its processes loaded first) and what that costs. An objective ranks them:

    finish   the sooner end, and the less delay to those that wait for the same flavor (comparative advantage); of
             offers that meet the deadline, where any does
    soonest  the same without regard to others (the rule of HEFT)
    cost     the lowest cost of those that meet the deadline; without a deadline, of those that end within twice the
             soonest possible
    greedy   of what is free now the fastest (never waits)
    blind    flavors make no difference

Equal offers: the one that leaves less device memory idle. What is promised to a task that waits counts as taken for
those behind it, so a long line at the fast devices makes the slow ones attractive; but for what is free now, which
anybody may have (backfill). In line at a flavor are those that are best off there; where several are as fast, each has
its share of them, and who is kept out by quota is in none, or all would leave a free device to each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from egs_core.engine.messages import Moment
from egs_core.engine.rules.ends import expected_end_s
from egs_core.engine.rules.fit import allowed_flavors, count_of, devices_of, fits_task, seen_as, select_devices
from egs_core.engine.rules.flavors import cost_of, seconds_on
from egs_core.engine.specs import AS_FAST, REFERENCE, STRETCH
from egs_core.engine.state.nodes import UNTRACKED, WHOLE_DEVICE, Node
from egs_core.engine.state.state import State
from egs_core.graph.columns import Shape

OBJECTIVES = ("finish", "soonest", "cost", "greedy", "blind")


class Offer(NamedTuple):
    """One flavor's: start and end in the engine's time. seconds: for which it would be held."""

    flavor: str
    start_s: float
    end_s: float
    seconds: float
    cost: float
    idle_bytes: int


class Refused(NamedTuple):
    """What a phase waits for, and what it could have at once."""

    better: Offer
    instead: Offer

    def text(self, moment: Moment) -> str:
        """moment: how moments are written."""
        better, instead = self.better, self.instead
        prices = [f" for {_price(one.cost)}" if better.cost or instead.cost else "" for one in (better, instead)]
        return (
            f"is better off waiting for a device of flavor {better.flavor!r}, free at about {moment(better.start_s)}: "
            f"it would end at {moment(better.end_s)}{prices[0]}, on {instead.flavor!r}, which is free now, "
            f"at {moment(instead.end_s)}{prices[1]}"
        )


def _price(cost: float) -> str:
    """
    >>> _price(12.345), _price(0.00278), _price(0.0)
    ('12.35', '0.0028', '0')
    """
    return f"{cost:.2f}" if cost >= 1 else f"{cost:.2g}"


class Demand(NamedTuple):
    """What a task needs at once at most, and the nodes that offer it, by flavor."""

    largest: Shape
    devices: int
    nodes: dict[str, list[int]]

    @property
    def gpu_milli(self) -> int:
        return self.largest.gpu_milli


class FlavorChoice:
    """Made for one pass, while the engine grants. waits: phases that found no place, and what is promised to them;
    refused: those of them that could start now on a worse flavor."""

    def __init__(self, state: State, objective: str) -> None:
        self._state = state
        self._objective = objective
        self._frees: dict[int, list[float]] = {}  # node -> when each of its devices comes free
        self._nodes: dict[str, list[int]] = {}  # flavor -> its nodes
        self._devices: dict[str, int] = {}  # flavor -> how many there are
        for number, node in enumerate(state.nodes):
            if node.alive and node.gpus:
                self._frees[number] = [state.now] * node.gpus
                for flavor in node.flavors:
                    gpus = node.device_flavors.count(flavor) if node.device_flavors else node.gpus
                    self._nodes.setdefault(flavor, []).append(number)
                    self._devices[flavor] = self._devices.get(flavor, 0) + gpus
        self._found: dict[str, dict[int, tuple[float, int]]] = {}  # flavor -> demand -> when and where it is free first
        for phase, lease in state.leases.items():
            if lease.devices and lease.node in self._frees:
                self._hold(lease.node, lease.devices, expected_end_s(state, phase))
        self._demands: dict[tuple[tuple[int, ...], tuple[str, ...]], Demand] = {}
        self._lines: dict[str, float] = {}  # flavor -> how many wait that are best off there
        self.waits: dict[int, Offer] = {}
        self.refused: dict[int, Refused] = {}

    @property
    def has_room(self) -> bool:
        """Whether a device, or a part of one, is free."""
        nodes = self._state.nodes
        return any(max(nodes[number].devices[: nodes[number].gpus]) for number in self._frees)

    def line_up(self, phases: Iterable[int]) -> None:
        """Count who waits for which flavor: what a task takes there delays them."""
        self._lines = {}
        for phase in phases:
            task = self._state.task_of[phase]
            for flavor, share in self._best_off(task, self._demand(task)).items():
                self._lines[flavor] = self._lines.get(flavor, 0.0) + share

    def _best_off(self, task: int, demand: Demand) -> dict[str, float]:
        """Where the task is fastest; of flavors that are as fast, the part of it that each has by its devices: it
        stands in no line at one while others would do as well."""
        seconds = {flavor: self._seconds(task, flavor) for flavor in demand.nodes}
        least = min(seconds.values(), default=0.0)
        best = [flavor for flavor, there in seconds.items() if there <= AS_FAST * least]
        devices = sum([self._devices[flavor] for flavor in best])
        return {flavor: self._devices[flavor] / devices for flavor in best}

    def is_offered(self, phase: int) -> bool:
        """Whether a flavor has, on some node, all that the task needs."""
        return bool(self._demand(self._state.task_of[phase]).nodes)

    def offers(self, phase: int) -> list[Offer]:
        """What each flavor has to offer to the task of this first phase, best first."""
        state, task = self._state, self._state.task_of[phase]
        demand = self._demand(task)
        found = [self._offer(task, flavor, demand) for flavor in demand.nodes]
        if self._objective == "greedy":
            return sorted((o for o in found if o.start_s <= state.now), key=lambda o: (o.seconds, o.idle_bytes))
        if self._objective == "cost" and found:
            until = self._latest_end_s(task, found)
            meets = sorted((o for o in found if o.end_s <= until), key=lambda o: (o.cost, o.end_s, o.idle_bytes))
            late = sorted((o for o in found if o.end_s > until), key=lambda o: (o.end_s, o.cost, o.idle_bytes))
            return meets + late
        best = self._best_off(task, demand)
        until = self._latest_end_s(task, found) if found and state.deadline_of(task) is not None else float("inf")

        def rank(offer: Offer) -> tuple[bool, float, int, float]:
            end_s = offer.end_s + self._delay_s(demand, offer, best)
            return offer.end_s > until, end_s, offer.idle_bytes, offer.cost

        return sorted(found, key=rank)

    def flavors_now(self, phase: int, is_patient: bool = True) -> list[str]:
        """The flavors on which the task should start now, best first; none when it is better off waiting. Without
        patience: all on which it can."""
        now, flavors = self._state.now, []
        for offer in self.offers(phase):
            if offer.start_s <= now:
                flavors.append(offer.flavor)
            elif is_patient:
                break
        return flavors

    def wait(self, phase: int) -> None:
        """It found no place: the devices that it waits for are promised to it."""
        offers, now = self.offers(phase), self._state.now
        best = next((offer for offer in offers if offer.start_s > now), None)
        if best is None:
            return
        self._book(phase, best)
        instead = next((offer for offer in offers if offer.start_s <= now), None)
        if instead is not None:
            self.refused[phase] = Refused(best, instead)

    def _book(self, phase: int, offer: Offer) -> None:
        self.waits[phase] = offer
        demand = self._demand(self._state.task_of[phase])
        if demand.gpu_milli >= WHOLE_DEVICE:
            node = self._soonest(offer.flavor, demand)[1]
            frees = self._frees[node]
            first = sorted(self._devices_on(node, offer.flavor), key=frees.__getitem__)
            self._hold(node, [i for i in first[: demand.devices] if frees[i] > self._state.now], offer.end_s)

    def granted(self, phase: int, node: int, devices: Sequence[int]) -> None:
        """A phase has just been given these devices."""
        if node in self._frees and devices:
            seconds = self._seconds(self._state.task_of[phase], self._state.nodes[node].flavor_of(devices))
            self._hold(node, devices, self._state.now + seconds)

    def _hold(self, node: int, devices: Sequence[int], until: float) -> None:
        """Devices that have been withdrawn come back to nobody."""
        for flavor in self._state.nodes[node].flavors:
            self._found.pop(flavor, None)
        frees = self._frees[node]
        for device in devices:
            if device < len(frees):
                frees[device] = max(frees[device], until)

    # --- one offer ---

    def _demand(self, task: int) -> Demand:
        """What the task needs, and where that is offered; the same for all tasks of its shapes and allowed flavors."""
        state = self._state
        shapes = tuple([state.shape[p] for p in state.phases_of(task)])
        key = shapes, state.options_of(task).flavors
        found = self._demands.get(key)
        if found is None:
            largest = max([state.shapes[number] for number in shapes], key=lambda shape: shape.gpu_milli)
            nodes = {flavor: self._suitable(task, flavor, numbers) for flavor, numbers in self._nodes.items()}
            offered = {flavor: numbers for flavor, numbers in nodes.items() if numbers}
            found = self._demands[key] = Demand(largest, devices_of(largest), offered)
        return found

    def _suitable(self, task: int, flavor: str, numbers: Sequence[int]) -> list[int]:
        state = self._state
        found = [n for n in numbers if fits_task(state, task, state.nodes[n])]
        return [n for n in found if self._has_enough(task, state.nodes[n], flavor)]

    def _has_enough(self, task: int, node: Node, flavor: str) -> bool:
        """Of a node on which the task fits: whether devices of this flavor would do."""
        if not node.device_flavors:
            return True
        shapes = [self._state.shape_of(phase) for phase in self._state.phases_of(task)]
        is_allowed = flavor in allowed_flavors(self._state, task, node)
        return is_allowed and all(count_of(node, (flavor,), shape) >= devices_of(shape) for shape in shapes)

    def _devices_on(self, number: int, flavor: str) -> Sequence[int]:
        node = self._state.nodes[number]
        kinds = node.device_flavors
        return [device for device, kind in enumerate(kinds) if kind == flavor] if kinds else range(node.gpus)

    def _offer(self, task: int, flavor: str, demand: Demand) -> Offer:
        free_at, node = self._soonest(flavor, demand)
        lead_s, now = self._lead_s(task, flavor), self._state.now
        start = now if lead_s else max(now, free_at)
        seconds = self._seconds(task, flavor)
        held = max(start + lead_s, free_at) - start - lead_s  # a task with a CPU phase first may then wait for a GPU
        end = start + self._loading_s(task, flavor) + held + seconds
        return Offer(flavor, start, end, seconds, self._cost(task, flavor), self._idle_bytes(task, node, flavor))

    def _soonest(self, flavor: str, demand: Demand) -> tuple[float, int]:
        """When devices for the demand come free on a node of the flavor, and which one."""
        found = self._found.setdefault(flavor, {})
        if id(demand) not in found:
            found[id(demand)] = min((self._free_at(demand, number, flavor), number) for number in demand.nodes[flavor])
        return found[id(demand)]

    def _free_at(self, demand: Demand, number: int, flavor: str) -> float:
        node, frees = self._state.nodes[number], self._frees[number]
        if demand.gpu_milli < WHOLE_DEVICE:
            kinds = node.device_flavors
            devices = select_devices(seen_as(node, [kind == flavor for kind in kinds]), demand.largest)
            if devices is not None:
                return self._state.now
        return sorted([frees[device] for device in self._devices_on(number, flavor)])[demand.devices - 1]

    def _seconds(self, task: int, flavor: str) -> float:
        state = self._state
        return sum([seconds_on(state, p, flavor)[0] for p in state.phases_of(task)])

    def _lead_s(self, task: int, flavor: str) -> float:
        """Seconds of the phases before the first that needs a GPU."""
        state, seconds = self._state, 0.0
        for phase in state.phases_of(task):
            if state.shape_of(phase).gpu_milli:
                break
            seconds += seconds_on(state, phase, flavor)[0]
        return seconds

    def _loading_s(self, task: int, flavor: str) -> float:
        """What it takes until the task's process is warm, where none of the flavor's nodes has one idle."""
        state, key = self._state, self._state.warm_key_of(task)
        if not key or any(key in state.nodes[number].idle_warm for number in self._nodes[flavor]):
            return 0.0
        return state.options_of(task).warmup_s

    def _cost(self, task: int, flavor: str) -> float:
        state, spec = self._state, self._state.flavors.get(flavor, REFERENCE)
        phases = state.phases_of(task)
        return sum([cost_of(spec, state.shape_of(p), seconds_on(state, p, flavor)[0]) for p in phases])

    def _idle_bytes(self, task: int, number: int, flavor: str) -> int:
        state, node = self._state, self._state.nodes[number]
        if node.gpu_memory_bytes == UNTRACKED:
            return 0
        there = min([node.memory_of(device) for device in self._devices_on(number, flavor)])
        return there - max(state.shape_of(p).gpu_memory_bytes for p in state.phases_of(task))

    # --- objectives ---

    def _delay_s(self, demand: Demand, offer: Offer, best: Mapping[str, float]) -> float:
        """What taking a device of this flavor costs the others: each that is best off there, and comes to wait for
        this very device, ends so much later. best: where the task itself stands in line."""
        if self._objective == "soonest":
            return 0.0
        others = self._lines.get(offer.flavor, 0.0) - best.get(offer.flavor, 0.0)
        return max(others, 0) * demand.devices / self._devices[offer.flavor] * offer.seconds

    def _latest_end_s(self, task: int, offers: Iterable[Offer]) -> float:
        """By when the task must have ended to leave what follows it enough of the time until the deadline."""
        state = self._state
        deadline = state.deadline_of(task)
        if deadline is not None:
            first, end = state.first_phase[task], state.first_phase[task + 1]
            return deadline - (state.rank_s[first] - sum(state.estimate_s[first:end]))
        soonest = min(offer.end_s for offer in offers)
        return state.now + STRETCH * (soonest - state.now)
