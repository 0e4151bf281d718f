"""GPU pools: their sizes come from the configuration and from nowhere else.

    [egs]
    pools = gpu=8, gpu_large=4

A host without GPUs, where the scheduler usually runs, would say 0, and a pool without slots stops its tasks for ever.
The first pool is the one for tasks with a GPU hint. Pools are created by `airflow egs pools`, or when an executor of
EGS starts, in mode on only. A task whose pool does not exist is never started, and where DAG files are parsed nobody
can ask Airflow for its pools; so those that were created stand in the Variable `egs_pools`, written in the transaction
that makes them, in the words of the configuration. What it says holds on all hosts, until pools are made again.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from egs_airflow import compat, config, shared
from egs_core.errors import InputError

OPTION = "[egs] pools"
EXAMPLE = "name each with its slots: gpu=8, gpu_large=4"
DESCRIPTION = "GPUs, one slot each; size from [egs] pools"
NOTED = "EGS: GPU pools that were made, of which the first is for tasks that state GPUs and no pool"
"""What Airflow's list of Variables says of them."""
LOOK_S = 5.0


@dataclass(frozen=True)
class GpuPool:
    """One pool of the configuration; a slot is a GPU."""

    name: str
    slots: int


def configured_pools() -> list[GpuPool]:
    """The pools that the user wants, in the order of the configuration; InputError for a text that means nothing."""
    return parse_pools(config.option("pools"))


def parse_pools(text: str) -> list[GpuPool]:
    """The pools that a text names; InputError for one that means nothing."""
    pools = [_parse(part) for part in config.split(text)]
    names = [pool.name for pool in pools]
    if len(set(names)) < len(names):
        raise InputError(OPTION, "two pools of one name", EXAMPLE)
    return pools


def _parse(part: str) -> GpuPool:
    name, equals, slots = part.partition("=")
    if not (name and equals and slots.isascii() and slots.isdigit() and int(slots) > 0):
        raise InputError(OPTION, f"{part!r} is not a pool with at least one slot", EXAMPLE)
    return GpuPool(name, int(slots))


def parse_flavors(text: str) -> dict[str, str]:
    """Flavors of GPUs by pool, as a text of `[egs] pool_flavors` has them; InputError for one that means nothing."""
    found: dict[str, str] = {}
    for part in config.split(text):
        name, _, flavor = part.partition("=")
        if not (name and flavor):
            example = "name each with its flavor: gpu=T4, gpu_large=A100"
            raise InputError("[egs] pool_flavors", f"{part!r} is not a pool with a flavor", example)
        found[name] = flavor
    return found


def create_pools(resize: bool) -> list[str]:
    """Create the configured pools that are missing; one line for each pool, saying what was done.

    In a new pool a deferred task keeps its slots, because the GPU work that it waits for goes on. resize: an existing
    pool gets the configured size; all else of it stays.
    """
    from airflow.models.pool import Pool
    from airflow.models.variable import Variable
    from airflow.utils.session import create_session

    wanted, told = configured_pools(), []
    with create_session() as session:
        for pool in wanted:
            found: Any = Pool.get_pool(pool.name, session=session)
            if found is None:
                Pool.create_or_update_pool(pool.name, pool.slots, DESCRIPTION, True, session=session)
                told.append(f"{pool.name}: created with {pool.slots} slots")
            elif resize and found.slots != pool.slots:
                found.slots = pool.slots
                told.append(f"{pool.name}: {pool.slots} slots{_deferred(found)}")
            else:
                told.append(f"{pool.name}: left as it is, {found.slots} slots{_deferred(found)}")
        if wanted:
            text = ", ".join(f"{pool.name}={pool.slots}" for pool in wanted)
            Variable.set(shared.POOLS, text, shared.described(NOTED, text), session=session)
    return told


def _deferred(pool: Any) -> str:
    """What a user may not expect of a pool that EGS has not made."""
    return "" if pool.include_deferred else "; deferred tasks give their slots away there (include_deferred is off)"


def is_gpu_pool(description: str | None) -> bool:
    """Whether a pool is one that EGS has made, by its description."""
    return (description or "").startswith(DESCRIPTION)


def run_pools(_: Any = None) -> None:
    """`airflow egs pools`: create or resize the configured pools. Bad input: one line on stderr, exit code 2."""
    try:
        if config.settings().mode != "on":
            raise InputError("[egs] mode", f"is {config.settings().mode!r}: pools are made in mode on only")
        lines = create_pools(resize=True)
    except InputError as error:
        print(f"airflow egs pools: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    print("\n".join(lines) or f"{OPTION} names no pool")


def gpu_pool() -> GpuPool | None:
    """The pool for tasks with a GPU hint: the first of those that were made, where pools are configured at all."""
    made = made_pools() if configured_pools() else []
    return made[0] if made else None


def why_no_pool() -> str:
    """What to tell whoever wonders why no task is in the configured pool; empty where none is configured, or it is."""
    pools = configured_pools()
    if not pools or gpu_pool() is not None:
        return ""
    return (
        f"{OPTION}: tasks that state GPUs stay in the default pool, without a limit: no pool is in Variable "
        f"{shared.POOLS} of this Airflow; `airflow egs pools` makes {pools[0].name} and says so there"
    )


_made = shared.Shared[list[GpuPool]](shared.Reader(shared.POOLS), parse_pools, [], LOOK_S)


def made_pools() -> list[GpuPool]:
    """The pools that were made, as Airflow's metadata say; none where that cannot be read, with a warning.

    A task's process that is a fork of one that knows them asks nobody: that would be a request to the api-server while
    the task holds its slot.
    """
    if compat.reads_for_a_task() and _made.known is not None:
        return _made.known
    return _made.current()
