"""What goes wrong while a submission gets its ticket never reaches the user's `.remote()`. Without a Ray."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("ray", reason="ray is not installed")

import ray

import egs_core as egs
from egs_ray.gate import ordering as module
from egs_ray.gate.ordering import Ordering, Turn


def broken(*_args: Any, **_more: Any) -> Any:
    raise RuntimeError("broken")


@ray.remote(num_gpus=1)
def plain(x: int) -> int:
    return x


@ray.remote(num_gpus=1)
@egs.task(flavors=("a100",))
def hinted(x: int) -> int:
    return x


def ordering(seen: list[BaseException]) -> Ordering:
    """As the hook makes it: what goes wrong is told, and switches it off."""

    def fail(error: BaseException) -> None:
        seen.append(error)
        made.switch_off()

    made = Ordering(broken, lambda _: None, fail, broken)
    return made


@pytest.mark.parametrize(
    ("place", "name"), [("Twins", "hints_of"), ("actors", "class_behind"), ("", "preferred_options")]
)
def test_a_task_goes_to_ray_as_it_is(place: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever step before the ticket fails: Ray has the function, its arguments and its options as they were, and
    who switches the order off, with a warning, is told."""
    monkeypatch.setattr(getattr(module, place) if place else module, name, broken)
    seen: list[BaseException] = []
    went: list[Any] = []

    def original(target: Any, args: Any, kwargs: Any, **options: Any) -> str:
        went.append((target, args, kwargs, options))
        return "the reference"

    found = ordering(seen).submit(original, hinted, (1,), None, {"num_gpus": 1})
    assert (found, went) == ("the reference", [(hinted, (1,), {}, {"num_gpus": 1})])
    assert [str(error) for error in seen] == ["broken"]


def test_what_ray_says_of_a_task_is_all_that_its_user_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where its ticket cannot be given back: the error is Ray's own, not the gate's."""
    seen: list[BaseException] = []

    class Gate:
        give_back = broken

    turn = Turn(Gate(), None, "key", None, plain, {})  # type: ignore[arg-type]  # it needs nothing
    made = ordering(seen)
    monkeypatch.setattr(made, "_turn", lambda *_args: turn)

    def original(*_args: Any, **_options: Any) -> Any:
        raise ValueError("as Ray says it")

    with pytest.raises(ValueError, match="as Ray says it"):
        made.submit(original, plain, (1,), {}, {"num_gpus": 1})
    assert [str(error) for error in seen] == ["broken"]
