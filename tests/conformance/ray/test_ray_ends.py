"""How a driver ends: by a signal, at once, and without errors that its script has caught."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from egs_core.runlog.io import read_run
from egs_core.runlog.records import Ended, WorkloadEnded
from tests.conformance.ray.conftest import _python_path, end_control
from tests.conformance.ray.run_tasks import is_idle, until

Script = Callable[..., "subprocess.CompletedProcess[str]"]
END_S = 200.0

WAITS = """
import sys, time
import ray

@ray.remote(num_gpus=1)
def wait():
    time.sleep(600)

ray.init(log_to_driver=False)
ref = wait.remote()
while ray.available_resources().get("GPU") == 2:
    time.sleep(0.05)
from egs_ray.observe import Observer
ask = Observer._ask
def told(self):
    print("asked", file=sys.stderr, flush=True)
    ask(self)
Observer._ask = told
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("mode", [pytest.param("observe", marks=pytest.mark.slow), "on"])
def test_after_sigterm_nothing_is_asked_of_ray(mode: str, ray_address: str, tmp_path: Path) -> None:
    """Three seconds after SIGTERM Ray aborts a driver that has not ended, with another exit code. EGS waits
    for nothing in that time: its last questions could take half of it. The run log has what was known."""
    (tmp_path / "waits.py").write_text(WAITS)
    own = {"PYTHONPATH": _python_path(), "EGS_RUNLOG": str(tmp_path / "log.jsonl"), "XDG_DATA_HOME": str(tmp_path)}
    own |= {"RAY_ADDRESS": ray_address, "RAY_RUNTIME_ENV_HOOK": "egs_ray.hook", "EGS_MODE": mode}
    environment = os.environ | own
    with (tmp_path / "said").open("w") as said:
        command = [sys.executable, "waits.py"]
        driver = subprocess.Popen(
            command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=said, text=True
        )
        assert driver.stdout is not None
        try:
            assert "ready\n" in iter(driver.stdout.readline, ""), (tmp_path / "said").read_text()  # Ray may warn before
            driver.send_signal(signal.SIGTERM)
            driver.wait(END_S)
        finally:
            driver.kill()
            driver.wait()
            driver.stdout.close()
    before, _, after = (tmp_path / "said").read_text().partition("SIGTERM received")
    assert after, before
    assert "asked" not in after
    until(is_idle)
    assert any(isinstance(record, WorkloadEnded) for record in read_run(tmp_path / "log.jsonl").records)
    assert "Traceback" not in after


INTERRUPTED = """
import sys, time
import ray

@ray.remote(num_gpus=1)
def wait():
    time.sleep(600)

ray.init(log_to_driver=False)
refs = [wait.remote() for _ in range(4)]
while ray.available_resources().get("GPU") == 2:
    time.sleep(0.05)
print("ready", flush=True)
ray.get(refs)
"""


@pytest.mark.slow
def test_ctrl_c_ends_a_driver_with_the_same_status_as_natively(ray_address: str, tmp_path: Path) -> None:
    """What started the script (a shell, CI, a service) goes by its status. CPython ends a process by SIGINT after an
    unhandled KeyboardInterrupt, but for what Ray imports while it shuts down (`egs_ray.payload` says how): EGS must
    not have imported it before."""
    (tmp_path / "interrupted.py").write_text(INTERRUPTED)
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("EGS_", "RAY_RUNTIME_ENV"))}
    plain |= {"PYTHONPATH": _python_path(), "RAY_ADDRESS": ray_address, "XDG_DATA_HOME": str(tmp_path)}
    log = tmp_path / "log.jsonl"
    hooked = {"EGS_RUNLOG": str(log), "RAY_RUNTIME_ENV_HOOK": "egs_ray.hook", "EGS_MODE": "on"}
    status = {}
    for name, environment in (("natively", plain), ("on", plain | hooked)):
        with (tmp_path / f"said-{name}").open("w") as said:
            driver = subprocess.Popen(
                [sys.executable, "interrupted.py"],
                env=environment,
                cwd=tmp_path,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
            )
            assert driver.stdout is not None
            try:
                assert "ready\n" in iter(driver.stdout.readline, ""), (tmp_path / f"said-{name}").read_text()
                driver.send_signal(signal.SIGINT)
                status[name] = driver.wait(END_S)
            finally:
                driver.kill()
                driver.wait()
                driver.stdout.close()
        assert "\nKeyboardInterrupt\n" in (tmp_path / f"said-{name}").read_text()
        until(is_idle)
    assert status["on"] == status["natively"] != 0
    assert any(isinstance(record, WorkloadEnded) for record in read_run(log).records)


CATCHES = """
import os, time
import ray
from egs_ray.control import controller

@ray.remote(num_gpus=1)
def fails(path):
    while not os.path.exists(path):
        time.sleep(0.02)
    raise ValueError("caught by the script")

ray.init(log_to_driver=True)
made = controller.get_or_make()
for number in range(2):
    ref, path = fails.remote(os.path.abspath(f"told{number}")), f"told{number}"
    while not any(driver["tasks"] for driver in ray.get(made.table.remote())):
        time.sleep(0.05)
    open(path, "w").close()
    try:
        ray.get(ref)
    except ValueError:
        print("caught")
time.sleep(1)
"""


@pytest.mark.slow
def test_errors_that_the_script_caught_are_not_printed(run_script: Script) -> None:
    """The controller borrows references to tasks; that they end with errors is nothing that it has to say."""
    end_control()
    done = run_script(CATCHES, EGS_MODE="on")
    assert done.stdout.count("caught\n") == 2, done.stderr
    assert "Unhandled error" not in done.stdout + done.stderr
    end_control()


SILENT = """
import sys
import ray

@ray.remote(num_gpus=1)
def fit():
    return 1

ray.init(log_to_driver=False)
sys.stderr.close()
print(ray.get(fit.remote()))
"""


def test_a_closed_stderr_is_nobodys_error(run_script: Script, tmp_path: Path) -> None:
    """EGS has something to say (it cannot write its run log) and stderr is closed: `.remote()` works as natively."""
    (tmp_path / "not_a_folder").write_text("")
    history = f"sqlite:///{tmp_path}/not_a_folder/history.sqlite"
    done = run_script(SILENT, EGS_MODE="on", EGS_GATE="clustr", EGS_HISTORY=history, EGS_CONTROL="perhaps")
    assert (done.stdout, done.returncode) == ("1\n", 0), done.stderr


POLLED = """
import ray

@ray.remote(num_gpus=1)
def fit(x):
    return x

for cycle in range(2):
    ray.init(logging_level="ERROR")
    print(ray.get([fit.remote(fit.remote(i)) for i in range(2)]))
    left = fit.remote(0)
    if cycle == 0:
        ray.shutdown()
"""


@pytest.mark.slow
def test_polling_for_ends_ends_before_ray(run_script: Script, tmp_path: Path) -> None:
    """Where Ray has no callback for the end of a task (2.59), the thread that polls in its place is not inside of Ray
    when the script disconnects, which would end the process with an error; nor does it start another Ray."""
    done = run_script(POLLED, EGS_MODE="on", EGS_RAY_WITHOUT="ready", XDG_DATA_HOME=str(tmp_path))
    assert (done.returncode, done.stdout) == (0, "[0, 1]\n[0, 1]\n"), done.stderr
    assert "ordered 10 GPU tasks" in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr


OWN = """
import os, time
import ray
from egs_ray.events import REPORTS

@ray.remote(num_gpus=1)
def told():
    return os.environ.get(REPORTS)

@ray.remote(num_gpus=1)
def endless():
    time.sleep(600)

ray.init(address="local", num_cpus=1, num_gpus=1, include_dashboard=False, log_to_driver=False)
print(ray.get(told.remote()))
refs = [endless.remote()]
from egs_ray import install
gate, deadline = getattr(install.interceptor, "_gate", None), time.monotonic() + 60
while gate is not None and not gate._is_full and time.monotonic() < deadline:  # then what comes is left for later
    time.sleep(0.01)
refs += [endless.remote() for _ in range(2)]

@ray.remote(num_cpus=0)
def submits():
    return [endless.remote()]

@ray.remote(num_gpus=1)
class Waits:
    pass

refs += [ray.get(submits.remote()), Waits.remote()]
from egs_ray.observe import Observer
ask = Observer._ask_until_settled
def told_of(self):
    ask(self)
    print(len(self.log.unsettled), "to come, waited for" if self._patience_s() else "to come, not waited for")
Observer._ask_until_settled = told_of
ray.shutdown()
print(os.environ.get(REPORTS))
"""


@pytest.mark.parametrize(("mode", "often"), [("on", "100"), pytest.param("observe", "None", marks=pytest.mark.slow)])
def test_a_script_with_endless_tasks_ends_without_waiting_for_them(
    mode: str, often: str, run_script: Script, tmp_path: Path
) -> None:
    """Its own, a worker's, and an actor that never gets its GPU. In mode on EGS asks until Ray has told of what has
    ended, and a Ray that the script has started tells ten times a second. In observe nothing of Ray is set, and nobody
    knows what has not ended. Either way the script's environment is afterwards as it was."""
    with tempfile.TemporaryDirectory(prefix="egs-end-") as folder:
        done = run_script(OWN, EGS_MODE=mode, RAY_TMPDIR=folder)
    assert done.returncode == 0, done.stderr
    known = "not waited for" if mode == "on" else "waited for"
    assert done.stdout.splitlines() == [often, f"5 to come, {known}", "None"], done.stdout
    ends = [record.outcome for record in read_run(tmp_path / "log.jsonl").records if isinstance(record, Ended)]
    assert ends.count("succeeded") == 2
