"""Needs that a task states twice, to Ray and in its hints: they must say the same.

    @ray.remote(num_gpus=2)
    @egs.task(gpus=1)          an error that names both, at the first moment at which EGS sees the two together

That is `bind` for `egs_ray.run`, and the first `.remote()` in mode `on`: `egs.task` runs below `ray.remote`, before
there is anything to compare with. Mode `observe` says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from egs_core.errors import InputError
from egs_core.hints import TaskHints

STATED_TWICE = (("num_gpus", "gpus", "gpus"), ("num_cpus", "cpus", "cpus"), ("memory", "memory", "memory_bytes"))
"""Ray's option, the argument of `egs.task`, the field of the hints."""


def check_agreement(place: str, hints: TaskHints, options: Mapping[str, Any]) -> None:
    """Raises InputError when options and hints name different amounts of the same."""
    for option, argument, field in STATED_TWICE:
        to_ray, hinted = options.get(option), getattr(hints, field)
        if to_ray is not None and hinted is not None and float(to_ray) != float(hinted):
            problem = f"Ray is told {option}={to_ray:g} and egs.task {argument}={hinted:g}"
            raise InputError(place, problem, f"state it once: take out {option} or {argument}")
