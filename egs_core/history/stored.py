"""What all stores of the history share: rows as columns, and that a store that cannot be used costs one warning.

Whatever is wrong with the store (corrupt, locked, read-only, of a later version, no driver), the first time gives one
warning a process, and from then on this history is empty and keeps nothing: a pipeline must not notice.
"""

from __future__ import annotations

import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

from egs_core.described import describe
from egs_core.graph.columns import Shape
from egs_core.history.rows import HistoryRow, is_storable
from egs_core.predict.estimate import Signature

SCHEMA_VERSION = 1
FILE_NAME = "history.sqlite"
LOAD_LIMIT = 20_000  # rows of a pipeline that are read at most: a predictor keeps 200 for each signature

T = TypeVar("T")
_log = logging.getLogger("egs.history")
_warned: set[str] = set()  # URLs that this process has warned of
_SHAPE_FIELDS = Shape.__struct_fields__
describe(HistoryRow)


class UnknownVersionError(Exception):
    """The store was written by a later EGS."""

    def __init__(self, found: object) -> None:
        super().__init__(f"its schema has version {found}, this EGS knows version {SCHEMA_VERSION}")


class StoredHistory(ABC):
    """A `History` in a database; several processes may write to one. Nothing is opened before the first use."""

    def __init__(self, url: str, *, busy_timeout_s: float = 5.0) -> None:
        self.url = url
        self.busy_timeout_s = busy_timeout_s
        self.problem: str | None = None  # set once, when the store proved unusable: then every method is a no-op

    def record(self, rows: Iterable[HistoryRow]) -> int:
        """Keep rows in one transaction and return how many were kept; rows with impossible times are left out."""
        values = [_to_columns(row) for row in rows if is_storable(row)]
        return self._fail_open(lambda: self._insert(values), 0) if values else 0

    def load(self, pipeline: str, limit: int = LOAD_LIMIT) -> list[HistoryRow]:
        """The newest `limit` rows of a pipeline, oldest first."""
        newest = self._fail_open(lambda: self._newest(pipeline, limit), list[dict[str, Any]]())
        return [row for found in newest if (row := _to_row(found)) is not None][::-1]

    def pipelines(self) -> list[str]:
        """Names of all pipelines that have rows, sorted."""
        return sorted(self._fail_open(self._names, list[str]()))

    def signatures(self, pipeline: str) -> list[Signature]:
        """The different signatures of a pipeline's rows, in order of first appearance."""
        return list(dict.fromkeys(row.signature for row in self.load(pipeline)))

    def record_profile(self, name: str, measured: Iterable[tuple[float, str]]) -> int:
        """Keep what was measured of a command, as (Unix time, JSON); how many were kept."""
        values = [{"name": name, "ended_at": at, "measured": text} for at, text in measured]
        return self._fail_open(lambda: self._insert_profile(values), 0) if values else 0

    def load_profile(self, name: str, limit: int = LOAD_LIMIT) -> list[str]:
        """The newest that were measured of a command, oldest first, as they were kept."""
        return self._fail_open(lambda: self._newest_profile(name, limit), list[str]())[::-1]

    def profile_names(self) -> list[str]:
        """Of all commands of which something was measured, sorted."""
        return sorted(self._fail_open(self._profile_names, list[str]()))

    def close(self) -> None:  # noqa: B027  # a store with nothing open has nothing to do
        """Give back what is open; the history can be used again after it."""

    @abstractmethod
    def _insert(self, values: list[dict[str, Any]]) -> int: ...

    @abstractmethod
    def _newest(self, pipeline: str, limit: int) -> list[dict[str, Any]]: ...

    @abstractmethod
    def _names(self) -> list[str]: ...

    @abstractmethod
    def _insert_profile(self, values: list[dict[str, Any]]) -> int: ...

    @abstractmethod
    def _newest_profile(self, name: str, limit: int) -> list[str]: ...

    @abstractmethod
    def _profile_names(self) -> list[str]: ...

    def shown_url(self) -> str:
        """The URL without a password."""
        return self.url

    def _fail_open(self, action: Callable[[], T], default: T) -> T:
        if self.problem is not None:
            return default
        try:
            return action()
        except Exception as error:  # a driver may raise anything, and none of it is the pipeline's business
            self.problem = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            if self.url not in _warned:
                _warned.add(self.url)
                _log.warning("egs: history %s is not usable, going on without it (%s)", self.shown_url(), self.problem)
            with contextlib.suppress(Exception):
                self.close()
            return default


def _to_columns(row: HistoryRow) -> dict[str, Any]:
    values = msgspec.structs.asdict(row)
    del values["shape"]
    return values | {field: getattr(row.shape, field) for field in _SHAPE_FIELDS}


def _to_row(found: dict[str, Any]) -> HistoryRow | None:
    """The row, or None for one that is damaged (SQLite does not enforce column types)."""
    try:
        row = msgspec.convert(found | {"shape": [found[field] for field in _SHAPE_FIELDS]}, HistoryRow)
    except msgspec.ValidationError:
        return None
    return row if is_storable(row) else None
