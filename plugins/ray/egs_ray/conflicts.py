"""Needs that a task states twice, to Ray and in its hints: they must say the same.

    @ray.remote(num_gpus=2)
    @egs.task(gpus=1)          what EGS says names both, at the first moment at which it sees the two together

`egs.task` runs below `ray.remote`, before there is anything to compare with. For `egs_ray.run` that moment is the
conversion of the graph, and it is an error. In mode `on` it is the first `.remote()` of a script that may run for
hours already: one warning, and what Ray is told counts. Mode `observe` says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from egs_core.errors import InputError
from egs_core.hints import TaskHints
from egs_core.notices import warn

STATED_TWICE = (("num_gpus", "gpus", "gpus"), ("num_cpus", "cpus", "cpus"), ("memory", "memory", "memory_bytes"))
"""Ray's option, the argument of `egs.task`, the field of the hints."""


def check_agreement(place: str, hints: TaskHints, options: Mapping[str, Any]) -> None:
    """Raises InputError when options and hints name different amounts of the same."""
    for error in _disagreements(place, hints, options):
        raise error


def warn_of_disagreement(place: str, hints: TaskHints, options: Mapping[str, Any]) -> None:
    """The same as a warning, for where Ray's number counts."""
    for error in _disagreements(place, hints, options):
        warn(f"{error}; Ray's number counts")


def _disagreements(place: str, hints: TaskHints, options: Mapping[str, Any]) -> Iterator[InputError]:
    for option, argument, field in STATED_TWICE:
        to_ray, hinted = options.get(option), getattr(hints, field)
        if to_ray is not None and hinted is not None and float(to_ray) != float(hinted):
            problem = f"Ray is told {option}={to_ray:g} and egs.task {argument}={hinted:g}"
            yield InputError(place, problem, f"state it once: take out {option} or {argument}")
