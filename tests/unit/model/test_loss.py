"""The loss of an assignment, by hand and against an evaluator that shares nothing with it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egs_core.model import OBJECTIVES, Instance, Objective, evaluate
from tests.unit.model.instances import instance_of, instances, slow_loss


@given(instances(), st.randoms(use_true_random=False), st.sampled_from(OBJECTIVES))
def test_the_loss_is_that_of_a_slow_evaluator(instance: Instance, rng: random.Random, objective: Objective) -> None:
    """Exact fractions, the issue's words and no shared code give the same, for any assignment, also one too large."""
    assignment = [rng.randrange(len(instance.devices.devices)) for _ in instance.operators.ids]
    found, slow = evaluate(instance, assignment, objective), slow_loss(instance, assignment, objective)
    assert found.fits == (slow is not None)
    assert slow is None or found.loss == pytest.approx(float(slow), rel=1e-12)


def test_a_request_by_hand() -> None:
    """The drawing of `loss.py`: c waits for its transfer, d for c's; memory that is left counts on both devices."""
    edges = [(0, 1, 10), (0, 2, 500), (1, 3, 10), (2, 3, 250)]
    instance = instance_of([1, 1, 1, 1], [1.0, 1.0, 3.0, 1.0], edges, [(10, 1.0), (5, 2.0), (85, 1.0)])
    found = evaluate(instance, [0, 0, 1, 0], "request")
    assert found.latency_s == pytest.approx(1.0 + 0.5 + 1.5 + 0.25 + 1.0)
    assert (found.idle_bytes, found.cut_edges, found.fits) == (7 + 4, 2, True)
    assert found.loss == pytest.approx(found.latency_s + 0.06 * 11 / 100)


def test_a_stream_by_hand() -> None:
    """The busiest of devices and links; a link counts each direction by itself."""
    edges = [(0, 1, 4000), (0, 2, 1500), (1, 2, 3000)]
    instance = instance_of([1, 1, 1], [1.0, 1.0, 1.0], edges, [(10, 1.0), (10, 1.0)], link_latency_s=0.25)
    assert evaluate(instance, [0, 1, 0], "stream").latency_s == pytest.approx(4.25)
    assert evaluate(instance, [0, 1, 1], "stream").latency_s == pytest.approx(4.25 + 1.75)
    assert evaluate(instance, [0, 0, 0], "stream").latency_s == pytest.approx(3.0)


def test_a_device_that_is_left_empty_is_not_idle() -> None:
    """Only devices in use count what they have left; the sum below it is over all."""
    instance = instance_of([4], [1.0], [], [(10, 1.0), (90, 1.0)])
    assert evaluate(instance, [0], "request").idle_bytes == 6
    assert evaluate(instance, [0], "request").loss == pytest.approx(1.0 + 0.01 * 6 / 100)


def test_operators_of_a_device_run_in_the_stable_topological_order() -> None:
    """c stands first in the file and could run at once; b waits for a transfer, but its device does not go on to d,
    which comes after it in the file, before b has ended."""
    instance = instance_of([1] * 4, [1.0, 1.0, 1.0, 5.0], [(0, 1, 9000)], [(10, 1.0), (10, 1.0)])
    assert instance.operators.order == (0, 1, 2, 3)
    assert evaluate(instance, [0, 1, 1, 1], "request").latency_s == pytest.approx(10.0 + 1.0 + 1.0 + 5.0)
