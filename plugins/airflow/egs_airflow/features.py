"""What of EGS is active in this Airflow, and why: one line a feature, for `airflow egs doctor`. Changes nothing.

A feature that the mode or an option leaves off is in order; one that is wanted and cannot work is not.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from egs_airflow import compat, config
from egs_core.adapter import Check
from egs_core.errors import InputError

if TYPE_CHECKING:
    from egs_airflow.executors.health import State


MOST_NAMED = 5
MOST_EVENTS = 20


def feature_checks() -> list[Check]:
    """One line a feature. What asking itself breaks is said in its line."""
    return [_asked(name, ask) for name, ask in FEATURES.items()]


def _asked(name: str, ask: Callable[[], tuple[bool, str]]) -> Check:
    try:
        is_well, detail = ask()
    except Exception as error:  # said, not raised: the other lines matter too
        is_well, detail = (
            False,
            f"off: {error if isinstance(error, InputError) else f'{type(error).__name__}: {error}'}",
        )
    return Check(name, is_well, detail)


def _off(wanted: str = "on") -> str:
    """Why a feature of a mode is off; "" where the mode is the wanted one."""
    mode = config.read_settings().mode
    is_on = mode == wanted or (wanted == "observe" and mode == "on")
    return "" if is_on else f"off: mode {mode}"


def _api(name: str) -> str:
    """Why a feature that needs that API is off; "" where it is there."""
    return (
        ""
        if compat.available(name)
        else f"off: {compat.FEATURES[name].lost}, for this Airflow has not the API `{name}`"
    )


def _observe() -> tuple[bool, str]:
    from egs_airflow.observe.listener import folder

    if off := _off("observe"):
        return True, off
    return True, f"active: each task leaves a line in {folder()}{_skipped(folder())}"


def _skipped(folder: Path) -> str:
    """Lines that cannot be read, if there are some: nothing is to be done about them, but they are missed."""
    from egs_airflow.observe.lines import PATTERN, read_all

    if not any(folder.glob(PATTERN)):
        return ""
    try:
        found = read_all(folder)
    except InputError as error:
        return f"; none of them can be read: {error}"
    return f"; {found.skipped} lines cannot be read, the first: {found.first}" if found.skipped else ""


def _learned() -> tuple[bool, str]:
    from sqlalchemy.exc import SQLAlchemyError

    from egs_airflow.order import durations
    from egs_airflow.shared import DURATIONS, Reader

    path = durations.stated_file()
    reader = Reader(DURATIONS)
    if path is not None:
        known = durations.load_durations(path)
    else:
        try:
            text = reader()
        except SQLAlchemyError:
            return True, "not known: Airflow's database cannot be asked"
        known = durations.NOTHING if text is None else durations.unpacked(text)
    if known is durations.UNREADABLE:
        return False, f"off: nothing can be read from {durations.place()}"
    if not known:
        return True, f"none yet: {durations.missing()}"
    if path is None:
        told = f"{durations.VARIABLE}; {reader.description()}"
    else:
        told = f"read {(time.time() - path.stat().st_mtime) / 3600:.1f} h ago, {path}"
    return True, f"active: {sum(map(len, known.values()))} tasks of {len(known)} DAGs, {told}"


def _order() -> tuple[bool, str]:
    problem = _api("mutation_hook")
    return not problem or bool(_off()), _off() or problem or "active: weights by longest remaining path"


def _slots() -> tuple[bool, str]:
    is_well, detail = _by_executor("pool_stats")
    if not detail.startswith("active"):
        return is_well, detail
    told = gate_lines()
    return all(ok for ok, _ in told), "; ".join([detail, *(line for _, line in told)])


def gate_lines() -> list[tuple[bool, str]]:
    """What the schedulers say of the gate that keeps slots: in files of this home, else in Airflow's log of events."""
    from egs_airflow.executors.health import read_states

    now_s = time.time()
    states = read_states(now_s) or _states_in_log(now_s)
    if not states:
        return [
            (True, "no scheduler has said whether it works (not started, or with another home and without a fault)")
        ]
    return [state.check(now_s) for state in states]


def _states_in_log(now_s: float) -> list[State]:
    """The newest event of a pause or a recovery, where there is one that still tells something."""
    from airflow.models.log import Log
    from sqlalchemy import select

    from egs_airflow.executors.health import EVENT, newest

    query = select(Log.dttm, Log.extra).where(Log.event == EVENT).order_by(-Log.id).limit(MOST_EVENTS)
    return newest(((row.dttm.timestamp(), row.extra) for row in _rows(query) or ()), now_s)


def _rows(query: Any) -> list[Any] | None:
    """What Airflow's database answers; None where it cannot be asked, or is not set up."""
    from sqlalchemy.exc import SQLAlchemyError

    try:
        with compat.connect() as connection:
            return list(connection.execute(query))
    except SQLAlchemyError:
        return None


def _gangs() -> tuple[bool, str]:
    return _by_executor("queueing")


def _by_executor(api: str) -> tuple[bool, str]:
    """What an executor of ours does, by that API."""
    from egs_airflow.view.run import keeps_slots

    if not config.is_yes("keep_slots"):
        return True, "off: [egs] keep_slots"
    if not _off() and not keeps_slots():
        return True, f"off: {_executor()} is no executor that can (EgsLocalExecutor is)"
    problem = _api(api)
    return not problem or bool(_off()), _off() or problem or f"active: {_executor()}"


def _pools() -> tuple[bool, str]:
    from egs_airflow.order.pools import configured_pools, made_pools
    from egs_airflow.shared import POOLS

    pools = configured_pools()
    wanted = ", ".join(f"{pool.name}={pool.slots}" for pool in pools)
    if not pools:
        return True, "off: [egs] pools names none"
    if _off():
        return True, f"{_off()}: {wanted} not made"
    made, found = made_pools(), _pools_of_airflow()
    gone = [pool.name for pool in made if found is not None and pool.name not in found]
    if gone:
        return False, f"Variable {POOLS} has {', '.join(gone)}, and Airflow no such pool: `airflow egs pools` makes it"
    if pools[0] not in made[:1]:
        instead = f"; until then tasks that state GPUs go into {made[0].name}" if made else ""
        return True, f"not made yet: {wanted}; `airflow egs pools` makes them{instead}"
    held = _held_for_ever()
    return not held, "; ".join([f"active: {wanted}, by Variable {POOLS} of this Airflow", *held])


def _pools_of_airflow() -> set[str] | None:
    """Their names; None where Airflow's database cannot be asked."""
    from airflow.models.pool import Pool
    from sqlalchemy import select

    rows = _rows(select(Pool.pool))
    return None if rows is None else {row.pool for row in rows}


def _held_for_ever() -> list[str]:
    """Tasks that wait for more slots than their pool has."""
    from airflow.models.pool import Pool
    from airflow.models.taskinstance import TaskInstance as TI
    from sqlalchemy import select

    columns = (TI.dag_id, TI.task_id, TI.pool_slots, Pool.pool, Pool.slots)
    waits = (TI.state == "scheduled", Pool.slots >= 0, TI.pool_slots > Pool.slots)
    query = select(*columns).join(Pool, Pool.pool == TI.pool).where(*waits).distinct().limit(MOST_NAMED)
    return [
        f"{row.dag_id}.{row.task_id} never starts: needs {row.pool_slots} slots, {row.pool} has {row.slots}"
        for row in _rows(query) or ()
    ]


def _preload() -> tuple[bool, str]:
    names = ", ".join(config.words("preload_modules"))
    if not names:
        return True, "off: [egs] preload_modules names none"
    return True, _off() or f"active: {names}, imported before EgsLocalExecutor starts its processes"


def _ready() -> tuple[bool, str]:
    most = config.number_of("ready_processes")
    if not most:
        return True, "off: [egs] ready_processes"
    if not _off() and not _executor().endswith("EgsLocalExecutor"):
        return True, f"off: {_executor()} is no executor that can (EgsLocalExecutor is)"
    problem = _api("ready")
    return not problem or bool(_off()), _off() or problem or f"active: at most {most}"


def _agent() -> tuple[bool, str]:
    from egs_airflow.agent.control import own_url
    from egs_airflow.agent.lock import lock_path
    from egs_airflow.rest import airflow_url

    path = lock_path(airflow_url(own_url())[0])
    holder = _holder(path)
    return True, f"active: process {holder}" if holder else "off: no `airflow egs agent` on this host for this Airflow"


def _holder(path: Path) -> str:
    """The number of the process that holds a lock; "" for none."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return os.read(file, 20).decode(errors="replace") or "?"
    else:
        return ""
    finally:
        os.close(file)


def _limits() -> tuple[bool, str]:
    from egs_airflow.agent.limits import load_rules

    stated = config.option("limits")
    rules = f", and {len(load_rules(Path(stated)))} rules of {stated}" if stated else ""
    return True, _off() or f"kept by an agent: those of hints{rules}"


def _staging() -> tuple[bool, str]:
    from egs_airflow.agent.staging import most_bytes

    most = most_bytes()
    if not most:
        return True, "off: [egs] stage_bytes"
    return True, _off() or f"done by an agent: at most {most / 2**30:g} GiB at once"


def _view() -> tuple[bool, str]:
    problem = _api("view")
    return not problem or bool(_off("observe")), _off("observe") or problem or "active: tab EGS of DAGs and runs"


def _executor() -> str:
    from airflow.configuration import conf

    return str(conf.get("core", "executor", fallback=""))


FEATURES: dict[str, Callable[[], tuple[bool, str]]] = {
    "observe": _observe,
    "learned durations": _learned,
    "order": _order,
    "slots kept": _slots,
    "gangs": _gangs,
    "GPU pools": _pools,
    "preload": _preload,
    "processes ready": _ready,
    "agent": _agent,
    "limits": _limits,
    "staging": _staging,
    "view": _view,
}
"""In the order in which a user comes to them -> whether it is as wanted, and what is to be said."""
