"""What history says about a pipeline: how long its tasks take, and how urgent that makes each."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from egs_core.graph.analysis import upward_rank
from egs_core.graph.columns import Graph
from egs_core.predict import Predictor
from egs_core.predict.estimate import signature_of
from egs_kubeflow.convert.pipeline import Converted


class Expected(msgspec.Struct, frozen=True):
    """Of one task as it is written, all its instances. rank_s: seconds of the longest path from its start to the end
    of the pipeline; is_guess: priors are among them. predicted_s: of its own, None where nothing is known of it."""

    rank_s: float
    predicted_s: float | None
    is_guess: bool = False


class Length(msgspec.Struct, frozen=True):
    """Seconds that a task takes: the median, and what 19 of 20 stay below. known: they are more than a prior."""

    p50_s: float
    p95_s: float
    known: bool


def expect(converted: Converted, history: Predictor | None) -> list[Expected]:
    """For each task of the graph. Without a history, hints and what is usual count."""
    graph, lengths = converted.graph, lengths_of(converted, history)
    ranks = upward_rank(graph, [length.p50_s for length in lengths])
    is_guess = [not length.known for length in lengths]
    for task in reversed(range(graph.n_tasks)):  # parents come first
        for parent in graph.parents[task]:
            is_guess[parent] |= is_guess[task]
    return [
        Expected(rank, length.p50_s if length.known else None, guess)
        for rank, length, guess in zip(ranks, lengths, is_guess, strict=True)
    ]


def lengths_of(converted: Converted, history: Predictor | None) -> list[Length]:
    """For each task of the graph, as `expect` takes them."""
    predictor, graph = history or Predictor(), converted.graph
    return [_length(predictor, converted.name, graph, task) for task in range(graph.n_tasks)]


def together(found: Sequence[Expected]) -> Expected:
    """Of several instances of one task: the most urgent; a duration only where all have the same."""
    predicted = {one.predicted_s for one in found}
    own_s = predicted.pop() if len(predicted) == 1 else None
    return Expected(max(one.rank_s for one in found), own_s, any(one.is_guess for one in found))


def _length(predictor: Predictor, pipeline: str, graph: Graph, task: int) -> Length:
    p50_s, p95_s, known = 0.0, 0.0, True
    for number, phase in enumerate(graph.phases_of(task)):
        stated = graph.phase_duration_s[phase]
        if stated == 0.0:
            continue  # nothing runs
        signature = signature_of(pipeline, graph.ids[task], number, graph.shapes[graph.phase_shape[phase]])
        estimate = predictor.estimate(signature, graph.phase_kind[phase], stated)
        p50_s, p95_s = p50_s + estimate.p50_s, p95_s + estimate.p95_s
        known = known and estimate.source in ("history", "hint")
    return Length(p50_s, p95_s, known)
