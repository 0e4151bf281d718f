"""Flavors, the kinds of hardware that nodes are made of: what one costs, how fast it is, how long a phase takes there.

    seconds on a flavor = what is believed of the phase on this very flavor, if that is known
                          else the phase's estimate / the flavor's speed      (GPU phases; a CPU phase takes the same)

The estimate of a phase is for the reference, a flavor of speed 1.
"""

from __future__ import annotations

from math import log2

from egs_core.engine.specs import HOUR_S, FlavorSpec
from egs_core.engine.state.state import State
from egs_core.graph.columns import Shape


def seconds_on(state: State, phase: int, flavor: str) -> tuple[float, float]:
    """Median and 95th percentile of the seconds that the phase is believed to take on devices of this flavor."""
    own = state.flavor_estimates.get(phase)
    if own is not None and flavor in own:
        return own[flavor]
    p50, p95 = state.estimate_s[phase], state.estimate_p95_s[phase]
    if flavor not in state.flavors or not state.shape_of(phase).gpu_milli:
        return p50, p95
    speed = state.flavors[flavor].speed
    return p50 / speed, p95 / speed


def p95_on_node(state: State, phase: int, number: int) -> float:
    """The 95th percentile of the phase's seconds on this node, on the slowest of its devices."""
    if not state.flavors and not state.flavor_estimates:
        return state.estimate_p95_s[phase]
    return max([seconds_on(state, phase, flavor)[1] for flavor in state.nodes[number].flavors])


def held_flavor(state: State, phase: int) -> str:
    """Of the devices that the phase holds. Raises KeyError without lease."""
    lease = state.leases[phase]
    return state.nodes[lease.node].flavor_of(lease.devices)


def cost_of(spec: FlavorSpec, shape: Shape, seconds: float) -> float:
    """What holding the shape for so long costs on a flavor."""
    return (spec.gpu_hour * shape.gpu_milli + spec.cpu_hour * shape.cpu_milli) / 1000 * seconds / HOUR_S


def chooses(state: State, task: int) -> bool:
    """Whether it matters to the task where it starts: it has a GPU phase, no process yet that waits somewhere, and may
    have more than some devices of a node."""
    if state.options_of(task).only_on is not None:
        return False
    return task not in state.home and any(state.shape_of(p).gpu_milli for p in state.phases_of(task))


def relative_speeds(state: State, task: int) -> tuple[int, ...]:
    """How the task's time on each flavor compares with the first one's, in quarters of a doubling: tasks that agree in
    that want the same of the cluster."""
    phases = state.phases_of(task)
    seconds = [max(sum([seconds_on(state, p, flavor)[0] for p in phases]), 1e-9) for flavor in state.flavors]
    return tuple([round(4 * log2(s / seconds[0])) for s in seconds])
