"""Of which flavors a site's GPUs are, and how long runs take on each: from what has ended here.

    host gpu01    A100  A100  T4                    unlike: the engine is told the flavor of each device
    host gpu02    T4    T4                          alike: it is told none, and all is as without flavors

    train.py of ann on 1 GPU      A100: 100 s, 104 s    T4: not seen    ─►  T4: 102 s times what others took there

How long a run takes on a flavor is the median of those of its user, name and GPUs that succeeded there. Where it was
never seen, it is what it took elsewhere times how other runs compare on the two, else how the site's speeds do. What
its user states (`--expect`) is how long it takes on the best of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from egs_core.engine import Engine
from egs_core.engine import messages as m
from egs_core.engine.specs import FlavorSpec
from egs_core.errors import counted
from egs_core.flavor_names import meant
from egs_core.flavors import spec_for
from egs_core.predict.estimate import sample_estimate
from egs_core.server.hosts import OWN, Hosts
from egs_core.server.runs import Device, Refusal, Run
from egs_core.server.views import Views

MOST_SAMPLES = 50  # the newest ones, of a task on a flavor
Key = tuple[str, str, float]  # user, name, GPUs
Estimates = dict[str, tuple[float, float]]  # flavor -> median seconds, 95th percentile


class Learned:
    """Seconds of runs that succeeded, by task and flavor. Only those of devices of one flavor count."""

    def __init__(self) -> None:
        self._seconds: dict[Key, dict[str, deque[float]]] = {}

    def see(self, run: Run) -> bool:
        """Whether something is learned from this end."""
        if run.outcome != "succeeded" or run.is_time_up or not run.flavor or run.inside or run.is_request:
            return False
        if run.started_at is None or run.ended_at is None or run.ended_at <= run.started_at:
            return False
        of_task = self._seconds.setdefault(key_of(run), {})
        of_task.setdefault(run.flavor, deque(maxlen=MOST_SAMPLES)).append(run.ended_at - run.started_at)
        return True

    def estimates(self, run: Run, specs: Sequence[FlavorSpec]) -> Estimates:
        """On each of these flavors; {} where nothing is known of the run."""
        seen = {flavor: _quantiles(found) for flavor, found in self._seconds.get(key_of(run), {}).items()}
        if not seen:
            return {}
        found = {spec.name: seen.get(spec.name) or self._from_others(spec, seen, specs) for spec in specs}
        if run.expected_s is None:
            return found
        best = min(p50 for p50, _ in found.values())
        return {
            flavor: (p50 / best * run.expected_s, p95 / best * run.expected_s) for flavor, (p50, p95) in found.items()
        }

    def _from_others(self, spec: FlavorSpec, seen: Estimates, specs: Sequence[FlavorSpec]) -> tuple[float, float]:
        """On a flavor on which the task was never seen: the median of what each that was seen says."""
        speeds = {one.name: one.speed for one in specs}
        found = []
        for flavor, (p50, p95) in seen.items():
            times = self._times(flavor, spec.name) or speeds.get(flavor, 1.0) / spec.speed
            found.append((p50 * times, p95 * times))
        return median([p50 for p50, _ in found]), median([p95 for _, p95 in found])

    def _times(self, flavor: str, other: str) -> float:
        """How many times as long runs take on the other one; 0.0 where nothing was seen on both."""
        both = [one for one in self._seconds.values() if flavor in one and other in one]
        return median([median(one[other]) / median(one[flavor]) for one in both]) if both else 0.0


def key_of(run: Run) -> Key:
    """Runs of one key are taken to be the same work."""
    return run.user, run.name, run.gpus


def _quantiles(seconds: Iterable[float]) -> tuple[float, float]:
    ranked = sorted(seconds)
    found = sample_estimate(ranked, range(1, len(ranked) + 1))
    return found.p50_s, found.p95_s


def unlike(devices: Sequence[Device]) -> tuple[str, ...]:
    """The flavor of each device, where they are not all of one."""
    flavors = tuple([device.kind for device in devices])
    return flavors if len(set(flavors)) > 1 else ()


def engine_name(host: str, flavor: str) -> str:
    """What the engine calls a flavor. host: "" where there is one only."""
    return f"{host}/{flavor}" if host else flavor


def specs_of(hosts: Mapping[str, Sequence[Device]], specs: Sequence[FlavorSpec]) -> tuple[FlavorSpec, ...]:
    """Of all hosts whose devices are unlike, as the engine is told them. hosts: by the names that it knows."""
    found = []
    for host, devices in hosts.items():
        for flavor in dict.fromkeys(unlike(devices)):
            spec = spec_for(flavor, specs)
            found.append(FlavorSpec(engine_name(host, flavor), spec.gpu_hour, spec.cpu_hour, spec.speed))
    return tuple(found)


def may_have(run: Run, device: Device) -> bool:
    """Whether it wants the flavor, and the device has as much memory as it needs of one."""
    is_meant = not run.flavors or bool(meant(run.flavors, (device.kind,)))
    return is_meant and device.memory_bytes >= run.gpu_memory_bytes


def check_wish(run: Run, devices: Sequence[Device]) -> None:
    """Raises Refusal for flavors that its host does not have, and for several slices."""
    if run.flavors:
        _check_flavors(run, devices)
    if run.gpus > 1:
        _check_slices(run, [device for device in devices if may_have(run, device)])


def _check_flavors(run: Run, devices: Sequence[Device]) -> None:
    if not run.gpus:
        raise Refusal(422, "flavors: does nothing without GPUs")
    there = tuple(dict.fromkeys(device.kind for device in devices))
    for wish in run.flavors:
        if not meant((wish,), there):
            known = ", ".join(name for name in there if name) or "none that is known"
            raise Refusal(422, f"flavors: there is no GPU of flavor {wish!r} here; there are: {known}")
    count = sum(may_have(run, device) for device in devices)
    if run.gpus > count:
        asked = " or ".join(run.flavors) + (" with so much memory" if run.gpu_memory_bytes else "")
        here = f"there {'is' if count == 1 else 'are'} {counted(count, 'GPU')}"
        raise Refusal(422, f"flavors: {here} of flavor {asked} here, and {run.gpus:g} are needed")


def _check_slices(run: Run, able: Sequence[Device]) -> None:
    whole = sum(not device.is_slice for device in able)
    if run.gpus > whole and whole < len(able):
        here = f"there {'is' if whole == 1 else 'are'} {counted(whole, 'whole GPU')} here for that"
        rest = f"{counted(len(able) - whole, 'MIG slice')}, of which a CUDA process sees one only"
        hint = f"ask for --gpus 1, and add --array {run.gpus:g} for as many processes"
        raise Refusal(422, f"gpus: {run.gpus:g} are needed; {here}, and {rest}: {hint}")


class Flavors:
    """Of a site's hosts, as the engine is told them. specs: what the site's file says; learned: how long runs take;
    is_apart: whether the engine tells hosts from each other: each is a flavor of its own then."""

    def __init__(self, engine: Engine, views: Views, hosts: Hosts) -> None:
        self._engine, self._views, self._hosts = engine, views, hosts
        nodes = engine.state.nodes
        self.is_apart = bool(nodes) and nodes[0].flavor != ""
        self.specs: tuple[FlavorSpec, ...] = ()
        self.learned = Learned()

    def take(self, specs: tuple[FlavorSpec, ...], ended: Iterable[Run]) -> None:
        """At the start of a server. ended: runs, oldest first."""
        self.specs, self.learned = specs, Learned()
        for run in ended:
            self.learned.see(run)

    def _prefix(self, host: str) -> str:
        return self._views.name_of(host) if self.is_apart else ""

    def changed(self) -> m.FlavorsChanged | None:
        """What the engine does not know yet."""
        hosts = [OWN, *(host.name for host in self._hosts.joined())]
        told = specs_of({self._prefix(host): self._views.devices_of(host) for host in hosts}, self.specs)
        return None if told == tuple(self._engine.state.flavors.values()) else m.FlavorsChanged(told)

    def of_devices(self, host: str) -> tuple[str, ...]:
        """Of each device of a host where they are unlike, in the engine's names."""
        return tuple([engine_name(self._prefix(host), one) for one in unlike(self._views.devices_of(host))])

    def places(self, run: Run) -> tuple[str, ...]:
        """Where it may start: on its own host, on what it wants there. () for anywhere."""
        devices, host = self._views.devices_of(run.host), self._prefix(run.host)
        flavors = dict.fromkeys(unlike(devices))
        own = meant(run.flavors, flavors) or tuple(flavors)
        if run.gpus > 1:  # a process sees one slice only
            slices = {device.kind for device in devices if device.is_slice}
            own = tuple([flavor for flavor in own if flavor not in slices])
        if len(own) in (0, len(flavors)):
            return (host,) if host else ()
        return tuple([engine_name(host, flavor) for flavor in own])

    def estimates(self, run: Run) -> Estimates:
        """On each flavor of its host, in the engine's names; {} where the devices are alike or nothing is known."""
        flavors = dict.fromkeys(unlike(self._views.devices_of(run.host)))
        if not flavors:
            return {}
        found = self.learned.estimates(run, [spec_for(flavor, self.specs) for flavor in flavors])
        return {engine_name(self._prefix(run.host), flavor): seconds for flavor, seconds in found.items()}

    def told(self, runs: Iterable[Run]) -> m.FlavorEstimates | None:
        """What is known of these, which the engine knows."""
        first = self._engine.state.first_phase
        values = [(first[run.task], name, *times) for run in runs for name, times in self.estimates(run).items()]
        return m.FlavorEstimates(tuple(values)) if values else None

    def held(self, run: Run, devices: Sequence[int]) -> str:
        """The flavor of these devices of its host, where they are of one; "" while it is not told what that has."""
        of_host = self._views.devices_of(run.host)
        found = {of_host[number].kind for number in devices if number < len(of_host)}
        return found.pop() if len(found) == 1 else ""
