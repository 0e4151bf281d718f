"""What adapters share: hints as the engine takes them."""

from __future__ import annotations

import pytest

from egs_core import notices
from egs_core.adapter import HINTED, options_of_hints
from egs_core.graph.columns import TaskOptions
from egs_core.hints import TaskHints

STATED = TaskHints(
    stage="embed",
    priority=3,
    max_wait_s=1.0,
    max_runtime_s=2.0,
    max_gpu_s=4.0,
    max_cost=5.0,
    deadline_s=6.0,
    flavors=("a100", "h100"),
    gang="workers",
    gang_same="rack",
)


def test_the_engine_is_told_what_the_hints_say() -> None:
    """Each hint that every framework means alike reaches the engine under its own name, and nothing else is made up."""
    assert options_of_hints(TaskHints(cpus=2.0, gpus=1.0, name="not an option")) == TaskOptions()
    options = options_of_hints(STATED, has_prices=True)
    for name in HINTED:
        assert getattr(options, name) == getattr(STATED, name) != getattr(TaskHints(), name)


def test_a_cost_limit_without_prices_is_left_out_with_one_warning(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cost that is always nought would be a limit that is never reached: that is said, once."""
    monkeypatch.setattr(notices, "_said", set())
    assert [options_of_hints(STATED).max_cost for _ in range(2)] == [None, None]
    assert options_of_hints(STATED, has_prices=True).max_cost == 5.0
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "egs: max_cost is not applied: the hardware here has no prices; use max_gpu_time"


def test_what_the_framework_states_goes_before_the_hint() -> None:
    """An adapter adds what only it knows, and takes back what its framework cannot do; the rest stays hinted."""
    options = options_of_hints(STATED, has_prices=True, priority=9, gang="", retries=2, warm_key="k")
    assert (options.priority, options.gang, options.retries, options.warm_key) == (9, "", 2, "k")
    assert (options.stage, options.max_cost, options.gang_same) == ("embed", 5.0, "rack")
