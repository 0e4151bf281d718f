"""What a simulation runs on and what it assumes."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from egs_core.engine import EngineConfig
from egs_core.engine.specs import FlavorSpec, QueueSpec


class Durations(StrEnum):
    """What the engine is told. Phases always take what the trace says."""

    EXACT = "exact"
    PREDICTED = "predicted"
    BLIND = "blind"


class SimNode(msgspec.Struct, frozen=True):
    """One simulated machine. None for memory: not tracked."""

    name: str
    cpus: float
    gpus: int = 0
    memory_bytes: int | None = None
    gpu_memory_bytes: int | None = None
    preload_slots: int = 2
    process_slots: int = 64
    flavor: str = ""
    topology: tuple[tuple[str, str], ...] = ()


class SimConfig(msgspec.Struct, frozen=True):
    """slots: M equal one-slot places on one node, every phase takes one whatever it asks for; else `nodes`.

    split: phases hold only their own resources; without it a task holds the largest of all of them throughout.
    bandwidth_bytes_per_s: of files between nodes, paid by the reader before it starts; None: instant.
    queues: with their quotas, see `egs_core.queues`; none: nobody is limited.
    failure_rate: chance that a phase fails, at a seeded moment of it. warmup_factor scales all warm-up times.
    preempt: stop running work for lent quota and higher priorities. checkpoint_s: how often a running phase saves what
    it has done (0: never, so a stop loses all of it); restart_s: what going on after a stop costs.
    search_placements: budget of the engine's look-ahead; 0 for none.
    flavors: speeds and prices of the nodes' flavors; objective: by which the engine chooses among them.
    """

    nodes: tuple[SimNode, ...] = ()
    slots: int = 0
    policy: str = "egs"
    durations: Durations = Durations.EXACT
    preload: bool = True
    split: bool = True
    seed: int = 0
    bandwidth_bytes_per_s: float | None = None
    failure_rate: float = 0.0
    warmup_factor: float = 1.0
    default_max_wait_s: float | None = None
    queues: tuple[QueueSpec, ...] = ()
    records: bool = True
    preempt: bool = False
    checkpoint_s: float = 0.0
    restart_s: float = 0.0
    search_placements: int = EngineConfig().search_placements
    flavors: tuple[FlavorSpec, ...] = ()
    objective: str = EngineConfig().objective
