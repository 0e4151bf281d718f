"""Values that configure: the engine, limits, queues with their quotas, and flavors of hardware with the slices of their
devices."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, isfinite

import msgspec

from egs_core.graph.columns import GIB, LIMITS, ON_LIMIT, Shape
from egs_core.graph.columns import Limits as Limits

FAIL, REQUEUE, END = ON_LIMIT[1:]
SHIPPED = "fgd_fill"  # the packing, unless another is chosen


class EngineConfig(msgspec.Struct, frozen=True):
    """policy: a name of `POLICIES`; preload: whether to plan preloads; default_max_wait_s: `max_wait` of tasks that
    state none (None: they never go forward by age); seed: of the random policy; record: keep transitions.

    preempt: stop running work for lent quota that is wanted back and for higher priorities; only where the driver can
    run a task again. grace_s: for a checkpoint. min_gain_s: do not preempt for a task that would start within
    this time anyway.

    search_placements: what a look-ahead may cost (`search`, seeded too), 0 for none. packing: a name of `PACKINGS`,
    which of the nodes that fit. objective: a name of `OBJECTIVES`, which flavor of hardware where there are several.
    scaling_hints: say how much capacity is needed, for what is to be done within scaling_horizon_s."""

    policy: str = "egs"
    preload: bool = True
    default_max_wait_s: float | None = None
    seed: int = 0
    record: bool = False
    preempt: bool = False
    grace_s: float = 30.0
    min_gain_s: float = 60.0
    search_placements: int = 200_000
    packing: str = SHIPPED
    objective: str = "finish"
    scaling_hints: bool = False
    scaling_horizon_s: float = 600.0


PROCESS_BYTES = GIB // 2  # of a Python process that has imported a library for machine learning


def usual_process_slots(cpus: float, gpus: int, memory_bytes: int | None) -> int:
    """How many processes that keep what they have loaded, or wait for a device, a node of this size should have.

    For each CPU one that computes, for each GPU one that holds it and one that has done its CPU part and is next: with
    fewer a GPU may wait for a CPU part, with more only the memory that they fill grows. Where the memory is known, no
    more than it has room for, at `PROCESS_BYTES` each, but always the two a GPU. memory_bytes of None: not known.
    """
    slots = ceil(cpus) + 2 * gpus
    if memory_bytes is not None:
        slots = min(slots, max(memory_bytes // PROCESS_BYTES, 2 * gpus))
    return max(slots, 1)


NO_LIMITS = Limits()


def limits_in(options: Limits) -> Limits:
    """What the task's own options state."""
    return Limits(**dict(zip(LIMITS, options.stated, strict=True)), on_limit=options.on_limit)


def strictest(first: Limits, second: Limits) -> Limits:
    """Of two limits of a kind the smaller one holds; what is to happen then says the first that says anything."""
    pairs = zip(first.stated, second.stated, strict=True)
    smallest = [min((limit for limit in pair if limit is not None), default=None) for pair in pairs]
    return Limits(**dict(zip(LIMITS, smallest, strict=True)), on_limit=first.on_limit or second.on_limit)


KINDS = ("cpus", "gpus", "memory")
UNLIMITED = 1 << 62
NO_QUEUE = -1
Amounts = tuple[int, int, int]  # cpu_milli, gpu_milli, memory_bytes
NOTHING: Amounts = (0, 0, 0)
NO_LIMIT: Amounts = (UNLIMITED, UNLIMITED, UNLIMITED)


ORDERS = ("remaining_work", "dependents", "arrival")
LEARNED = "learned"  # one of them, as whoever drives the engine tells it; the first until then


class QueueSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """One queue as configured. UNLIMITED in `nominal`: the kind is not limited for this queue.

    borrowing_limit: how much beyond nominal; lending_limit: how much of nominal others may use. cohort "": alone.
    weight: of its fair share; half_life_s: how fast past usage is forgotten in it. max_wait_s: of its tasks that state
    none of their own. limits: of each of its tasks; of the task's own and these the smaller ones hold.
    deadline_s: of its workloads that state none. order: between its workloads, one of ORDERS, or LEARNED.
    """

    name: str
    cohort: str = ""
    nominal: Amounts = NO_LIMIT
    borrowing_limit: Amounts = NO_LIMIT
    lending_limit: Amounts = NO_LIMIT
    weight: float = 1.0
    half_life_s: float = 3600.0
    max_wait_s: float | None = None
    limits: Limits | None = None
    deadline_s: float | None = None
    order: str = "remaining_work"


class AtRisk(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a queue promises and is about to break. waits_s: so soon after its turn a task is to start; ends_s: so soon
    after its submission a workload is to end; share: of how many of them that is promised; why: for who asks."""

    waits_s: tuple[float, ...] = ()
    ends_s: tuple[float, ...] = ()
    share: float = 1.0
    why: str = ""

    def __bool__(self) -> bool:
        return bool(self.waits_s or self.ends_s)


SAFE = AtRisk()


SEVENTHS, EIGHTHS = 7, 8
WHOLE = 1000


class Profile(msgspec.Struct, frozen=True, omit_defaults=True):
    """compute: sevenths of the device; size: positions it takes; starts: positions at which it may begin."""

    name: str
    compute: int
    memory_bytes: int
    size: int
    starts: tuple[int, ...]

    @property
    def gpu_milli(self) -> int:
        """What it takes of the device, rounded so that seven sevenths fit."""
        return WHOLE * self.compute // SEVENTHS

    def covers(self, shape: Shape) -> bool:
        """Whether a share of this shape has room in it; 1/7 is 143 thousandths when it is rounded."""
        enough = shape.gpu_milli <= -(-WHOLE * self.compute // SEVENTHS)
        return enough and shape.gpu_memory_bytes <= self.memory_bytes

    def mask(self, start: int) -> int:
        """The positions it takes, as bits."""
        return ((1 << self.size) - 1) << start

    def masks(self, taken: int) -> Iterator[int]:
        """The masks at which it could be placed now."""
        return (mask for start in self.starts if not taken & (mask := self.mask(start)))


def mig_profiles(device_bytes: int) -> tuple[Profile, ...]:
    """Those of an A100 or H100 with so much memory, and their placements, as NVIDIA's MIG user guide lists them."""
    table = (
        (1, 1, (0, 1, 2, 3, 4, 5, 6)),
        (1, 2, (0, 2, 4, 6)),
        (2, 2, (0, 2, 4)),
        (3, 4, (0, 4)),
        (4, 4, (0,)),
        (7, 8, (0,)),
    )
    per_eighth = device_bytes // EIGHTHS
    return tuple(
        [
            Profile(f"{compute}g.{round(per_eighth * size / GIB)}gb", compute, per_eighth * size, size, starts)
            for compute, size, starts in table
        ]
    )


HOUR_S = 3600.0
AS_FAST = 1.05  # times as long, and a flavor counts as equally fast: what is measured differs by as much by chance
STRETCH = 2.0  # without a deadline a lower price may make a task take so many times as long


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
