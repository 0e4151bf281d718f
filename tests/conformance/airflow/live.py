"""The local Airflow of the tests: that of the package, with this checkout's sources before installed ones."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from egs_airflow import local, shared
from egs_airflow.local import LocalAirflow, LocalAirflowError, free_ports, local_airflow
from egs_airflow.local import make_environment as own_environment
from egs_airflow.order.durations import Durations, keep_durations, unpacked
from egs_airflow.rest import Rest
from tests.conformance.airflow.commands import Commands, commands

ROOT = Path(__file__).resolve().parents[3]
SOURCES = (ROOT, ROOT / "plugins" / "airflow")
local.START_S = local.WAIT_S = WAIT_S = 600.0  # a user would not wait for so long; a busy machine may need it


@dataclass
class LiveAirflow(LocalAirflow):
    """commands: what runs commands without a start of Python for each; None for an Airflow that has few."""

    commands: Commands | None = None

    def tell_durations(self, durations: Durations) -> None:
        """What these DAGs' tasks take, as if learned before, beside what is known; where all components read it."""
        rest = Rest(self.url, self.token)
        known = shared.read_rest(rest, shared.DURATIONS)
        keep_durations(rest, {**(unpacked(known) if known else {}), **durations})

    def wait_run(self, dag_id: str, run_id: str, *states: str, deadline_s: float = WAIT_S) -> str:
        """With a longer deadline."""
        return super().wait_run(dag_id, run_id, *states, deadline_s=deadline_s)

    def run(self, dag_id: str, conf: dict[str, Any] | None = None, deadline_s: float = WAIT_S) -> str:
        """With a longer deadline."""
        return super().run(dag_id, conf, deadline_s)

    def command(self, *words: str, **environment: str) -> str:
        """As ever; those with variables of their own have a start of their own."""
        if self.commands is None or environment:
            return super().command(*words, **environment)
        code, said = self.commands.run(*words)
        if code:
            raise LocalAirflowError(f"airflow {' '.join(words)}: exit code {code}\n{said}")
        return said


__all__ = ["SOURCES", "LiveAirflow", "free_ports", "live_airflow", "make_environment", "wait_until"]


def wait_until(condition: Callable[[], Any], what: str, deadline_s: float = WAIT_S) -> Any:
    """As `local.wait_until`, with a longer deadline."""
    return local.wait_until(condition, what, deadline_s)


def make_environment(home: Path, port: int = 0) -> dict[str, str]:
    """The variables of an Airflow of its own, with this checkout's sources."""
    return {**own_environment(home, port), "PYTHONPATH": os.pathsep.join(map(str, SOURCES))}


@contextmanager
def live_airflow(
    home: Path,
    environment: Mapping[str, str],
    sources: Mapping[str, str] | None = None,
    *,
    many_commands: bool = False,
) -> Iterator[LiveAirflow]:
    """A fresh Airflow with these DAG files; gone, with all of its processes, at the end."""
    with ExitStack() as stack:
        variables = {"PYTHONPATH": os.pathsep.join(map(str, SOURCES)), **environment}
        made = stack.enter_context(local_airflow(home, variables, sources))
        server = stack.enter_context(commands(made.environment, home)) if many_commands else None
        yield LiveAirflow(made.url, made.home, made.environment, made.token, made.processes, server)
