"""The hook on unmodified scripts: it changes nothing, and the run log tells what happened."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from egs_core.history.opened import open_history
from egs_core.history.pending import learn_pending
from egs_core.runlog.io import Run, read_run
from egs_core.runlog.records import Capacity, Ended, Ready, Started, TaskAdded, Used, WorkloadEnded, WorkloadSubmitted

Script = Callable[..., "subprocess.CompletedProcess[str]"]

PIPELINE = """
import ray

@ray.remote
def load(n):
    return n

@ray.remote(num_gpus=1, memory=1000)
def fit(x, *more, scale=1):
    return x * scale

@ray.remote
def gather(refs, extra):
    return sum(ray.get(refs)) + sum(ray.get(list(extra.values())))

@ray.remote
def broken(x):
    raise ValueError("no")

@ray.remote
def outer(x):
    return ray.get(load.remote(x)), ray.put(x)

@ray.remote(num_gpus=1)
class Model:
    def __init__(self, x):
        self.x = x
    def predict(self, y):
        return self.x + y

@ray.remote(num_returns=2)
def pair(x):
    return x, x

@ray.remote
def stream(x):
    yield x
    yield x

if __name__ == "__main__":
    ray.init()
    data = ray.put(10)
    one = load.remote(1)
    two = fit.options(num_cpus=2, name="second").remote(one, data, scale=3)
    total = gather.remote([one, two], {"k": load.remote(5)})
    print("total", ray.get(total))
    model = Model.options(num_cpus=0).remote(one)
    print("model", ray.get(model.predict.remote(two)))
    try:
        ray.get(broken.remote(total))
    except ValueError as error:
        print("error", type(error).__name__)
    nested, inner = ray.get(outer.remote(7))
    left, right = pair.remote(inner)
    print("pair", ray.get(load.remote(right)), nested)
    print("stream", [ray.get(ref) for ref in stream.remote(left)])
    del model
"""

# Runs a script after noting, below EGS, what each submission gets; references become their order of appearance.
SPY = """
import json, runpy, sys
import ray
from ray.actor import ActorClass, ActorMethod
from ray.remote_function import RemoteFunction

seen = {}
def plain(value):
    if isinstance(value, ray.ObjectRef):
        return f"ref {seen.setdefault(value, len(seen))}"
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *map(plain, value)]
    return repr(value)

lines = []
for cls in (RemoteFunction, ActorClass, ActorMethod):
    def spy(self, args=None, kwargs=None, *more, _original=cls._remote, _name=cls.__name__, **options):
        lines.append([_name, plain(args), plain(kwargs), plain(more), plain(options)])
        return _original(self, args, kwargs, *more, **options)
    cls._remote = spy
try:
    runpy.run_path("pipeline.py", run_name="__main__")
finally:
    open(sys.argv[1] if len(sys.argv) > 1 else "seen.json", "w").write(json.dumps(lines))
"""


def names(run: Run) -> dict[str, str]:
    """Names of the tasks by id."""
    return {record.task: record.name for record in run.records if isinstance(record, TaskAdded)}


def edges(run: Run) -> list[tuple[str, str]]:
    """All edges, by name, sorted."""
    name = names(run)
    return sorted(
        (name[parent], name[record.task])
        for record in run.records
        if isinstance(record, TaskAdded)
        for parent in record.parents
    )


EXPECTED_EDGES = sorted(
    [
        ("load", "fit"),
        ("load", "gather"),
        ("fit", "gather"),
        ("load", "gather"),
        ("load", "Model.__init__"),
        ("Model.__init__", "Model"),
        ("Model.__init__", "Model.predict"),
        ("fit", "Model.predict"),
        ("gather", "broken"),
        ("outer", "pair"),
        ("pair", "load"),
        ("pair", "stream"),
    ]
)


def test_observe_changes_nothing_and_tells_what_happened(run_script: Script, tmp_path: Path) -> None:
    """Native and observed: the same stdout, and Ray gets the same options and arguments in the same order. What was
    observed is in the run log, and in one line at the end."""
    (tmp_path / "pipeline.py").write_text(PIPELINE)
    native = run_script(SPY, hook=False)
    expected = json.loads((tmp_path / "seen.json").read_text())
    observed = run_script(SPY)
    assert observed.returncode == native.returncode == 0, observed.stderr
    assert observed.stdout == native.stdout
    assert native.stdout.splitlines()[0] == "total 9"
    assert json.loads((tmp_path / "seen.json").read_text()) == expected
    assert len(expected) == 11
    check_run_log(read_run(tmp_path / "log.jsonl"))
    lines = [line for line in observed.stderr.splitlines() if line.startswith("egs:")]
    assert len(lines) == 1
    assert "12 tasks seen" in lines[0]
    assert f"egs report {tmp_path / 'log.jsonl'}" in lines[0]


def check_run_log(run: Run) -> None:
    """Tasks, edges (also nested, by generators and by ray.put in a task), times, outcomes, GPU time, capacity, and the
    name that the script gave one task."""
    assert (run.header.driver, run.header.policy, run.header.mode) == ("ray", "native", "observe")
    assert edges(run) == EXPECTED_EDGES
    name, times = names(run), [record.t for record in run.records]  # type: ignore[attr-defined]  # all of these have one
    assert times == sorted(times)
    started = {record.task: record for record in run.records if isinstance(record, Started)}
    ended = {record.task: record for record in run.records if isinstance(record, Ended)}
    ready = {record.task: record for record in run.records if isinstance(record, Ready)}
    assert started.keys() == ended.keys() == name.keys()
    assert all(ready[task].t <= started[task].t <= ended[task].t for task in name)
    assert {name[task]: record.outcome for task, record in ended.items() if record.outcome != "succeeded"} == {
        "broken": "failed"
    }
    fit = next(record for task, record in started.items() if name[task] == "fit")
    assert (fit.cpus, fit.gpus, fit.memory_bytes) == (2.0, 1.0, 1000)
    own_names = {record.name: record.label for record in run.records if isinstance(record, TaskAdded) if record.label}
    assert own_names == {"fit": "second"}
    life = next(task for task in name if name[task] == "Model")
    assert (started[life].cpus, started[life].gpus) == (0.0, 1.0)
    used = [record for record in run.records if isinstance(record, Used)]
    assert [record.task for record in used] == [life]
    assert started[life].t <= used[0].t <= used[0].end_t <= ended[life].t
    capacity = [record for record in run.records if isinstance(record, Capacity)]
    assert [(record.cpus, record.gpus) for record in capacity] == [(4.0, 2), (0.0, 0)]


IMPLICIT = """
import ray

@ray.remote
def first(x):
    return x

@ray.remote
def second(x):
    return x

print(ray.get(second.remote(first.remote(1))))
"""


def test_script_without_ray_init(run_script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call that starts Ray by itself is seen too; without the private API its edge is still there. Without
    EGS_RUNLOG each run has its own file in the user's data folder; the history is there too."""
    done = run_script(IMPLICIT, EGS_RUNLOG="", XDG_DATA_HOME=str(tmp_path / "data"))
    (path,) = (tmp_path / "data" / "egs" / "runs").iterdir()
    assert str(path) in done.stderr
    assert not (tmp_path / "data" / "egs" / "history.sqlite").exists(), "not at the script's end"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert learn_pending() == 1
    assert sorted(row.task for row in open_history().load("script")) == ["first", "second"]
    again = run_script(IMPLICIT, EGS_RAY_WITHOUT="auto_init")
    for script, log in ((done, path), (again, tmp_path / "log.jsonl")):
        assert script.stdout == "1\n"
        run = read_run(log)
        assert edges(run) == [("first", "second")]
        first = next(record for record in run.records if isinstance(record, TaskAdded) and record.name == "first")
        assert first.phases == (("cpu", 1.0, 0.0, 0),)


def test_the_next_run_into_the_same_run_log_leaves_the_last_one_to_be_learned(
    run_script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EGS_RUNLOG is fixed: each of two runs is learned, once, whoever reads the history first."""
    data = str(tmp_path / "data")
    for _ in range(2):
        run_script(IMPLICIT, XDG_DATA_HOME=data)
    monkeypatch.setenv("XDG_DATA_HOME", data)
    assert learn_pending() == 2
    assert sorted(row.task for row in open_history().load("script")) == ["first", "first", "second", "second"]
    assert list((tmp_path / "data" / "egs" / "runs").iterdir()) == []


KNOWN = (
    IMPLICIT.split("print")[0]
    + """
import egs_ray
from egs_core.runlog.io import read_run
from egs_ray.session.api import default_session
egs_ray.run(second.bind(first.bind(1)), name="script").get(60)
records = read_run(default_session().learning.path).records
print({x.task: x.estimate_p50_s is not None for x in records if type(x).__name__ == "Granted"})
"""
)


def test_a_first_run_with_egs_knows_what_the_hook_has_observed(run_script: Script, tmp_path: Path) -> None:
    """Nobody has read the history between the two scripts."""
    data = str(tmp_path / "data")
    run_script(IMPLICIT, XDG_DATA_HOME=data)
    done = run_script(KNOWN, hook=False, XDG_DATA_HOME=data, EGS_RUNLOG=str(tmp_path / "own.jsonl"))
    assert done.stdout == "{'first-0': True, 'second-0': True}\n", done.stderr


CYCLES = """
import ray

@ray.remote
def task(x):
    return x

for cycle in range(2):
    ray.init()
    print(ray.get(task.remote(task.remote(cycle))))
    ray.shutdown()
"""


def test_several_sessions(run_script: Script, tmp_path: Path) -> None:
    """Each ray.init to ray.shutdown is one workload of the one log, complete, recorded once, in one summary."""
    done = run_script(CYCLES)
    assert done.stdout == "0\n1\n"
    run = read_run(tmp_path / "log.jsonl")
    begun = [record.workload for record in run.records if isinstance(record, WorkloadSubmitted)]
    assert begun == ["script-1", "script-2"]
    assert [record.workload for record in run.records if isinstance(record, WorkloadEnded)] == begun
    for workload in begun:
        outcomes = [r.outcome for r in run.records if isinstance(r, Ended) and r.workload == workload]
        assert outcomes == ["succeeded", "succeeded"]
    assert done.stderr.count("egs:") == 1


@pytest.mark.parametrize(
    "without",
    [
        pytest.param("submit", marks=pytest.mark.slow),
        pytest.param("task_events,actors,disconnect", marks=pytest.mark.slow),
        "submit,task_events,actors",
    ],
)
def test_without_private_api(run_script: Script, tmp_path: Path, without: str) -> None:
    """With private API gone the script is untouched and every task is still in the log, with its times."""
    done = run_script(IMPLICIT, EGS_RAY_WITHOUT=without)
    assert (done.returncode, done.stdout) == (0, "1\n")
    run = read_run(tmp_path / "log.jsonl")
    assert sorted(names(run).values()) == ["first", "second"]
    assert sum(isinstance(record, Ended) and record.outcome == "succeeded" for record in run.records) == 2
    assert edges(run) == ([] if "submit" in without else [("first", "second")])
    warnings = [line for line in done.stderr.splitlines() if line.startswith("egs:")]
    assert len(warnings) == (2 if "submit" in without else 1)


@pytest.mark.slow
def test_explicit_shutdown_without_private_api(run_script: Script, tmp_path: Path) -> None:
    """Without the private place, ray.shutdown is where a session ends."""
    assert run_script(CYCLES, EGS_RAY_WITHOUT="disconnect").stdout == "0\n1\n"
    run = read_run(tmp_path / "log.jsonl")
    assert sum(isinstance(record, Ended) and record.outcome == "succeeded" for record in run.records) == 4


BLOCKED = """
import sys
sys.modules["msgspec"] = None  # as if it were not installed
"""


@pytest.mark.parametrize(
    ("preface", "environment"),
    [(BLOCKED, {}), ("", {"EGS_RUNLOG": "/proc/no/log.jsonl"}), ("", {"EGS_MODE": "off"})],
    ids=["import fails", "log cannot be written", "off"],
)
def test_ray_stays_native(run_script: Script, tmp_path: Path, preface: str, environment: dict[str, str]) -> None:
    """What cannot observe says so in one line at most, and the script runs as ever."""
    done = run_script(preface + IMPLICIT, **environment)
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert done.stderr.count("egs:") == (0 if environment.get("EGS_MODE") == "off" else 1)
    assert not (tmp_path / "log.jsonl").exists()


KILLED = """
import os, signal, time
import ray

@ray.remote
def task(x):
    return x

ray.init()
ray.get([task.remote(i) for i in range(5)])
log = os.environ["EGS_RUNLOG"]
deadline = time.monotonic() + 60
while open(log).read().count('"r":"task"') < 5 and time.monotonic() < deadline:
    time.sleep(0.1)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_crash_keeps_what_was_seen(run_script: Script, tmp_path: Path) -> None:
    """A driver that is killed leaves a readable log with its submissions."""
    assert run_script(KILLED).returncode == -9
    assert sorted(names(read_run(tmp_path / "log.jsonl")).values()) == ["task"] * 5


ABANDONED = """
import os, time
import ray
from egs_ray import observe

observe.POLL_EVERY_S = 0.5

@ray.remote(num_gpus=1)
def forever():
    time.sleep(600)

ray.init()
ref = forever.remote()
while '"r":"started"' not in open(os.environ["EGS_RUNLOG"]).read():
    time.sleep(0.05)
"""


def test_running_task_is_aborted_at_the_end(run_script: Script, tmp_path: Path) -> None:
    """A task that still runs when the script ends holds its GPU to that moment, and is recorded as aborted."""
    done = run_script(ABANDONED)
    run = read_run(tmp_path / "log.jsonl")
    (started,) = [record for record in run.records if isinstance(record, Started)]
    (ended,) = [record for record in run.records if isinstance(record, Ended)]
    assert (started.gpus, ended.outcome) == (1.0, "aborted")
    held_s = float(done.stderr.partition(" s of GPU time held")[0].rpartition(" ")[2])
    assert held_s == pytest.approx(ended.t - started.t, abs=0.1)


GIVEN_UP = """
import ray
from egs_ray import install

@ray.remote
def task():
    return 1

ray.init()
ray.get(task.remote())
install.interceptor._give_up(OSError("no space left"))
print(sum(ray.get([task.remote() for _ in range(200)])))
print(len(install.interceptor._noted))
"""


@pytest.mark.parametrize("mode", [pytest.param("observe", marks=pytest.mark.slow), "on"])
def test_nothing_is_kept_once_observing_has_ended(run_script: Script, mode: str) -> None:
    """What nobody will write takes no memory."""
    done = run_script(GIVEN_UP, EGS_MODE=mode)
    assert done.stdout == "200\n0\n", done.stderr
    assert "no longer observing" in done.stderr
