"""The lease's records as connections of Airflow, over its public REST API: `egs_engine_1`, `egs_engine_2`, …

A connection's id is unique in the metadata database, so of two agents that create the same one the second is refused
(409); that is what makes taking the lease atomic. The record is the description, and what the holder publishes stands
in `extra`, which Airflow encrypts as it does for all connections, and of which its audit log keeps only the names.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from egs_airflow.rest import Rest, quoted
from egs_core.errors import InputError

PREFIX = "egs_engine_"
KIND = "egs"
ORDER = "order"
"""Under this name `extra` has what the holder publishes."""


class ConnectionStore:
    """See `lease.Store`. Who runs the agent needs the right to read and write connections."""

    def __init__(self, rest: Rest) -> None:
        self._rest = rest

    def texts(self) -> dict[int, str]:
        """What the records say, by epoch."""
        rows = self._rest.rows("connections", "connections", order_by="connection_id", connection_id_pattern=PREFIX)
        found = {epoch: row for row in rows if (epoch := epoch_of(row["connection_id"]))}
        return {epoch: row["description"] or "" for epoch, row in found.items()}

    def create(self, epoch: int, text: str) -> None:
        """Make a record. Raises InputError where it is there already."""
        self._rest.send("POST", "connections", _body(epoch, description=text))

    def replace(self, epoch: int, text: str) -> bool:
        """Write a record anew; False where it is gone."""
        return self._patch(epoch, description=text)

    def remove(self, epoch: int) -> None:
        """Take a record away. One that stays for now goes with the next take-over: it is no lease any more."""
        with suppress(InputError):
            self._rest.send("DELETE", f"connections/{PREFIX}{epoch}")

    def publish(self, epoch: int, order: str) -> bool:
        """Write what the holder of that epoch has to say; False where its record is gone."""
        return self._patch(epoch, extra=json.dumps({ORDER: order}))

    def published(self) -> tuple[int, str, str]:
        """The newest record: its epoch, 0 where there is none, its text, and what its holder has published."""
        texts = self.texts()
        epoch = max(texts, default=0)
        found = self._rest.get(f"connections/{PREFIX}{epoch}") if epoch else None
        if found is None:
            return 0, "", ""
        return epoch, found["description"] or "", str(json.loads(found["extra"] or "{}").get(ORDER, ""))

    def _patch(self, epoch: int, **fields: str) -> bool:
        mask = "&".join(f"update_mask={name}" for name in fields)
        place = f"connections/{quoted(f'{PREFIX}{epoch}')}?{mask}"
        return self._rest.send("PATCH", place, _body(epoch, **fields)) is not None


def _body(epoch: int, **fields: Any) -> dict[str, Any]:
    return {"connection_id": f"{PREFIX}{epoch}", "conn_type": KIND, **fields}


def epoch_of(connection_id: str) -> int:
    """The epoch in the id of a record; 0 for another connection."""
    number = connection_id.removeprefix(PREFIX)
    return int(number) if number != connection_id and number.isascii() and number.isdigit() else 0
