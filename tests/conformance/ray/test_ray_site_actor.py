"""Unmodified drivers of one Ray whose site is an actor: one order, quotas across them, and an actor that may die."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import ray

from egs_core.runlog.io import read_run
from egs_core.runlog.timeline import build_timeline
from egs_core.site import Joining
from egs_ray import Session
from egs_ray.site import actor
from egs_ray.site.joining import join
from tests.conformance.ray import run_tasks as t
from tests.conformance.ray import test_ray_run as run
from tests.conformance.ray.conftest import LIMIT_S, drivers, end_site
from tests.conformance.ray.test_ray_site import output

QUEUES = """
queues:
  - {name: shared, nominal: {gpus: 1}}
"""
# Each task notes when it has the GPU and when not any more; all clocks are one machine's. Of the last one, which the
# script forgets at once, only the file tells.
SCRIPT = """
import os, sys, time
import ray

name, log, count, hold_s, go = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), sys.argv[5]

@ray.remote(num_gpus=1, num_cpus=0, max_calls=0)
def fit(x, log, name, hold_s):
    began = time.time()
    with open(f"{log}.begun", "a") as file:
        file.write(f"{name}\\n")
    time.sleep(hold_s)
    with open(log, "a") as file:
        file.write(f"{name} {x} {began} {time.time()}\\n")
    return x * 2

ray.init(logging_level="ERROR", log_to_driver=False)
refs = [fit.remote(x, log, name, hold_s) for x in range(count)]
fit.remote(1000, log, name, hold_s)
print(sum(ray.get(refs)))
while not os.path.exists(go):
    time.sleep(0.02)
"""
HINTED = SCRIPT.replace("@ray.remote", "import egs_core as egs\n@ray.remote").replace(
    "\ndef fit", "\n@egs.task(priority=100)\ndef fit"
)
Begin = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def begin(ray_address: str, tmp_path: Path) -> Iterator[Begin]:
    """Start a script as a driver with `EGS_GATE=cluster` and a queue with one of Ray's two GPUs; it ends with the
    test."""
    end_site()
    (tmp_path / "queues.yaml").write_text(QUEUES)
    own = {
        "EGS_GATE": "cluster",
        "EGS_QUEUES": str(tmp_path / "queues.yaml"),
        "EGS_CONTROL": "off",  # one process less to start; test_ray_control_gate has it
    }

    def begin(source: str, name: str, count: int, hold_s: float, **environment: str) -> subprocess.Popen[str]:
        words = [name, tmp_path / "log", count, hold_s, tmp_path / "go"]
        return start(source, name, words, **{**own, **environment})

    with drivers(ray_address, tmp_path) as start:
        yield begin
    end_site()


def held(folder: Path) -> list[tuple[str, int, float, float]]:
    """Who had a GPU from when to when, by start."""
    log = folder / "log"
    rows = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
    return sorted([(row[0], int(row[1]), float(row[2]), float(row[3])) for row in rows], key=lambda row: row[2])


def begun(folder: Path) -> set[str]:
    """Drivers of which a task has begun."""
    log = folder / "log.begun"
    return set(log.read_text().split()) if log.exists() else set()


def joined() -> int:
    """How many drivers have joined the site."""
    try:
        site = ray.get_actor(actor.NAME, actor.NAMESPACE)
        return int(ray.get(site.__ray_call__.remote(lambda self: len(self._lives)), timeout=LIMIT_S))
    except (ValueError, ray.exceptions.RayActorError):
        return 0


@pytest.mark.proves("ray cluster", "order")
def test_a_quota_holds_across_drivers(begin: Begin, tmp_path: Path) -> None:
    """Two scripts, a queue with one of Ray's two GPUs: no two tasks at once, both results right, nothing said. The run
    logs have the waits as waits for quota, which waste nothing."""
    scripts = [begin(SCRIPT, name, 10, 0.2) for name in ("a", "b")]
    t.until(lambda: len(held(tmp_path)) == 22)
    (tmp_path / "go").touch()
    assert [output(script) for script in scripts] == [(0, "90", []), (0, "90", [])]
    rows = held(tmp_path)
    assert all(before[3] <= after[2] for before, after in pairwise(rows)), rows
    t.until(lambda: joined() == 0)
    for name in ("a", "b"):
        waits = build_timeline(read_run(tmp_path / f"{name}.jsonl").records).waits
        for_quota = {wait.task for wait in waits if any(kind == "quota" for _, _, kind in wait.pieces)}
        assert len(for_quota) >= 9, "all but the first, and the one that nobody waits for"


@pytest.mark.proves("ray cluster", "order", "priority")
def test_priority_of_one_driver_goes_before_what_waits_of_another(begin: Begin, tmp_path: Path) -> None:
    """A driver with many tasks holds the queue's GPU; one that comes later with priority=100 gets the next turns. Its
    other queues are said in one line, and the first driver's count."""
    begin(SCRIPT, "low", 200, 0.5)
    t.until(lambda: held(tmp_path))
    (tmp_path / "other.yaml").write_text(QUEUES.replace("gpus: 1", "gpus: 2"))
    high = begin(HINTED, "high", 2, 0.1, EGS_QUEUES=str(tmp_path / "other.yaml"))
    t.until(lambda: [row[0] for row in held(tmp_path)].count("high") == 3)
    (tmp_path / "go").touch()
    code, out, said = output(high)
    assert (code, out, len(said)) == (0, "2", 1), said
    assert "other queues" in said[0]
    rows = held(tmp_path)
    first = next(index for index, row in enumerate(rows) if row[0] == "high")
    assert [row[0] for row in rows[first : first + 3]] == ["high"] * 3, rows
    assert all(before[3] <= after[2] for before, after in pairwise(rows)), rows


def test_a_killed_actor_costs_order_and_no_task(begin: Begin, tmp_path: Path) -> None:
    """`ray.kill` while tasks of both run and wait: all end with their right results, also the ones that the scripts
    have forgotten; exit code 0, and each says one line. The next driver starts another actor."""
    scripts = [begin(SCRIPT, name, 6, 0.8) for name in ("a", "b")]
    t.until(lambda: joined() == 2 and held(tmp_path))
    assert len(held(tmp_path)) < 14
    ray.kill(ray.get_actor(actor.NAME, actor.NAMESPACE))
    t.until(lambda: len(held(tmp_path)) == 14)
    next_one = begin(SCRIPT, "c", 2, 0.1)
    t.until(lambda: joined() == 1 and len(held(tmp_path)) == 17)
    (tmp_path / "go").touch()
    for code, out, said in map(output, scripts):
        assert (code, out, len(said)) == (0, "30", 1), said
        assert "no longer ordering" in said[0]
        assert "the actor that orders the tasks of all drivers has ended" in said[0]
    assert output(next_one) == (0, "2", [])


def test_a_killed_driver_frees_what_it_held(begin: Begin, tmp_path: Path) -> None:
    """SIGKILL for the driver that has the queue's only GPU: another's turn comes."""
    hog = begin(SCRIPT, "hog", 3, 600)
    t.until(lambda: begun(tmp_path))
    other = begin(SCRIPT, "other", 2, 0.1)
    t.until(lambda: joined() == 2)
    assert begun(tmp_path) == {"hog"}
    hog.kill()
    (tmp_path / "go").touch()
    assert output(other) == (0, "2", [])
    assert {row[0] for row in held(tmp_path)} >= {"other"}


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"EGS_QUEUE": "nowhere"}, "there are shared: choose by EGS_QUEUE"),
        ({"EGS_QUEUES": "nowhere.yaml"}, "nowhere.yaml"),
        ({"EGS_SCALING": "on"}, "under an autoscaler"),
    ],
)
def test_without_it_a_script_orders_its_own(
    begin: Begin, tmp_path: Path, environment: dict[str, str], said: str
) -> None:
    """A queue or a file that is not there, an autoscaler: one warning that says so, the same result."""
    (tmp_path / "go").touch()
    code, out, lines = output(begin(SCRIPT, "alone", 3, 0.05, **environment))
    assert (code, out, len(lines)) == (0, "6", 1), lines
    assert said in lines[0]
    assert "orders its own work" in lines[0]


def has_ended(site: Any) -> bool:
    try:
        ray.get(site.queues.remote(), timeout=LIMIT_S)
    except ray.exceptions.RayActorError:
        return True
    return False


def test_workers_that_cannot_host_it(begin: Begin, tmp_path: Path) -> None:
    """Workers whose environment breaks at our import: one warning, the same result, ordered by the driver."""
    (tmp_path / "broken" / "egs_ray").mkdir(parents=True)
    (tmp_path / "broken" / "egs_ray" / "__init__.py").write_text("raise RuntimeError('broken')")
    (tmp_path / "go").touch()
    environment = {"env_vars": {"PYTHONPATH": str(tmp_path / "broken")}}
    script = SCRIPT.replace("ray.init(", f"ray.init(runtime_env={environment!r}, ")
    code, out, lines = output(begin(script, "alone", 3, 0.05))
    assert (code, out, len(lines)) == (0, "6", 1), lines
    assert "orders its own work" in lines[0]


class Quiet:
    """A holder with nothing to do."""

    def __init__(self) -> None:
        self.is_lost = threading.Event()

    def perform(self, *_: Any) -> None: ...

    def record(self, *_: Any) -> None: ...

    def asked(self, *_: Any) -> None: ...

    def site_lost(self, error: BaseException) -> None:
        print(error)
        self.is_lost.set()


def test_it_ends_after_its_last_driver(ray_address: str) -> None:
    """It stays for as long as a driver is there, whatever that does, and not much longer; the time can be set."""
    assert ray_address
    end_site()
    made = actor.get_or_make(b"[]", 2.0)
    holder = Quiet()
    site = join(Joining("ray", "pool", "quiet"), holder)
    site.start()
    time.sleep(5.0)  # it would have ended by now
    assert joined() == 1
    site.close()
    t.until(lambda: joined() == 0)
    t.until(lambda: has_ended(made))  # to ask does not keep it
    assert not holder.is_lost.is_set()


def test_a_run_at_the_actor(ray_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`egs_ray.run` cannot tell it from its own process's: values, order and answers."""
    assert ray_address
    end_site()
    monkeypatch.setenv("EGS_GATE", "cluster")
    with t.session(tmp_path) as session:
        assert isinstance(session, Session)
        assert session.site.is_shared
        run.test_values_equal_native(session)
        run.test_task_with_dependents_goes_first(session, tmp_path)
        assert session.site.is_alive
    end_site()
