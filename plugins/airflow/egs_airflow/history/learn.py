"""`airflow egs learn`: read what this Airflow has run, and learn how long its tasks take. Run it now and then.

REST API, the listener's lines ─► history of durations ─► Variable `egs_durations`, from which weights are computed
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from egs_airflow import config
from egs_airflow.history.keep import DAYS, keep_history, learned
from egs_airflow.observe.lines import PATTERN, Line, drop_old, read_all
from egs_airflow.observe.listener import folder
from egs_airflow.order.durations import keep_durations, place
from egs_airflow.order.pools import configured_pools, parse_flavors
from egs_airflow.rest import connect
from egs_core.errors import InputError, counted
from egs_core.history.sql import SqlHistory
from egs_core.places import data_folder

STATE = "kept.json"


class Learned(NamedTuple):
    """durations: that are new in the history; dags, tasks: of which it expects how long they take."""

    durations: int
    dags: int
    tasks: int


def learn(
    url: str, user: str = "", days: float = DAYS, gpu_pools: tuple[str, ...] = (), *, tells: bool = True
) -> Learned:
    """Read the Airflow at a URL and leave durations where the ordering finds them; not where tells is off, only in the
    history. Raises InputError."""
    history = SqlHistory.of_user(config.option("history"))
    try:
        pools = gpu_pools or tuple(pool.name for pool in configured_pools())
        rest = connect(url, user)
        flavors, state = parse_flavors(config.option("pool_flavors")), data_folder() / "airflow" / STATE
        new = keep_history(rest, history, state, pools, _lines(), flavors, days)
        expected = learned(history)
        if tells:
            keep_durations(rest, expected)
    except OSError as error:
        raise InputError(str(error.filename or ""), f"cannot be written: {error.strerror}") from None
    finally:
        history.close()
    return Learned(new, len(expected), sum(map(len, expected.values())))


def _lines() -> list[Line]:
    """What listeners on this host have noted; other hosts' tasks are learned from REST alone."""
    place = folder()
    if not any(place.glob(PATTERN)):
        return []
    drop_old(place)
    try:
        found = read_all(place)
    except InputError as error:
        config.warn(str(error))
        return []
    if found.skipped:
        config.warn(f"{found.skipped} lines of tasks were skipped, the first: {found.first}")
    return found.lines


def run_learn(args: Any) -> None:
    """The command: args has url ("" for this Airflow's own), user, days, history_only. Exit code 2 where it cannot."""
    from airflow.configuration import conf

    url = args.url or conf.get("api", "base_url", fallback="") or "http://127.0.0.1:8080"
    try:
        told = learn(url, args.user, args.days, tells=not args.history_only)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    where = "this host's history" if args.history_only else place()
    print(f"{told.durations} new durations; {told.tasks} tasks of {counted(told.dags, 'DAG')} are known, in {where}")
