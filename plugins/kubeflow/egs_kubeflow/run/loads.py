"""What tasks have loaded before their turn, and which of them can: those whose process may be there before their
arguments are, as it is forked."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from egs_core.code_key import digest_of
from egs_core.graph.columns import Graph
from egs_kubeflow import compat
from egs_kubeflow.convert.documents import Spec
from egs_kubeflow.convert.hints import preloaded
from egs_kubeflow.convert.pipeline import Converted
from egs_kubeflow.run.forked import split_recorder
from egs_kubeflow.run.packages import own_command

PRIOR_WARMUP_S = 2.0
"""How long a process takes to load, before any has."""


@dataclass(frozen=True)
class Loads:
    """modules, files: of one task. recorder: the program that its command is recorded by."""

    modules: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    recorder: str = ""

    @property
    def warm_key(self) -> str:
        return digest_of("\n".join((*self.modules, "", *self.files)))


def loads_of(spec: Spec, converted: Converted) -> tuple[dict[str, Loads], list[str]]:
    """By the path of a task, and a line for tasks whose hint is not kept here."""
    found, lost = {}, []
    for task, facts in zip(converted.graph.ids, converted.facts, strict=True):
        modules, files = preloaded(facts.hints)
        if not modules and not files:
            continue
        container = spec.executors[facts.executor].container
        recorder, command = split_recorder(own_command([*container.command, *container.args]))
        if compat.executor_call(command, "python3") is None or container.env:
            lost.append(task)
        else:
            found[task] = Loads(modules, files, recorder)
    more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
    why = "variables or a container of its own need a process of its own, which starts with its arguments"
    return found, [f"the hint preload of {lost[0]!r}{more} is not kept on this machine: {why}"] if lost else []


def with_loads(graph: Graph, loads: dict[str, Loads]) -> Graph:
    """The graph, its options telling what makes each task's process warm."""
    options = dict(graph.options)
    for number, task in enumerate(graph.ids):
        if task in loads:
            told = {"warm_key": loads[task].warm_key, "warmup_s": PRIOR_WARMUP_S}
            options[number] = msgspec.structs.replace(graph.options_of(number), **told)
        elif graph.options_of(number).warm_key:
            options[number] = msgspec.structs.replace(graph.options_of(number), warm_key="", warmup_s=0.0)
    return msgspec.structs.replace(graph, options=options)
