"""A history to audit: on one GPU, leaves that were submitted before a chain on which long CPU work waits."""

from __future__ import annotations

import msgspec

from egs_core.audit.observed import Observed
from egs_core.graph.load import LoadedWorkload
from egs_core.graph.model import Phase, Task, Workload
from egs_core.runlog.records import Header, Record, TaskAdded
from egs_core.sim import SimConfig, SimNode, simulate

NODES = (SimNode("node", 4, 1),)


def workload(leaves: int = 6, seconds: float = 1.0, tail_s: float = 5.0, name: str = "train") -> LoadedWorkload:
    """leaf x n, then step -> step -> step -> tail, all submitted at once in this order."""
    gpu, cpu = Phase(kind="gpu", gpus=1, duration_s=seconds), Phase(duration_s=tail_s)
    tasks = [Task(id=f"leaf{n}", name="leaf", phases=(gpu,)) for n in range(leaves)]
    tasks += [
        Task(id="step0", name="step", phases=(gpu,)),
        Task(id="step1", name="step", parents=("step0",), phases=(gpu,)),
        Task(id="step2", name="step", parents=("step1",), phases=(gpu,)),
        Task(id="tail", parents=("step2",), phases=(cpu,)),
    ]
    return LoadedWorkload(name, name, "", "", 0.0, Workload(id=name, tasks=tuple(tasks)).to_graph())


def ran(policy: str = "fifo", edges_known: bool = True, jobs: int = 1, **options: float) -> Observed:
    """What a run of it left behind, with or without the tasks' parents."""
    workloads = [workload(name=f"train-{n}", **options) for n in range(jobs)]  # type: ignore[arg-type]  # any option
    records = simulate(workloads, SimConfig(nodes=NODES, policy=policy, search_placements=0)).records[1:]
    if not edges_known:
        records = [without_parents(record) for record in records]
    mode = "on" if policy == "egs" else "off"
    return Observed(Header(driver="ray", policy=policy, mode=mode, label="made"), tuple(records), edges_known)


def without_parents(record: Record) -> Record:
    return msgspec.structs.replace(record, parents=()) if isinstance(record, TaskAdded) else record
