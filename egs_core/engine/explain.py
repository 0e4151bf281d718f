"""Why a task is where it is: the blocking rule and its numbers."""

from __future__ import annotations

from collections.abc import Sequence

from egs_core.engine.lifecycle import GRANTED, HELD, PENDING, READY, RUNNING, STATUS_NAMES, WARM, WARMING
from egs_core.engine.messages import Reason
from egs_core.engine.placement import fits_ever, lacking
from egs_core.engine.state import Node, State
from egs_core.graph.columns import KIND_NAMES, Shape

SHOWN = 5


def explain(state: State, task: int, ahead: Sequence[int]) -> Reason:
    """The reason for `task`; `ahead` are the phases queued before its current one, first first."""
    phase = state.cursor[task]
    status = state.status[phase]
    name = state.task_ids[task]
    label = STATUS_NAMES[status]
    if status == PENDING:
        return _pending(state, task, name, label)
    if status == READY:
        return _ready(state, task, phase, name, ahead)
    if status == HELD:
        tries, until = state.rejections[phase], state.retry_at[phase]
        return Reason(name, label, "rejected", f"its start was refused {tries} times; next try at {until:.3f} s")
    if status in (GRANTED, RUNNING):
        lease = state.leases[phase]
        devices = f", devices {list(lease.devices)}" if lease.devices else ""
        where = f"{KIND_NAMES[state.kind[phase]]} phase on {state.nodes[lease.node].name}{devices}"
        return Reason(name, label, "", where)
    return Reason(name, label, "", f"ended: {label}")


def _pending(state: State, task: int, name: str, label: str) -> Reason:
    open_parents = [p for p in state.parents[task] if not state.is_done(p)]
    names = tuple(state.task_ids[p] for p in open_parents[:SHOWN])
    more = f" and {len(open_parents) - SHOWN} more" if len(open_parents) > SHOWN else ""
    return Reason(name, label, "dependency", f"waits for {', '.join(names)}{more}", names)


def _ready(state: State, task: int, phase: int, name: str, ahead: Sequence[int]) -> Reason:
    shape = state.shapes[state.shape[phase]]
    fitting = [node for node in state.nodes if fits_ever(node, shape)]
    if not fitting:
        return Reason(name, "ready", "infeasible", f"needs {_describe(shape)}; no node offers that at all")
    options = state.options.get(task)
    if options is not None and options.warm_key and state.warmth[task] != WARM and all(lacking(n, shape) == "" for n in fitting):
        how = "is being loaded" if state.warmth[task] == WARMING else "waits for a free process slot"
        return Reason(name, "ready", "warming", f"its process {how}; no GPU is held for that")
    missing = "; ".join(_missing(node, shape) for node in fitting[:SHOWN])
    names = tuple(state.task_ids[state.task_of[p]] for p in ahead[:SHOWN])
    queue = f"; {len(ahead)} ahead of it, first {', '.join(names)}" if ahead else "; it is first in the queue"
    return Reason(name, "ready", "capacity", f"needs {_describe(shape)}: {missing}{queue}", names)


def _describe(shape: Shape) -> str:
    parts = []
    if shape.cpu_milli:
        parts.append(f"{shape.cpu_milli / 1000:g} CPUs")
    if shape.gpu_milli:
        parts.append(f"{shape.gpu_milli / 1000:g} GPUs")
    if shape.memory_bytes:
        parts.append(f"{shape.memory_bytes / 1024**3:g} GiB")
    return ", ".join(parts) or "nothing"


def _missing(node: Node, shape: Shape) -> str:
    kind = lacking(node, shape)
    free = {
        "": "room is there, what is ahead takes it or a reservation keeps it",
        "cpus": f"{node.free_cpu / 1000:g} of {node.cpu_milli / 1000:g} CPUs free",
        "memory": f"{node.free_memory / 1024**3:g} GiB free",
        "gpus": f"{sum(d == 1000 for d in node.devices)} of {len(node.devices)} GPUs wholly free",
    }
    return f"{node.name} has {free[kind]}" if kind else f"{node.name}: {free['']}"
