"""A DAG in whose pool of two slots one is held, until the test lets it go, and the other one is kept.

holder  ████████████████████ 1 slot
large      waits for 2 slots; the second one is kept for it
small      waits for 1 slot, and would get it natively
"""

from __future__ import annotations

from pathlib import Path

HELD = """
import time
from pathlib import Path

from airflow.sdk import DAG, task

HOLDING, RELEASED = Path({holding!r}), Path({released!r})


def wait(path):
    end = time.monotonic() + 150
    while not path.exists():
        assert time.monotonic() < end, path
        time.sleep(0.05)


with DAG({name!r}, tags=["egs-on"], schedule=None, max_active_tasks=64):
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
        time.sleep(2)  # when the first one ends the large one has waited for long enough to have slots kept

    holder()
    begun = first()
"""


def held_dag(name: str, home: Path, rest: str) -> str:
    """The source of the DAG. name: of it, and of its pool; rest: more of its tasks, and who comes after `begun`."""
    return HELD.format(name=name, holding=str(holding(name, home)), released=str(released(name, home))) + rest


def holding(name: str, home: Path) -> Path:
    """The file that says that the holder runs."""
    return home / f"{name}_holding"


def released(name: str, home: Path) -> Path:
    """The file on which it ends."""
    return home / f"{name}_released"
