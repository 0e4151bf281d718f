"""What a phase changes and the next one has not got is said when a component is made, with its line."""

# kfp reads the annotations of components: they must not be text, so no `from __future__ import annotations`
import inspect
from collections.abc import Callable
from typing import Any

import pytest

import egs_core as egs
from egs_core import notices
from egs_core.hints import TaskHints
from egs_kubeflow.components.phases import parts_of


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A warning that an earlier test has seen comes again."""
    monkeypatch.setattr(notices, "_said", set())


def stateful(n: int) -> float:
    import os
    import random
    from os import chdir, environ

    import numpy as np
    import torch  # nothing of this runs

    random.seed(n)  # here: random.seed
    np.random.seed(n)  # here: numpy.random.seed
    os.environ["LEVEL"] = "3"  # here: os.environ
    if n > 1:
        environ.update(DEPTH="1")  # here: os.environ
        chdir("/tmp")  # here: os.chdir
    torch.backends.cudnn.benchmark = True  # here: torch.backends.cudnn.benchmark
    del os.environ["OLD"]  # here: os.environ
    values = {"a": 1}
    values["b"] = 2
    values.update(c=3)

    def later() -> None:
        random.seed(3)

    with egs.gpu():
        later()
        random.setstate(random.getstate())  # here: random.setstate
        found = random.random() + len(values)
    return max(found, 0.0)


def again(n: int) -> float:
    import random

    random.seed(n)
    with egs.gpu():
        random.seed(n)
        found = random.random()
    return found  # noqa: RET504  # as above


def whole(n: int) -> float:
    import random

    random.seed(n)
    return random.random()


def first(n: int) -> int:
    import warnings

    warnings.simplefilter("ignore")  # here: warnings.simplefilter
    return n


def second(n: int) -> int:
    return abs(n)


def expected(function: Callable[..., Any]) -> list[str]:
    """File and line of each line that has a mark, with what the mark names."""
    lines, start = inspect.getsourcelines(function)
    marks = [(start + number, line.partition("# here: ")[2].strip()) for number, line in enumerate(lines)]
    return [f"egs: {__file__}:{line}: {name} is changed here" for line, name in marks if name]


@pytest.mark.parametrize("function", [stateful, again])
def test_a_block_that_does_not_inherit_state_is_a_warning(
    function: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Calls that are known for it, and what is set on a module, also under another name; not what is set again in the
    block, in a function of the author's own, or on a value, which is handed on; nor where nothing is called after."""
    parts_of(function, TaskHints(gpus=1))
    assert [line.partition(", and each")[0] for line in capsys.readouterr().err.splitlines()] == expected(function)


def test_phase_functions_are_looked_at_too(capsys: pytest.CaptureFixture[str]) -> None:
    """Each is a process of its own; the place is in its author's file."""
    parts_of(egs.phases(first, egs.on_gpu(second)), TaskHints(gpus=1))
    assert capsys.readouterr().err.startswith(expected(first)[0])


def test_what_is_not_split_loses_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """One process, one state."""
    parts_of(egs.task(gpus=1, split=False)(egs.phases(first, egs.on_gpu(second))), TaskHints(gpus=1, split=False))
    assert not capsys.readouterr().err
