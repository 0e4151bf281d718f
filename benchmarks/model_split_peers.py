"""What `model_split` is held against, on the same instances: rules that others use, and CP-SAT as a reference.

None of them knows the loss; what they give is evaluated by it. An assignment that does not fit is None.
"""

from __future__ import annotations

import contextlib
import io
import logging
import math
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from itertools import combinations
from typing import Any

import msgspec
import numpy as np

from egs_core.model import Instance, Objective, evaluate
from egs_core.model.loss import used_bytes

TICKS = 1_000_000
"""Of the solver's clock, in the seconds of all operators."""


def even_layers(instance: Instance, _objective: Objective) -> list[int] | None:
    """As many operators on each device, in order; where a device is full the next one begins earlier."""
    order, devices = instance.operators.order, instance.devices.devices
    assignment, d, left = [0] * len(order), 0, devices[0].memory
    for p, i in enumerate(order):
        size = instance.operators.sizes[i]
        while d + 1 < len(devices) and (p >= (d + 1) * len(order) / len(devices) or size > left):
            d, left = d + 1, devices[d + 1].memory
        if size > left:
            return None
        assignment[i], left = d, left - size
    return assignment


def chain(instance: Instance, objective: Objective) -> list[int] | None:
    """PipeDream's dynamic program: the order as a chain, cut into runs for the devices in their order, some left out;
    the least of the slowest stage or link (`stream`), or of their sum (`request`). Not more than 400 places to cut."""
    operators, devices = instance.operators, instance.devices.devices
    count = len(operators.ids)
    place = {i: p for p, i in enumerate(operators.order)}
    crossing_s = np.zeros(count + 1)
    for source, target, size in operators.edges:
        crossing_s[place[source] + 1 : place[target] + 1] += instance.devices.transfer_s(size)
    cuts = np.unique(np.linspace(0, count, min(count, 400) + 1).astype(int))
    at_s = np.concatenate([[0.0], np.cumsum([operators.seconds[i] for i in operators.order])])[cuts]
    at_bytes = np.concatenate([[0], np.cumsum([operators.sizes[i] for i in operators.order])])[cuts]
    best, chosen = np.full(len(cuts), math.inf), list[list[tuple[int, bool]]]()
    best[0] = 0.0
    for device in devices:
        run_s = (at_s[None, :] - at_s[:, None]) / device.speed
        fits = (at_bytes[None, :] - at_bytes[:, None] <= device.memory) & (cuts[None, :] > cuts[:, None])
        begin_s, cut_s = best[:, None], np.where(cuts > 0, crossing_s[cuts], 0.0)[:, None]
        ways = begin_s + run_s + cut_s if objective == "request" else np.maximum(np.maximum(begin_s, run_s), cut_s)
        ways = np.where(fits, ways, math.inf)
        came, with_it = ways.argmin(axis=0), ways.min(axis=0)
        chosen.append([(int(came[j]), bool(with_it[j] < best[j])) for j in range(len(cuts))])
        best = np.minimum(best, with_it)
    if not math.isfinite(best[-1]):
        return None
    assignment, j = [0] * count, len(cuts) - 1
    for d in range(len(devices) - 1, -1, -1):
        came_from, is_used = chosen[d][j]
        if is_used:
            for p in range(cuts[came_from], cuts[j]):
                assignment[operators.order[p]] = d
            j = came_from
    return assignment


def accelerate_map(instance: Instance, _objective: Objective) -> list[int] | None:
    """`accelerate.infer_auto_device_map` on a module that has the operators, in order, as children with parameters of
    their bytes; on the meta device, so nothing is allocated. What it sends to CPU or disk does not fit."""
    torch: Any = import_module("torch")
    infer = import_module("accelerate").infer_auto_device_map
    logging.getLogger("accelerate").setLevel(logging.ERROR)
    operators = instance.operators

    class Operator(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]  # torch may be missing
        def __init__(self, size: int) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.empty(size, dtype=torch.int8, device="meta"), requires_grad=False)

    model = torch.nn.Sequential(*[Operator(operators.sizes[i]) for i in operators.order])
    most: dict[int | str, int] = {d: device.memory for d, device in enumerate(instance.devices.devices)}
    most["cpu"] = 0
    with contextlib.redirect_stderr(io.StringIO()):
        found: dict[str, int | str] = infer(model, max_memory=most, no_split_module_classes=["Operator"])
    assignment = [0] * len(operators.ids)
    for p, i in enumerate(operators.order):
        d = found.get(str(p), found.get("", "disk"))
        if not isinstance(d, int):
            return None
        assignment[i] = d
    return assignment


def peers() -> dict[str, Any]:
    """All that can run here."""
    found = {"even layers": even_layers, "chain DP (PipeDream)": chain}
    if find_spec("accelerate") is not None and find_spec("torch") is not None:
        found["accelerate"] = accelerate_map
    return found


class Reference(msgspec.Struct):
    """The solver's assignment and what the loss is at least, in seconds."""

    assignment: list[int]
    bound: float
    is_best: bool


def solve(
    instance: Instance, objective: Objective, hint: Sequence[int], limit_s: float, workers: int
) -> Reference | None:
    """CP-SAT's best assignment, begun from the hint; None without one in time. Its ticks are rounded down, so that its
    bound holds."""
    cp_model: Any = import_module("ortools.sat.python.cp_model")
    operators, devices = instance.operators, instance.devices.devices
    tick_s = operators.total_s / TICKS
    model, width = cp_model.CpModel(), range(len(devices))
    on = [[model.new_bool_var(f"{i}on{d}") for d in width] for i in range(len(operators.ids))]
    for i, row in enumerate(on):
        model.add_exactly_one(row)
        for d in width:
            model.add_hint(row[d], int(hint[i] == d))
    used = [model.new_bool_var(f"used{d}") for d in width]
    for d in width:
        model.add(sum(size * row[d] for size, row in zip(operators.sizes, on, strict=True)) <= devices[d].memory)
        model.add_max_equality(used[d], [row[d] for row in on])
    took = [[int(seconds / device.speed / tick_s) for device in devices] for seconds in operators.seconds]
    sent = [int(instance.devices.transfer_s(size) / tick_s) for _, _, size in operators.edges]
    horizon = sum(map(max, took)) + sum(sent)
    t = model.new_int_var(0, horizon, "T")
    (_add_request if objective == "request" else _add_stream)(model, instance, on, took, sent, t)
    idle = [int(0.01 * TICKS * device.memory / instance.devices.total_memory) for device in devices]
    model.minimize(t + sum(ticks * one for ticks, one in zip(idle, used, strict=True)))
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = limit_s
    solver.parameters.num_workers = workers
    solver.parameters.random_seed = 1
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    found = [next(d for d in width if solver.value(row[d])) for row in on]
    whole = 0.01 * operators.total_s * operators.total_bytes / instance.devices.total_memory
    return Reference(found, solver.best_objective_bound * tick_s - whole, status == cp_model.OPTIMAL)


def _add_request(model: Any, instance: Instance, on: Any, took: Any, sent: list[int], t: Any) -> None:
    operators, width = instance.operators, range(len(instance.devices.devices))
    horizon = sum(map(max, took)) + sum(sent)
    end = [model.new_int_var(0, horizon, f"end{i}") for i in range(len(on))]
    runs = [sum(took[i][d] * on[i][d] for d in width) for i in range(len(on))]
    for i in range(len(on)):
        model.add(end[i] >= runs[i])
        model.add(t >= end[i])
    for i, j in combinations(operators.order, 2):
        for d in width:
            model.add(end[j] >= end[i] + took[j][d]).only_enforce_if(on[i][d], on[j][d])
    for (i, j, _), ticks in zip(operators.edges, sent, strict=True):
        together = _together(model, on, i, j, width)
        model.add(end[j] >= end[i] + runs[j] + ticks * (1 - sum(together)))


def _add_stream(model: Any, instance: Instance, on: Any, took: Any, sent: list[int], t: Any) -> None:
    operators, width = instance.operators, range(len(instance.devices.devices))
    for d in width:
        model.add(t >= sum(took[i][d] * on[i][d] for i in range(len(on))))
    carried: dict[tuple[int, int], list[Any]] = {}
    for (i, j, _), ticks in zip(operators.edges, sent, strict=True):
        for a in width:
            for b in width:
                if a != b:
                    over = model.new_bool_var("")
                    model.add(over >= on[i][a] + on[j][b] - 1)
                    carried.setdefault((a, b), []).append(ticks * over)
    for parts in carried.values():
        model.add(t >= sum(parts))


def _together(model: Any, on: Any, i: int, j: int, width: range) -> list[Any]:
    """One for each device: whether both are on it."""
    found = []
    for d in width:
        both = model.new_bool_var("")
        model.add(both <= on[i][d])
        model.add(both <= on[j][d])
        found.append(both)
    return found


def loss_of(instance: Instance, assignment: Sequence[int] | None, objective: Objective) -> float | None:
    """The loss, None where there is no assignment that fits."""
    if assignment is None:
        return None
    used = used_bytes(instance, assignment)
    assert all(u <= device.memory for u, device in zip(used, instance.devices.devices, strict=True))
    return evaluate(instance, assignment, objective).loss
