"""The rules of an admission policy, evaluated by another implementation of CEL than the API server's."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from egs_core.kubernetes.objects import quantity

Judge = Callable[..., list[str]]
"""What the rules have against an object; of an update, the old one follows."""


def judge(rules: Iterable[tuple[str, str]]) -> Judge:
    """rules: expression and message of each."""
    celpy = pytest.importorskip("celpy", reason="the interpreter of the policies' rules is not installed")
    numbers: dict[str, Any] = {
        "quantity": lambda text: celpy.celtypes.DoubleType(quantity(text)),
        "compareTo": lambda one, other: celpy.celtypes.IntType((one > other) - (one < other)),
        "dyn": lambda found: found,
    }
    environment = celpy.Environment()
    programs = [(message, environment.program(environment.compile(rule), functions=numbers)) for rule, message in rules]

    def found(raw: dict[str, Any], old: dict[str, Any] | None = None) -> list[str]:
        values = {"object": celpy.json_to_cel(raw)} | ({"oldObject": celpy.json_to_cel(old)} if old else {})
        against = []
        for message, rule in programs:
            try:
                passes = bool(rule.evaluate(values))
            except celpy.CELEvalError:  # the policy fails: so does the request
                passes = False
            against += [] if passes else [message]
        return against

    return found
