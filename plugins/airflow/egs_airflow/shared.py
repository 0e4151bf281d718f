"""What all components of one Airflow have in common: Variables in its metadata, each read in the way open to a process.

    airflow egs pools, an executor ─ session ─► egs_pools ─────► DAG files: through their supervisor (`Variable.get`)
    airflow egs learn ─ REST ─────────────────► egs_durations ─► scheduler, api-server, commands: the row
                                                                 agent: REST · a task's process: `Variable.get`

So whatever shapes a DAG, or its order, is the same on all hosts, whichever home a process has. The row is read on a
connection of its own, for the public way asks secrets backends, and opens a session in the scheduler's transaction.
"""

from __future__ import annotations

import sys
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from egs_airflow import compat, config

if TYPE_CHECKING:
    from egs_airflow.rest import Rest

POOLS = "egs_pools"
DURATIONS = "egs_durations"
FAILED_S = 30.0
"""So long nothing is read after that has failed."""

T = TypeVar("T")


@dataclass
class Shared(Generic[T]):
    """What a Variable says, parsed: the same object until it is written anew. Looks every `every_s` seconds, and only
    when asked. read: its text, None where there is none; what it raises is one warning, and what was known stands.

    One thread reads, others take what is known meanwhile: each may hold a connection, and a pool has few of them.
    """

    read: Callable[[], str | None]
    parse: Callable[[str], T]
    nothing: T
    every_s: float
    clock: Callable[[], float] = time.monotonic
    _text: str | None = None
    _value: T | None = None
    _due_s: float = float("-inf")
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def current(self) -> T:
        """What it says now, or a moment ago. Never raises."""
        now_s = self.clock()
        if now_s >= self._due_s and self._lock.acquire(blocking=False):
            try:
                self._due_s = now_s + self.every_s
                self._read()
            except Exception as error:  # of the database, of REST, of the supervisor
                self._due_s = now_s + FAILED_S
                config.warn(f"what is shared cannot be read, and what was known stands: {error}")
            finally:
                self._lock.release()
        return self.nothing if self._value is None else self._value

    @property
    def known(self) -> T | None:
        """What it said when it was last read, without asking; None where nothing has been read."""
        return self._value

    def _read(self) -> None:
        text = self.read()
        if text != self._text:
            self._value = None if text is None else self.parse(text)
            self._text = text


def described(what: str, text: str) -> str:
    """The description of a Variable, for people, with a sum that is another one when the text is."""
    return f"{what} [{zlib.crc32(text.encode()):08x}]"


def write(rest: Rest, name: str, text: str, what: str) -> None:
    """Set a Variable by REST. Raises InputError where that is refused."""
    body = {"key": name, "value": text, "description": described(what, text)}
    if rest.send("PATCH", f"variables/{name}", body) is None:
        rest.send("POST", "variables", body)


def read_rest(rest: Rest, name: str) -> str | None:
    """The text of a Variable by REST; None where there is none. Raises InputError where that is refused."""
    found = rest.get(f"variables/{name}")
    return None if found is None else str(found["value"])


@dataclass
class Reader:
    """The text of a Variable in a process of Airflow's own; a long one is read again only when its description, with
    its sum, or its length is another."""

    name: str
    _stamp: Any = None
    _text: str | None = None

    def __call__(self) -> str | None:
        """None where there is none; raises whatever reading raises."""
        return _from_supervisor(self.name) if _has_supervisor() else self._from_row()

    def _from_row(self) -> str | None:
        from airflow.models.crypto import get_fernet
        from airflow.models.variable import Variable
        from sqlalchemy import func, select

        table = Variable.__table__
        with compat.connect() as connection:
            of_it = table.c.key == self.name
            stamp = connection.execute(select(table.c.description, func.length(table.c.val)).where(of_it)).first()
            if stamp != self._stamp:
                row = connection.execute(select(table.c.val, table.c.is_encrypted).where(of_it)).first()
                text = None if row is None else row.val
                if row is not None and row.is_encrypted:
                    text = get_fernet().decrypt(row.val.encode()).decode()
                self._stamp, self._text = stamp, text
        return self._text

    def description(self) -> str:
        """What stands beside it for people, in a process with Airflow's database; "" where there is none."""
        from airflow.models.variable import Variable
        from sqlalchemy import select

        table = Variable.__table__
        with compat.connect() as connection:
            found = connection.execute(select(table.c.description).where(table.c.key == self.name)).scalar()
        return str(found or "").partition(" [")[0]


def _has_supervisor() -> bool:
    """Whether this is a process that reads DAG files for Airflow, or runs a task: those may not use the database."""
    runner = sys.modules.get("airflow.sdk.execution_time.task_runner")
    return getattr(runner, "SUPERVISOR_COMMS", None) is not None


def _from_supervisor(name: str) -> str | None:
    from airflow.sdk import Variable

    found = Variable.get(name, default=None)
    return None if found is None else str(found)
