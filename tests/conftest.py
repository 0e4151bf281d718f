"""What all tests share: nothing is read from or left in the user's own folders, and no usage report is sent.

Where several processes share the tests (`pytest -n 3`), one of them has all those that share a start of a framework.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import inspect
import itertools
import os
import signal
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from tests.tour import TOUR, is_rest

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadScopeScheduling

hypothesis.settings.register_profile(
    "repeatable",
    derandomize=True,
    database=None,
    deadline=None,  # a machine that does other work is slow
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("repeatable")  # --hypothesis-profile=default draws anew each time
with contextlib.suppress(
    ImportError
):  # else it draws numbers of all modules loaded so far, which tests before it decide
    from hypothesis.internal.conjecture import providers

    vars(providers)["_get_local_constants"] = lambda: vars(providers)["_local_constants"]
for frame in ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>", "<frozen runpy>", "<string>"):
    # kfp asks `inspect.stack` with each setting of a task, and that looks through all modules, thousands, for each
    # frame that is of no file: in a module that is being imported most are. A name that no module has: there is none.
    vars(inspect)["modulesbyfile"][frame] = frame

RAY = "tests/conformance/ray/test_ray_"
AIRFLOW = "tests/conformance/airflow/test_"
TOGETHER: dict[str, tuple[str, ...]] = {
    "scripts on Ray": tuple(
        RAY + name for name in ("act", "faults", "hook_options", "observe", "site_actor", "tickets")
    ),
    "Airflows of their own": tuple(AIRFLOW + name for name in ("airflow_demo", "celery", "engine_hosting", "own")),
    "Airflow": ("tests/conformance/airflow/",),
    "clusters of Ray": tuple(
        RAY + name for name in ("autoscaler", "control_nodes", "kill", "node", "preload_nodes", "hook_jobs")
    ),
    "drivers on Ray": tuple(
        RAY + name
        for name in (
            *("conformance", "control", "ends", "generators", "groups", "hook", "libraries", "nested"),
            *("other_user", "own_values", "payloads", "progress", "replay", "site"),
        )
    ),
    "runs on Ray": ("tests/conformance/ray/",),
    "Kubeflow": ("tests/conformance/kubeflow/",),
    "examples": ("tests/scenarios/test_examples.py",),
    "demo on Ray": ("tests/unit/demo/test_variants.py",),
}
"""What shares a start of a framework, by how its tests' places begin: the first that fits. What takes longest comes
first; Ray's are three pieces, each with a Ray of its own, as one would be the last to end. The Airflows that a test
starts for itself, most of them slow tests, are not in the way of those that share one."""
PIECES = list(TOGETHER)
ROOT = Path(__file__).resolve().parents[1]
SHARES = ('scope="module"', "tests.unit.server.databases")
"""What stands in a file whose tests share a start of their own, as a server."""
HOMES = itertools.count()
PATIENT_RAY = {
    "RAY_gcs_rpc_server_reconnect_timeout_s": "600",
    "RAY_gcs_rpc_server_connect_timeout_s": "60",
    "RAY_gcs_server_port_wait_time_s": "240",
    "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "240",
    "RAY_raylet_start_wait_time_s": "240",
    "RAY_raylet_client_num_connect_attempts": "240",
    "RAY_agent_register_timeout_ms": "240000",
    "RAY_worker_register_timeout_seconds": "240",
    "RAY_health_check_initial_delay_ms": "60000",
    "RAY_health_check_timeout_ms": "60000",
}
"""How long Ray's processes wait for each other, on a busy machine. Where one waits in vain Ray ends processes without a
word, also drivers, and this process is one: a client that does not reach the GCS calls `_Exit` (by default after 60 s);
a raylet ends when an agent has not registered (30 s) or the GCS takes it for dead, and its drivers end with it. Ray
reads these when it is imported; processes that tests start inherit them."""
os.environ.update(PATIENT_RAY)


STDERR: list[int] = []
"""Where this process itself writes, not the test that runs."""


def pytest_configure() -> None:
    """Before what tests write is captured."""
    STDERR.append(os.dup(2))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A hang is a failure that names its test, also where it waits in C: code there, like Ray's for an answer that
    never comes, sees no signal, which is what pytest-timeout sends. A minute later this process says where all its
    threads are, and ends; pytest-xdist puts another one in its place."""
    marker = item.get_closest_marker("timeout")
    limit = float(marker.args[0] if marker else item.config.getini("timeout"))
    faulthandler.dump_traceback_later(limit + 60, exit=True, file=STDERR[0])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Each of several processes leads a group: a signal that goes to the group of one never ends all of them."""
    if hasattr(session.config, "workerinput") and os.getpgrp() != os.getpid():
        os.setpgid(0, 0)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What collecting imports stays to the end: the search for garbage does not go through it again and again, neither
    while it grows nor while the tests run."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What takes minutes begins first: nothing then waits for it at the end. With `--reruns`, only scenarios on a real
    framework have a second try: what fails elsewhere is ours, always."""
    _check_tour(config, {item.nodeid for item in items})
    items.sort(key=lambda item: _place(item.nodeid)[0])
    for item in items:
        if is_rest(item.nodeid):
            item.add_marker(pytest.mark.rest)
        if not item.nodeid.startswith(("tests/conformance/", "tests/scenarios/")):
            item.add_marker(pytest.mark.flaky(reruns=0))


def _check_tour(config: pytest.Config, found: set[str]) -> None:
    """A test of the tour that has another name now would run no more; whole files are looked at."""
    if any("::" in argument for argument in config.args):
        return
    known = found | {nodeid.partition("[")[0] for nodeid in found}
    files = {nodeid.partition("::")[0] for nodeid in found}
    if lost := sorted(name for name in TOUR - known if name.partition("::")[0] in files):
        raise pytest.UsageError(f"tests/tour.py names what is not there: {', '.join(lost)}")


@cache
def _is_shared(file: str) -> bool:
    text = (ROOT / file).read_text()
    return any(word in text for word in SHARES)


def _place(nodeid: str) -> tuple[int, str]:
    """Of a test, by its id: where it stands among the others, and the piece that one process runs."""
    file = nodeid.partition("::")[0]
    for number, piece in enumerate(PIECES):
        if nodeid.startswith(TOGETHER[piece]):
            return number, piece
    return (len(PIECES), file) if _is_shared(file) else (len(PIECES) + 1, nodeid)


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Hands out what shares a start as one piece, and all others one by one, in the order in which they stand."""
    from tests.scheduling import Together

    config.option.loadscopereorder = False  # else what has most tests comes first
    return Together(config, log, lambda nodeid: _place(nodeid)[1])


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Each test starts without EGS's variables and with user folders of its own."""
    for name in ("EGS_MODE", "EGS_DEBUG", "EGS_URL", "EGS_TOKEN", "EGS_LEASE", "RAY_RUNTIME_ENV_HOOK"):
        monkeypatch.delenv(name, raising=False)
    home: Path = tmp_path_factory.getbasetemp() / "homes" / str(next(HOMES))  # made by what needs it
    for name, folder in (("XDG_DATA_HOME", "data"), ("XDG_CACHE_HOME", "cache"), ("XDG_STATE_HOME", "state")):
        monkeypatch.setenv(name, str(home / folder))
    monkeypatch.setenv("EGS_RUNTIME_DIR", str(home / "runtime"))  # no site server is there
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # else the first start writes a token into the home folder
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_worker_niceness", "0")  # 15 by default: what runs beside would take its processor


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """Processes that tests start end on SIGINT, also where pytest itself was started with SIGINT ignored, which
    children inherit (`nohup`, `&` in a script)."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before or signal.SIG_DFL)
