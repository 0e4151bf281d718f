"""A named history for a rewrite: a database of durations, or the snapshot of a predictor that learned from one."""

from __future__ import annotations

from pathlib import Path

import msgspec

from egs_core.errors import InputError
from egs_core.history.pending import open_learned
from egs_core.predict import Predictor

_SQLITE_START = b"SQLite format 3\0"


def load_history(name: str, pipeline: str) -> Predictor:
    """What the history with this name knows. Raises InputError for one that cannot be read."""
    if "://" in name:
        return _of_database(name, pipeline)
    try:
        data = Path(name).read_bytes()
    except OSError as error:
        raise InputError("--history", f"{name}: cannot be read: {error.strerror or error}") from None
    if data.startswith(_SQLITE_START):
        return _of_database(f"sqlite:///{name}", pipeline)
    try:
        snapshot = msgspec.json.decode(data, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError):
        hint = "a database URL, an SQLite file, or the JSON of a predictor's snapshot"
        raise InputError("--history", f"{name}: is no history", hint) from None
    return Predictor.from_dict(snapshot)


def _of_database(url: str, pipeline: str) -> Predictor:
    store = open_learned(url)
    try:
        predictor = Predictor.from_history(store, [pipeline])
    finally:
        store.close()
    if store.problem is not None:
        raise InputError("--history", f"cannot be read: {store.problem}")
    return predictor
