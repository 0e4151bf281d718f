"""A DAG in whose pool one slot is held until the test lets it go. Of two slots the other one is kept, in a DAG that is
chosen, where EGS_RESERVE_AFTER is next to nothing.

holder  ████████████████████ 1 slot
large      waits for 2 slots; the second one is kept for it
small      waits for 1 slot, and would get it natively
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.conformance.airflow.live import LiveAirflow, wait_until

HELD = """
import time
from pathlib import Path

from airflow.sdk import DAG, task

HOLDING, RELEASED = Path({holding!r}), Path({released!r})


def wait(path):
    end = time.monotonic() + 600
    while not path.exists():
        assert time.monotonic() < end, path
        time.sleep(0.05)


with DAG({name!r}, tags={tags!r}, schedule=None, max_active_tasks=64):
    @task(pool={name!r})
    def holder():
        HOLDING.touch()
        wait(RELEASED)

    @task
    def first():
        wait(HOLDING)

    @task(pool={name!r}, pool_slots=2)
    def large():
        pass

    @task(pool={name!r})
    def small(number):
        pass

    held = holder()
    begun = first()
"""


def held_dag(name: str, home: Path, rest: str, tags: Sequence[str] = ("egs-on",)) -> str:
    """The source of the DAG. name: of it, and of its pool; rest: more of its tasks, and who comes after `held` (has let
    go) and `begun` (holds)."""
    places = {"holding": str(holding(name, home)), "released": str(released(name, home))}
    return HELD.format(name=name, tags=list(tags), **places) + rest


def holding(name: str, home: Path) -> Path:
    """The file that says that the holder runs."""
    return home / f"{name}_holding"


def released(name: str, home: Path) -> Path:
    """The file on which it ends."""
    return home / f"{name}_released"


def make_pool(airflow: LiveAirflow, name: str, slots: int) -> None:
    """A pool, unless an earlier try of the test has made it."""
    if name not in {pool["name"] for pool in airflow.rest("GET", "/pools?limit=100")["pools"]}:
        airflow.rest("POST", "/pools", {"name": name, "slots": slots, "include_deferred": False})


@contextmanager
def held_runs(
    airflow: LiveAirflow, rests: Mapping[str, str], slots: int, tags: Mapping[str, Sequence[str]] | None = None
) -> Iterator[dict[str, str]]:
    """A run of each such DAG, by its name, each in a pool of its own, in which a slot is held until `released` or the
    end of the block. Also where an earlier try of the test has left pools and files."""
    for name in rests:
        make_pool(airflow, name, slots)
        holding(name, airflow.home).unlink(missing_ok=True)
        released(name, airflow.home).unlink(missing_ok=True)
    chosen = {name: (tags or {}).get(name, ("egs-on",)) for name in rests}
    airflow.add_dags(**{name: held_dag(name, airflow.home, rest, chosen[name]) for name, rest in rests.items()})
    runs = {name: airflow.trigger(name) for name in rests}
    try:
        for name in runs:
            wait_until(holding(name, airflow.home).exists, f"the slot of {name} to be held")
        yield runs
    finally:
        for name in runs:
            released(name, airflow.home).touch()
