"""How a GPU step of `egs.phases` is run is the provider's choice; that it holds the GPU meanwhile is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import egs_core as egs
from egs_core.hints import gpu_provider


class Lender:
    """Notes what is asked of it, in order."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def acquire(self, _cpus: float | None = None) -> tuple[int, ...]:
        self.said.append("acquire")
        return (3,)

    def release(self) -> None:
        self.said.append("release")


class Runner(Lender):
    """Runs steps itself."""

    def call(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self.said.append("call")
        return function(*args, **kwargs) + 100


def add(number: int, more: int = 1) -> int:
    return number + more


both = egs.phases(add, egs.on_gpu(add), add, name="both")


def test_a_provider_may_run_steps_its_own_way() -> None:
    """Between taking the GPU and giving it back, and the value goes on to the next phase."""
    runner = Runner()
    with gpu_provider(runner):
        assert both(1, more=5) == 6 + 1 + 100 + 1
    assert runner.said == ["acquire", "call", "release"]


def test_a_provider_need_not() -> None:
    """One without `call` lends the GPU, and the step runs where the task runs; without any, it just runs."""
    lender = Lender()
    with gpu_provider(lender):
        assert both(1) == 4
    assert lender.said == ["acquire", "release"]
    assert both(1) == 4
