"""Learned durations as a small file: written by whoever learns, read where Airflow makes task instances.

    {"format": "egs-airflow-durations", "version": 1, "dags": {"<dag id>": {"<task id>": seconds, …}, …}}

A reader asks only the file's status when nothing has changed, and never a database: a weight is computed in the middle
of one of the scheduler's transactions. A file that is absent or cannot be read means that nothing was learned yet.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from egs_airflow import config
from egs_airflow.order.published import learned_at

FORMAT = "egs-airflow-durations"
VERSION = 1
MOST_S = 1e10
"""300 years."""

Durations = Mapping[str, Mapping[str, float]]
"""Seconds that a task of a DAG is expected to take: by DAG id, by task id. A mapped task has one entry."""

NOTHING: Durations = {}
"""What an absent file says."""
LOOK_S = 0.2
"""How often it is looked whether the file has changed, where task instances are made."""

_Stamp = tuple[int, int, int]
_read: dict[Path, tuple[_Stamp, Durations]] = {}
_current: list[tuple[float, Durations]] = []


def durations_path() -> Path:
    """Where the file is: option `durations`, by default in the user's data folder."""
    from egs_core.places import data_folder  # not in every process of Airflow

    stated = config.option("durations")
    return Path(stated) if stated else data_folder() / "airflow" / "durations.json"


def write_durations(path: Path, durations: Durations) -> None:
    """Replace the file as a whole: a reader sees the old one or the new one. What is no duration is left out."""
    from egs_core.places import replace_file

    kept = {dag: {task: s for task, s in tasks.items() if _is_duration(s)} for dag, tasks in durations.items()}
    stored = {"format": FORMAT, "version": VERSION, "dags": kept}
    replace_file(path, json.dumps(stored, sort_keys=True).encode())


def current_durations() -> Durations:
    """What the configured file says, the same object until it changes; a run of 1,500 task instances asks as often."""
    now_s = time.monotonic()
    if _current and now_s - _current[0][0] < LOOK_S:
        return _current[0][1]
    path = durations_path()
    found = load_durations(path)
    if found is NOTHING:
        config.warn(f"every task counts as equally long: {missing(path, learned_at())}")
    _current[:] = [(now_s, found)]
    return found


def missing(path: Path, elsewhere: str) -> str:
    """What to say of a file that is not there. elsewhere: where the agent of the site keeps one, "" if not known."""
    if not elsewhere or elsewhere.endswith(f": {path}"):
        how = "`airflow egs learn` or the agent writes it; where they run with another home, name one file for all in"
        return f"{path} is not there; {how} [egs] durations"
    return f"{path} is not there, and the agent's is on {elsewhere}; name one file that both reach in [egs] durations"


def load_durations(path: Path) -> Durations:
    """What the file says now, the same object until it changes; {} for an absent one and, with a warning, a bad one."""
    try:
        status = path.stat()
    except OSError:
        return NOTHING
    stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
    known = _read.get(path)
    if known is None or known[0] != stamp:
        known = _read[path] = (stamp, _parse(path))
    return known[1]


def _parse(path: Path) -> Durations:
    try:
        stored: Any = json.loads(path.read_text())
        if (stored["format"], stored["version"]) != (FORMAT, VERSION):
            raise ValueError(f"format {stored['format']!r}, version {stored['version']!r}")
        return {
            str(dag): {str(task): float(s) for task, s in tasks.items() if _is_duration(s)}
            for dag, tasks in stored["dags"].items()
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        config.warn(f"{path}: no durations can be read from it: {error}")
        return {}


def _is_duration(value: object) -> bool:
    """Longer than MOST_S is a broken file: sums of such numbers would be no numbers any more."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= MOST_S
