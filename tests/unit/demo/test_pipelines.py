"""The work inside the demo's pipelines, without Ray."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from egs_core import digits
from egs_core.errors import InputError
from egs_ray.demo import pipelines as demo
from egs_ray.demo.variants import find_variant
from egs_ray.local import variables


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> digits.Array:
    """The pretrained model, loaded without the wait."""
    monkeypatch.setattr(demo, "MODEL_LOAD_S", 0.0)
    return demo.load_model()


@pytest.fixture
def images() -> digits.Array:
    return np.random.default_rng(0).permutation(digits.read_digits()[digits.PRETRAINING_IMAGES :])


def test_digits_are_those_of_scikit_learn() -> None:
    """Read from the file without the library, the images are the same."""
    from sklearn.datasets import load_digits

    expected = load_digits()
    found = digits.read_digits()
    assert np.array_equal(found[:, :-1], expected.data)
    assert np.array_equal(found[:, -1], expected.target)


def test_packing_loses_nothing(images: digits.Array) -> None:
    """What is decoded are the images that were packed, scaled to 0..1, with their labels."""
    unpacked = digits.unpack(digits.pack(images))
    assert np.array_equal(unpacked[:, :-1] * digits.PIXEL_MAX, images[:, :-1])
    assert np.array_equal(unpacked[:, -1], images[:, -1])


def test_training_learns_and_repeats(images: digits.Array, model: digits.Array, tmp_path: Path) -> None:
    """A fit gives the same weights twice, survives its file, and beats the model that it started from."""
    from sklearn.linear_model import SGDClassifier
    from sklearn.metrics import accuracy_score

    train = pd.DataFrame(digits.unpack(digits.pack(images[digits.TEST_IMAGES :])))
    test = pd.DataFrame(digits.unpack(digits.pack(images[: digits.TEST_IMAGES])))
    fits = [digits.fit(SGDClassifier(**digits.settings(0)), train, model) for _ in range(2)]
    assert np.array_equal(fits[0], fits[1])
    path = digits.write(str(tmp_path), 0, 0, fits[0])
    before, after = (
        digits.score(accuracy_score, test, weights) for weights in (digits.centred(model), digits.read(path))
    )
    assert 0.5 < before["accuracy"] < after["accuracy"]
    assert len(after["predictions"]) == digits.TEST_IMAGES


def test_trainings_differ(images: digits.Array, model: digits.Array) -> None:
    """The four trainings of a pipeline are four different fits, not one fit four times."""
    from sklearn.linear_model import SGDClassifier

    table = pd.DataFrame(digits.unpack(digits.pack(images)))
    fits = [digits.fit(SGDClassifier(**digits.settings(n)), table, model) for n in range(demo.TRAININGS)]
    assert len({weights.tobytes() for weights in fits}) == demo.TRAININGS


def test_unknown_variant_is_one_clear_error() -> None:
    """The error names the option and what there is."""
    with pytest.raises(InputError, match=r"--variant: unknown variant 'fast' \(one of: native, tuned"):
        find_variant("fast")


def test_variables_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is set or unset for a run ends with it, both where a variable was set and where it was not."""
    import os

    monkeypatch.setenv("EGS_DEMO_A", "old")
    monkeypatch.delenv("EGS_DEMO_B", raising=False)
    with variables({"EGS_DEMO_A": "new", "EGS_DEMO_B": "new"}):
        assert (os.environ["EGS_DEMO_A"], os.environ["EGS_DEMO_B"]) == ("new", "new")
    with variables({"EGS_DEMO_A": None}):
        assert "EGS_DEMO_A" not in os.environ
    assert os.environ["EGS_DEMO_A"] == "old"
    assert "EGS_DEMO_B" not in os.environ
