"""Ways in which EGS breaks on Airflow: some on the session's one, some in an Airflow of their own."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from egs_airflow.rest import Rest
from egs_airflow.shared import DURATIONS, write
from tests.conformance.airflow.live import LiveAirflow, live_airflow
from tests.conformance.airflow.sites import Site, add_module, make_site

FOLDER = Path(__file__).parent
ON = {
    "EGS_MODE": "on",
    "EGS_TAGS": "egs-on",
    "EGS_POOLS": "order_gpu=2",
    "AIRFLOW__CORE__EXECUTOR": "egs_airflow.executors.EgsLocalExecutor",
}
BROKEN = {
    "native": {"EGS_MODE": "off"},
    "api": {**ON, "EGS_AIRFLOW_WITHOUT": "dag_file, serialized, mutation_hook, pool_stats, view"},
    "engine": {**ON, "AIRFLOW__CORE__PLUGINS_FOLDER": str(FOLDER / "plugins")},
    "worker": {**ON, "AIRFLOW__CORE__EXECUTOR": "bare_workers.BareWorkers"},
    "uninstalled": {**ON, "AIRFLOW__CORE__EXECUTOR": "own_interpreter.KeepingInterpreter"},
}
"""What needs an Airflow of its own, and the settings of that."""

RAISES = "egs_raises"
"""The file in an Airflow's home that makes EGS's hooks raise; see `plugins/raising.py`."""


@contextmanager
def broken_airflow(kind: str, folder: Path) -> Iterator[tuple[LiveAirflow, Site | None]]:
    """One of `BROKEN`, with its pool; and the environment from which EGS can be uninstalled, for that fault."""
    settings, site, extra = dict(BROKEN[kind]), None, folder / "extra"
    folder.mkdir(parents=True)
    settings["EGS_RUNLOG"] = str(folder / "runlog")
    with pytest.MonkeyPatch.context() as patch:
        if kind in ("worker", "uninstalled"):
            site = make_site(folder / "site")
            add_module(extra, FOLDER / "executors" / "own_interpreter.py")
            add_module(extra, FOLDER / "executors" / "bare_workers.py")
        if kind == "uninstalled" and site is not None:
            patch.setattr(sys, "executable", str(site.python))
            settings["PYTHONPATH"] = str(extra)
        elif site is not None:
            site.uninstall()
            settings["BARE_PYTHON"] = str(site.python)
            settings["PYTHONPATH"] = ":".join([str(extra), _sources()])
        with live_airflow(folder / "home", settings) as airflow:
            if settings["EGS_MODE"] == "off":
                airflow.rest("POST", "/pools", {"name": "order_gpu", "slots": 2, "include_deferred": True})
            yield airflow, site


def _sources() -> str:
    from tests.conformance.airflow.live import SOURCES

    return ":".join(map(str, SOURCES))


def break_airflow(airflow: LiveAirflow, how: str) -> None:
    """Break EGS in an Airflow that runs."""
    if how == "engine":
        (airflow.home / RAISES).touch()
    elif how == "store":
        write(Rest(airflow.url, airflow.token), DURATIONS, '{"format": ', "broken")
        _kept(airflow.home / "history.sqlite").write_bytes(b"no database" * 1000)
    else:
        for path in _lines(airflow):
            _kept(path).symlink_to("/dev/full")


def mend_airflow(airflow: LiveAirflow, how: str) -> None:
    """Put back what `break_airflow` has put aside."""
    if how == "store":
        Rest(airflow.url, airflow.token).send("DELETE", f"variables/{DURATIONS}")
    paths = [airflow.home / "history.sqlite"] if how == "store" else _lines(airflow)
    for path in paths:
        path.unlink(missing_ok=True)
        aside = path.with_suffix(".aside")
        if aside.exists():
            aside.rename(path)


def _lines(airflow: LiveAirflow) -> list[Path]:
    """The files of today's lines, and of tomorrow's: the test may run at midnight."""
    import socket

    days = {time.strftime("%Y%m%d", time.gmtime(time.time() + later)) for later in (0, 3600)}
    return [Path(airflow.environment["EGS_RUNLOG"]) / f"tasks-{day}-{socket.gethostname()}.jsonl" for day in days]


def _kept(path: Path) -> Path:
    """The path, free: what was there is put aside."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        path.rename(path.with_suffix(".aside"))
    return path
