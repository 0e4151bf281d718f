"""Reads what the agent that hosts the engine has published, in processes that have Airflow's database.

Columns of Airflow's own table, on a connection of its own: the public ways to read an Airflow connection ask secrets
backends, and mask whatever they find in all logs. Tried with the versions in `compat.KNOWN_VERSIONS` only.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from egs_airflow import compat
from egs_airflow.agent.lease import record_of
from egs_airflow.agent.lease_store import ORDER, PREFIX, epoch_of


@dataclass(frozen=True)
class Seen:
    """The record of the highest epoch: as it stands there, its time to live, and what its holder has published."""

    epoch: int
    holder: str
    text: str
    ttl_s: float
    published: str


def read_record() -> Seen | None:
    """The record of the highest epoch, decrypted as Airflow does it; None where there is none."""
    from airflow.models.connection import Connection
    from airflow.models.crypto import get_fernet
    from sqlalchemy import select

    table = Connection.__table__
    columns = (table.c.conn_id, table.c.description, table.c.extra, table.c.is_extra_encrypted)
    query = select(*columns).where(table.c.conn_id.startswith(PREFIX, autoescape=True))
    with compat.connect() as connection:
        rows = {epoch: row for row in connection.execute(query) if (epoch := epoch_of(row.conn_id))}
    if not rows:
        return None
    epoch, row = max(rows.items())
    extra = row.extra or "{}"
    if row.extra and row.is_extra_encrypted:
        extra = get_fernet().decrypt(extra.encode()).decode()
    text = row.description or ""
    record = record_of(text)
    published = json.loads(extra).get(ORDER, "") if record.holder else ""
    return Seen(epoch, record.holder, text, record.ttl_s, str(published))
