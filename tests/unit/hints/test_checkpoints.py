"""`egs.checkpoint` and `egs.restored`: what they do with an adapter's keeper, and without one."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import egs_core as egs
from egs_core.errors import InputError
from egs_core.hints import checkpoint_keeper, hints_of, save_checkpoint


class Keeper:
    """Counts registrations, and has what a try before kept."""

    def __init__(self, *kept: Any) -> None:
        self.kept, self.registrations = kept, 0

    def registered(self) -> None:
        self.registrations += 1

    def restored(self) -> tuple[Any, ...]:
        return self.kept


def test_without_a_keeper_nothing_is_kept() -> None:
    """The default comes back, and a callback is never called."""
    egs.checkpoint(lambda: pytest.fail("called"))
    assert egs.restored() is None
    assert egs.restored({"step": 0}) == {"step": 0}


def test_a_keeper_asks_the_last_callback() -> None:
    """What the callback returns, also None, is the checkpoint; after the task there is none."""
    keeper = Keeper()
    with checkpoint_keeper(keeper):
        assert save_checkpoint() == ()
        assert egs.restored(3) == 3
        egs.checkpoint(lambda: 1)
        egs.checkpoint(lambda: None)
        assert save_checkpoint() == (None,)
    assert keeper.registrations == 2
    assert save_checkpoint() == ()


def test_what_was_kept_comes_back() -> None:
    """Also a value that is false: the default is only for when there is nothing."""
    with checkpoint_keeper(Keeper(0)):
        assert egs.restored(5) == 0


def test_one_task_after_another() -> None:
    """A task does not inherit the callback of the one before, however that ended."""

    def fails() -> None:
        with checkpoint_keeper(Keeper()):
            egs.checkpoint(lambda: 1)
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    with checkpoint_keeper(Keeper()):
        assert save_checkpoint() == ()


def test_bad_input_is_named() -> None:
    """A callback that cannot be called, and a grace that is no duration."""
    with pytest.raises(InputError, match=r"egs\.checkpoint: 3 is not a function"):
        egs.checkpoint(3)  # type: ignore[arg-type]  # bad on purpose
    with pytest.raises(InputError, match="grace"):
        egs.task(grace="soon")(lambda: None)


def test_grace_is_a_hint() -> None:
    """In seconds, and zero where it is not stated."""

    @egs.task(grace="1m")
    def long() -> None: ...

    @egs.task
    def none() -> None: ...

    assert [hints_of(f).grace_s for f in (long, none)] == [60.0, 0.0]  # type: ignore[union-attr]  # both have hints


def test_it_imports_the_standard_library_only() -> None:
    """The module runs inside workers."""
    code = "import sys; import egs_core.checkpoints; print(sorted({m.split('.')[0] for m in sys.modules}))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"ray", "msgspec", "numpy", "pydantic", "typer"} & set(out.replace("'", "").strip("[]\n").split(", "))
