"""What the site gets to know of scopes that open, and what follows from a task's place in the pipeline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from egs_core.graph.columns import CPU, Graph, Shape, TaskOptions
from egs_core.notices import warn
from egs_core.site import PRIOR_S
from egs_kubeflow.run.gangs import keep_possible
from egs_kubeflow.run.plan import NOTHING, Plan, Slots
from egs_kubeflow.run.scope import Node, Scope


def block_of(
    scopes: Sequence[Scope], plan: Plan, slots: Slots, first: int, is_whole: bool
) -> tuple[Graph, list[Node | None]]:
    """The tasks of scopes as one block, and whose they are, in its order; None is a join.

    first: how many tasks there were before. is_whole: these are all scopes of their owner, so a gang is whole.
    """
    graph = Graph()
    nodes: list[Node | None] = []
    for scope in scopes:
        places = {name: place for place, name in enumerate(scope.nodes, start=first + graph.n_tasks)}
        for node in scope.nodes.values():
            nodes.append(node)
            phase, options = _expected(node, plan, is_whole)
            parents = tuple(places[parent] for parent in node.parents)
            graph.add_task(node.id, parents, (phase,), name=node.kind, options=options)
        if scope.owner is not None and scope.owner.after_s > 0:
            nodes.append(None)
            graph.add_task(f"{scope.path}end", tuple(places.values()), ((CPU, NOTHING, scope.owner.after_s),))
    if plan.gangs:
        keep_possible(graph, first, slots.cpus, len(slots.devices), warn)
    return graph, nodes


def _expected(node: Node, plan: Plan, is_whole: bool) -> tuple[tuple[int, Shape, float | None], TaskOptions]:
    if plan.is_group(node.spec):
        return (CPU, NOTHING, plan.group_seconds(node.kind, PRIOR_S)), TaskOptions()
    owner, gang = node.scope.owner, plan.gangs.get(node.kind, "") if is_whole else ""
    name = gang and f"{owner.id if owner is not None else ''}/{gang}"
    return plan.phase(node.kind), plan.options(node.kind, name, node.id)


def folder_of(task_id: str, attempt: int) -> str:
    """The name of the folder in which an attempt of a task writes: its id, which may be any text, as a file name."""
    name = quote(task_id, safe="[]")
    name = f"%2E{name[1:]}" if name.startswith(".") else name
    return name if attempt == 1 else f"{name}.attempt{attempt}"


def backoff_s(policy: Any, attempt: int) -> float:
    """How long a task waits after this failed attempt."""
    first_s = policy.backoff_duration.ToTimedelta().total_seconds()
    most_s = policy.backoff_max_duration.ToTimedelta().total_seconds() or math.inf
    return float(min(first_s * (policy.backoff_factor or 1.0) ** (attempt - 1), most_s))
