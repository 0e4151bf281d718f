"""GPU time by job and task adds up, and the reasons of waits are those of the run."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egs_core.audit.accounts import gpu_time, gpu_time_by_job, gpu_time_by_task
from egs_core.audit.waits import FIRST, FREE, longest_waits
from egs_core.cli.why import waits_in_log
from egs_core.runlog.intervals import LET_GO
from egs_core.runlog.metrics import metrics_of
from egs_core.runlog.records import (
    Capacity,
    ColdStart,
    Ended,
    Granted,
    Held,
    Ready,
    Record,
    Started,
    TaskAdded,
    Used,
    WorkloadSubmitted,
)
from egs_core.runlog.timeline import build_timeline

quarters = st.integers(0, 12).map(lambda quarter: quarter / 4)


@st.composite
def histories(draw: st.DrawFn) -> list[Record]:
    """Tasks of two jobs with any parts of their holds cold, used, or neither; some still run."""
    records: list[Record] = [Capacity(0, "n", 8, 4), WorkloadSubmitted(0, "a"), WorkloadSubmitted(0, "b")]
    for number in range(draw(st.integers(0, 6))):
        job, task, gpus = draw(st.sampled_from("ab")), f"t{number}", draw(st.sampled_from([0.0, 0.5, 1.0, 2.0]))
        start = draw(quarters)
        records.append(TaskAdded(0, job, task, draw(st.sampled_from(["x", "y"])), (), (("gpu", 1.0, gpus, 0),)))
        records.append(Started(start, job, task, node="n", cpus=1.0, gpus=gpus))
        for stretch in (Used, ColdStart, Used):
            if draw(st.booleans()):
                at = start + draw(quarters)
                records.append(stretch(at, at + draw(quarters), job, task))
        if draw(st.booleans()):
            records.append(Ended(start + draw(quarters), job, task))
    return records


@settings(max_examples=150, deadline=None)
@given(histories())
def test_held_is_used_and_cold_and_idle(records: list[Record]) -> None:
    """For every row and for the sum of rows, by job and by task; and the sum is what the metrics say."""
    line = build_timeline(records)
    total = gpu_time(line)
    for rows in ([total], gpu_time_by_job(line), gpu_time_by_task(line)):
        for row in rows:
            assert row.held_s == pytest.approx(row.used_s + row.cold_s + row.idle_s)
            assert row.taken_s == pytest.approx(row.used_s + row.wasted_s)
        assert sum(row.held_s for row in rows) == pytest.approx(total.held_s)
        assert sum(row.wasted_s for row in rows) == pytest.approx(total.wasted_s)
    metrics = metrics_of(line)
    assert (total.held_s, total.used_s) == pytest.approx((metrics.gpu_held_s, metrics.gpu_used_s))


def _waiting(*records: Record, demand: tuple[float, float] = (1.0, 1.0), until: float = 10.0) -> list[Record]:
    cpus, gpus = demand
    waiter: list[Record] = [
        WorkloadSubmitted(0, "w"),
        TaskAdded(0, "w", "waiter", "train", (), (("gpu", cpus, gpus, 0),)),
        Ready(2, "w", "waiter"),
        Started(until, "w", "waiter", node="n", cpus=cpus, gpus=gpus),
        Ended(until + 1, "w", "waiter"),
    ]
    return [*records, *waiter]


def _holder(name: str, start: float, end: float, gpus: float, *used: tuple[float, float]) -> list[Record]:
    parts: list[Record] = [Used(a, b, "w", name) for a, b in used]
    added = TaskAdded(start, "w", name, name, (), (("gpu", 1.0, gpus, 0),))
    return [added, Started(start, "w", name, node="n", cpus=1.0, gpus=gpus), *parts, Ended(end, "w", name)]


def test_idle_holder_is_named() -> None:
    """An actor that held the only GPU and used it for 3 of 8 s is why the waiter waited those 8 s."""
    records = _waiting(Capacity(0, "n", 4, 1), *_holder("Server", 0, 10, 1, (0, 5)))
    (wait,) = longest_waits(build_timeline(records))
    assert (wait.wait_s, wait.arguments_s, wait.no_gpu_s, wait.free_s) == (8, 2, 8, 0)
    assert wait.blockers == (("Server", 8, 5),)
    assert wait.reason == "no free GPU while Server held 8.0 GPU·s, 5.0 of them unused"


def test_free_resources_are_said_to_be_free() -> None:
    """The GPU was free for 6 of 8 s: process start or environment, and the report does not guess which."""
    (wait,) = longest_waits(build_timeline(_waiting(Capacity(0, "n", 4, 1), *_holder("other", 0, 4, 1))))
    assert (wait.no_gpu_s, wait.no_cpu_s, wait.free_s) == (2, 0, 6)
    assert wait.reason.startswith("resources were free: process start, environment")


def test_gpus_on_two_nodes_do_not_make_two_on_one() -> None:
    """Two single GPUs are no room for a task of two: nobody has them."""
    records = _waiting(Capacity(0, "n", 4, 1), Capacity(0, "m", 4, 1), demand=(1.0, 2.0))
    (wait,) = longest_waits(build_timeline(records))
    assert wait.nobody_has
    assert wait.reason == "no node offers 2 GPUs and 1 CPU"


def test_busy_cpus_beside_a_free_gpu() -> None:
    """All CPUs of the node with the free GPU were taken."""
    busy: list[Record] = [Started(0, "w", "cpu", node="n", cpus=4.0), Ended(9, "w", "cpu")]
    (wait,) = longest_waits(build_timeline(_waiting(Capacity(0, "n", 4, 1), *busy)))
    assert (wait.no_gpu_s, wait.no_cpu_s, wait.free_s) == (0, 7, 1)
    assert wait.reason == "no free CPU beside a free GPU"


def test_what_the_log_says_goes_first() -> None:
    """A wait that the log puts down to a quota is not put down to anything else."""
    records = [*_waiting(Capacity(0, "n", 4, 1)), Held(2, "w", "waiter", 0, "quota")]
    (wait,) = longest_waits(build_timeline(records))
    assert wait.reason == "held back: quota"


def test_what_egs_holds_back_is_no_process_start() -> None:
    """In a log of EGS in mode on: named as EGS's own, also where resources were free and others went first; in an old
    log such a hold has words, which are no reason of the engine's."""
    of_quota, of_order = ("quota", "", "held back by EGS: quota"), ("capacity", "", FIRST)
    for kind, words, wanted in (of_quota, of_order, ("capacity", "until 5.250: rank", FIRST)):
        records = [*_waiting(Capacity(0, "n", 4, 4)), Held(2, "w", "waiter", 0, kind, words)]
        (wait,) = longest_waits(build_timeline(records), by_egs=True)
        assert wait.reason == wanted
    (wait,) = longest_waits(build_timeline(_waiting(Capacity(0, "n", 4, 4))), by_egs=True)
    assert wait.reason == FREE


LACK = "needs 1 GPU: n has 0 of 1 GPUs wholly free"


@pytest.mark.parametrize(
    ("quota_s", "granted_s", "kind", "reason"),
    [
        (6.5, 9.0, "quota", "held back by EGS: quota"),
        (3.0, 9.0, "capacity", "no free GPU while other was at work on them"),
        (3.0, 4.0, "starting", LET_GO),
    ],
)
def test_audit_and_why_put_a_wait_down_to_the_same(quota_s: float, granted_s: float, kind: str, reason: str) -> None:
    """From 2 on a quota holds it, then a full node, then its framework starts it: what took longest. The GPU was free
    for most of the time by the starts that the framework told, and by the engine's books it was not."""
    held = [Held(2, "w", "waiter", 0, "quota", "no quota"), Held(quota_s, "w", "waiter", 0, "capacity", LACK)]
    other = _holder("other", 3.5, 4.5, 1)
    records = [*_waiting(Capacity(0, "n", 4, 1), *other), *held, Granted(granted_s, "w", "waiter", 0)]
    (wait,) = longest_waits(build_timeline(records), by_egs=True)
    assert wait.reason == reason
    (answer,) = waits_in_log(records, ["train"], "log")
    assert answer["phases"][0]["reason"]["kind"] == kind


def test_a_lack_that_the_log_cannot_show_is_told_in_the_words_of_the_engine() -> None:
    """The GPU was taken in the engine's books alone: by what it had let go, and no framework had told of yet."""
    records = [*_waiting(Capacity(0, "n", 4, 1)), Held(2, "w", "waiter", 0, "capacity", LACK)]
    (wait,) = longest_waits(build_timeline(records), by_egs=True)
    assert wait.reason == f"no room by the books of EGS: {LACK}"


def test_a_wait_has_a_label_that_why_takes() -> None:
    """Its name where that is its own, else what tells it from the others of that name."""
    (alone,) = longest_waits(build_timeline(_waiting(Capacity(0, "n", 4, 1))))
    assert alone.label == alone.name == "train"
    task = "c2668a65bda616c1ffffffffffffffffffffffff01000000"
    others = [TaskAdded(0, "w", task, "train"), Ready(0, "w", task), Started(9, "w", task, node="n")]
    records = _waiting(Capacity(0, "n", 4, 1), *others)
    labels = [wait.label for wait in longest_waits(build_timeline(records))]
    assert labels == ["waiter"]
    labels = [wait.label for wait in longest_waits(build_timeline([*others, TaskAdded(0, "w", "twin", "train")]))]
    assert labels == ["train-c2668a65"]
    for label in labels:
        (answer,) = waits_in_log([*records], [label], "log")
        assert answer["task"] == task


def test_the_users_own_name_of_a_task_is_its_label() -> None:
    """Whoever has named one task finds it by that; its like are found by the name that they share."""
    ids = [f"{number:08x}" + "f" * 24 for number in range(3)]
    named = [TaskAdded(0, "w", task, "fit", label=label) for task, label in zip(ids, ("one", "two", ""), strict=True)]
    ran = [record for task in ids for record in (Ready(0, "w", task), Started(9, "w", task, node="n"))]
    labels = [wait.label for wait in longest_waits(build_timeline([*named, *ran]))]
    assert labels == ["one", "two", "fit-00000002"]
    assert [waits_in_log([*named, *ran], [label], "log")[0]["task"] for label in labels] == ids
    assert len(waits_in_log([*named, *ran], ["fit"], "log")) == 3
