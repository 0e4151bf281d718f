"""One real Ray for the whole run: four CPUs, two emulated GPUs, no dashboard. Scripts connect to it as drivers."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from tests.conformance.ray.patience import be_patient

ROOT = Path(__file__).resolve().parents[3]
# Idle workers serve the next test: Ray would end all but one a CPU after a second, and starting one takes as long.
KEPT_WORKERS = {"num_workers_soft_limit": 8, "idle_worker_killing_time_threshold_ms": 30_000}
# By default Ray's workers are nice (15): whatever runs beside the tests would take the processor from them.
OF_RAY = {**KEPT_WORKERS, "worker_niceness": 0, "preload_python_modules": ["wave"]}
"""`wave` is a module that Ray itself does not import: test_ray_keep_ready.py."""
LIMIT_S = 240.0
SERVES_S = 90.0
DRIVER = """
import sys, ray
ray.init(address=sys.argv[1], log_to_driver=False)
print(ray.get(ray.remote(lambda: 7).remote()))
"""
SICK = 75  # "try again", of sysexits.h
Script = Callable[..., "subprocess.CompletedProcess[str]"]
FOLDER = Path(__file__).parent
RUNNING = contextlib.ExitStack()
ADDRESS: list[str] = []
"""Of the Ray that runs, if any."""

SLOW = {
    "test_ray_ahead",
    "test_ray_control",
    "test_ray_control_gate",
    "test_ray_control_life",
    "test_ray_faults",
    "test_ray_hook_actors",
    "test_ray_hook_elsewhere",
    "test_ray_nested_order",
    "test_ray_residue",
    "test_ray_site_actor",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test here starts or uses Ray."""
    for item in items:
        if FOLDER in item.path.parents:
            item.add_marker(pytest.mark.ray)
            if item.path.stem in SLOW:
                item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True, scope="session")
def _rays_folder() -> None:
    """Ray's `Cluster` writes its address into Ray's usual folder, also where it keeps all else in another one; it fails
    where no Ray has made that folder yet."""
    from ray._common.utils import get_default_ray_temp_dir

    os.makedirs(get_default_ray_temp_dir(), exist_ok=True)


@pytest.fixture(scope="module")
def ray_address() -> str:
    """The address of the one Ray of this folder's tests, to which this process is connected."""
    if not ADDRESS:
        ADDRESS.append(RUNNING.enter_context(_running_ray()))
    return ADDRESS[0]


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """After the last test of this folder: a Ray that idles takes processor time from tests of other things. And before
    a test that connects this process to a cluster of its own, for a process is connected to one."""
    if nextitem is None or FOLDER not in nextitem.path.parents or _has_a_cluster(nextitem):
        ADDRESS.clear()
        RUNNING.close()


def _has_a_cluster(item: pytest.Item) -> bool:
    return isinstance(item, pytest.Function) and "two_nodes" in item.fixturenames


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Seen once: a Ray whose GCS answered nobody new, so that all tests of its process failed, a minute each, until the
    process itself waited for an answer without an end. Such a Ray is not what the test is about: the process ends, the
    test has its second try in another one, with a Ray of that one's own."""
    report = yield
    is_shared = hasattr(item.config, "workerinput")  # by several processes: pytest-xdist puts another in its place
    if report.failed and ADDRESS and is_shared and FOLDER in item.path.parents and _refusal(ADDRESS[0]):
        os.write(
            2, f"\n{item.nodeid}: its Ray answers no new driver; this process ends\n{report.longreprtext}\n".encode()
        )
        os._exit(SICK)
    return report


def _refusal(address: str) -> str:
    """Why a new driver gets no task done, else nothing."""
    environment = {name: value for name, value in os.environ.items() if name != "RAY_RUNTIME_ENV_HOOK"}
    words = [sys.executable, "-W", "ignore", "-c", DRIVER, address]
    try:
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=SERVES_S)
    except subprocess.TimeoutExpired as error:
        return str(error)
    return "" if done.stdout.strip().endswith("7") else f"{done.returncode}: {done.stdout}{done.stderr}"


@contextlib.contextmanager
def _running_ray() -> Iterator[str]:
    """A Ray that serves, by its address; all of it is gone afterwards."""
    refusals = []
    for _ in range(2):
        with _one_ray() as address:
            refusals.append(_refusal(address))
            if not refusals[-1]:
                yield address
                return
    raise RuntimeError("two Rays were started, and neither served a driver: " + "; ".join(refusals))


@contextlib.contextmanager
def _one_ray() -> Iterator[str]:
    before = set(psutil.Process().children())
    folder = tempfile.mkdtemp(prefix="egs-")  # sockets below pytest's own folders would have too long a path
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else Ray warns about its own default
        patch.setenv("PYTHONPATH", _python_path())  # workers unpickle what this process pickled
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.delenv("RAY_RUNTIME_ENV_HOOK", raising=False)
        import ray

        _start_ray(folder)
        rays = [child for child in psutil.Process().children() if child not in before]
        try:
            yield ray.get_runtime_context().gcs_address
        finally:
            rays += [one for child in rays if child.is_running() for one in child.children(recursive=True)]
            ray.shutdown()
            _, alive = psutil.wait_procs(rays, timeout=20)
            for process in alive:
                process.kill()
            shutil.rmtree(folder, ignore_errors=True)


def _start_ray(folder: str) -> None:
    import ray

    with pytest.MonkeyPatch.context() as patch:
        be_patient(patch.setattr)
        ray.init(
            num_cpus=4,
            num_gpus=2,
            include_dashboard=False,
            object_store_memory=80_000_000,
            _temp_dir=folder,
            _system_config=OF_RAY,
            log_to_driver=False,
        )


@pytest.fixture(scope="module", autouse=True)
def leaves_nothing_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """A driver that a slow test leaves holds CPUs and GPUs that the tests behind it wait for, far from the cause."""
    yield
    if request.path.stem in SLOW:
        import ray

        from tests.conformance.ray.run_tasks import is_idle, until

        until(lambda: not ray.is_initialized() or is_idle(), f"{request.path.stem} has left something behind")


@contextlib.contextmanager
def drivers(ray_address: str, folder: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start Python source as a driver of this Ray under the hook, in mode on: (source, its name, the words behind the
    command, **environment). All are ended at last; what they said is shown when the test fails."""
    begun: list[subprocess.Popen[str]] = []

    def start(source: str, name: str, words: Sequence[object] = (), **environment: str) -> subprocess.Popen[str]:
        path = folder / f"{name}.py"
        path.write_text(source)
        variables = {**os.environ, "RAY_ADDRESS": ray_address, "PYTHONPATH": _python_path()} | {
            "RAY_RUNTIME_ENV_HOOK": "egs_ray.hook",
            "EGS_MODE": "on",
            "EGS_RUNLOG": str(folder / f"{name}.jsonl"),
            **environment,
        }
        pipe = subprocess.PIPE
        command = [sys.executable, str(path), *map(str, words)]
        begun.append(subprocess.Popen(command, env=variables, cwd=folder, stdout=pipe, stderr=pipe, text=True))
        return begun[-1]

    try:
        yield start
    finally:
        for one in begun:
            one.kill()
            print(*one.communicate())


@pytest.fixture
def run_script(ray_address: str, tmp_path: Path) -> Script:
    """Run Python source as a driver of the session's Ray, by default with the hook; ends within its time-out."""

    def run(source: str, *, hook: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
        path = tmp_path / "script.py"
        path.write_text(source)
        variables = {**os.environ, "RAY_ADDRESS": ray_address, "PYTHONPATH": _python_path(), **environment}
        if hook:
            variables = {"RAY_RUNTIME_ENV_HOOK": "egs_ray.hook", "EGS_RUNLOG": str(tmp_path / "log.jsonl"), **variables}
        done = subprocess.run(
            [sys.executable, str(path)], env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S
        )
        # What the session's Ray says of how many processes it has, of all tests, is not the script's output.
        done.stdout = "".join(line for line in done.stdout.splitlines(keepends=True) if "(raylet)" not in line)
        return done

    return run


def end_site() -> None:
    """The site of all drivers: the next test's has that test's queues."""
    _end("egs-site")


def end_control() -> None:
    """The controller of tests before, which would go at any moment."""
    _end("egs-control")


def _end(name: str) -> None:
    import ray

    from tests.conformance.ray.run_tasks import until

    def is_gone() -> bool:
        try:
            ray.kill(ray.get_actor(name, namespace="egs"))
        except ValueError:
            return True
        return False

    until(is_gone, f"{name} has ended")


def _python_path() -> str:
    return os.pathsep.join([str(ROOT), str(ROOT / "plugins" / "ray"), os.environ.get("PYTHONPATH", "")])
