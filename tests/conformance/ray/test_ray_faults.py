"""Whatever of EGS dies, the pipeline ends with the values it would have without EGS, after one warning."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from ray.dag import MultiOutputNode

import egs_ray
from egs_core.testing.wire_site import look_behind
from egs_ray import Session
from tests.conformance.ray import run_tasks as t
from tests.conformance.ray.patience import PATIENT

pytestmark = pytest.mark.usefixtures("ray_address")
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _all_is_given_back() -> Iterator[None]:
    """Whatever dies in a test, afterwards nothing is held in Ray's books."""
    yield
    t.until(t.is_idle, "all resources are free")


def warnings_in(capture: Capture) -> list[str]:
    return [line for line in capture.readouterr().err.splitlines() if line.startswith("egs:")]


def process_of(path: Path) -> psutil.Process:
    t.until(path.exists, path.name)
    return psutil.Process(int(path.read_text().split()[0]))


def kill_engine(session: Session) -> None:
    """From now on, whatever reaches the engine ends its driver."""

    def broken(*_: Any) -> Any:
        raise RuntimeError("injected")

    look_behind(session.site, lambda engine: setattr(engine, "handle", broken))


def holders() -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["name", "cmdline"]):
        if any("ray::egs-lease" in part for part in process.info["cmdline"] or []):
            found.append(process)
    return found


@pytest.mark.parametrize("moment", ["start", "decode", "fit", "write", "wait"])
def test_engine_dies(tmp_path: Path, capsys: Capture, moment: str) -> None:
    """At whatever moment the engine fails, every task ends with its value; no GPU phase runs without its GPU."""
    folder = str(tmp_path)
    with t.session(tmp_path) as session:
        first = t.blocked.bind(folder, "a")
        after = t.with_folder(t.warmed, tmp_path).bind(folder, first)
        node = MultiOutputNode([first, after, t.total.bind(2)])
        if moment == "start":
            kill_engine(session)
        made = egs_ray.run(node, session=session)
        for name in ("decode", "fit", "write"):
            t.until((tmp_path / f"a.{name}.runs").exists, name)
            if name == "fit":
                t.until(lambda: t.free("GPU") == 1)
            if moment == name:
                kill_engine(session)
            if moment == "wait" and name == "decode":
                t.until((tmp_path / "load.runs").exists, "the next task is parked")
                kill_engine(session)
            t.signal_to(folder, f"a.{name}.end")
        seen, loaded, number = made.get(t.LIMIT_S)
        assert seen[1] in ("0", "1")
        assert loaded["model"]["pid"] == loaded["pid"]
        assert number == 6
        assert not session.site.is_alive
        later = egs_ray.run(t.total.bind(t.stamp.options(num_gpus=1).bind(0.01)), session=session)
        assert later.get(t.LIMIT_S) > 0
        t.until(later.done)
        warned = warnings_in(capsys)
        assert len(warned) == 1, warned
        assert "injected" in warned[0]


def test_workers_cannot_reach_the_driver(tmp_path: Path, capsys: Capture) -> None:
    """With a wrong address in their hands tasks run on their own; a GPU is still reserved for those that need one."""
    folder = str(tmp_path)
    with t.session(tmp_path) as session:
        with socket.create_server(("127.0.0.1", 0)) as closed_soon:
            nowhere = ("127.0.0.1", closed_soon.getsockname()[1], "00" * 32)
        session._server.address = nowhere
        session._leases._address = nowhere
        first = t.blocked.bind(folder, "a")
        made = egs_ray.run(MultiOutputNode([first, t.stamp.bind(0.01, first), t.total.bind(1)]), session=session)
        for name in ("decode", "fit", "write"):
            t.until((tmp_path / f"a.{name}.runs").exists, name)
            if name == "fit":
                t.until(lambda: t.free("GPU") == 1)
            t.signal_to(folder, f"a.{name}.end")
        seen, span, number = made.get(t.LIMIT_S)
        assert seen[1] in ("0", "1")
        assert span[0] < span[1]
        assert number == 3
        warned = warnings_in(capsys)
        assert len(warned) == 1, warned


def test_worker_environment_without_egs(tmp_path: Path, capsys: Capture) -> None:
    """Tasks whose environment cannot import EGS run as the user wrote them, with their results passed on."""
    blocker = tmp_path / "without"
    blocker.mkdir()
    (blocker / "sitecustomize.py").write_text(t.BLOCKER)
    environment = {"env_vars": {"PYTHONPATH": str(blocker)}}

    @ray.remote(num_cpus=0.1, runtime_env=environment)
    def bare(*values: int) -> int:
        return sum(values) + 1

    @ray.remote(num_cpus=0.1, num_gpus=1, runtime_env=environment)
    def bare_gpu(*values: int) -> list[int]:
        try:
            import egs_ray  # noqa: F401  # whether it can be
        except ImportError:
            return [*values, len(ray.get_gpu_ids())]
        return []

    with t.session(tmp_path) as session:
        node = MultiOutputNode([bare.bind(bare.bind(1), bare.bind()), bare_gpu.bind(bare.bind(5)), t.total.bind(1)])
        assert egs_ray.run(node, session=session).get(t.LIMIT_S) == [4, [6, 1], 3]
        warned = warnings_in(capsys)
        assert 1 <= len(warned) <= 2, warned
        assert all("without EGS" in line for line in warned)
        assert egs_ray.run(bare_gpu.bind(7), session=session).get(t.LIMIT_S) == [7, 1]
        assert warnings_in(capsys) == []
        assert session.site.is_alive


def test_promises_die(tmp_path: Path, capsys: Capture) -> None:
    """A task whose promised arguments are lost with their actor is submitted again, as written."""
    folder = str(tmp_path)
    with t.session(tmp_path) as session:
        first = t.before.bind(folder, "first")
        node = t.with_folder(t.warmed, tmp_path).bind(folder, t.total.bind(1, t.before.bind(folder, "b", first)))
        made = egs_ray.run(node, session=session)
        process_of(tmp_path / "load.runs")
        assert [job for job in made._books.jobs if job.promised]
        ray.kill(session._promises._board)
        for name in ("first", "b"):
            t.signal_to(folder, f"{name}.end")
        loaded = made.get(t.LIMIT_S)
        assert loaded["model"]["pid"] == loaded["pid"]
        assert session.site.is_alive
        assert len(warnings_in(capsys)) == 1


def test_holder_is_killed(tmp_path: Path) -> None:
    """Ray's books are put right when the process that held a GPU dies; the phase goes on."""
    folder = str(tmp_path)
    with t.session(tmp_path) as session:
        made = egs_ray.run(t.blocked.bind(folder, "a"), session=session)
        t.signal_to(folder, "a.decode.end")
        t.until((tmp_path / "a.fit.runs").exists)
        t.until(lambda: t.free("GPU") == 1)
        job = made._books.jobs[0]
        before = job.lease
        for process in holders():
            process.kill()
        t.until(lambda: job.lease not in (None, before) and job.lease.peer is not None, "a new holder")
        t.until(lambda: t.free("GPU") == 1)
        t.signal_to(folder, "a.fit.end")
        t.until((tmp_path / "a.write.runs").exists)
        t.signal_to(folder, "a.write.end")
        assert len(made.get(t.LIMIT_S)) == 3


@pytest.mark.parametrize("retries", [0, 1])
def test_parked_process_is_killed(tmp_path: Path, retries: int) -> None:
    """A process that only waits for its task may die without harm, also when the task itself may not be retried."""
    folder = str(tmp_path)
    with t.session(tmp_path) as session:
        task = t.with_folder(t.warmed, tmp_path, max_retries=retries)
        made = egs_ray.run(task.bind(folder, t.before.bind(folder, "first")), session=session)
        parked = process_of(tmp_path / "load.runs")
        t.until(lambda: made._books.jobs[1].is_warm)
        parked.kill()
        t.until(lambda: not made._books.jobs[1].is_warm, "the driver knows")
        t.signal_to(folder, "first.end")
        loaded = made.get(t.LIMIT_S)
        assert loaded["pid"] == loaded["model"]["pid"] != parked.pid


def test_leaving_process_dies(tmp_path: Path) -> None:
    """A task that counts on a process about to be free gets another one when that process dies first."""
    folder = str(tmp_path)
    with t.session(tmp_path) as session:
        task = t.with_folder(t.warmed, tmp_path)
        first = egs_ray.run(task.bind(folder), session=session).get(t.LIMIT_S)
        made = egs_ray.run(MultiOutputNode([task.bind(folder, i) for i in range(4)]), session=session)
        os.kill(first["pid"], signal.SIGKILL)
        assert len(made.get(t.LIMIT_S)) == 4


def test_store_and_log_are_unusable(tmp_path: Path, capsys: Capture) -> None:
    """A corrupt history and a run log that cannot be written cost a warning, not the run."""
    (tmp_path / "history.db").write_bytes(b"no database" * 1000)
    (tmp_path / "file").touch()
    options = egs_ray.Options(runlog=str(tmp_path / "file" / "log.jsonl"), history=f"sqlite:///{tmp_path}/history.db")
    with Session(options) as session:
        assert egs_ray.run(t.total.bind(t.total.bind(1)), session=session).get(t.LIMIT_S) == 9
        assert session.site.is_alive
    assert len(warnings_in(capsys)) == 1


def test_no_session_can_be_made(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """Where EGS cannot even start, the graph runs on Ray alone, with its GPUs reserved."""
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "203.0.113.1")
    made = egs_ray.run(t.total.bind(t.total.bind(1), 1))
    assert made.get(t.LIMIT_S) == 12
    assert made.done()
    assert made.runlog == ""
    assert len(warnings_in(capsys)) == 1


@pytest.mark.parametrize("last_words", ["heard", "after the result"])
def test_session_is_closed_under_a_run(tmp_path: Path, last_words: str) -> None:
    """Closing hands unfinished runs to Ray: what runs keeps its GPU to the end, what waits is submitted."""
    folder = str(tmp_path)
    with t.session(tmp_path) as session:
        first = t.blocked.bind(folder, "a")
        made = egs_ray.run(MultiOutputNode([first, t.stamp.bind(0.01, first)]), session=session)
        t.signal_to(folder, "a.decode.end")
        t.until((tmp_path / "a.fit.runs").exists)
        t.until(lambda: t.free("GPU") == 1)
    assert t.free("GPU") == 1
    if last_words != "heard":
        session._workers.take_message = lambda *_: None
    t.signal_to(folder, "a.fit.end")
    t.signal_to(folder, "a.write.end")
    seen, span = made.get(t.LIMIT_S)
    assert seen[1] in ("0", "1")
    assert span[0] < span[1]


def test_an_error_outruns_what_its_worker_said(tmp_path: Path, capsys: Capture) -> None:
    """A user's exception that is there before the worker's messages is the user's: no other try, and no warning."""
    raises = t.raises_first.options(max_retries=0).bind(str(tmp_path))
    with t.session(tmp_path) as session:
        session._workers.take_message = lambda *_: None
        with pytest.raises(ValueError, match="the first time"):
            egs_ray.run(raises, session=session).get(t.LIMIT_S)
    assert warnings_in(capsys) == []


DRIVER = """
import sys, ray, egs_ray
from tests.conformance.ray import run_tasks as t
ray.init(log_to_driver=False)
with t.session(t.Path(sys.argv[1])) as session:
    egs_ray.run(t.blocked.bind(sys.argv[1], "a"), session=session).get(60)
"""


def test_driver_is_killed(ray_address: str, tmp_path: Path) -> None:
    """When the driver's process dies, Ray gets everything back and no process of the run is left."""
    before = set(holders())
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(tmp_path)],
        env={**os.environ, "RAY_ADDRESS": ray_address, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        shell = process_of(tmp_path / "a.decode.runs")
        t.signal_to(str(tmp_path), "a.decode.end")
        t.until((tmp_path / "a.fit.runs").exists)
        t.until(lambda: t.free("GPU") == 1)
    finally:
        driver.kill()
        driver.wait()
    t.until(t.is_idle)
    t.until(lambda: not shell.is_running(), "its task's process has ended")
    t.until(lambda: not set(holders()) - before, "its holders have ended")


CLUSTER = """
import json, sys, ray, egs_ray
from ray.cluster_utils import Cluster
from ray.dag import MultiOutputNode
from tests.conformance.ray import run_tasks as t

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 80_000_000})
for _ in range(2):
    cluster.add_node(num_cpus=2, num_gpus=1, object_store_memory=80_000_000)
ray.init(address=cluster.address, log_to_driver=False)

@ray.remote(num_cpus=2, num_gpus=1)
def where(folder, name):
    with t.egs.gpu() as devices:
        t.note(folder, name, "")
        t.wait_for(folder, "b" if name == "a" else "a")
        here = ray.get_runtime_context().get_node_id()
        free = lambda: round(ray._private.state.available_resources_per_node()[here].get("GPU", 0), 2)
        t.until(lambda: free() == 0)  # what Ray tells of its books is some seconds old on a busy machine
        return here, len(devices), free()

folder = sys.argv[1]
with t.session(t.Path(folder)) as session:
    out = egs_ray.run(MultiOutputNode([where.bind(folder, "a"), where.bind(folder, "b")]), session=session).get(60)
    elsewhere = where.options(num_gpus=4)  # no node has as many: Ray's autoscaler would have to see it
    waiting = egs_ray.run(elsewhere.bind(folder, "a"), session=session)
    t.until(lambda: waiting._books.jobs and waiting._books.jobs[0].ref is not None)
print("RESULT", json.dumps(out))
ray.shutdown()
cluster.shutdown()
"""


def test_two_nodes(tmp_path: Path) -> None:
    """On two nodes with a GPU each, the holder is where its task's process is; what fits nowhere is Ray's to place."""
    variables = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    with tempfile.TemporaryDirectory(prefix="egs-", ignore_cleanup_errors=True) as short:  # for sockets
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", PATIENT + CLUSTER, str(tmp_path)],
            env={**variables, "PYTHONPATH": os.pathsep.join(sys.path), "RAY_TMPDIR": short},
            capture_output=True,
            text=True,
            timeout=280,
        )
    line = next((line for line in done.stdout.splitlines() if line.startswith("RESULT")), "")
    assert line, done.stdout + done.stderr
    out = json.loads(line.removeprefix("RESULT "))
    assert len({node for node, _, _ in out}) == 2
    assert all(count == 1 for _, count, _ in out)
    assert all(free == 0 for _, _, free in out)
