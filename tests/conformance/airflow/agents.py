"""`airflow egs agent` as a process of a test's own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.conformance.airflow.live import LiveAirflow


@dataclass
class Agent:
    """log: where what it says goes."""

    process: subprocess.Popen[bytes]
    log: Path

    def said(self) -> str:
        """All that it has said until now."""
        return self.log.read_text(errors="replace")


@contextmanager
def an_agent(airflow: LiveAirflow, log: Path, url: str, **environment: str) -> Iterator[Agent]:
    """It runs; killed at the end, if it has not ended."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "airflow", "egs", "agent", "--url", url],
            env={**airflow.environment, **environment},
            cwd=airflow.home,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        yield Agent(process, log)
    finally:
        process.kill()
        process.wait()
