"""What of EGS is active in this Airflow, and why: one line a feature, for `airflow egs doctor`. Changes nothing.

A feature that the mode or an option leaves off is in order; one that is wanted and cannot work is not.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

from egs_airflow import compat, config
from egs_core.adapter import Check
from egs_core.errors import InputError

HELD_BACK: dict[compat.Feature, str] = {
    "dag_file": "`egs graph` cannot read DAG files",
    "serialized": "stored DAGs cannot be read",
    "mutation_hook": "Airflow's own weights hold",
    "pool_stats": "no slot is kept",
    "idle_sleep": "the scheduler sleeps on when a task has ended",
    "queueing": "no gang is kept together",
    "view": "there is no page in Airflow's UI",
}
"""What a user misses where an API that is not public is not there."""


def api_checks() -> list[Check]:
    """One line where all is found; else one for each use that is not."""
    missing = [(name, misses) for name, misses in HELD_BACK.items() if not compat.available(name)]
    if not missing:
        return [Check("private API", True, f"all {len(HELD_BACK)} uses found")]
    return [Check(f"private API: {name}", False, misses) for name, misses in missing]


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


def _api(name: compat.Feature) -> str:
    """Why a feature that needs that API is off; "" where it is there."""
    return "" if compat.available(name) else f"off: {HELD_BACK[name]}, for this Airflow has not the API `{name}`"


def _observe() -> tuple[bool, str]:
    from egs_airflow.observe.listener import folder

    return True, _off("observe") or f"active: each task leaves a line in {folder()}"


def _learned() -> tuple[bool, str]:
    from egs_airflow.order.durations import durations_path, load_durations

    path = durations_path()
    known = load_durations(path)
    if not path.exists() or _is_empty(path):
        return True, f"none yet: `airflow egs learn`, or the agent, writes {path}"
    if not known:
        return False, f"off: nothing can be read from {path}"
    age_h = (time.time() - path.stat().st_mtime) / 3600
    return True, f"active: {sum(map(len, known.values()))} tasks of {len(known)} DAGs, read {age_h:.1f} h ago, {path}"


def _is_empty(path: Path) -> bool:
    """Whether nothing was learned when the file was written."""
    try:
        return bool(json.loads(path.read_bytes())["dags"] == {})
    except (OSError, ValueError, LookupError, TypeError):
        return False


def _order() -> tuple[bool, str]:
    problem = _api("mutation_hook")
    return not problem or bool(_off()), _off() or problem or "active: weights by longest remaining path"


def _slots() -> tuple[bool, str]:
    return _by_executor("pool_stats")


def _gangs() -> tuple[bool, str]:
    return _by_executor("queueing")


def _by_executor(api: compat.Feature) -> tuple[bool, str]:
    """What an executor of ours does, by that API."""
    from egs_airflow.executors.mixin import NO
    from egs_airflow.view.run import keeps_slots

    if config.option("keep_slots").strip().lower() in NO:
        return True, "off: [egs] keep_slots"
    if not _off() and not keeps_slots():
        return True, f"off: {_executor()} is no executor that can (EgsLocalExecutor is)"
    problem = _api(api)
    return not problem or bool(_off()), _off() or problem or f"active: {_executor()}"


def _refresh() -> tuple[bool, str]:
    from egs_airflow.executors.mixin import seconds_of

    every_s = seconds_of("refresh_weights", 0.0)
    if not every_s:
        return True, "off: [egs] refresh_weights"
    is_well, detail = _order()
    return is_well, f"active: every {every_s:g} s" if detail.startswith("active") else detail


def _pools() -> tuple[bool, str]:
    from egs_airflow.order.pools import configured_pools, gpu_pool

    wanted = ", ".join(f"{pool.name}={pool.slots}" for pool in configured_pools())
    if not wanted:
        return True, "off: [egs] pools names none"
    if _off():
        return True, f"{_off()}: {wanted} not made"
    is_made = gpu_pool() is not None
    return True, f"active: {wanted}" if is_made else f"not made yet: {wanted}; `airflow egs pools` makes them"


def _preload() -> tuple[bool, str]:
    names = ", ".join(config.words("preload_modules"))
    if not names:
        return True, "off: [egs] preload_modules names none"
    return True, _off() or f"active: {names}, imported before EgsLocalExecutor starts its processes"


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
    "weights refreshed": _refresh,
    "GPU pools": _pools,
    "preload": _preload,
    "agent": _agent,
    "limits": _limits,
    "staging": _staging,
    "view": _view,
}
"""In the order in which a user comes to them -> whether it is as wanted, and what is to be said."""
