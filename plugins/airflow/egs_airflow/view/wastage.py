"""What the slots of Airflow's pools were used for in the last day: the audit, without its forecast."""

from __future__ import annotations

import time
from collections.abc import Collection

import msgspec

from egs_airflow.audit import gpu_pools, past_with_notes
from egs_airflow.history.read import read_airflow
from egs_airflow.order.pools import configured_pools
from egs_airflow.rest import Rest
from egs_airflow.view.run import read_kept
from egs_core.audit.build import Audit, audit
from egs_core.audit.observed import observed_of
from egs_core.errors import InputError

HOURS = 24.0
MOST_RUNS = 200
"""More runs than these are for `egs audit`: a page is not to keep the api-server busy."""


class Wastage(msgspec.Struct):
    """hours: how far back; audited: None where nothing ran, or too much; runs: how many there were; kept_s: slots that
    EGS kept for somebody, by their seconds."""

    hours: float
    runs: int
    audited: Audit | None
    kept_s: float = 0.0


def read_wastage(rest: Rest) -> Wastage:
    """The last HOURS, of the DAGs that the asker may see. Raises InputError for what Airflow refuses."""
    since_s = time.time() - HOURS * 3600.0
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(since_s))
    runs = int((rest.get("dags/~/dagRuns", limit=1, updated_at_gte=since) or {}).get("total_entries") or 0)
    if runs > MOST_RUNS:
        return Wastage(HOURS, runs, None)
    seen = read_airflow(rest, since_s)
    if not any(one.held_slots for one in seen.tries):
        return Wastage(HOURS, 0, None)
    history = observed_of(past_with_notes(seen, "this Airflow", gpu_pools(seen, _configured(seen.pools))))
    kept_s = sum(one.slots * one.seconds for one in read_kept(rest, after=since))
    return Wastage(HOURS, runs, audit(history, simulated=False), kept_s)


def _configured(known: Collection[str]) -> tuple[str, ...]:
    """GPU pools of the configuration; none where that means nothing, which `airflow egs doctor` says."""
    try:
        return tuple(pool.name for pool in configured_pools() if pool.name in known)
    except InputError:
        return ()
