"""What is believed of how long the tasks of a local run take: by arguments, by what has ended, for running ones too."""

# kfp reads the annotations of components: they must not be text, so no `from __future__ import annotations`
from pathlib import Path
from types import SimpleNamespace

import pytest
from kfp import dsl

from egs_core.predict import Features, Predictor
from egs_core.predict.live import Belief
from egs_kubeflow.convert.documents import documents_of
from egs_kubeflow.run.beliefs import Beliefs, features_of
from egs_kubeflow.run.plan import Slots, make_plan
from egs_kubeflow.run.scope import Node, Scope


@dsl.component(base_image="python:3.12", install_kfp_package=False)
def step(n: int) -> int:
    return n


@dsl.pipeline
def one(n: int) -> int:
    return step(n=n).output  # type: ignore[no-any-return]  # what it will be


@pytest.fixture
def beliefs() -> Beliefs:
    """With an empty history."""
    return Beliefs(Predictor(), make_plan(documents_of(one), {"n": 1}, Slots(8.0), "test"), "job")


def made(beliefs: Beliefs, number: int, n: int | None = None) -> tuple[Node, list[Belief]]:
    """The task in one more iteration; n: its argument, where it is there."""
    plan = make_plan(documents_of(one), {"n": 1}, Slots(8.0), "test")
    node = Scope(plan.spec.pipeline.root, {"n": n}, "job").nodes["step"]
    node.number = node.phase = number
    found = beliefs.opened([node])
    return node, found if n is None else beliefs.ready(node, {"n": n})


def test_of_a_cold_history_nothing_is_told(beliefs: Beliefs) -> None:
    """Nobody knows: the engine is told of no length, rather than of a guess."""
    assert made(beliefs, 1, 7)[1] == []


def test_what_has_ended_is_believed_of_its_like_also_of_one_that_runs(beliefs: Beliefs) -> None:
    """The first end tells of all others, the later ones as the kind grows by a quarter; nothing of what has ended."""
    nodes = [made(beliefs, number)[0] for number in range(8)]
    ((phase, p50_s, p95_s), *others) = beliefs.succeeded(nodes[0], 10.0)
    assert (phase, p50_s, p95_s) == pytest.approx((1, 10.0, 20.0))
    assert [phase for phase, _, _ in others] == [2, 3, 4, 5, 6, 7]
    told = [len(beliefs.succeeded(node, 10.0)) for node in nodes[1:]]
    assert told == [6, 5, 4, 3, 2, 0, 0]
    assert made(beliefs, 9)[1][0][1] == pytest.approx(10.0, rel=0.1)


def test_a_parameter_tells_how_long(beliefs: Beliefs) -> None:
    """Of a loop over numbers, by which the length goes: once its argument is there a task is believed to take as its
    like with such a number; before that, as all."""
    for number in range(60):
        n = 1 + number % 6 * 3
        node, _ = made(beliefs, number, n)
        beliefs.succeeded(node, 2.0 * n)
    small, large, unknown = (made(beliefs, 100 + number, n)[1][0] for number, n in enumerate((1, 16, None)))
    assert small[1] < 5.0 < unknown[1] < 25.0 < large[1]
    assert all(p50_s <= p95_s for _, p50_s, p95_s in (small, large, unknown))


def test_features_of_arguments(tmp_path: Path) -> None:
    """Numbers, short texts and the bytes of artifacts, files and folders, by the order of names; what cannot be told is
    unknown, and nothing raises."""
    (tmp_path / "file").write_text("12345")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "inside").write_text("123")
    file, folder = (SimpleNamespace(path=str(tmp_path / name)) for name in ("file", "folder"))
    arguments = {
        "b": 2,
        "a": 1.5,
        "text": "x",
        "flag": True,
        "long": "y" * 100,
        "data": [file, folder],
        "map": {"k": 1},
    }
    assert features_of(arguments, "job") == Features("job", ("True", "x"), (1.5, 2.0), 8.0)
    assert features_of({"data": SimpleNamespace(path=str(tmp_path / "none"))}, "job").input_bytes == -1
    assert features_of({"n": float("nan")}, "job").numbers == (-1.0,)
    assert features_of({}, "job") == Features("job")
