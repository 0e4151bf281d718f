"""Whether the schedulers keep slots now, as a page says it: from their files where this process has the same home, else
from Airflow's log of events, as far as the asker may see that."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from typing import Any

from egs_airflow.executors.health import EVENT, newest, read_states
from egs_airflow.rest import Rest
from egs_core.errors import InputError

MOST_EVENTS = 20


def gate_says(rest: Rest) -> str:
    """One clause a scheduler; "unknown" where none has said anything."""
    now_s = time.time()
    states = read_states(now_s) or newest(_events(rest), now_s)
    return "; ".join(state.check(now_s)[1] for state in states) or "unknown: no scheduler has said whether it does"


def _events(rest: Rest) -> Iterator[tuple[float, Any]]:
    try:
        for row in islice(rest.rows("eventLogs", "event_logs", event=EVENT, order_by="-when"), MOST_EVENTS):
            yield datetime.fromisoformat(str(row["when"])).timestamp(), row["extra"]
    except (InputError, KeyError, ValueError):  # not for this user, or answered in another way: the page does without
        return
