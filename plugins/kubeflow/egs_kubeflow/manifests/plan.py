"""When to preload what, for a controller outside of the pipeline, which watches a run and makes a pod in time.

    run starts      decode starts         pod is made                     train needs its GPU
        ├──────────────┼───────── delay_s ────┼──────── takes_s ──────┼ early ─┤ needed_s

A preload begins so long before its task that it is done by the 5 % quantile of the moment at which the task's last
predecessor ends: a pod that is early costs little, a GPU that waits costs much. It is counted from the start of the
nearest task before it that leaves this much time, so that what has gone before it is known and not predicted.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from egs_core.graph.analysis import topological_order
from egs_core.graph.columns import Graph
from egs_core.predict import Predictor
from egs_core.time_estimates import NOW, TimeEstimate, after, latest, length_of
from egs_kubeflow.convert.documents import Documents, checked
from egs_kubeflow.convert.pipeline import Converted, convert_spec
from egs_kubeflow.rewrite.expected import Length, lengths_of
from egs_kubeflow.rewrite.preloads import Preload, select_preloads
from egs_kubeflow.rewrite.profile import PreloadRules

TAKES_S = 120.0
"""How long an image takes where the site does not say: a few GB at some 30 MB/s."""


class Planned(msgspec.Struct, frozen=True):
    """One preload and its moment: delay_s after `after`, a task, has started; "" for the run. All from medians of
    durations, in seconds: needed_s, from the run's start to the task's; late_s: how much later than needed it is
    done. is_guess: of a task before it nothing is known. may_be_skipped: its task runs on a condition only."""

    preload: Preload
    task: str
    also: tuple[str, ...]
    after: str
    delay_s: float
    takes_s: float
    needed_s: float
    late_s: float
    is_guess: bool
    may_be_skipped: bool


class Plan(msgspec.Struct, frozen=True):
    """The preloads of a pipeline, earliest first, and notes: what is not preloaded, and why."""

    pipeline: str
    preloads: tuple[Planned, ...]
    notes: tuple[str, ...]


def plan_preloads(documents: Documents, rules: PreloadRules, history: Predictor | None, place: str) -> Plan:
    """The plan for a pipeline that was written for its site."""
    spec = checked(documents, place)
    converted = convert_spec(spec, {}, place)
    lengths = lengths_of(converted, history)
    starts, last = _starts(converted.graph, lengths)
    preloads, notes = select_preloads(spec, converted, [start[0] for start in starts])
    guesses = _guesses(converted.graph, lengths)
    takes_s = TAKES_S if rules.takes is None else rules.takes
    planned = [_planned(one, converted, lengths, starts, last, guesses, takes_s) for one in preloads]
    return Plan(spec.name, tuple(planned), tuple(notes))


def _starts(graph: Graph, lengths: Sequence[Length]) -> tuple[list[TimeEstimate], list[int]]:
    """When each task may start, with room for everything; and its predecessor that is expected to end last, or -1."""
    starts, ends, last = [NOW] * graph.n_tasks, [NOW] * graph.n_tasks, [-1] * graph.n_tasks
    for task in topological_order(graph):
        for parent in graph.parents[task]:
            if last[task] < 0 or ends[parent][0] > ends[last[task]][0]:
                last[task] = parent
            starts[task] = latest(starts[task], ends[parent])
        ends[task] = after(starts[task], length_of(lengths[task].p50_s, lengths[task].p95_s))
    return starts, last


def _guesses(graph: Graph, lengths: Sequence[Length]) -> list[bool]:
    """Of each task, whether a prior is among the durations before it."""
    found = [False] * graph.n_tasks
    for task in topological_order(graph):
        found[task] = any(found[parent] or not lengths[parent].known for parent in graph.parents[task])
    return found


def _planned(
    preload: Preload,
    converted: Converted,
    lengths: Sequence[Length],
    starts: Sequence[TimeEstimate],
    last: Sequence[int],
    guesses: Sequence[bool],
    takes_s: float,
) -> Planned:
    ids, first = converted.graph.ids, preload.tasks[0]
    begun, delay_s = _moment(converted, lengths, last, first, takes_s)
    facts = [converted.facts[task] for task in preload.tasks]
    return Planned(
        preload,
        ids[first],
        tuple(ids[task] for task in preload.tasks[1:]),
        ids[begun] if begun >= 0 else "",
        delay_s,
        takes_s,
        starts[first][0],
        max(0.0, delay_s + takes_s - starts[first][0]) if begun < 0 else 0.0,
        guesses[first],
        all(one.conditions for one in facts),
    )


def _moment(
    converted: Converted, lengths: Sequence[Length], last: Sequence[int], task: int, takes_s: float
) -> tuple[int, float]:
    """After the start of which task a preload begins, -1 for the run's, and how long after."""
    path, at = NOW, last[task]
    while at >= 0:
        path = after(path, length_of(lengths[at].p50_s, lengths[at].p95_s))
        delay_s = path[0] - path[1] - takes_s
        if last[at] < 0:
            return -1, max(0.0, delay_s)
        if delay_s >= 0 and converted.facts[at].kind == "container":
            return at, delay_s
        at = last[at]
    return -1, 0.0
