"""Tasks that must run together: counted over their loops, labelled, and never answered by kfp's cache.

A gang waits for all its pods, and a cached member makes none. Kueue's pod groups are named per run, which a compiled
pipeline is not: they are written where the caller names the run, as `Client` does; else a controller makes them from
the label `egs.io/gang` and the annotation `egs.io/gang-size`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from egs_kubeflow.convert.pipeline import TaskFacts
from egs_kubeflow.rewrite.changes import Log, default_of
from egs_kubeflow.rewrite.task import QUEUE, Written, label_value

GANG, GANG_SIZE = "egs.io/gang", "egs.io/gang-size"
POD_GROUP, POD_GROUP_SIZE = "kueue.x-k8s.io/pod-group-name", "kueue.x-k8s.io/pod-group-total-count"


class Gang(msgspec.Struct, frozen=True):
    """A gang and how many pods it has."""

    name: str
    size: int


def gangs_of(instances: Sequence[TaskFacts], log: Log) -> dict[str, Gang]:
    """The gangs of a pipeline by name. One whose size only a run knows, or that cannot be whole, is noted instead."""
    sizes: dict[str, int | None] = {}
    for facts in instances:
        name, width = facts.hints.gang, facts.width
        if not name:
            continue
        before = sizes.get(name, 0)
        whole = all(not loop.parallel or loop.width is None or loop.parallel >= loop.width for loop in facts.loops)
        sizes[name] = None if before is None or width is None or not whole else before + width
    for name, size in sizes.items():
        if size is None:
            log.note(
                f"gang {name!r}", "is not started together: its size is not known, or its loop runs a part at once"
            )
    _note_defaults(instances, {name for name, size in sizes.items() if size}, log)
    return {name: Gang(name, size) for name, size in sizes.items() if size}


def _note_defaults(instances: Sequence[TaskFacts], gangs: set[str], log: Log) -> None:
    found: dict[str, set[str]] = {}
    for facts in instances:
        if facts.hints.gang in gangs:
            found.setdefault(facts.hints.gang, set()).update(n for loop in facts.loops for n in loop.defaulted)
    for gang, parameters in found.items():
        if parameters and not log.is_final:
            log.note(f"gang {gang!r}", f"its size is by the {default_of(sorted(parameters))}")


def write_gang(task: Written, gang: Gang, written_task: Any, workload: str, run_id: str) -> None:
    """Label one member, and switch its cache off."""
    reason = f"one of {gang.size} of gang {gang.name!r}, for a scheduler that starts them together"
    task.label(GANG, label_value(gang.name), reason)
    _annotate(task, GANG_SIZE, str(gang.size), reason)
    caching = written_task.caching_options
    if caching.enable_cache:
        task.log.change(task.id, "caching", True, False, "a cached member makes no pod, and its gang would wait for it")
        caching.enable_cache = False
    metadata = task.config.pod_metadata
    if run_id and QUEUE in metadata.labels and POD_GROUP not in metadata.labels:
        task.label(POD_GROUP, label_value(f"{workload}-{gang.name}-{run_id}"), reason)
        _annotate(task, POD_GROUP_SIZE, str(gang.size), reason)


def _annotate(task: Written, key: str, value: str, reason: str) -> None:
    annotations = task.config.pod_metadata.annotations
    task.log.change(task.id, f"annotation {key}", annotations.get(key), value, reason)
    annotations[key] = value
