"""What an Airflow with CeleryExecutor needs beside itself: a Redis server of a test's own, and workers."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from egs_airflow import local
from tests.conformance.airflow.live import LiveAirflow, free_ports, wait_until

PROVIDER = "apache-airflow-providers-celery"
SERVER = "redis-server"
PROCESSES = 8


@contextmanager
def redis() -> Iterator[str]:
    """The URL of an empty server, which is gone at the end; skips where there is none, or no Celery for Airflow."""
    program = shutil.which(SERVER)
    if program is None:
        pytest.skip(f"{SERVER} is not installed")
    try:
        version(PROVIDER)
    except PackageNotFoundError:
        pytest.skip(f"{PROVIDER} is not installed")
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory(prefix="egs-redis-") as folder:
        command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
        try:
            wait_until(lambda: _listens(port), "a Redis server")
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            server.terminate()
            server.wait(timeout=120)


def settings(broker: str, home: Path) -> dict[str, str]:
    """The variables of an Airflow with that broker; its results are in a database, as Airflow has it."""
    return {
        "AIRFLOW__CORE__EXECUTOR": "egs_airflow.executors.celery.EgsCeleryExecutor",
        "AIRFLOW__CELERY__BROKER_URL": broker,
        "AIRFLOW__CELERY__RESULT_BACKEND": f"db+sqlite:///{home / 'celery.db'}",
        "AIRFLOW__CELERY__WORKER_CONCURRENCY": str(PROCESSES),
    }


def start_worker(airflow: LiveAirflow, queue: str, **environment: str) -> Path:
    """Start a worker that ends with Airflow; the file of what it prints."""
    folder = airflow.home / f"worker_{queue}"
    folder.mkdir()
    site = replace(airflow, home=folder, environment={**airflow.environment, **environment})
    words = ("--queues", queue, "--celery-hostname", queue, "--pid", str(folder / "pid"))
    airflow.processes.append(local.start(site, "celery", "worker", "--skip-serve-logs", *words))
    return folder / "celery.log"


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    except OSError:
        return False
    return True
