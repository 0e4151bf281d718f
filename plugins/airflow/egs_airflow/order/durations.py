"""Learned durations: written by whoever learns, read where Airflow makes task instances.

    {"format": "egs-airflow-durations", "version": 1, "dags": {"<dag id>": {"<task id>": seconds, …}, …},
     "p95": {"<dag id>": {"<task id>": seconds, …}, …}}

They stand in one place for all components, the Variable `egs_durations` (see `shared`), packed: REST hides values
under names such as `token_count`, and people need not read 10,000 of them. Where option `durations` names a file, they
stand in that. A weight is computed in the middle of one of the scheduler's transactions: it is looked for new ones a
few times a second at most, on a connection of its own, and all of them are read only when they are new ones.
"""

from __future__ import annotations

import base64
import json
import socket
import time
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from egs_airflow import config, shared

if TYPE_CHECKING:
    from egs_airflow.rest import Rest

FORMAT = "egs-airflow-durations"
VERSION = 1
MOST_S = 1e10
"""300 years."""
MOST_BYTES = 2**28
"""Of unpacked text."""

Durations = Mapping[str, Mapping[str, float]]
"""Seconds that a task of a DAG is expected to take: by DAG id, by task id. A mapped task has one entry."""


class Known(dict[str, Mapping[str, float]]):
    """Durations, medians, with their 95th percentiles, as far as those are known. p95: by DAG id, by task id."""

    def __init__(self, medians: Durations, p95: Durations) -> None:
        super().__init__(medians)
        self.p95 = p95


NOTHING: Durations = {}
"""What is known where nobody has learned yet."""
UNREADABLE: Durations = {}
"""What a text says that is none, with a warning."""
LOOK_S = 0.2
"""How often it is looked for new ones, where task instances are made."""
REST_LOOK_S = 10.0
VARIABLE = f"Variable {shared.DURATIONS} of this Airflow"

_Stamp = tuple[int, int, int]
_read: dict[Path, tuple[_Stamp, Durations]] = {}
_shared: list[shared.Shared[Durations]] = []
_current: list[tuple[float, Durations]] = []


def stated_file() -> Path | None:
    """The file that option `durations` names; None where they are in Airflow's metadata."""
    stated = config.option("durations")
    return Path(stated) if stated else None


def place() -> str:
    """Where they are, for people."""
    return str(stated_file() or VARIABLE)


def keep_durations(rest: Rest, durations: Durations) -> None:
    """Leave them where all components read them. Raises InputError or OSError where that is refused."""
    path = stated_file()
    if path is not None:
        write_durations(path, durations)
        return
    tasks = sum(map(len, durations.values()))
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    what = f"EGS: how long {tasks} tasks of {len(durations)} DAGs take, learned on {socket.gethostname()}, {when}"
    shared.write(rest, shared.DURATIONS, packed(durations), what)


def current_durations() -> Durations:
    """What is known, the same object until it changes; a run of 1,500 task instances asks as often. Never raises."""
    now_s = time.monotonic()
    if _current and now_s - _current[0][0] < LOOK_S:
        return _current[0][1]
    path = stated_file()
    found = load_durations(path) if path is not None else _of_airflow().current()
    if found is NOTHING:
        config.warn(f"every task counts as equally long: {missing()}")
    _current[:] = [(now_s, found)]
    return found


def of_rest(rest: Rest) -> shared.Shared[Durations]:
    """What is known, for a process that has no more of Airflow than its address."""

    def read() -> str | None:
        return shared.read_rest(rest, shared.DURATIONS)

    return shared.Shared(read, unpacked, NOTHING, REST_LOOK_S)


def _of_airflow() -> shared.Shared[Durations]:
    if not _shared:
        _shared.append(shared.Shared(shared.Reader(shared.DURATIONS), unpacked, NOTHING, 0.0))
    return _shared[0]


def missing() -> str:
    """What to say where there are none."""
    return f"there are none in {place()}; `airflow egs learn` or the agent writes them"


def write_durations(path: Path, durations: Durations) -> None:
    """Replace the file as a whole: a reader sees the old one or the new one. What is no duration is left out."""
    from egs_core.places import replace_file

    replace_file(path, _text(durations).encode())


def load_durations(path: Path) -> Durations:
    """What the file says now, the same object until it changes; {} for an absent one and, with a warning, a bad one."""
    try:
        status = path.stat()
    except OSError:
        return NOTHING
    stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
    known = _read.get(path)
    if known is None or known[0] != stamp:
        known = _read[path] = (stamp, _parse(path.read_bytes, str(path)))
    return known[1]


def packed(durations: Durations) -> str:
    """The text of the Variable."""
    return base64.b64encode(zlib.compress(_text(durations).encode())).decode()


def unpacked(text: str) -> Durations:
    """What such a text says; {} with a warning for a bad one. JSON, as a person may write it, is taken too."""

    def read() -> bytes:
        if text.lstrip().startswith("{"):
            return text.encode()
        try:
            return zlib.decompressobj().decompress(base64.b64decode(text, validate=True), MOST_BYTES)
        except zlib.error as error:
            raise ValueError(error) from None

    return _parse(read, VARIABLE)


def _text(durations: Durations) -> str:
    p95 = durations.p95 if isinstance(durations, Known) else {}
    found = {"format": FORMAT, "version": VERSION, "dags": _sound(durations), **({"p95": _sound(p95)} if p95 else {})}
    return json.dumps(found, sort_keys=True)


def _parse(read: Callable[[], bytes], where: str) -> Durations:
    try:
        stored: Any = json.loads(read())
        if (stored["format"], stored["version"]) != (FORMAT, VERSION):
            raise ValueError(f"format {stored['format']!r}, version {stored['version']!r}")
        return Known(_sound(stored["dags"]), _sound(stored.get("p95", {})))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        config.warn(f"{where}: no durations can be read from it: {error}")
        return UNREADABLE


def _sound(durations: Mapping[Any, Mapping[Any, Any]]) -> Durations:
    """Without what is no duration."""
    return {
        str(dag): {str(task): float(s) for task, s in tasks.items() if _is_duration(s)}
        for dag, tasks in durations.items()
    }


def _is_duration(value: object) -> bool:
    """Longer than MOST_S is a broken file: sums of such numbers would be no numbers any more."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= MOST_S
