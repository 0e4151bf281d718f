"""Where a task of an unmodified submission would rather run: its hint `flavors` as labels of Ray's nodes, softly.

    @egs.task(flavors=("A100", "ray.io/market-type=spot"))
        label_selector      {ray.io/accelerator-type: A100}
        fallback_strategy   [{ray.io/market-type: spot}, {}]          at last anywhere: a label of no node holds up none

A name is an accelerator type, `label=value` any label. What a user set by hand about where a task runs wins, untouched.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from egs_core.hints import TaskHints
from egs_ray.gate.ticketing import is_placed_by_hand
from egs_ray.labels import ACCELERATOR

VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
KEY = re.compile(r"([A-Za-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")


def preferred_options(hints: TaskHints, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options to submit the task with, beside its own; none when it has no preference, or its user placed it."""
    if is_placed_by_hand(options) or options.get("scheduling_strategy") == "SPREAD":
        return {}
    selectors = [selector for flavor in hints.flavors if (selector := _selector(flavor))]
    if not selectors:
        return {}
    rest: list[dict[str, str]] = [*selectors[1:], {}]
    return {"label_selector": selectors[0], "fallback_strategy": [{"label_selector": other} for other in rest]}


def _selector(flavor: str) -> dict[str, str]:
    """Empty for what cannot be a label: Ray would refuse the task."""
    key, _, value = flavor.rpartition("=")
    key = key or ACCELERATOR
    return {key: value} if KEY.fullmatch(key) and VALUE.fullmatch(value) else {}
