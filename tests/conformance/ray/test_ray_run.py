"""`egs_ray.run` gives what Ray gives: values, errors, options; and lets itself be asked, aborted and repeated."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from ray.dag import InputNode, MultiOutputNode
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import egs_ray
from egs_core.errors import InputError
from egs_core.runlog.io import read_run
from egs_core.runlog.metrics import summarise
from egs_core.runlog.records import Ended, Granted, Started, TaskAdded
from egs_core.runlog.same_tasks import task_names
from egs_core.runlog.timeline import build_timeline
from egs_ray import Session
from egs_ray.convert import convert, submit_all
from tests.conformance.ray import run_tasks as t
from tests.conformance.ray.conftest import Script

pytestmark = pytest.mark.usefixtures("ray_address")


@pytest.fixture(scope="module")
def shared(ray_address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """One session for the tests that leave it as they found it."""
    assert ray_address
    with t.session(tmp_path_factory.mktemp("session")) as made:
        yield made


def run(session: Session, node: Any, *args: Any, **kwargs: Any) -> Any:
    return egs_ray.run(node, *args, session=session, **kwargs).get(t.LIMIT_S)


def test_values_equal_native(shared: Session) -> None:
    """Inputs, keywords, nested nodes, several returns and outputs: the same value as by plain submission."""
    with InputNode() as given:
        a = t.total.bind(given[0], 1)
        b = t.two.options(num_returns=2).bind(given.extra)
        c = t.total.bind(a, [a, {"x": a}], (a, 2), key=a, other={"y": [a]})
        d = t.total.bind(b, given[0], c)
        node = MultiOutputNode([d, c, t.total.bind()])
    native = ray.get(submit_all(convert(node), 5, extra=7))
    assert run(shared, node, 5, extra=7) == native


def test_several_runs_from_several_threads(shared: Session) -> None:
    """Runs under way at once do not mix, and each may be asked for by many threads."""
    values: list[int] = []

    def one(number: int) -> None:
        made = egs_ray.run(t.total.bind(t.total.bind(number), number), session=shared)
        threads = [threading.Thread(target=lambda: values.append(made.get(t.LIMIT_S))) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    callers = [threading.Thread(target=one, args=(number,)) for number in range(6)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert sorted(values) == sorted(2 * [3 * (3 * n + n) for n in range(6)])


def test_options_are_kept(shared: Session) -> None:
    """A task has the name, the environment and the node that its options say, with a GPU phase and without."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    options = {"name": "mine", "runtime_env": {"env_vars": {"COLOUR": "red"}}, "scheduling_strategy": here}
    plain, on_gpu = run(
        shared,
        MultiOutputNode(
            [t.about_itself.options(**options).bind(), t.about_itself.options(num_gpus=1, **options).bind()]
        ),
    )
    node = ray.get_runtime_context().get_node_id()
    assert (plain["name"], plain["colour"], plain["node"]) == ("mine", "red", node)
    assert (on_gpu["name"], on_gpu["colour"], on_gpu["node"]) == ("mine", "red", node)
    assert on_gpu["devices"] in ("0", "1")


@pytest.mark.parametrize("gpus", [0, 1])
def test_retries_are_rays(shared: Session, tmp_path: Path, gpus: int) -> None:
    """A killed process is tried again as max_retries says, an exception as retry_exceptions says."""
    more = {"num_gpus": gpus, "num_cpus": 0.1}
    dies = t.dies_first.options(max_retries=1, **more).bind(str(tmp_path))
    raises = t.raises_first.options(retry_exceptions=[ValueError], max_retries=1, **more).bind(str(tmp_path))
    assert run(shared, MultiOutputNode([dies, raises])) == ["second", "second"]
    for name in ("died", "raised"):
        (tmp_path / name).unlink()
    with pytest.raises(ray.exceptions.WorkerCrashedError):
        run(shared, t.dies_first.options(max_retries=0, **more).bind(str(tmp_path)))
    with pytest.raises(ValueError, match="the first time"):
        run(shared, t.raises_first.options(max_retries=0, **more).bind(str(tmp_path)))


def test_errors_are_as_native(shared: Session, tmp_path: Path) -> None:
    """The same exception type with the user's as its cause; what does not depend on the failed task still ends."""
    broken = t.fails.bind(3)
    node = MultiOutputNode([t.total.bind(broken), t.waits.bind(str(tmp_path), "apart")])
    with pytest.raises(ValueError, match="no 3") as native:
        ray.get(submit_all(convert(t.total.bind(broken))))
    made = egs_ray.run(node, session=shared)
    t.until((tmp_path / "apart.runs").exists)
    t.signal_to(str(tmp_path), "apart.end")
    with pytest.raises(ValueError, match="no 3") as ours:
        made.get(t.LIMIT_S)
    assert isinstance(ours.value, ray.exceptions.RayTaskError)
    assert isinstance(native.value, ray.exceptions.RayTaskError)
    assert type(ours.value.cause) is type(native.value.cause)
    ended = [x for x in read_run(made.runlog).records if isinstance(x, Ended) and x.workload == made.id]
    assert {x.task: x.outcome for x in ended} == {"fails-0": "failed", "waits-0": "succeeded"}


def test_a_task_whose_memory_was_not_enough_says_so(shared: Session) -> None:
    """In the run log, which is what `egs why` and `egs advise` read; the error is as ever."""
    made = egs_ray.run(t.lacks_memory.bind(), session=shared)
    with pytest.raises(RuntimeError, match="CUDA out of memory"):
        made.get(t.LIMIT_S)
    (ended,) = [x for x in read_run(made.runlog).records if isinstance(x, Ended) and x.workload == made.id]
    reason = "out of GPU memory: CUDA out of memory. Tried to allocate 2.00 GiB"
    assert (ended.outcome, ended.reason) == ("failed", reason)


def test_unserialisable_argument_fails_its_run_only(shared: Session) -> None:
    """What Ray cannot pickle is this run's error, and the next run is not touched by it."""
    with pytest.raises(TypeError, match="pickle"):
        run(shared, t.total.bind(threading.Lock()))
    assert run(shared, t.total.bind(2)) == 6
    assert shared.site.is_alive


def test_what_no_graph_can_say_is_one_clear_error(shared: Session) -> None:
    """Generators have no single value; a plain value is no graph."""

    @ray.remote
    def yields() -> Iterator[int]:
        yield 1

    for node in (yields.bind(), t.total.options(num_returns=0).bind()):
        with pytest.raises(InputError, match=r"num_returns|generator"):
            egs_ray.run(node, session=shared)
    with pytest.raises(InputError, match="not a Ray graph"):
        egs_ray.run(3, session=shared)


def test_why_and_timeouts(shared: Session, tmp_path: Path) -> None:
    """A waiting task says what it waits for; get gives up in time; unknown tasks are an error with a hint."""
    first = t.waits.bind(str(tmp_path), "first")
    made = egs_ray.run(t.waits.bind(str(tmp_path), "second", first), session=shared)
    t.until((tmp_path / "first.runs").exists)
    assert made.why("waits-1").waiting_for == ("waits-0",)
    assert not made.done()
    with pytest.raises(TimeoutError):
        made.get(0.05)
    with pytest.raises(InputError, match="unknown task"):
        made.why("nothing-0")
    for name in ("first.end", "second.end"):
        t.signal_to(str(tmp_path), name)
    assert made.get(t.LIMIT_S) == "second"
    assert made.done()


@pytest.mark.parametrize("scope", ["workload", "task"])
def test_abort_ends_processes_and_frees_gpus(shared: Session, tmp_path: Path, scope: str) -> None:
    """After an abort the process is dead, the GPU free, what waited is not started and get raises."""
    folder = str(tmp_path)
    running = t.waits.options(num_gpus=1).bind(folder, "running")
    made = egs_ray.run(t.waits.options(num_gpus=1).bind(folder, "after", running), session=shared)
    t.until((tmp_path / "running.runs").exists)
    process = psutil.Process(int((tmp_path / "running.runs").read_text()))
    t.until(lambda: t.free("GPU") == 1)
    made.abort("waits-0" if scope == "task" else "", actor="test")
    with pytest.raises(ray.exceptions.RayError):
        made.get(t.LIMIT_S)
    t.until(lambda: t.is_gone(process))
    t.until(t.is_idle)
    assert not (tmp_path / "after.runs").exists()
    with pytest.raises(InputError, match="unknown task"):
        made.abort("nothing-0")


def test_abort_between_and_before_phases(shared: Session, tmp_path: Path) -> None:
    """A task that waits for its GPU ends too, though it holds nothing at that moment."""
    folder = str(tmp_path)
    holding = [t.waits.options(num_gpus=1).bind(folder, f"h{i}") for i in range(2)]
    others = egs_ray.run(MultiOutputNode(holding), session=shared)
    for i in range(2):
        t.until((tmp_path / f"h{i}.runs").exists)
    made = egs_ray.run(t.blocked.bind(folder, "b"), session=shared)
    t.until((tmp_path / "b.decode.runs").exists)
    t.signal_to(folder, "b.decode.end")
    t.until(lambda: made.why("blocked-0").status == "ready")
    made.abort()
    with pytest.raises(ray.exceptions.RayError):
        made.get(t.LIMIT_S)
    for i in range(2):
        t.signal_to(folder, f"h{i}.end")
    assert others.get(t.LIMIT_S) == ["h0", "h1"]
    t.until(t.is_idle)


def test_chain_goes_before_leaves(shared: Session) -> None:
    """Leaves submitted before a chain do not delay it: the chain ends while leaves are left."""
    leaves = [t.stamp.bind(0.15) for _ in range(12)]
    chain = t.link.bind(0.2)
    for _ in range(2):
        chain = t.link.bind(0.2, chain)
    *spans, last = run(shared, MultiOutputNode([*leaves, chain]))
    assert last[1] < max(end for _, end in spans)


def test_task_with_dependents_goes_first(shared: Session, tmp_path: Path) -> None:
    """Of equal ready tasks the one that others wait for starts first, though it was bound last."""
    folder = str(tmp_path)
    holding = [t.waits.options(num_gpus=1).bind(folder, f"h{i}") for i in range(2)]
    others = egs_ray.run(MultiOutputNode(holding), session=shared)
    for i in range(2):
        t.until((tmp_path / f"h{i}.runs").exists)
    leaf = t.stamp.bind(0.2)
    needed = t.stamp.bind(0.2)
    node = MultiOutputNode([leaf, needed, t.stamp.options(num_gpus=0).bind(0.2, needed)])
    made = egs_ray.run(node, session=shared)
    t.until(lambda: made.why("stamp-0").status == "ready")
    t.signal_to(folder, "h0.end")
    leaf_span, needed_span, _ = made.get(t.LIMIT_S)
    t.signal_to(folder, "h1.end")
    others.get(t.LIMIT_S)
    assert needed_span[1] <= leaf_span[0]


def test_run_log_is_whole_and_history_is_learned(tmp_path: Path) -> None:
    """The log reads back, every task started and ended, figures are sane, and the next run knows the durations."""
    node = MultiOutputNode([t.stamp.bind(0.4, t.total.bind(1)) for _ in range(2)])
    with t.session(tmp_path) as made:
        first = egs_ray.run(node, name="learned", session=made)
        first.get(t.LIMIT_S)
        believed = made.learning.believe("learned", convert(node).graph)
    log = read_run(tmp_path / "run.jsonl")
    started = {x.task for x in log.records if isinstance(x, Started)}
    ended = {x.task: x.outcome for x in log.records if isinstance(x, Ended)}
    assert started == set(ended) == {"total-0", "total-1", "stamp-0", "stamp-1"}
    assert set(ended.values()) == {"succeeded"}
    longest_s = max(x.t for x in log.records if isinstance(x, Ended)) - min(
        x.t for x in log.records if isinstance(x, Started)
    )
    metrics = summarise([log.header, *log.records])
    assert 0.6 < metrics.gpu_used_s <= metrics.gpu_held_s
    assert metrics.wastage_effective is not None
    assert 0 <= metrics.wastage_effective <= 1
    assert metrics.workloads_unfinished == 0
    with t.session(tmp_path) as again:
        learned = again.learning.believe("learned", convert(node).graph)
        egs_ray.run(node, name="learned", session=again).get(t.LIMIT_S)
    granted = [x for x in read_run(again.learning.path).records if isinstance(x, Granted)]
    spreads = {x.task: (x.estimate_p50_s or 0.0, x.estimate_p95_s or 0.0) for x in granted}
    assert {task: p95 > p50 > 0 for task, (p50, p95) in spreads.items()} == dict.fromkeys(started, True), spreads
    for graph in (believed, learned):
        of_stamp = [graph.phase_duration_s[graph.phase_offsets[i]] for i, n in enumerate(graph.names) if n == "stamp"]
        assert 0.4 <= min(of_stamp) <= max(of_stamp) <= longest_s


def test_a_run_learns_while_it_goes_on(tmp_path: Path) -> None:
    """Of a pipeline without a history there is only what its hint says; tasks of the same name that come later are
    granted with what the first ones took."""
    node = MultiOutputNode([t.stamp.bind(0.3) for _ in range(8)])
    with t.session(tmp_path) as made:
        egs_ray.run(node, name="never seen", session=made).get(t.LIMIT_S)
    records = read_run(made.learning.path).records
    granted = [x for x in records if isinstance(x, Granted)]
    took = [x.t for x in records if isinstance(x, Ended)]
    assert granted[0].estimate_p50_s == 0.15  # the hint
    assert 0.25 <= (granted[-1].estimate_p50_s or 0.0) <= max(took)
    assert (granted[-1].estimate_p95_s or 0.0) > (granted[-1].estimate_p50_s or 0.0)


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    """After runs and close: no holder, nothing held, no thread that would keep the process, no intermediate value."""
    kept: list[ray.ObjectRef] = []
    before = set(threading.enumerate())
    with t.session(tmp_path) as made:
        books = egs_ray.run(t.total.bind(t.total.bind(t.stamp.options(num_gpus=1).bind(0.01))), session=made)._books
        kept.append(books)
        t.until(books.over.is_set)
        t.until(lambda: len(books.results) == 1)
        t.until(lambda: not made._shared.awaited and not made._shared.submitted)
        assert not len(made._leases)
    t.until(t.is_idle)
    t.until(lambda: not [x for x in set(threading.enumerate()) - before if x.name.startswith("egs-") or not x.daemon])


def test_without_private_readiness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Ray's private callback the public wait does the same."""
    monkeypatch.setenv("EGS_RAY_WITHOUT", "ready")
    with t.session(tmp_path) as made:
        node = t.total.bind(t.stamp.options(num_gpus=1).bind(0.01), t.total.bind(4))
        assert isinstance(egs_ray.run(node, session=made).get(t.LIMIT_S), int)


SCRIPT = """
import ray, egs_ray, egs_core as egs

@ray.remote(num_cpus=0.1)
def load(n):
    return list(range(n))

@ray.remote(num_gpus=1)
def fit(values):
    with egs.gpu() as devices:
        assert len(devices) == 1
        return sum(values)

if __name__ == "__main__":
    for number in (4, 5):
        ray.init(log_to_driver=False)
        print(egs_ray.run(fit.bind(load.bind(number))).get(60))
        unfinished = egs_ray.run(load.bind(2))
        ray.shutdown()
        try:
            unfinished.get(10)
        except Exception as error:
            print(type(error).__name__)
"""


def test_functions_of_the_main_script_and_a_second_ray(run_script: Script) -> None:
    """Functions of `__main__` run; after ray.shutdown and ray.init there is a new session; nothing hangs at the end."""
    done = run_script(SCRIPT, hook=False)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line in ("6", "10")]
    assert lines == ["6", "10"], done.stdout + done.stderr
    assert "Traceback" not in done.stderr


FORGETFUL = """
import time, ray, egs_ray

@ray.remote(num_cpus=0.1)
def load():
    time.sleep(600)

if __name__ == "__main__":
    ray.init(log_to_driver=False)
    egs_ray.run(load.bind(), name="forgotten")
"""


def test_a_script_that_waits_for_nothing_is_told(run_script: Script) -> None:
    """It ends well, as natively, and one line says that its graph had not."""
    done = run_script(FORGETFUL, hook=False)
    assert done.returncode == 0, done.stderr
    said = "forgotten ends with the script, and 1 task of it had not: egs_ray.run(…).get() waits"
    assert [said in line for line in done.stderr.splitlines()].count(True) == 1, done.stderr


CLOCKS_S = 2.0  # a monotonic clock against the wall clock, where a process may be put aside between two looks
BOTH_WAYS = """
import os, time
import ray

@ray.remote
def load(n):
    time.sleep(0.1)
    return n

@ray.remote(num_gpus=1)
def train(x):
    time.sleep(0.2)
    return x + 1

if __name__ == "__main__":
    ray.init()
    time.sleep(2 * 2.0)
    before = time.time()
    if os.environ["WAY"] == "run":
        import egs_ray
        made = egs_ray.run(train.bind(load.bind(1)), session=None)
        print("asked", before, time.time(), made.runlog)
        print("value", made.get(60))
    else:
        ref = train.remote(load.remote(1))
        print("asked", before, time.time())
        print("value", ray.get(ref))
"""


def test_both_ways_count_from_the_first_submission(run_script: Script, tmp_path: Path) -> None:
    """An observed script and the same tasks by `egs_ray.run`: each log counts from what the script submitted first, not
    from its session, so what EGS starts for a run is in its makespan; and they are of the same tasks."""
    logs = []
    for way in ("remote", "run"):
        done = run_script(BOTH_WAYS, EGS_MODE="observe" if way == "remote" else "off", WAY=way, HOME=str(tmp_path))
        assert "value 2" in done.stdout, done.stderr
        before, after, *path = next(x for x in done.stdout.splitlines() if x.startswith("asked")).split()[1:]
        log = read_run(path[0] if path else tmp_path / "log.jsonl")
        start_s = log.header.started_at + build_timeline(log.records).window[0]
        assert float(before) - CLOCKS_S <= start_s <= float(after) + CLOCKS_S
        logs.append(log)
    assert [task_names(log.records) for log in logs] == [{"load": 1, "train": 1}] * 2
    (added, *_) = (x.t for x in logs[1].records if isinstance(x, TaskAdded))
    assert added < 0, "the run was asked for before there was a session"
