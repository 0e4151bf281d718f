"""What a holder's session writes down and learns from: the run log, the history, and what is believed of the next run.

None of it may hurt a run: a full disk or a broken store costs one warning, and the session goes on without.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from egs_core.graph.columns import Graph
from egs_core.history import history_from_runlog
from egs_core.history.opened import open_history
from egs_core.history.pending import keep_pending, learn_pending
from egs_core.notices import warn
from egs_core.predict import Predictor
from egs_core.predict.estimate import signature_of
from egs_core.predict.live import Belief
from egs_core.runlog import records as r
from egs_core.runlog.io import FailOpenWriter
from egs_core.site.following import Followed


class Learning:
    """Used on the holder's thread, but for `believe` before the first run, `catch_up`, and `close`.

    path: of the run log; is_whole: nothing of it was lost. history: a database URL, by default the user's. keeps:
    whether it is told what the runs took.
    """

    def __init__(self, path: Path, header: r.Header, history: str | None, *, keeps: bool = True) -> None:
        self.path, self._header, self._keeps = path, header, keeps
        self.is_whole = True
        self._records: dict[str, list[r.Record]] = {}  # by workload, of runs under way
        self._writer: FailOpenWriter | None = None  # from the first line on
        self._history, self._url, self._is_caught_up = open_history(history), history or "", False
        self._predictors: dict[str, Predictor] = {}
        self._followed: dict[str, Followed] = {}  # by workload

    @property
    def is_written(self) -> bool:
        """Whether the run log has a line."""
        return self._writer is not None

    def _lost(self, problem: str) -> None:
        self.is_whole = False
        warn(problem)

    def catch_up(self) -> None:
        """Put what pending run logs tell into the history, once; before a pipeline's first run, which then knows it.
        From any thread but the holder's: it takes as long as these logs are."""
        if self._is_caught_up:
            return
        self._is_caught_up = True
        try:
            learn_pending(self._url)
        except Exception as error:
            warn(f"nothing learned from run logs that are there: {error}")

    def record(self, record: r.Record) -> None:
        workload = getattr(record, "workload", "")
        if workload:
            self._records.setdefault(workload, []).append(record)
        if self._writer is None:
            keep_pending(self.path)
            self._writer = FailOpenWriter(self.path, self._header, self._lost)
        self._writer.write(record)

    def follow(self, workload: str, pipeline: str, graph: Graph, first: int) -> None:
        """Learn from this workload, which is all there, while it runs: see `revised`. first: the site's number of its
        first phase."""
        if Followed.has_likes(graph):
            self._followed[workload] = Followed(pipeline, graph, first, lambda: self._copied(pipeline))

    def revised(self, record: r.Record) -> list[Belief]:
        """What a line of the run log changes of what is believed of phases that have not ended: the site's numbers,
        median and 95th percentile in seconds."""
        followed = self._followed.get(getattr(record, "workload", ""))
        try:
            return followed.take(record) if followed is not None else []
        except Exception as error:
            self._followed.clear()
            warn(f"what runs teaches nothing of what is to come: {error}")
            return []

    def _copied(self, pipeline: str) -> Predictor:
        """With what a run teaches it while it goes on; the pipeline's own learns it when the run is over."""
        return Predictor.from_dict(self.predictor(pipeline).to_dict())

    def believe(
        self, pipeline: str, graph: Graph, signatures: list[str] | None = None, flavors: Sequence[str] = ()
    ) -> Graph:
        """The graph with durations and warm-up times as the history has them, else as hinted; unknown stays unknown.
        signatures: under which each task is in the history, by its index; by default its name. flavors: that there are;
        seconds on each are in it, where the history has them."""
        predictor, signatures = self.predictor(pipeline), graph.names if signatures is None else signatures
        options = dict(graph.options)
        for task in [task for task, found in options.items() if found.warm_key]:
            if (known := predictor.warmup(pipeline, signatures[task])) is not None:
                options[task] = msgspec.structs.replace(options[task], warmup_s=known.p50_s)
        believed_s = predictor.believed_s(graph, pipeline, signatures)
        medians = {
            phase: {**graph.phase_flavor_s.get(phase, {}), **{flavor: p50 for flavor, (p50, _) in found.items()}}
            for phase, found in self.on_flavors(pipeline, graph, flavors, signatures).items()
        }
        on_flavors = {**graph.phase_flavor_s, **medians}
        return msgspec.structs.replace(graph, phase_duration_s=believed_s, options=options, phase_flavor_s=on_flavors)

    def on_flavors(
        self, pipeline: str, graph: Graph, flavors: Sequence[str], signatures: list[str] | None = None
    ) -> dict[int, dict[str, tuple[float, float]]]:
        """Of GPU phases, by their index, median and 95th percentile in seconds on each flavor on which the history
        has them: what is to be told as `FlavorEstimates` beside the graph. signatures: as above."""
        signatures = graph.names if signatures is None else signatures
        predictor, found = self.predictor(pipeline), dict[int, dict[str, tuple[float, float]]]()
        for task in range(graph.n_tasks) if flavors else ():
            for number, phase in enumerate(graph.phases_of(task)):
                shape = graph.shapes[graph.phase_shape[phase]]
                for flavor in flavors if shape.gpu_milli else ():
                    one = predictor.estimate(signature_of(pipeline, signatures[task], number, shape, flavor))
                    if one.source == "history":
                        found.setdefault(phase, {})[flavor] = (one.p50_s, one.p95_s)
        return found

    def spreads(
        self, pipeline: str, graph: Graph, signatures: list[str] | None = None
    ) -> dict[int, tuple[float, float]]:
        """Median and 95th percentile in seconds of the graph's phases that the history knows, by their index: what is
        to be told as `Estimates` beside the graph, which has medians alone. signatures: as above."""
        signatures = graph.names if signatures is None else signatures
        found = self.predictor(pipeline).estimates(graph, pipeline, signatures)
        return {phase: (one.p50_s, one.p95_s) for phase, one in enumerate(found) if one.source == "history"}

    def warmed_up(self, pipeline: str, signature: str, seconds: float) -> None:
        """A process got warm for a task, from cold, in this time."""
        self.predictor(pipeline).observe_warmup(pipeline, signature, seconds)

    def run_over(self, workload: str, pipeline: str) -> None:
        """A run has ended: keep what it took for the next one."""
        self._followed.pop(workload, None)
        records = self._records.pop(workload, [])
        if not self._keeps:
            return
        try:
            rows = history_from_runlog([self._header, *records])
            self._history.record(rows)
            self.predictor(pipeline).learn(rows)
        except Exception as error:
            warn(f"nothing learned from this run: {error}")

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._history.close()

    def predictor(self, pipeline: str) -> Predictor:
        """What has learned the pipeline's history; empty where there is none."""
        if pipeline not in self._predictors:
            try:
                self._predictors[pipeline] = Predictor.from_history(self._history, [pipeline])
            except Exception as error:
                warn(f"no history: {error}")
                self._predictors[pipeline] = Predictor()
        return self._predictors[pipeline]
