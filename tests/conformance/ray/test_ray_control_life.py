"""The controller's life: it ends itself without drivers, is there again when one reports, and can be refused."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

import egs_ray
from egs_core.errors import InputError
from egs_ray.control import commands as control
from egs_ray.control import controller
from egs_ray.control.reporting import CONTROL, Reporter, Told
from tests.conformance.ray import run_tasks as t
from tests.conformance.ray.conftest import Script

IDLE_S, LONG_IDLE_S = 0.2, 8.0  # a driver may get no processor for seconds


@pytest.fixture(autouse=True)
def none_before(ray_address: str) -> Iterator[None]:
    """Without the controller of other tests; and these leave none."""
    assert ray_address
    end_controller()
    yield
    end_controller()


def end_controller() -> None:
    if (found := controller.find()) is not None:
        ray.kill(found)
    t.until(lambda: controller.find() is None)


class Driver:
    """What a driver says that runs one workload."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def snapshot(self) -> Told:
        row = {"workload": "run#0", "state": "running", "tasks": 1, "open": 1, "stages": []}
        return {"workloads": {"run#0": row}, "tasks": {}}

    def carry_out(self, request: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(request["verb"])
        return {"tasks": []}


def names() -> list[str]:
    """The workloads that are listed; the only error that may come says that there are none."""
    try:
        return [one.workload for one in control.ps()]
    except InputError as error:
        if error.problem != control.NOTHING[0]:
            raise
        return []


def test_it_ends_itself_when_there_is_no_driver() -> None:
    """Not while a driver is there, however long that says nothing; and the actor's process is gone afterwards."""
    made = controller.get_or_make(LONG_IDLE_S)  # drivers look for it twice a second
    reporter = Reporter(Driver())
    t.until(lambda: names() == ["run#0"])
    time.sleep(1.2 * LONG_IDLE_S)
    assert names() == ["run#0"]
    pid = ray.get(made.__ray_call__.remote(lambda _: __import__("os").getpid()))
    reporter.close()
    t.until(lambda: controller.find() is None)
    t.until(lambda: not Path(f"/proc/{pid}").exists())
    assert names() == []


def test_a_driver_that_reports_just_as_it_ends() -> None:
    """At whatever moment of the end: the driver is listed soon, and hears of a command that is sent then."""
    for round in range(6):
        ray.get(controller.get_or_make(IDLE_S).ready.remote())
        time.sleep(IDLE_S + 0.06 * (round - 1))  # the end is looked for every 0.2 s and takes some milliseconds
        driver = Driver()
        reporter = Reporter(driver)
        t.until(lambda: names() == ["run#0"])
        control.abort("run#0")
        assert driver.asked == ["abort"]
        reporter.close()
        end_controller()


REFUSED = """
import threading
import ray
ray.init(log_to_driver=False)
@ray.remote(num_gpus=1, max_calls=0)
def one():
    return 1
print(ray.get(one.remote()))
print([thread.name for thread in threading.enumerate() if thread.name == "egs-report"])
"""


def test_scripts_that_refuse_it(run_script: Script) -> None:
    """EGS_CONTROL=off: GPU tasks are ordered, and there is no thread and no actor for control."""
    ran = run_script(REFUSED, EGS_MODE="on", **{CONTROL: "off"})
    assert (ran.returncode, ran.stdout) == (0, "1\n[]\n"), ran.stderr
    assert "ordered 1 GPU tasks" in ran.stderr
    assert controller.find() is None


@pytest.mark.parametrize("by", ["options", "environment"])
def test_runs_that_refuse_it(tmp_path: Path, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for `egs_ray.run`, for a session or for all; commands say so."""
    if by == "environment":
        monkeypatch.setenv(CONTROL, "off")
    with t.session(tmp_path, control=by == "environment") as session:
        assert egs_ray.run(t.total.bind(1, 2), session=session).get(t.LIMIT_S) == 9
    assert controller.find() is None
    with pytest.raises(InputError, match=CONTROL):
        control.ps()


def test_a_word_that_is_no_switch(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It changes nothing, and one line says so."""
    monkeypatch.setenv(CONTROL, "of")
    reporter = Reporter(Driver())
    t.until(lambda: names() == ["run#0"])
    reporter.close()
    assert capsys.readouterr().err == "egs: EGS_CONTROL='of' is none of on, off: on\n"
