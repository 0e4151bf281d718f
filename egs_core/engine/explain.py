"""Why a task is where it is: the blocking rule and its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from egs_core.engine.messages import Moment, Reason, in_seconds
from egs_core.engine.meters import described
from egs_core.engine.order.place_words import chosen_order, passed_by, promise, why_another_goes_first
from egs_core.engine.order.queue import ReadyQueue
from egs_core.engine.rules import quota
from egs_core.engine.rules.deadlines import window_of
from egs_core.engine.rules.fit import (
    devices_of,
    fits_ever,
    fits_task,
    is_allowed,
    lacking,
    own_devices,
    possible_nodes,
    seen_by,
)
from egs_core.engine.rules.flavor_choice import Refused
from egs_core.engine.rules.gangs import index_of, missing_members
from egs_core.engine.rules.processes import has_slot_for
from egs_core.engine.rules.reservation import can_ever_start, queues_with_kept, select_gang
from egs_core.engine.rules.topology import describe_apart, describe_levels, levels_apart, levels_of
from egs_core.engine.specs import NO_QUEUE, Amounts
from egs_core.engine.state.lifecycle import ABORTED, GRANTED, HELD, PENDING, READY, RUNNING, STATUS_NAMES, WARMING
from egs_core.engine.state.metering import task_reaches
from egs_core.engine.state.nodes import UNTRACKED, WHOLE_DEVICE, Node
from egs_core.engine.state.records import QueueState
from egs_core.engine.state.state import State
from egs_core.errors import counted, listed, node_words
from egs_core.graph.columns import GIB, KIND_NAMES, Shape

SHOWN = 5
IN_ITS_ORDER = ("quota", "flavor")  # kinds of waits that end for one after the other of a queue, as in a line for room
NO_SLOT = "every process slot, or the memory for one more, is taken by tasks that have started"


def explain(
    state: State,
    task: int,
    queue: ReadyQueue,
    refused: Mapping[int, Refused],
    waits_for_process: bool,
    moment: Moment = in_seconds,
) -> Reason:
    """The reason for `task`. refused: phases that wait for a better flavor. waits_for_process: the task is kept
    out of the queue until its process is warm. moment: how moments of the engine's clock are written."""
    phase = state.cursor[task]
    status = state.status[phase]
    name, label = state.task_ids[task], STATUS_NAMES[status]
    if state.over_limit and (over := _over_limit(state, task, name, label)):
        return over
    if task in state.stopping:
        return Reason(name, label, "abort", "an abort is under way; it ends when its code has stopped")
    if status == PENDING:
        return _pending(state, task, name)
    if status == READY and state.held_until is not None:
        text = f"what runs already is being told: nothing is granted before {moment(state.held_until)}"
        return Reason(name, label, "start", text)
    if status == READY and waits_for_process:
        return _cold(state, task, name)
    if status == READY:
        bound = _gang(state, task, queue) or _quota(state, task, queue)
        found = bound or _ready(state, task, name, queue, refused, moment)
        order = chosen_order(state, state.queue_of(task), moment) if found.kind in IN_ITS_ORDER else ""
        return msgspec.structs.replace(found, text=found.text + order) if order else found
    if status == HELD and phase in state.paused and (pause := state.pause_of(task)):
        why = f": {pause.reason}" if pause.reason else ""
        return Reason(name, label, "paused", f"paused by {pause.actor or 'operator'} at {moment(pause.at)}{why}")
    if status == HELD:
        tries, until = state.rejections[phase], state.retry_at[phase]
        return Reason(name, label, "rejected", f"its start was refused {_times(tries)}; next try at {moment(until)}")
    if status in (GRANTED, RUNNING):
        lease = state.leases[phase]
        devices = f", devices {list(lease.devices)}" if lease.devices else ""
        where = f"{KIND_NAMES[state.kind[phase]]} phase on {node_words(state.nodes[lease.node].name)}{devices}"
        return Reason(name, label, "", where + _limit_of(state, task, moment))
    why = state.workloads[state.task_workload[task]].over_limit if status == ABORTED else ""
    return Reason(name, label, "limit" if why else "", f"ended: {label}{': ' if why else ''}{why}")


def _over_limit(state: State, task: int, name: str, label: str) -> Reason | None:
    """The limit that the task has reached, while it is being stopped and when it has ended because of that."""
    over = state.over_limit.get(task)
    if over is None:
        return None
    if task in state.recalled:
        return Reason(name, label, "limit", f"{over.text}: it stops, to go on later from its checkpoint")
    if task in state.stopping:
        return Reason(name, label, "limit", f"{over.text}: it ends when its code has stopped")
    return Reason(name, label, "limit", f"ended: {label}: {over.text}")


def _limit_of(state: State, task: int, moment: Moment) -> str:
    """When a running task will reach its limit."""
    reached = task_reaches(state, task) if state.meters else None
    return "" if reached is None else f"; {described(state.meters[task].limits, reached[1])} at {moment(reached[0])}"


def _pending(state: State, task: int, name: str) -> Reason:
    open_parents = [p for p in state.parents[task] if not state.is_done(p)]
    names = tuple([state.task_ids[p] for p in open_parents])
    return Reason(name, "pending", "dependency", f"waits for {listed(names, SHOWN)}", names[:SHOWN])


def _cold(state: State, task: int, name: str) -> Reason:
    if state.warmth[task] == WARMING:
        how = f"its process is being loaded on {node_words(state.nodes[state.home[task]].name)}"
    else:
        how = "no process is warm for it yet: one is about to be left over, or every process slot is taken"
    return Reason(name, "ready", "warming", f"{how}; nothing is held for that")


def _gang(state: State, task: int, queue: ReadyQueue) -> Reason | None:
    """What keeps a gang from starting together; None for a task without one, or when that is not the reason."""
    gang = state.gang_of.get(task)
    if gang is None:
        return None
    phase, name, called = state.cursor[task], state.task_ids[task], state.gangs[gang].name
    missing = missing_members(state, gang, index_of(state, phase), queue.gangs.arrived.get(gang, ()))
    if missing:
        names = tuple([state.task_ids[t] for t in missing])
        text = f"starts together with its gang {called}, which still waits for {listed(names, SHOWN)}"
        return Reason(name, "ready", "gang", text, names[:SHOWN])
    phases = queue.members(queue.leader_of(phase))
    for member in map(state.task_of.__getitem__, phases):
        fitting = [i for i, node in enumerate(state.nodes) if fits_task(state, member, node)]
        if fitting and not any(has_slot_for(state, member, i) for i in fitting):
            return Reason(name, "ready", "process_slots", f"starts together with its gang {called}, and {NO_SLOT}")
    if not can_ever_start(state, phases):
        wanted = describe_shape(Shape(*quota.demand(state, phases)))
        levels, apart = levels_of(state, phases), levels_apart(state, phases)
        where = f", {describe_levels(state, levels)}" if levels else ""
        where += f", {describe_apart(state, apart)}" if apart else ""
        need = "needs" if len(phases) == 1 else "need"
        text = f"the {counted(len(phases), 'phase')} of its gang {called} {need} {wanted} at once{where}"
        text += "; the nodes never have room for that"
        return Reason(name, "ready", "infeasible", text)
    return None


def _quota(state: State, task: int, queue: ReadyQueue) -> Reason | None:
    """Whose quota it is that does not allow the phase, and the numbers; None when quotas are not the reason."""
    number = state.queue_of(task)
    phases = queue.members(queue.leader_of(state.cursor[task]))
    wanted = quota.demand(state, phases)
    never = quota.never_fits(state.queues, number, wanted)
    queues = queues_with_kept(state, phases) if state.reservations else state.queues
    blocked = never or quota.blocked_by(quota.without_turns(queues), number, wanted)
    if blocked is not None and not never:
        blocked = quota.blocked_by(quota.without_turns(queues), number, _but_scarcer(state, number, wanted))
    if blocked is None:
        return None
    spec = state.queues[number].spec
    limit = f"its nominal quota is {_amount(blocked.kind, blocked.nominal)}"
    if len(state.queues[number].cohort) > 1:
        more = _amount(blocked.kind, max(blocked.available, 0))
        limit += f", and {more} more may be used now with what {spec.cohort!r} lends"
    used = "" if never else f" and it uses {_amount(blocked.kind, blocked.used)}"
    if not never and blocked.elsewhere:
        used += f", {_amount(blocked.kind, blocked.elsewhere)} of it in other pools"
    text = f"needs {_amount(blocked.kind, blocked.wanted)}: queue {spec.name!r} has no quota for that, {limit}{used}"
    return Reason(state.task_ids[task], "ready", "infeasible" if never else "quota", text)


def _but_scarcer(state: State, number: int, wanted: Amounts) -> Amounts:
    """Without the kinds of which the queue may use all that the nodes have, and that are short: those are held, and
    with what holds them its quota comes free."""
    if number == NO_QUEUE:
        return wanted
    alive = [node for node in state.nodes if node.alive]
    offered = (
        sum(node.cpu_milli for node in alive),
        sum(node.gpus for node in alive) * WHOLE_DEVICE,
        sum(_tracked(node.memory_bytes) for node in alive),
    )
    empty = [QueueState(queue.spec, queue.cohort) for queue in state.queues]
    queues, cohort = quota.without_turns(state.queues), state.queues[number].cohort
    cpus, gpus, memory = [
        0
        if quota.left_of_quota(empty, number, kind) >= offered[kind]
        and quota.left_of_quota(queues, number, kind) < amount
        and not any(queues[other].elsewhere[kind] for other in cohort)
        else amount
        for kind, amount in enumerate(wanted)
    ]
    return cpus, gpus, memory


def _amount(kind: str, amount: int) -> str:
    return f"{amount / GIB:g} GiB" if kind == "memory" else counted(amount / 1000, kind[:-1].upper())


def _of(flavors: Sequence[str]) -> str:
    return f" of flavor {' or '.join(flavors)}" if flavors else ""


def why_never(state: State, task: int, queue: ReadyQueue) -> Reason | None:
    """What keeps a ready task from ever starting, as nodes and quotas are; None for one that only has to wait. Looks at
    none of those that wait with it."""
    if state.status[state.cursor[task]] != READY or task in state.stopping:
        return None
    reason = _gang(state, task, queue) or _quota(state, task, queue) or _placeless(state, task)
    return reason if reason is not None and reason.kind == "infeasible" else None


def _placeless(state: State, task: int) -> Reason | None:
    """Why no node could run the task if all were empty; None where one could."""
    phase, name = state.cursor[task], state.task_ids[task]
    shape, allowed = state.shape_of(phase), state.options_of(task).flavors
    if allowed and not any(node.alive and is_allowed(state, task, node) for node in state.nodes):
        return Reason(name, "ready", "infeasible", f"there is no node of flavor {' or '.join(allowed)}")
    fitting = _fitting(state, task)
    if fitting:
        return None
    if state.is_first_phase(phase) and any(fits_ever(state.nodes[i], shape) for i in possible_nodes(state, phase)):
        return Reason(name, "ready", "infeasible", f"no one node{_of(allowed)} offers what all its phases need")
    return Reason(name, "ready", "infeasible", describe_lack(state.nodes, shape))


def _fitting(state: State, task: int) -> list[int]:
    """Nodes that could run the task if they were empty."""
    phase = state.cursor[task]
    found = [i for i in possible_nodes(state, phase) if fits_ever(state.nodes[i], state.shape_of(phase))]
    return [i for i in found if fits_task(state, task, state.nodes[i])] if state.is_first_phase(phase) else found


def _ready(
    state: State, task: int, name: str, queue: ReadyQueue, refused: Mapping[int, Refused], moment: Moment
) -> Reason:
    if (never := _placeless(state, task)) is not None:
        return never
    phase = state.cursor[task]
    shape, fitting, ahead = state.shape_of(phase), _fitting(state, task), queue.ahead_of(phase)
    if phase in refused:
        return Reason(name, "ready", "flavor", refused[phase].text(moment))
    seen = {i: seen_by(state, task, state.nodes[i]) for i in fitting}
    room = [i for i in fitting if not lacking(seen[i], shape)]
    missing = "; ".join(_missing(seen[i], shape, own_devices(state, task, state.nodes[i])) for i in fitting[:SHOWN])
    names = tuple(state.task_ids[state.task_of[p]] for p in ahead[:SHOWN])
    in_line = f"; {len(ahead)} ahead of it, first {', '.join(names)}" if ahead else "; it is first in the queue"
    in_line += why_another_goes_first(state, queue, phase, ahead[0]) if ahead else ""
    phases = queue.members(queue.leader_of(phase))
    in_line += passed_by(state, queue, phases, moment) if not ahead else ""
    in_line += chosen_order(state, state.queue_of(task), moment)
    in_line += _deadline(state, phases, moment) + promise(state, queue, phases, moment) if state.has_deadlines else ""
    kind = "capacity" if not room else "reservation"
    if not room and (scattered := _scattered([state.nodes[i] for i in fitting], shape)):
        kind, missing = "fragment", f"{scattered}: {missing}"
    is_some = any(seen[i] is not state.nodes[i] for i in fitting)
    needs = f"needs {describe_shape(shape)}{_of(state.options_of(task).flavors) if is_some else ''}"
    if kept := _kept_for(state, phases, room, moment):
        missing = kept
    elif room and len(phases) > 1 and select_gang(state, phases) is None:
        total = Shape(*quota.demand(state, phases))
        needs += f", and its gang {state.gangs[state.gang_of[task]].name} {describe_shape(total)} at once"
        if apart := levels_apart(state, phases):
            needs += f", {describe_apart(state, apart)}"
        kind, missing = "capacity", _missing_for_all([state.nodes[i] for i in fitting[:SHOWN]], total)
    if room and state.is_first_phase(phase) and not any(has_slot_for(state, task, i) for i in room):
        kind, missing = "process_slots", f"room is there, but {NO_SLOT}"
    return Reason(name, "ready", kind, f"{needs}: {missing}{in_line}", names, in_line)


def _deadline(state: State, phases: Sequence[int], moment: Moment) -> str:
    """Until when it must start to be in time, or that it is too late for that."""
    window = window_of(state, phases)
    if window is None:
        return ""
    if state.now >= window.too_late_at:
        late_s = state.now - window.too_late_at
        return f"; it cannot meet its deadline at {moment(window.deadline)} any more: {late_s:.3f} s too late"
    return f"; must start by {moment(window.latest_start)} to meet its deadline at {moment(window.deadline)}"


def _kept_for(state: State, phases: Sequence[int], room: Sequence[int], moment: Moment) -> str:
    """For whom the room is kept, and from when on."""
    for owner, kept in state.reservations.items():
        nodes = {n for _, n in kept.places}
        if owner not in phases and not nodes.isdisjoint(room):
            task = state.task_of[owner]
            who = f"gang {state.gangs[state.gang_of[task]].name}" if task in state.gang_of else state.task_ids[task]
            where = ", ".join(node_words(state.nodes[n].name) for n in sorted(nodes)[:SHOWN])
            kept_for = f"kept for {who} on {where} from {moment(kept.at)} on"
            return f"room is there, but {kept_for}, and it would not have ended by then"
    return ""


def _scattered(nodes: Sequence[Node], shape: Shape) -> str:
    """What is free on all of these nodes together, when that would do: no one of them has it. "" when it would not."""
    free_cpu, free_memory, free_gpu = 0, 0, 0
    for node in nodes:
        free_cpu += max(node.free_cpu, 0)
        free_memory += max(node.free_memory, 0)
        free_gpu += sum(max(free, 0) for free in node.devices[: node.gpus])
    is_tracked = all(node.memory_bytes != UNTRACKED for node in nodes)
    is_enough = free_cpu >= shape.cpu_milli and free_gpu >= shape.gpu_milli
    if len(nodes) < 2 or not is_enough or (is_tracked and free_memory < shape.memory_bytes):
        return ""
    free = Shape(free_cpu * bool(shape.cpu_milli), free_gpu * bool(shape.gpu_milli))
    return f"{describe_shape(free)} are free on {len(nodes)} nodes together, on none of them enough"


def describe_lack(nodes: Sequence[Node], shape: Shape) -> str:
    """What a phase needs that no node offers even when it is empty, and the most that any of them has of it."""
    alive = [node for node in nodes if node.alive]
    offers: list[tuple[float, list[float], int, str]] = [
        (shape.cpu_milli, [node.cpu_milli for node in alive], 1000, "CPU"),
        (devices_of(shape), [node.gpus for node in alive], 1, "GPU"),
        (shape.memory_bytes, [_tracked(node.memory_bytes) for node in alive], GIB, "GiB"),
        (shape.gpu_memory_bytes, [_tracked(node.gpu_memory_bytes) for node in alive], GIB, "GiB of GPU memory"),
    ]
    tops = [(needs, max([0.0, *has]), unit, name) for needs, has, unit, name in offers]
    short = [
        f"{top / unit:g} {name}" if unit == GIB else counted(top / unit, name)
        for needs, top, unit, name in tops
        if needs > top
    ]
    most = f"no node has more than {' and '.join(short)}" if short else "no one node offers that together"
    return f"needs {describe_shape(shape)}; {most}: it fits nowhere"


def _tracked(amount: int) -> float:
    """An amount of memory; without end where a node does not tell."""
    return float("inf") if amount == UNTRACKED else amount


def describe_shape(shape: Shape) -> str:
    """An amount of resources in words."""
    parts = []
    if shape.cpu_milli:
        parts.append(counted(shape.cpu_milli / 1000, "CPU"))
    if shape.gpu_milli:
        parts.append(counted(shape.gpu_milli / 1000, "GPU"))
    if shape.memory_bytes:
        parts.append(f"{shape.memory_bytes / GIB:g} GiB")
    if shape.gpu_memory_bytes:
        parts.append(f"{shape.gpu_memory_bytes / GIB:g} GiB of GPU memory")
    return ", ".join(parts) or "nothing"


def _missing_for_all(nodes: Sequence[Node], total: Shape) -> str:
    """What keeps a gang, one of which has room, from starting: no node may lack anything when they are taken apart."""
    texts = [_missing(node, total, node.gpus) for node in nodes if lacking(node, total)]
    return "; ".join(texts) or "there is room for each of them, but not for all"


def _missing(node: Node, shape: Shape, gpus: int) -> str:
    """gpus: how many of its own may be had."""
    if 0 < shape.gpu_milli < WHOLE_DEVICE and lacking(node, shape) == "gpus":
        return f"{node_words(node.name)} has {_most_free(node, shape)}"
    whole = sum(free == WHOLE_DEVICE for free in node.devices[: node.gpus])
    free = {
        "": "room",
        "cpus": f"{node.free_cpu / 1000:g} of {counted(node.cpu_milli / 1000, 'CPU')} free",
        "memory": f"{node.free_memory / GIB:g} of {node.memory_bytes / GIB:g} GiB free",
        "gpus": f"{whole} of {counted(gpus, 'GPU')} wholly free",
    }
    drained = f" ({len(node.drained)} drained)" if node.drained and lacking(node, shape) == "gpus" else ""
    return f"{node_words(node.name)} has {free[lacking(node, shape)]}{drained}"


def _most_free(node: Node, shape: Shape) -> str:
    """What is free of the device that has most of it."""
    devices = range(node.gpus)
    if shape.gpu_memory_bytes and node.gpu_memory_bytes != UNTRACKED:
        most = max((node.device_memory[i] * (node.devices[i] > 0) for i in devices), default=0)
        return f"no GPU with more than {most / GIB:g} GiB free"
    return f"no GPU of which more than {max((node.devices[i] for i in devices), default=0) / 1000:g} is free"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
