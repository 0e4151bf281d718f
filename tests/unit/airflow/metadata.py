"""The tables of Airflow's metadata database that EGS reads here, in a file of the test's own."""

from __future__ import annotations

import zlib

from sqlalchemy import delete, insert
from sqlalchemy.engine import Connection


def make_tables(connection: Connection) -> None:
    """Those for Variables and pools, empty."""
    from airflow.models.pool import Pool
    from airflow.models.variable import Variable

    for model in (Variable, Pool):
        model.__table__.create(connection)
    connection.commit()


def put(connection: Connection, name: str, text: str, what: str) -> None:
    """Set a Variable as Airflow stores it, with what EGS describes it by."""
    from airflow.models.variable import Variable

    table = Variable.__table__
    made = Variable(name, text, f"{what} [{zlib.crc32(text.encode()):08x}]")
    row = {"key": name, "val": made._val, "description": made.description, "is_encrypted": made.is_encrypted}
    connection.execute(delete(table).where(table.c.key == name))
    connection.execute(insert(table).values(row))
    connection.commit()


def add_pool(connection: Connection, name: str) -> None:
    """A pool of three slots."""
    from airflow.models.pool import Pool

    row = {"pool": name, "slots": 3, "description": "", "include_deferred": True}
    connection.execute(insert(Pool.__table__).values(row))
    connection.commit()
