"""Puts durations from Airflow's REST API into EGS's history: all of the last days at first, then what is new.

Each call takes the tries that ended since the call before, up to SETTLE_S ago: by then Airflow has them, whatever clock
their worker has. Up to when each Airflow was read is in a small file, so no duration is kept twice.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from egs_airflow.history.read import read_airflow
from egs_airflow.history.records import past_of
from egs_airflow.observe.lines import Line
from egs_airflow.order.durations import Known
from egs_airflow.rest import Rest
from egs_core.errors import InputError
from egs_core.history import History, HistoryRow, history_from_runlog
from egs_core.places import replace_file
from egs_core.predict import Predictor

FORMAT = "egs-airflow-kept"
VERSION = 1
DAYS = 30.0
SETTLE_S = 60.0
DAY_S = 86_400.0


class Kept(msgspec.Struct):
    """The file: by Airflow's URL, up to which end (Unix time) its tries are in the history."""

    format: str = FORMAT
    version: int = VERSION
    until_s: dict[str, float] = {}


def keep_history(
    rest: Rest,
    history: History,
    state: Path,
    gpu_pools: Collection[str] = (),
    lines: Iterable[Line] = (),
    flavors: Mapping[str, str] | None = None,
    days: float = DAYS,
    settle_s: float = SETTLE_S,
) -> int:
    """Keep what has ended since the last call with this state file, of `days` at first; how many durations.

    lines: what the listener noted, where it did: then a cold start is no part of a duration. flavors: of GPUs, by pool.
    Raises InputError where
    Airflow or the state file cannot be read, or the history keeps nothing: the next call begins at the same place.
    """
    kept, now_s = _read_state(state), time.time()
    known_s, until_s = kept.until_s.get(rest.url), now_s - settle_s
    since_s = now_s - days * DAY_S if known_s is None else known_s
    code_s = {line.key: line.code for line in lines}
    rows: list[HistoryRow] = []
    for dag_id in _dags(rest) if known_s is None else ["~"]:  # at first it may be much: DAG by DAG
        found = past_of(read_airflow(rest, since_s, dag_id, also_older=True), gpu_pools, code_s=code_s)
        found.flavors = dict(flavors or {})
        ended = history_from_runlog([found.header(""), *found.records()])
        rows.extend(row for row in ended if since_s < row.ended_at <= until_s)
    stored = history.record(rows)
    if rows and not stored:
        raise InputError("history", "keeps nothing", "egs doctor says what is wrong with it")
    kept.until_s[rest.url] = max(until_s, since_s)
    _write_state(state, kept)
    return stored


def _dags(rest: Rest) -> Iterator[str]:
    return (row["dag_id"] for row in rest.rows("dags", "dags", exclude_stale="false"))


def learned(history: History) -> Known:
    """The expected seconds of each task, by DAG and task id, as the ordering takes them."""
    found: dict[str, dict[str, float]] = {}
    p95: dict[str, dict[str, float]] = {}
    for dag_id in history.pipelines():
        predictor = Predictor.from_history(history, [dag_id])
        for signature in history.signatures(dag_id):  # of a task whose needs have changed the newest counts
            estimate = predictor.estimate(signature)
            found.setdefault(dag_id, {})[signature.task] = estimate.p50_s
            p95.setdefault(dag_id, {})[signature.task] = estimate.p95_s
    return Known(found, p95)


def _read_state(path: Path) -> Kept:
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=Kept)
    except FileNotFoundError:
        return Kept()
    except OSError as error:
        raise InputError(str(path), f"cannot be read: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputError(str(path), f"is no state of the history: {error}", "remove it to begin anew") from None
    if (kept.format, kept.version) != (FORMAT, VERSION):
        problem = f"{kept.format!r} version {kept.version} is unknown"
        raise InputError(str(path), problem, f"readable: {FORMAT} {VERSION}")
    return kept


def _write_state(path: Path, kept: Kept) -> None:
    try:
        replace_file(path, msgspec.json.encode(kept))
    except OSError as error:
        raise InputError(str(path), f"cannot be written: {error.strerror}") from None
