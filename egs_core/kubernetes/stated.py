"""What a pod states of how much its task, its stage and its run may use.

    of the task     annotation egs.io/hints          {"max_runtime_s": 7200, "max_gpu_s": 3600}, as compilers write it
    of its stage    annotation egs.io/stage-limits   {"max_runtime": "2h"}, in the words of hints and queue files
    of its run      annotation egs.io/run-limits     {"max_gpu_time": "8h"}

What cannot be read is not stated, and said: a limit that somebody mistyped keeps no pod from being ordered.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import msgspec

from egs_core.engine.specs import NO_LIMITS, Limits
from egs_core.errors import InputError
from egs_core.hint_checks import check_limit
from egs_core.kubernetes import names

KEPT = {"max_runtime": "max_runtime_s", "max_gpu_time": "max_gpu_s"}
"""The limits that are kept in a cluster, by the names that users give them."""


class Stated(msgspec.Struct, frozen=True):
    """own: of the task, in one attempt and in all of them; stage, run: of all their pods together. fault: what cannot
    be read, and where."""

    own: Limits = NO_LIMITS
    stage: Limits = NO_LIMITS
    run: Limits = NO_LIMITS
    fault: str = ""


NOTHING = Stated()


def stated_of(notes: Mapping[str, object], hints: Mapping[str, object]) -> Stated:
    """notes: the pod's annotations; hints: those that it has there."""
    of_task = {name: hints[field] for name, field in KEPT.items() if hints.get(field) is not None}
    if not of_task and names.RUN_LIMITS not in notes and names.STAGE_LIMITS not in notes:
        return NOTHING
    faults: list[str] = []
    own = _limits(of_task, names.HINTS, faults)
    stage, run = (
        _limits(_object(notes[key], key, faults), key, faults) if key in notes else NO_LIMITS
        for key in (names.STAGE_LIMITS, names.RUN_LIMITS)
    )
    return Stated(own, stage, run, "; ".join(faults))


def _object(text: object, key: str, faults: list[str]) -> Mapping[str, object]:
    try:
        found = json.loads(str(text))
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        return found
    faults.append(f'{key}: is no object of JSON: for example {{"max_runtime": "2h"}}')
    return {}


def _limits(stated: Mapping[str, object], key: str, faults: list[str]) -> Limits:
    found: dict[str, float] = {}
    for name, value in stated.items():
        if name not in KEPT:
            faults.append(f"{key}: {name} is no limit that is kept in a cluster: {', '.join(KEPT)}")
            continue
        try:
            found[KEPT[name]] = check_limit(value, f"{key}: {name}")
        except InputError as error:
            faults.append(str(error))
    return Limits(found.get("max_runtime_s"), found.get("max_gpu_s"))
