"""A forecast held against what a run with EGS achieved."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from egs_core.audit.forecast import Band, Forecast
from egs_core.audit.items import FIGURES, figures_of_items, items_of
from egs_core.errors import InputError
from egs_core.runlog.io import Run
from egs_core.runlog.same_tasks import task_difference, task_names
from egs_core.runlog.timeline import build_timeline

FORMAT = "egs-forecast"
VERSION = 1


class ForecastFile(msgspec.Struct, frozen=True, kw_only=True):
    """As it is stored."""

    format: str = FORMAT
    version: int = VERSION
    source: str = ""
    tasks: dict[str, int] = {}  # of the history, by name; empty in a file that did not keep them
    forecast: Forecast


class Compared(msgspec.Struct, frozen=True):
    """One figure: its band, what was achieved, and whether that fell into the band."""

    figure: str
    band: Band
    achieved: float
    in_band: bool


def write_forecast(path: Path, forecast: Forecast, source: str, tasks: Mapping[str, int]) -> None:
    """Keep a forecast for a later comparison; tasks: how many of each name it is about. Raises InputError where that
    cannot be."""
    file = ForecastFile(source=source, tasks=dict(tasks), forecast=forecast)
    encoded = msgspec.json.format(msgspec.json.encode(file))
    try:
        path.write_bytes(encoded + b"\n")
    except OSError as error:
        raise InputError(str(path), f"cannot be written: {error.strerror}") from None


def read_forecast(path: Path) -> ForecastFile:
    """A stored forecast. Raises InputError for anything that is none."""
    if os.path.isdir(path):
        raise InputError(str(path), "is a folder, not a forecast")
    try:
        file = msgspec.json.decode(path.read_bytes(), type=ForecastFile)
    except FileNotFoundError:
        raise InputError(str(path), "no such file") from None
    except OSError as error:
        raise InputError(str(path), f"cannot be read: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(str(path), f"not a forecast: {error}", "egs audit … --forecast-out writes one") from None
    if (file.format, file.version) != (FORMAT, VERSION):
        raise InputError(str(path), f"{file.format!r} version {file.version} is unknown", f"readable: {FORMAT} 1")
    return file


def compare(file: ForecastFile, run: Run) -> list[Compared]:
    """What a run achieved of a forecast. Raises InputError for a run without EGS, without an ended task, or of other
    tasks than the forecast is about."""
    if run.header.mode != "on":
        mode = run.header.mode or "unknown"
        raise InputError(run.path, f"is a run in mode {mode}", "compare a forecast with a run log of EGS_MODE=on")
    items = items_of(build_timeline(run.records))
    if not items:
        raise InputError(run.path, "no task of it has ended")
    if file.tasks and (differs := task_difference(file.tasks, task_names(run.records), ("the forecast", run.path))):
        raise InputError(run.path, f"is not of the same tasks: {differs}", "forecast and run must be of one pipeline")
    achieved = figures_of_items(items)
    rows = []
    for name in FIGURES:
        band, value = getattr(file.forecast, name), getattr(achieved, name)
        rows.append(Compared(name, band, value, band.holds(value)))
    return rows
