"""`egs audit --airflow URL`: what an Airflow's REST API tells of its past. Reads only; needs nothing of EGS in it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from egs_airflow.history.read import read_airflow
from egs_airflow.history.records import past_of, pool_sizes
from egs_airflow.history.seen import Seen
from egs_airflow.observe.lines import Line, read_lines
from egs_airflow.order.pools import parse_flavors
from egs_airflow.rest import connect
from egs_core.audit.observed import AuditRequest
from egs_core.errors import InputError
from egs_core.runlog.past import Past

DAY_S = 86_400.0
INSIDE = "a task counts as using its GPUs from start to end: Airflow does not tell what happens inside a task"
INSIDE_CODE = "a task counts as using its GPUs while its own code runs: what happens inside is not known"
NO_GPUS = "no pool is named as one of GPUs (--gpu-pool): slots of pools are accounted for, GPU time is not known"
SLOTS = "limits other than pools (parallelism, max_active_tasks) and busy workers are not known: some waits are theirs"
DEFERRED = (
    "tasks were deferred or rescheduled: they count as holding slots since they were last woken up, and in pools that "
    "include deferred tasks since their first start; Airflow keeps no other times"
)
OLDER = "runs are of an older version of their DAG: what their tasks waited for is read from the newest"
KEPT = "times EGS kept open slots for a task or gang: waits of others are for a reservation; slot·s kept:"
GONE = "Airflow no longer has these DAGs, so what their tasks waited for is not known"


def read_history(request: AuditRequest) -> Past:
    """The history as Airflow tells it. Raises InputError for what cannot be reached or read."""
    rest = connect(request.address, request.user)
    lines = read_lines(request.events) if request.events is not None else []
    seen = read_airflow(rest, time.time() - request.days * DAY_S)
    past = past_with_notes(seen, rest.url, gpu_pools(seen, request.gpu_pools), lines)
    past.flavors = parse_flavors(_stated("POOL_FLAVORS"))
    return past


def past_with_notes(seen: Seen, label: str, gpu_pools: tuple[str, ...] = (), lines: Iterable[Line] = ()) -> Past:
    """What was seen, what the listener noted of it, and what a reader must know. InputError for an unknown pool."""
    known = pool_sizes(seen)
    for pool in gpu_pools:
        if pool not in known:
            raise InputError("--gpu-pool", f"no pool {pool!r} in {label}", f"its pools: {', '.join(known)}")
    noted = list(lines)
    code_s = {line.key: line.code for line in noted}
    work = {line.key: line.work for line in noted if line.work}
    past = past_of(seen, gpu_pools, full_names=True, code_s=code_s, label=label, work=work)
    gone = sorted(dag.dag_id for dag in seen.dags.values() if dag.parents is None)
    notes = [INSIDE if gpu_pools else NO_GPUS, SLOTS]
    if gpu_pools and code_s:
        notes[0] = INSIDE_CODE
    if deferred := sum(one.was_deferred for one in seen.tries):
        notes.append(f"{deferred} {DEFERRED}")
    if older := sum(0 < run.version < seen.dags[run.dag_id].version for run in seen.runs):
        notes.append(f"{older} {OLDER}")
    if seen.kept:
        kept_s = sum(one.slots * (one.until_s - one.from_s) for one in seen.kept)
        notes.append(f"{len(seen.kept)} {KEPT} {kept_s:.1f}")
    if gone:
        notes.append(f"{GONE}: {', '.join(gone[:5])}{', …' if len(gone) > 5 else ''}")
    past.notes = notes
    return past


def gpu_pools(seen: Seen, given: tuple[str, ...]) -> tuple[str, ...]:
    """The pools whose slots are GPUs: as given, else as `[egs] pools` in the environment, else as EGS made them."""
    named = [part.partition("=")[0] for part in _stated("POOLS").replace(",", " ").split()]
    made = [pool.name for pool in seen.pools.values() if pool.are_gpus]
    return tuple(dict.fromkeys(given or named or made))


def _stated(option: str) -> str:
    """What the environment says of an option of `[egs]`: an audit needs no Airflow here, which could have read it."""
    return next(
        (value for start in ("EGS_", "AIRFLOW__EGS__") if (value := os.environ.get(f"{start}{option}", ""))), ""
    )
