"""Tasks with processes to load, and the word that one is loaded."""

from __future__ import annotations

from egs_core.engine import messages as m
from egs_core.graph.columns import TaskOptions
from egs_core.testing.engine_bench import EngineBench

K1 = TaskOptions(warm_key="k1", warmup_s=2.0)
K2 = TaskOptions(warm_key="k2", warmup_s=2.0)


def warm(bench: EngineBench, name: str, at: float | None = None) -> list[m.Decision]:
    preload = bench.preload_of(name)
    return bench.send(m.PreloadReady(preload.task, preload.id), at)
