"""Unmodified drivers of one Ray that share a site server: one order, quotas across them, and a server that may die."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from egs_core.server.access import user_name
from tests.conformance.ray.conftest import LIMIT_S, drivers
from tests.unit.server.real_site import RealSite, wait_for
from tests.unit.server.served import own_site

pytestmark = pytest.mark.slow

QUEUES = """
queues:
  - {name: shared, nominal: {gpus: 1}}
"""
# Each task notes when it has the GPU and when not any more; all clocks are one machine's.
SCRIPT = """
import sys, time
import ray

name, log, count, hold_s = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])

@ray.remote(num_gpus=1, num_cpus=0, max_calls=0)
def fit(x, log, name, hold_s):
    began = time.time()
    time.sleep(hold_s)
    with open(log, "a") as file:
        file.write(f"{name} {x} {began} {time.time()}\\n")
    return x * 2

ray.init(logging_level="ERROR", log_to_driver=False)
print(sum(ray.get([fit.remote(x, log, name, hold_s) for x in range(count)])))
"""
HINTED = SCRIPT.replace("@ray.remote", "import egs_core as egs\n@ray.remote").replace(
    "\ndef fit", "\n@egs.task(priority=100)\ndef fit"
)
Begin = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[RealSite]:
    """A server whose one queue has one GPU, while Ray has two and the server's own host (an emulated) one."""
    with own_site(tmp_path, 1, queues=QUEUES) as found:
        yield found


@pytest.fixture
def begin(ray_address: str, tmp_path: Path, site: RealSite) -> Iterator[Begin]:
    """Start a script as a driver that shares the site, by the words behind its command, the first of which is its name;
    it is ended with the test."""
    with drivers(ray_address, tmp_path) as start:
        url = f"unix://{site.ready['socket']}"
        yield lambda source, *words, **environment: start(source, words[0], words, **{"EGS_URL": url, **environment})


def held(log: Path) -> list[tuple[str, int, float, float]]:
    """Who had a GPU from when to when, by start."""
    rows = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
    return sorted([(row[0], int(row[1]), float(row[2]), float(row[3])) for row in rows], key=lambda row: row[2])


def output(script: subprocess.Popen[str]) -> tuple[int, str, list[str]]:
    """Exit code, output, and the lines that EGS has said, but for where the run log is."""
    out, errors = script.communicate(timeout=LIMIT_S)
    said = [line for line in errors.splitlines() if line.startswith("egs: ") and "run log:" not in line]
    own = [line for line in out.splitlines() if "(raylet)" not in line]  # else Ray's word on how many processes it has
    return script.returncode, "\n".join(own), said


@pytest.mark.proves("ray site script", "order")
def test_a_quota_holds_across_drivers_and_people_see_them(begin: Begin, site: RealSite, tmp_path: Path) -> None:
    """Two scripts, a queue with one of Ray's two GPUs: no two tasks at once, both results right, nothing said.
    `egs ps`, `queue` and `why` show who waits, with user and framework; afterwards none is there."""
    log = tmp_path / "log"
    scripts = [begin(SCRIPT, name, log, 10, 0.4) for name in ("a", "b")]
    waits = wait_for(lambda: [view for view in site.client.queue().runs if view.kind == "quota"], "one waits for quota")
    assert {(view.user, view.framework, view.queue) for view in waits} == {(user_name(os.getuid()), "ray", "shared")}
    assert "ray: " in site.egs("ps").stdout
    assert "ray" in site.egs("queue").stdout
    why = site.egs("why", waits[0].id)
    assert (why.returncode, f"driver {waits[0].id}" in why.stdout) == (0, True), why
    assert [output(script) for script in scripts] == [(0, "90", []), (0, "90", [])]
    rows = held(log)
    assert len(rows) == 20
    assert all(before[3] <= after[2] for before, after in pairwise(rows)), rows
    wait_for(lambda: not site.open(), "the server knows that they have gone")


TIMED = "date +%s.%N; until [ -e {go} ]; do sleep 0.1; done; date +%s.%N"


def test_a_quota_holds_over_drivers_and_runs(begin: Begin, site: RealSite, tmp_path: Path) -> None:
    """`egs run` and a script in one queue with one GPU, though each has one free: the script waits and is told for
    whom, a later `egs run` gets its turn between the script's tasks, and no two ever hold it at once."""
    log, go, later = tmp_path / "log", tmp_path / "go", tmp_path / "later"
    first = site.run("--gpus", "1", "--", "sh", "-c", TIMED.format(go=go))
    run_id = wait_for(lambda: [view.id for view in site.client.runs().runs if view.state == "running"], "it runs")[0]
    script = begin(SCRIPT, "a", log, 20, 0.5)  # longer than `egs run` takes to start on a busy machine
    (told,) = wait_for(lambda: [view for view in site.client.queue().runs if view.kind == "quota"], "the script waits")
    assert f"in other pools it is used by {run_id} (" in told.reason
    go.touch()
    assert first.wait(LIMIT_S) == 0
    wait_for(lambda: held(log), "a task of the script has ended")
    later.touch()
    second = site.run("--gpus", "1", "--", "sh", "-c", TIMED.format(go=later))
    assert (second.wait(LIMIT_S), output(script)) == (0, (0, "380", []))
    rows = held(log)
    for run in (first, second):
        assert run.stdout is not None
        began, ended = (float(line) for line in run.stdout.read().split())
        assert all(ended <= row[2] or row[3] <= began for row in rows), (began, ended, rows)
    assert began < rows[-1][2], "the later run had no turn before the script was done"


@pytest.mark.proves("ray site script", "order", "priority")
def test_priority_of_one_driver_goes_before_what_waits_of_another(begin: Begin, tmp_path: Path) -> None:
    """A driver with many tasks holds the queue's GPU; one that comes later with priority=100 gets the next turns."""
    log = tmp_path / "log"
    low = begin(SCRIPT, "low", log, 60, 0.5)
    wait_for(lambda: held(log), "the first of the low ones has ended")
    high = begin(HINTED, "high", log, 3, 0.1)
    assert output(high) == (0, "6", [])
    low_before = [row for row in held(log) if row[0] == "low"]
    assert low.poll() is None, "the low ones were all done before"
    assert len(low_before) < 60
    rows = held(log)
    first = next(index for index, row in enumerate(rows) if row[0] == "high")
    assert [row[0] for row in rows[first : first + 3]] == ["high"] * 3, rows
    low.kill()


def test_a_killed_server_costs_order_and_no_task(begin: Begin, site: RealSite, tmp_path: Path) -> None:
    """`kill -9` while both wait: both scripts end with their results and exit code 0, each ordering its own work, and
    each says one line."""
    log = tmp_path / "log"
    scripts = [begin(SCRIPT, name, log, 10, 0.3) for name in ("a", "b")]
    wait_for(lambda: len(site.open()) == 2 and held(log), "both have joined, and one has had a turn")
    site.kill()
    for code, out, said in map(output, scripts):
        assert (code, out, len(said)) == (0, "90", 1), said
        assert "this process orders its own work until the site server" in said[0]


GATED = SCRIPT.replace(
    "    began = time.time()\n",
    "    import os\n    while not os.path.exists(log + '.gate'): time.sleep(0.02)\n    began = time.time()\n",
)
HINTED_GATED = GATED.replace("@ray.remote", "import egs_core as egs\n@ray.remote").replace(
    "\ndef fit", "\n@egs.task(priority=100)\ndef fit"
)


def lines_of(script: subprocess.Popen[str]) -> list[str]:
    """What it writes to its standard error, as it comes."""
    found: list[str] = []
    pipe = script.stderr
    assert pipe is not None
    threading.Thread(target=lambda: found.extend(iter(pipe.readline, "")), daemon=True).start()
    return found


def has_said(lines: list[str], words: str) -> None:
    wait_for(lambda: any(words in line for line in lines), f"it says: {words}")


@pytest.mark.proves("ray site script", "order", "priority")
def test_drivers_come_back_to_a_server_that_was_started_again(begin: Begin, site: RealSite, tmp_path: Path) -> None:
    """`kill -9` while a task runs and others wait, in two drivers: each orders its own work and says so once. Started
    again, the server counts what has begun; what waits then goes one after the other within the quota, first all with
    priority; never more at once than the GPUs of Ray, all results right, and one line each for the return."""
    log = tmp_path / "log"
    low = begin(GATED, "low", log, 6, 0.1)
    wait_for(lambda: [view for view in site.told("ps")["runs"] if view["state"] == "running"], "the first one runs")
    high = begin(HINTED_GATED, "high", log, 5, 0.1)
    wait_for(lambda: len(site.told("queue")["runs"]) == 2, "both wait")
    errors = [lines_of(script) for script in (low, high)]
    site.kill()
    for lines in errors:
        has_said(lines, "orders its own work")
    begun = {"low": 2, "high": 2}  # each driver gives out both of Ray's GPUs
    site.start("--queues", str(tmp_path / "queues.yaml"))
    for lines in errors:
        has_said(lines, "is back: ")
    wait_for(lambda: {row["name"]: row["gpus"] for row in site.told("ps")["runs"]} == begun, "what has begun counts")
    Path(f"{log}.gate").touch()
    for script, result in ((low, "30"), (high, "20")):
        assert script.stdout is not None
        assert script.wait(LIMIT_S) == 0
        assert [line for line in script.stdout.read().splitlines() if "(raylet)" not in line] == [result]
    rows = held(log)
    rest = rows[sum(begun.values()) :]
    assert [row[0] for row in rest] == ["high"] * 3 + ["low"] * 4, rows
    assert all(before[3] <= after[2] for before, after in pairwise(rest)), rows
    assert all(sum(one[2] <= row[2] < one[3] for one in rows) <= 2 for row in rows), rows
    own = [[line for line in lines if line.startswith("egs: ") and "run log:" not in line] for lines in errors]
    for lines in own:
        assert ["orders its own work" in line for line in lines[:2]] == [True, False], own
        assert sum("orders its own work" in line for line in lines) == sum("is back: " in line for line in lines), own


@pytest.mark.proves("ray site script", "abort")
def test_an_abort_at_the_server_ends_a_drivers_tasks(begin: Begin, site: RealSite, tmp_path: Path) -> None:
    """`egs abort`: its tasks end with Ray's own error, and its GPU goes to the next."""
    log = tmp_path / "log"
    hog = begin(SCRIPT, "hog", log, 3, 600)
    wait_for(lambda: [view for view in site.told("ps")["runs"] if view["state"] == "running"], "it runs")
    site.told("abort", site.open()["hog"], "--reason", "too long")
    assert hog.wait(LIMIT_S) != 0
    assert "Cancelled" in hog.communicate()[1]
    assert output(begin(SCRIPT, "next", log, 2, 0.1)) == (0, "2", [])


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "nonsense"])
def test_without_the_server_a_script_runs_as_without_one(begin: Begin, tmp_path: Path, url: str) -> None:
    """Nobody there, or no address: one warning, the same result, ordered by the driver itself."""
    code, out, said = output(begin(SCRIPT, "alone", tmp_path / "log", 3, 0.05, EGS_URL=url))
    assert (code, out, len(said)) == (0, "6", 1), said
    assert "orders its own work" in said[0]


def test_a_queue_that_there_is_not_is_said_once(begin: Begin, tmp_path: Path) -> None:
    """The warning names what there is; the script runs."""
    started = time.monotonic()
    code, out, said = output(begin(SCRIPT, "lost", tmp_path / "log", 2, 0.05, EGS_QUEUE="nowhere"))
    assert (code, out, len(said)) == (0, "2", 1), (said, time.monotonic() - started)
    assert "there are shared: choose by EGS_QUEUE" in said[0]
