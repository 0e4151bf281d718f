"""The cluster gate's hook in real workers: it gets there, with the user's own, and harms none where it cannot work."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path

Script = Callable[..., "subprocess.CompletedProcess[str]"]
CLUSTER = {"EGS_MODE": "on", "EGS_GATE": "cluster", "EGS_CONTROL": "off"}

PIPELINE = """
import os, subprocess, sys
import ray

def seen_here():
    from ray.remote_function import RemoteFunction
    try:
        import egs_ray
        found = "package"
    except Exception as error:
        found = type(error).__name__
    is_wrapped = RemoteFunction._remote.__module__ == "egs_ray.submitting"
    return is_wrapped, found, os.environ.get("MARK"), os.environ.get("USERS")

@ray.remote
def add(x):
    return x + 1

@ray.remote
def nested(x):
    ray.init(ignore_reinit_error=True)
    return ray.get(add.remote(x)), *seen_here()

@ray.remote(num_cpus=0)
class Actor:
    def call(self):
        return ray.get(nested.remote(1))

def users():
    os.environ["USERS"] = "yes"

def case(name, **options):
    ray.init(logging_level="ERROR", log_to_driver=False, **options)
    print(name, *ray.get(Actor.remote().call.remote()))
    ray.shutdown()
"""

ENVIRONMENTS = """
from ray.job_config import JobConfig

case("none")
own = {"env_vars": {"MARK": "own"}, "worker_process_setup_hook": users}
case("users", runtime_env=own)
case("again", runtime_env=own)
print(sorted(own), sorted(own["env_vars"]))
case("job_config", job_config=JobConfig(runtime_env={"env_vars": {"MARK": "config"}}))
"""


def test_hook_reaches_workers_with_the_users_own(run_script: Script, tmp_path: Path) -> None:
    """Nested workers have EGS's part and then the user's hook, also from a dictionary used twice or a JobConfig."""
    done = run_script(PIPELINE + ENVIRONMENTS, **CLUSTER, XDG_DATA_HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "none 2 True package None None",
        "users 2 True package own yes",
        "again 2 True package own yes",
        "['env_vars', 'worker_process_setup_hook'] ['MARK']",
        "job_config 2 True package config None",
    ]


def test_workers_without_the_package(run_script: Script, tmp_path: Path) -> None:
    """Workers whose environment breaks at our import, or lacks our package, run the pipeline and the user's hook."""
    (tmp_path / "broken" / "egs_ray").mkdir(parents=True)
    (tmp_path / "broken" / "egs_ray" / "__init__.py").write_text("raise RuntimeError('broken')")
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    bare = {
        # Ray's own packages, but not what their folder's .pth files lead to
        "env_vars": {"PYTHONPATH": os.pathsep.join(package_folders())},
        "py_executable": str(tmp_path / "bare" / "bin" / "python"),
        "worker_process_setup_hook": "users",
    }
    cases = f"""
import sys
case("broken", runtime_env={{"env_vars": {{"PYTHONPATH": {str(tmp_path / "broken")!r}}}}})
bare = {bare!r} | {{"worker_process_setup_hook": users}}
case("bare", runtime_env=bare)
"""
    done = run_script(PIPELINE + cases, **CLUSTER, XDG_DATA_HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "broken 2 False RuntimeError None None",
        "bare 2 False ModuleNotFoundError None yes",
    ]


def package_folders() -> list[str]:
    """Where this environment's packages lie, first what comes first, without EGS's own folders."""
    folders = [sysconfig.get_path("purelib"), *(path for path in sys.path if path.endswith("site-packages"))]
    return list(dict.fromkeys(folders))


SUBPROCESS = """
import os
import ray

CHILD = '''
import json, sys
import ray

@ray.remote
def add(x):
    return x + 1

ray.init(sys.argv[2], runtime_env=json.loads(sys.argv[1]), logging_level="ERROR")
ray.init(ignore_reinit_error=True, logging_level="ERROR")
print("child", ray.get(add.remote(1)))
'''

def start(runtime_env):
    # As vLLM does: an engine in a process of its own, with the runtime environment of the one that starts it.
    import json, subprocess, sys
    told = json.dumps(dict(runtime_env)), ray.get_runtime_context().gcs_address
    done = subprocess.run([sys.executable, "-c", CHILD, *told], capture_output=True, text=True)
    return done.stdout + "".join(line for line in done.stderr.splitlines() if "Error" in line)

@ray.remote
def engine():
    return start(ray.get_runtime_context().runtime_env)

data = {"XDG_DATA_HOME": os.environ["XDG_DATA_HOME"]}
ray.init(runtime_env={"env_vars": data}, logging_level="ERROR", log_to_driver=False)
print("of worker:", ray.get(engine.remote()), end="")
print("of driver:", start(ray.get_runtime_context().runtime_env), end="")
"""


def test_engine_in_a_process_of_its_own(run_script: Script, tmp_path: Path) -> None:
    """Drivers that a driver or a worker starts with its own runtime environment work, and keep their own run logs."""
    done = run_script(SUBPROCESS, **CLUSTER, XDG_DATA_HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["of worker: child 2", "of driver: child 2"]
    assert len(list(tmp_path.glob("log*.jsonl"))) == 2  # of the two drivers that share EGS_RUNLOG
    assert len(list((tmp_path / "egs" / "runs").iterdir())) == 1  # of the worker's, which knows nothing of it


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


def test_polling_for_ends_ends_before_ray(run_script: Script, tmp_path: Path) -> None:
    """Where Ray has no callback for the end of a task (2.59), the thread that polls in its place is not inside of Ray
    when the script disconnects, which would end the process with an error; nor does it start another Ray."""
    done = run_script(POLLED, EGS_MODE="on", EGS_RAY_WITHOUT="ready", XDG_DATA_HOME=str(tmp_path))
    assert (done.returncode, done.stdout) == (0, "[0, 1]\n[0, 1]\n"), done.stderr
    assert "ordered 10 GPU tasks" in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
