"""An Airflow of its own on this machine, for as long as a `with` block lasts: nothing of it is left afterwards.

api-server and scheduler with LocalExecutor on SQLite, on free ports, in a home of its own; for `egs replay`, `egs demo`
and the tests. Another Airflow on the machine is neither used nor disturbed. Each process has a session of its own, and
the end takes what descends from them too, because tasks have process groups of their own.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import psutil

from egs_core.errors import EgsError
from egs_core.web import Api, Refused, Unreachable

START_S = 120.0
WAIT_S = 90.0
KILLED_S = 60.0  # on a busy machine what was killed is there for a while
LOCKED = "Database error", "Internal Server Error"  # the second one: Airflow 3.2
"""What Airflow's api-server answers where two of its own requests have waited for each other's lock on SQLite for five
seconds; nothing of the request was done. A longer wait of SQLite makes that longer, not rarer."""
TRIES = 4
ENDED = ("success", "failed")
LAST_LINES = 20


class LocalAirflowError(EgsError):
    """The Airflow of our own does not start, has ended, or answers with an error."""


@dataclass
class LocalAirflow:
    """One running Airflow. home: its AIRFLOW_HOME; dags: the folder of DAG files; environment: of its processes."""

    url: str
    home: Path
    environment: dict[str, str]
    token: str = ""
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def dags(self) -> Path:
        """The folder of DAG files."""
        return self.home / "dags"

    def add_dags(self, **sources: str) -> None:
        """Write DAG files `<name>.py`, and have Airflow read all of them; one process start for any number."""
        for name, source in sources.items():
            (self.dags / f"{name}.py").write_text(source)
        self.reserialize()

    def reserialize(self, **environment: str) -> str:
        """Read all DAG files, as a dag-processor does; what that printed."""
        return self.command("dags", "reserialize", **environment)

    def command(self, *words: str, **environment: str) -> str:
        """Run `airflow …` and return what it printed; LocalAirflowError, with the output, when it fails."""
        try:
            done = subprocess.run(
                [sys.executable, "-m", "airflow", *words],
                env={**self.environment, **environment},
                cwd=self.home,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=WAIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise LocalAirflowError(f"airflow {' '.join(words)}: not over within {WAIT_S:g} s") from None
        if done.returncode:
            raise LocalAirflowError(f"airflow {' '.join(words)}: exit code {done.returncode}\n{done.stdout}")
        return done.stdout

    def rest(self, method: str, path: str, body: object = None) -> Any:
        """The answer of the REST API, decoded; `path` begins below `/api/v2`."""
        return self.ask(method, f"/api/v2{path}", body)

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """The answer of any of the api-server's addresses, decoded; None for an empty one."""
        for left in reversed(range(TRIES)):
            try:
                return Api(self.url, "this Airflow").ask(path, method, body, self.token)
            except Refused as error:
                if error.status != 500 or not any(text in error.text for text in LOCKED) or not left:
                    raise LocalAirflowError(f"{method} {path}: {error.status} {error.text}") from None
        raise AssertionError

    def trigger(self, dag_id: str, conf: dict[str, Any] | None = None) -> str:
        """Un-pause the DAG and start a run of it now; its run id."""
        self.rest("PATCH", f"/dags/{dag_id}?update_mask=is_paused", {"is_paused": False})
        run = self.rest("POST", f"/dags/{dag_id}/dagRuns", {"logical_date": None, "conf": conf or {}})
        return str(run["dag_run_id"])

    def wait_run(self, dag_id: str, run_id: str, *states: str, deadline_s: float = WAIT_S) -> str:
        """Wait until the run is in one of the states, by default an end; the state."""
        wanted = states or ENDED
        what = f"{dag_id} {run_id}"
        return str(
            wait_until(lambda: found if (found := self.state(dag_id, run_id)) in wanted else "", what, deadline_s)
        )

    def state(self, dag_id: str, run_id: str) -> str:
        """In which state a run is now."""
        return str(self.rest("GET", f"/dags/{dag_id}/dagRuns/{run_id}")["state"])

    def run(self, dag_id: str, conf: dict[str, Any] | None = None, deadline_s: float = WAIT_S) -> str:
        """Trigger a run and wait for its end, which must be a success; its run id."""
        run_id = self.trigger(dag_id, conf)
        state = self.wait_run(dag_id, run_id, deadline_s=deadline_s)
        if state != "success":
            raise LocalAirflowError(f"{dag_id} {run_id}: {state}\n{self.task_instances(dag_id, run_id)}")
        return run_id

    def task_instances(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        """All task instances of a run, as REST gives them, in the order in which they were started."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances?limit=1000"
        found: list[dict[str, Any]] = self.rest("GET", path)["task_instances"]
        return sorted(found, key=lambda ti: (ti["start_date"] or "9", ti["task_id"], ti["map_index"]))

    def logs(self) -> str:
        """What the api-server and the scheduler have printed until now."""
        return "".join(path.read_text(errors="replace") for path in sorted(self.home.glob("*.log")))

    def last_lines(self) -> str:
        """The end of what they have printed."""
        return "\n".join(self.logs().splitlines()[-LAST_LINES:])

    def check_alive(self) -> None:
        """LocalAirflowError, with its last lines, where a process of it has ended."""
        for process in self.processes:
            if process.poll() is not None:
                raise LocalAirflowError(f"{process.args!r} has ended:\n{self.last_lines()}")


def wait_until(condition: Callable[[], Any], what: str, deadline_s: float = WAIT_S) -> Any:
    """The first true value of `condition`, asked five times a second; LocalAirflowError after the deadline."""
    end = time.monotonic() + deadline_s
    while not (found := condition()):
        if time.monotonic() > end:
            raise LocalAirflowError(f"{what}: not within {deadline_s:g} s")
        time.sleep(0.2)
    return found


@contextmanager
def local_airflow(
    home: Path, environment: Mapping[str, str], sources: Mapping[str, str] | None = None
) -> Iterator[LocalAirflow]:
    """A fresh Airflow with these DAG files in an empty folder; gone, with all of its processes, at the end."""
    port, logs_port, trigger_port = free_ports(3)
    own = make_environment(home, port)
    own["AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT"] = str(logs_port)
    own["AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT"] = str(trigger_port)
    airflow = LocalAirflow(f"http://127.0.0.1:{port}", home, {**own, **environment})
    airflow.dags.mkdir(parents=True)
    with _ends_when_told():
        airflow.command("db", "migrate")
        try:
            airflow.processes += [start(airflow, "api-server", "--workers", "1"), start(airflow, "scheduler")]
            if sources:
                airflow.add_dags(**sources)
            wait_until(lambda: _healthy(airflow), "a healthy Airflow", START_S)
            airflow.ask("GET", "/execution/health")  # its first answer takes seconds, which would fail the first task
            airflow.token = airflow.ask("GET", "/auth/token")["access_token"]
            yield airflow
        finally:
            _end(airflow.processes)


def make_environment(home: Path, port: int = 0) -> dict[str, str]:
    """The variables of an Airflow of its own: none of the user's settings, homes or proxies."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "EGS_", "XDG_", "PYTHON"))}
    kept["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
    base = f"http://127.0.0.1:{port}"
    folders = {name: str(home / name.lower()) for name in ("XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME")}
    settings = {
        "API__PORT": str(port),
        "API__HOST": "127.0.0.1",
        "API__BASE_URL": base,
        "API_AUTH__JWT_SECRET": secrets.token_hex(32),
        "CORE__EXECUTION_API_SERVER_URL": f"{base}/execution/",
        "CORE__EXECUTOR": "LocalExecutor",
        "CORE__PARALLELISM": "8",
        "CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "CORE__LOAD_EXAMPLES": "False",
        "CORE__DAGS_FOLDER": str(home / "dags"),
        "DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / 'airflow.db'}",
        "LOGGING__LOGGING_LEVEL": "WARNING",
        "SCHEDULER__ENABLE_HEALTH_CHECK": "False",
        "USAGE_DATA_COLLECTION__ENABLED": "False",
    }
    own = {
        "HOME": str(home),
        "AIRFLOW_HOME": str(home),
        "NO_PROXY": "*",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
    }
    return {**kept, **own, **folders, **{f"AIRFLOW__{name}": value for name, value in settings.items()}}


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, all different."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


def start(airflow: LocalAirflow, *words: str) -> subprocess.Popen[bytes]:
    with (airflow.home / f"{words[0]}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "airflow", *words],
            env=airflow.environment,
            cwd=airflow.home,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _healthy(airflow: LocalAirflow) -> bool:
    airflow.check_alive()
    try:
        health = airflow.rest("GET", "/monitor/health")
    except (Unreachable, LocalAirflowError):
        return False
    return all(health[part]["status"] == "healthy" for part in ("metadatabase", "scheduler"))


@contextmanager
def _ends_when_told() -> Iterator[None]:
    """SIGTERM ends what is inside as Ctrl-C does, so that its processes are ended too."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _exit(number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    """End the processes and all that they have started, first gently: a scheduler that is killed leaves orphans."""
    family = [child for process in processes for child in _family(process)]
    for process in processes:
        process.send_signal(signal.SIGTERM)
    _, alive = psutil.wait_procs(family, timeout=5.0)
    alive += [child for survivor in alive for child in _descendants(survivor)]  # begun since they were told
    for survivor in alive:
        try:
            survivor.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(alive, timeout=KILLED_S)
    for process in processes:
        process.wait(timeout=KILLED_S)


def _family(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    try:
        parent = psutil.Process(process.pid)
    except psutil.NoSuchProcess:
        return []
    return [parent, *_descendants(parent)]


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        return list(process.children(recursive=True))
    except psutil.NoSuchProcess:
        return []
