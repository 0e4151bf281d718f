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


def expect(converted: Converted, history: Predictor | None) -> list[Expected]:
    """For each task of the graph. Without a history, hints and what is usual count."""
    predictor = history or Predictor()
    graph = converted.graph
    estimates = [_estimate(predictor, converted.name, graph, task) for task in range(graph.n_tasks)]
    ranks = upward_rank(graph, [seconds for seconds, _ in estimates])
    is_guess = [not known for _, known in estimates]
    for task in reversed(range(graph.n_tasks)):  # parents come first
        for parent in graph.parents[task]:
            is_guess[parent] |= is_guess[task]
    return [
        Expected(rank, seconds if known else None, guess)
        for rank, (seconds, known), guess in zip(ranks, estimates, is_guess, strict=True)
    ]


def together(found: Sequence[Expected]) -> Expected:
    """Of several instances of one task: the most urgent; a duration only where all have the same."""
    predicted = {one.predicted_s for one in found}
    own_s = predicted.pop() if len(predicted) == 1 else None
    return Expected(max(one.rank_s for one in found), own_s, any(one.is_guess for one in found))


def _estimate(predictor: Predictor, pipeline: str, graph: Graph, task: int) -> tuple[float, bool]:
    """Median seconds of a task, and whether they are more than a prior."""
    seconds, known = 0.0, True
    for number, phase in enumerate(graph.phases_of(task)):
        stated = graph.phase_duration_s[phase]
        if stated == 0.0:
            continue  # nothing runs
        signature = signature_of(pipeline, graph.ids[task], number, graph.shapes[graph.phase_shape[phase]])
        estimate = predictor.estimate(signature, graph.phase_kind[phase], stated)
        seconds += estimate.p50_s
        known = known and estimate.source in ("history", "hint")
    return seconds, known
