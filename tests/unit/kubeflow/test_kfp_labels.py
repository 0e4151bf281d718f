"""Values of labels, made of names that people chose."""

import pytest

from egs_kubeflow.rewrite.task import label_value


@pytest.mark.parametrize(
    ("text", "value"),
    [("for-loop-1.train", "for-loop-1.train"), ("my model (v2)", "my-model--v2"), ("-", ""), ("ü", "")],
)
def test_labels_hold_what_kubernetes_allows(text: str, value: str) -> None:
    """Other characters become dashes, and none stands at an end."""
    assert label_value(text) == value


def test_long_names_stay_apart() -> None:
    """Two names that are equal for their first 63 characters have different labels."""
    one, other = label_value("a" * 80 + "1"), label_value("a" * 80 + "2")
    assert one != other
    assert len(one) <= 63
