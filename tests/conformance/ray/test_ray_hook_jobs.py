"""The hook through Ray's other doors, each on a head of its own: job submission, Ray Client, `uv run`.

In all of them the pipeline prints what it prints natively, and EGS says one line at most for each driver.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from egs_core.runlog.io import read_run
from egs_core.runlog.records import Ended, TaskAdded

pytestmark = pytest.mark.long
ROOT = Path(__file__).resolve().parents[3]
EGS_PATH = os.pathsep.join([str(ROOT), str(ROOT / "plugins" / "ray")])

PIPELINE = """
import os, sys
import ray

@ray.remote
def load(x):
    return x

@ray.remote(num_gpus=1)
def fit(x):
    return x + 1, os.environ.get("MARK"), os.environ.get("USERS")

@ray.remote
def nested(x):
    ray.init(ignore_reinit_error=True, logging_level="ERROR")
    return ray.get(fit.remote(x))

@ray.remote(num_cpus=0)
class Engine:
    def __init__(self):
        ray.init(ignore_reinit_error=True, logging_level="ERROR")
        self.parts = [nested.remote(i) for i in range(2)]
    def run(self):
        return ray.get(self.parts)

ray.init(*sys.argv[1:], logging_level="ERROR", log_to_driver=False)
print("result", ray.get(fit.remote(load.remote(1))), ray.get(Engine.remote().run.remote()))
"""
RESULT = "result (2, 'm', None) [(1, 'm', None), (2, 'm', None)]"


class Head:
    """A head started by `ray start`, with job server and client server on ports of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ray_folder = tempfile.mkdtemp(prefix="egs-", dir="/tmp")  # sockets have short paths
        # The head and its workers know nothing of EGS but where its package lies.
        names = [name for name in os.environ if name.startswith(("EGS_", "RAY_"))]
        plain = {name: value for name, value in os.environ.items() if name not in names}
        quiet = {
            "RAY_AUTH_MODE": "disabled",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            "RAY_TMPDIR": self.ray_folder,
        }
        self.environment = {**plain, **quiet, "HOME": str(folder), "PYTHONPATH": EGS_PATH}
        self.port, self.dashboard, self.client, self.agent = free_ports(4)
        self.dashboard_url = f"http://127.0.0.1:{self.dashboard}"
        self.process = subprocess.Popen(self.command(), env=self.environment, stdout=subprocess.DEVNULL)

    def command(self) -> list[str]:
        ports = f"--port={self.port} --dashboard-port={self.dashboard} --ray-client-server-port={self.client}"
        size = "--num-cpus=4 --num-gpus=1 --object-store-memory=80000000"
        words = f"start --head --block {ports} --dashboard-agent-listen-port={self.agent} {size}".split()
        return [script("ray"), *words, f"--temp-dir={self.ray_folder}"]

    def wait(self) -> None:
        deadline_s = time.monotonic() + 120
        while self.process.poll() is None and time.monotonic() < deadline_s:
            try:
                with urllib.request.urlopen(f"{self.dashboard_url}/api/jobs/", timeout=5):
                    return
            except OSError:
                time.sleep(0.2)
        raise AssertionError(f"the head did not start: {self.process.returncode}")

    def stop(self) -> None:
        started = psutil.Process(self.process.pid).children(recursive=True)
        self.process.terminate()
        self.process.wait(timeout=60)
        _, alive = psutil.wait_procs(started, timeout=20)
        for process in alive:
            process.kill()
        shutil.rmtree(self.ray_folder, ignore_errors=True)

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env={**self.environment, **environment},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )

    def submit(
        self, env_vars: dict[str, str], shell: dict[str, str] | None = None, **runtime_env: object
    ) -> subprocess.CompletedProcess[str]:
        """`ray job submit` of the pipeline; its output is the driver's."""
        told = json.dumps({"env_vars": {"MARK": "m", **env_vars}, **runtime_env})
        words = ["job", "submit", "--address", self.dashboard_url, "--runtime-env-json", told, "--"]
        return self.run(script("ray"), *words, sys.executable, str(self.folder / "pipeline.py"), **(shell or {}))


def script(name: str) -> str:
    """A command of this environment."""
    return str(Path(sys.executable).with_name(name))


def free_ports(number: int) -> list[int]:
    """Ports that nobody listens on now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports: list[int] = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    folder = tmp_path_factory.mktemp("head")
    (folder / "pipeline.py").write_text(PIPELINE)
    (folder / "users.py").write_text("import os\ndef hook(): os.environ['USERS'] = 'yes'\n")
    started = Head(folder)
    try:
        started.wait()
        yield started
    finally:
        started.stop()


def egs_lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What EGS said, to the driver's log or to the submitting shell."""
    return [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("egs:")]


def hooked(head: Head, name: str, **variables: str) -> dict[str, str]:
    """The variables of a hooked driver, with run log and history of its own."""
    own = {"EGS_RUNLOG": str(head.folder / f"{name}.jsonl"), "EGS_HISTORY": f"sqlite:///{head.folder}/history.sqlite"}
    return {"RAY_RUNTIME_ENV_HOOK": "egs_ray.hook", **own, **variables}


MODES = {
    "observe": {"EGS_MODE": "observe"},
    "on": {"EGS_MODE": "on"},
    "cluster": {"EGS_MODE": "on", "EGS_GATE": "cluster"},
}


@pytest.mark.parametrize("mode", MODES)
def test_two_submissions(head: Head, mode: str) -> None:
    """The same job twice in a row through `ray job submit`: both succeed as natively, each with its own run log."""
    for number in (1, 2):
        name = f"{mode}-{number}"
        done = head.submit(hooked(head, name, **MODES[mode]))
        assert done.returncode == 0, done.stdout + done.stderr
        assert RESULT in done.stdout
        assert len(egs_lines(done)) == 1
        records = read_run(head.folder / f"{name}.jsonl").records
        named = sorted(record.name for record in records if isinstance(record, TaskAdded))
        expected = ["Engine", "Engine.__init__", "Engine.run", "fit", "fit", "fit", "load", "nested", "nested"]
        assert named == expected
        assert {record.outcome for record in records if isinstance(record, Ended)} == {"succeeded"}


def test_variable_in_the_submitting_shell_too(head: Head) -> None:
    """`ray job submit` in a shell that has the hook set: the command is no driver, so only the job's says a line."""
    shell = hooked(head, "shell")
    done = head.submit(hooked(head, "job"), shell=shell)
    assert (done.returncode, RESULT in done.stdout, len(egs_lines(done))) == (0, True, 1)
    assert not Path(shell["EGS_RUNLOG"]).exists()
    done = head.submit({}, shell=shell)
    assert (done.returncode, RESULT in done.stdout, egs_lines(done)) == (0, True, [])


def test_keep_ready_says_that_ray_preloads_nothing(head: Head) -> None:
    """By a worker's own word: this head was started without such modules."""
    command = [script("egs"), "ray", "keep-ready", "1", "--address", f"127.0.0.1:{head.port}"]
    keeper = subprocess.Popen(command, env=head.environment, cwd=head.folder, stdout=subprocess.PIPE, text=True)
    with keeper:
        assert keeper.stdout is not None
        assert keeper.stdout.readline().startswith("up to 1 processes")
        told = keeper.stdout.readline()
        keeper.terminate()
        assert keeper.communicate(timeout=60)[0].startswith("of 0 processes")
    assert told.startswith("Ray was started without RAY_preload_python_modules: what stands ready there has nothing")
    assert keeper.returncode == 0


def test_users_setup_hook_in_a_job(head: Head) -> None:
    """A job's own worker_process_setup_hook runs as it does natively."""
    variables = hooked(head, "users", **MODES["cluster"], PYTHONPATH=f"{EGS_PATH}:{head.folder}")
    done = head.submit(variables, worker_process_setup_hook="users.hook")
    assert done.returncode == 0, done.stdout + done.stderr
    assert RESULT.replace("None", "'yes'") in done.stdout


@pytest.mark.parametrize("mode", ["observe", "cluster"])
def test_ray_client(head: Head, mode: str) -> None:
    """Ray does not call the hook for `ray://`: the script runs natively, and EGS says nothing."""
    address = f"ray://127.0.0.1:{head.client}"
    native = head.run(sys.executable, "pipeline.py", address)
    for _ in range(2):  # its server has to start a process for each client, and gives up when that takes long
        if native.returncode:
            native = head.run(sys.executable, "pipeline.py", address)
    assert native.returncode == 0, native.stderr
    variables = hooked(head, f"client-{mode}", **MODES[mode])
    done = head.run(sys.executable, "pipeline.py", address, **variables)
    assert done.returncode == 0, done.stderr
    assert done.stdout == native.stdout
    assert egs_lines(done) == []
    assert not Path(variables["EGS_RUNLOG"]).exists()


def test_uv_run(head: Head) -> None:
    """Under `uv run` Ray runs its own hook in place of ours: native, and EGS silent. With `egs_ray.uv_hook` and Ray's
    switched off, both run: the workers run under uv as they did, and the script is observed."""
    uv = pytest.importorskip("uv").find_uv_bin()
    words = [uv, "run", "--no-project", "--offline", "--no-python-downloads", "--python", sys.executable, "python"]
    gcs = f"127.0.0.1:{head.port}"
    (head.folder / "under_uv.py").write_text(
        PIPELINE + "print(ray.get_runtime_context().runtime_env['py_executable'])\n"
    )
    own = {"RAY_ADDRESS": gcs, "UV_CACHE_DIR": str(head.folder / "uv")}
    native = head.run(*words, "under_uv.py", **own)
    assert native.returncode == 0, native.stderr
    assert " run --no-project --offline" in native.stdout
    hook = head.run(*words, "under_uv.py", **own, **hooked(head, "uv-1"))
    assert (hook.returncode, hook.stdout, egs_lines(hook)) == (0, native.stdout, [])
    both = hooked(head, "uv-2", RAY_RUNTIME_ENV_HOOK="egs_ray.uv_hook", RAY_ENABLE_UV_RUN_RUNTIME_ENV="0")
    done = head.run(*words, "under_uv.py", **own, **both)
    assert (done.returncode, done.stdout) == (0, native.stdout), done.stderr
    assert len(egs_lines(done)) == 1
