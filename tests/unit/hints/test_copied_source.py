"""Frameworks that copy a function's source, and what of it they must not see."""

from __future__ import annotations

import inspect
import sys
import textwrap
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

import egs_core as egs
from egs_core.hints import hints_of


@pytest.fixture
def copying(monkeypatch: pytest.MonkeyPatch) -> None:
    """A framework that copies source is imported."""
    monkeypatch.setitem(sys.modules, "airflow", ModuleType("airflow"))


def _train(factor: int = 2, *, note: str = "x") -> Callable[..., int]:
    @egs.task(
        gpus=1,
        max_runtime="2h",
    )
    def train(step: int, *, scale: int = factor) -> int:
        """Trains."""
        if step < 0:
            raise ValueError(note)
        return step * scale

    return train


@pytest.mark.usefixtures("copying")
def test_copied_source_begins_at_def() -> None:
    """What a framework copies has no decorator of ours, and runs in an interpreter without this package."""
    source = textwrap.dedent(inspect.getsource(_train()))
    assert source.startswith("def train(")
    names: dict[str, Any] = {"factor": 3}
    exec(source, names)
    assert names["train"](2) == 6


@pytest.mark.usefixtures("copying")
def test_the_function_itself_stays_as_it_is() -> None:
    """Signature, documentation, hints and the lines of a traceback are those of the user's own code."""
    train = _train()
    assert str(inspect.signature(train)) == "(step: 'int', *, scale: 'int' = 2) -> 'int'"
    assert train.__doc__ == "Trains."
    hints = hints_of(train)
    assert hints is not None
    assert hints.gpus == 1
    with pytest.raises(ValueError, match="x") as caught:
        train(-1)
    line = traceback.extract_tb(caught.tb)[-1].line
    assert line == "raise ValueError(note)"


@pytest.mark.usefixtures("copying")
def test_functions_without_source_keep_their_hints() -> None:
    """Code that came from no file cannot be copied by anybody: it only gets its hints."""
    names: dict[str, Any] = {"egs": egs}
    exec("@egs.task(gpus=1)\ndef made(): pass", names)
    assert not hasattr(names["made"], "__wrapped__")
    assert hints_of(names["made"]) is not None


def test_nothing_is_added_where_nobody_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without such a framework a function gets its hints and nothing else."""
    monkeypatch.delitem(sys.modules, "airflow", raising=False)
    assert not hasattr(_train(), "__wrapped__")
