"""Flavors, the kinds of hardware that nodes are made of: what one costs, how fast it is, how long a phase takes there.

    seconds on a flavor = what is believed of the phase on this very flavor, if that is known
                          else the phase's estimate / the flavor's speed      (GPU phases; a CPU phase takes the same)

The estimate of a phase is for the reference, a flavor of speed 1.
"""

from __future__ import annotations

from math import isfinite, log2
from typing import TYPE_CHECKING

import msgspec

from egs_core.engine.slices import Profile
from egs_core.graph.columns import Shape

if TYPE_CHECKING:
    from egs_core.engine.columns import Columns
    from egs_core.engine.state import State

HOUR_S = 3600.0


class FlavorSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """One flavor. gpu_hour, cpu_hour: price of a device, and of a CPU, for an hour, in any one currency; speed: how
    many times as fast as the reference its devices are. profiles: into which its devices are split (MIG); none: a share
    of a device can be of any size."""

    name: str
    gpu_hour: float = 0.0
    cpu_hour: float = 0.0
    speed: float = 1.0
    profiles: tuple[Profile, ...] = ()

    @property
    def is_sound(self) -> bool:
        """Whether speed and prices can be counted with."""
        prices = self.gpu_hour, self.cpu_hour
        return isfinite(self.speed) and self.speed > 0 and all(isfinite(p) and p >= 0 for p in prices)


REFERENCE = FlavorSpec("")


def seconds_on(state: State, phase: int, flavor: str) -> tuple[float, float]:
    """Median and 95th percentile of the seconds that the phase is believed to take on devices of this flavor."""
    own = state.flavor_estimates.get(phase)
    if own is not None and flavor in own:
        return own[flavor]
    p50, p95 = state.estimate_s[phase], state.estimate_p95_s[phase]
    if flavor not in state.flavors or not state.shapes[state.shape[phase]].gpu_milli:
        return p50, p95
    speed = state.flavors[flavor].speed
    return p50 / speed, p95 / speed


def p95_on_node(state: State, phase: int, number: int) -> float:
    """The 95th percentile of the phase's seconds on this node."""
    if not state.flavors and not state.flavor_estimates:
        return state.estimate_p95_s[phase]
    return seconds_on(state, phase, state.nodes[number].flavor)[1]


def cost_of(spec: FlavorSpec, shape: Shape, seconds: float) -> float:
    """What holding the shape for so long costs on a flavor."""
    return (spec.gpu_hour * shape.gpu_milli + spec.cpu_hour * shape.cpu_milli) / 1000 * seconds / HOUR_S


def price_of(state: Columns, phase: int) -> float:
    """What a phase costs a second, by what it holds now; 0 where no price is known. Raises KeyError without lease."""
    lease = state.leases[phase]
    spec = state.flavors.get(state.nodes[lease.node].flavor)
    if spec is None:
        return 0.0
    return (spec.gpu_hour * lease.gpu_milli * len(lease.devices) + spec.cpu_hour * lease.cpu_milli) / 1000 / HOUR_S


def chooses(state: State, task: int) -> bool:
    """Whether it matters to the task where it starts: it has a GPU phase, and no process yet that waits somewhere."""
    return task not in state.home and any(state.shapes[state.shape[p]].gpu_milli for p in state.phases_of(task))


def relative_speeds(state: State, task: int) -> tuple[int, ...]:
    """How the task's time on each flavor compares with the first one's, in quarters of a doubling: tasks that agree in
    that want the same of the cluster."""
    phases = state.phases_of(task)
    seconds = [max(sum([seconds_on(state, p, flavor)[0] for p in phases]), 1e-9) for flavor in state.flavors]
    return tuple([round(4 * log2(s / seconds[0])) for s in seconds])
