"""What the autoscaler is told: one request of all that is wanted, never over a living program's, none at the end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from ray.autoscaler.sdk import request_resources

from egs_core.engine import messages as m
from egs_ray import autoscaler, compat
from egs_ray.demand import Demand, bundles_of_hints, bundles_of_tasks, cluster_grows
from egs_ray.submission import Needs
from tests.conformance.ray import run_tasks as t

Script = Callable[..., Any]
ONE = {"GPU": 1.0}


@pytest.fixture
def demand(ray_address: str) -> Iterator[Demand]:
    """A request of this process on a cluster where nothing is asked for; nothing is afterwards."""
    assert ray_address
    request_resources(bundles=[])
    yield Demand()
    request_resources(bundles=[])


def test_no_autoscaler_is_seen_where_none_is(ray_address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain Ray has none, nor one without its private API; a user may say otherwise."""
    assert ray_address
    assert not cluster_grows()
    monkeypatch.setenv("EGS_SCALING", "on")
    assert cluster_grows()
    monkeypatch.setenv("EGS_SCALING", "auto")
    monkeypatch.setenv(compat.WITHOUT, "autoscaler")
    assert not cluster_grows()


def test_one_request_of_all_sources(demand: Demand) -> None:
    """Sources add up, each replaces its own, and the last to go withdraws all."""
    demand.want("gate", [ONE])
    demand.want("session", [ONE, {"CPU": 1.0}])
    assert json.loads(autoscaler.requested_nodes()) == [ONE, ONE, {"CPU": 1.0}]
    demand.want("gate", [])
    assert json.loads(autoscaler.requested_nodes()) == [ONE, {"CPU": 1.0}]
    demand.withdraw("gate")
    assert autoscaler.requested_nodes()
    demand.withdraw("session")
    assert autoscaler.requested_nodes() == ""


def test_anothers_request_stays(demand: Demand, capfd: pytest.CaptureFixture[str]) -> None:
    """What a living program asks for is not replaced, and said so once; nor is it withdrawn at the end."""
    request_resources(bundles=[{"GPU": 3}])
    for wanted in ([ONE], [ONE, ONE]):
        demand.want("gate", wanted)
    assert demand.is_refused
    demand.withdraw("gate")
    assert json.loads(autoscaler.requested_nodes()) == [{"GPU": 3}]
    assert capfd.readouterr().err.count("another program asks the autoscaler") == 1


KILLED = """
import os
import ray
from egs_ray.demand import DEMAND
ray.init(log_to_driver=False)
DEMAND.want("gate", [{"GPU": 7.0}])
os._exit(9)
"""


def test_a_killed_drivers_request_is_replaced(demand: Demand, run_script: Script) -> None:
    """It stays behind; the next driver of EGS's that wants something takes its place."""
    assert run_script(KILLED, hook=False).returncode == 9
    left = autoscaler.requested_nodes()
    assert json.loads(left) == [{"GPU": 7.0}]
    t.until(lambda: autoscaler.is_leftover(left), "Ray knows that the driver is gone")
    demand.want("gate", [ONE])
    assert not demand.is_refused
    assert json.loads(autoscaler.requested_nodes()) == [ONE]


def test_what_is_asked_for() -> None:
    """Tasks as they are, GPUs in others' use beside them, nothing when no task waits; hints by flavor where Ray has a
    name for it."""
    tasks = [Needs("fit", 2.0, 1.0, 0), Needs("fit", 0.0, 0.5, 1000)]
    assert bundles_of_tasks(tasks, 1.2) == [{"CPU": 2.0, "GPU": 1.0}, {"GPU": 0.5, "memory": 1000.0}, ONE, ONE]
    assert bundles_of_tasks([], 2.0) == []
    hints = [m.ScalingHint(1, "A100", 1, 0, 0.0), m.ScalingHint(2, "L4", 1, 2, 0.0)]
    assert bundles_of_hints(hints, ["A100"]) == [
        {"GPU": 1.0, "accelerator_type:A100": 0.001},
        ONE,
        {"CPU": 1.0},
        {"CPU": 1.0},
    ]
