"""Graphs rebuilt from times, and what is forecast with them."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egs_core.audit.build import audit
from egs_core.audit.forecast import Band, forecast, sample
from egs_core.audit.items import Item, figures_of_items, items_of
from egs_core.audit.observed import Observed, only_job
from egs_core.audit.rebuild import Reading, rebuild
from egs_core.runlog.records import Capacity, ColdStart, Ended, Header, Ready, Record, Started, TaskAdded, Used
from egs_core.runlog.timeline import build_timeline
from tests.unit.audit.contended import ran

AS_OBSERVED, LIKELY, AS_SUBMITTED = Reading


def _parents(observed: Observed, reading: Reading) -> dict[str, set[str]]:
    items = items_of(build_timeline(observed.records))
    graph = rebuild(items, reading, observed.edges_known).workloads[0].graph
    return {
        task: {graph.ids[p] for p in parents} for task, parents in zip(graph.ids, graph.parents, strict=True) if parents
    }


def test_readings_of_a_history_without_edges() -> None:
    """Likely: a task became ready when its parent ended. As observed: also everything that ended before it was ready,
    by way of the last of it. As submitted: nothing, all came at once."""
    observed = ran(edges_known=False)
    chain = {"step1": {"step0"}, "step2": {"step1"}, "tail": {"step2"}}
    assert _parents(observed, LIKELY) == chain
    constrained = _parents(observed, AS_OBSERVED)
    assert constrained["step1"] >= {"step0", "leaf5"}
    assert "step0" not in constrained
    assert _parents(observed, AS_SUBMITTED) == {}


def test_known_edges_stay() -> None:
    """With the parents in the log no reading drops one, and the likely one adds none."""
    observed = ran(edges_known=True)
    chain = {"step1": {"step0"}, "step2": {"step1"}, "tail": {"step2"}}
    assert _parents(observed, LIKELY) == _parents(observed, AS_SUBMITTED) == chain
    assert all(_parents(observed, AS_OBSERVED)[task] >= parents for task, parents in chain.items())


def test_who_submits_after_an_end_waited_for_it() -> None:
    """A driver's loop of submit and get is a chain, though every task was ready at once; its thinking is kept."""
    items = [Item("w", f"t{n}", "t", 2.0 * n, 2.0 * n, 2.0 * n, 2.0 * n + 1.95, 1.95, 1, 1) for n in range(4)]
    graph = rebuild(items, LIKELY, edges_known=False).workloads[0].graph
    assert graph.ids == ["t0", "before t1", "t1", "before t2", "t2", "before t3", "t3"]
    assert graph.parents == [(), (0,), (1,), (2,), (3,), (4,), (5,)]
    assert graph.phase_duration_s == pytest.approx([1.95, 0.05, 1.95, 0.05, 1.95, 0.05, 1.95])


@pytest.mark.parametrize("edges_known", [True, False])
def test_contended_chain(edges_known: bool) -> None:
    """Six leaves of 1 s, a chain of 3 s and a tail of 5 s: 14 s natively, 9 s when the chain goes first. EGS itself, in
    the same simulator with the true graph, falls into the band."""
    observed = ran(edges_known=edges_known)
    line = build_timeline(observed.records)
    found = forecast(line, items_of(line), edges_known)
    assert found is not None
    assert found.native_error == pytest.approx(0, abs=1e-9)
    assert (found.makespan_s.observed, found.makespan_s.expected) == pytest.approx((14, 9))
    assert found.makespan_s.saved == pytest.approx(5 / 14)
    reached = figures_of_items(items_of(build_timeline(ran("egs").records)))
    assert found.makespan_s.holds(reached.makespan_s)
    assert found.gpu_held_s.holds(reached.gpu_held_s)
    assert found.wait_s.holds(reached.wait_s)


def test_unknown_edges_widen_the_band() -> None:
    """Without the edges the order might have been forced: then nothing is saved, and the band says so."""
    bands = []
    for edges_known in (True, False):
        line = build_timeline(ran(edges_known=edges_known).records)
        found = forecast(line, items_of(line), edges_known, seeds=0)
        assert found is not None
        bands.append(found.makespan_s)
    known, unknown = bands
    assert unknown.high >= 14 - 1e-9
    assert unknown.high - unknown.low >= known.high - known.low


def test_forecast_is_repeatable() -> None:
    """Seeds are the only randomness."""
    line = build_timeline(ran(edges_known=False).records)
    assert forecast(line, items_of(line), False) == forecast(line, items_of(line), False)


def test_hints_free_the_gpu() -> None:
    """Of each second 0.3 are a cold start and 0.2 come after the use of the GPU: hints let others have it then."""
    observed = ran()
    line = build_timeline(observed.records)
    extra = [ColdStart(h.start_s, h.start_s + 0.3, h.workload, h.task) for h in line.holds if h.demand.gpus]
    used = [Used(h.start_s + 0.3, h.start_s + 0.8, h.workload, h.task) for h in line.holds if h.demand.gpus]
    line = build_timeline([*observed.records, *extra, *used])
    found = forecast(line, items_of(line), True, seeds=0)
    assert found is not None
    assert found.hinted is not None
    assert found.gpu_held_s.observed == pytest.approx(6.3)
    assert found.hinted.gpu_held_s < 0.75 * found.gpu_held_s.expected


def test_hinted_tasks_start_up_without_a_gpu() -> None:
    """With hints the start-up of a process lies in a CPU phase, so it is no GPU time to take off again."""
    observed = ran()
    used = [
        Used(h.start_s + 0.3, h.start_s + 0.8, h.workload, h.task)
        for h in build_timeline(observed.records).holds
        if h.demand.gpus
    ]
    line = build_timeline([*observed.records, *used])
    late = [msgspec.structs.replace(item, overhead_s=0.2) for item in items_of(line)]
    found = [forecast(line, items, True, seeds=0) for items in (items_of(line), late)]
    held_s = [one.hinted.gpu_held_s for one in found if one is not None and one.hinted is not None]
    assert held_s[1] == pytest.approx(held_s[0], abs=0.01)
    assert held_s[0] > 0.5 * sum(item.gpus * item.gpu_s for item in late)


def test_nothing_to_simulate() -> None:
    """Without capacity, or without a task that ended, there is no forecast; the audit says what is not known."""
    observed = ran()
    without = [record for record in observed.records if not isinstance(record, Capacity)]
    shown = audit(Observed(Header(), tuple(without), True))
    assert shown.forecast is None
    assert shown.wastage_by_volume is None
    assert "what the nodes offer is not known" in " ".join(shown.unknown)
    assert audit(Observed(Header(), ())).forecast is None


def test_what_cannot_be_simulated_natively_is_not_forecast() -> None:
    """Five tasks of 10 s are said to hold the one GPU at the same time: one after the other they would take 50 s where
    10 were seen. That says nothing of a native run, and the audit says so instead of a table."""
    records: list[Record] = [Capacity(0.0, "node", 4.0, 1)]
    for number in range(5):
        task = f"t{number}"
        records += [
            TaskAdded(0.0, "w", task, "t", (), (("gpu", 1.0, 1.0, 0),)),
            Ready(0.0, "w", task),
            Started(0.0, "w", task, node="node", cpus=0.5, gpus=1.0),
            Ended(10.0, "w", task),
        ]
    shown = audit(Observed(Header(driver="ray", policy="native", mode="off"), tuple(records), True))
    assert shown.forecast is None
    assert [note for note in shown.unknown if note.startswith("no forecast: these times cannot be simulated natively")]


def test_a_run_with_egs_has_no_native_run() -> None:
    """Of the same pipeline in mode on nothing is told as saved by EGS, nor as missed by a native run; the audit says
    why, and what to do. What was simulated in order of arrival is as a framework alone."""
    assert audit(ran("fifo")).forecast is not None
    with_egs = audit(ran("egs"))
    assert with_egs.forecast is None
    (said,) = [note for note in with_egs.unknown if "forecast" in note]
    for words in ("EGS was on", "EGS_MODE=observe", "--forecast-out", "--compare"):
        assert words in said, words
    by_arrival = ran("fifo")
    header = Header(driver="sim", policy="fifo", mode="on")
    assert audit(Observed(header, by_arrival.records, True)).forecast is not None


def test_large_histories_are_sampled_and_say_so() -> None:
    """Of three jobs of ten tasks two are simulated: whole jobs, those in which the GPU was waited for most."""
    line = build_timeline(ran(jobs=3).records)
    items = items_of(line)
    found = forecast(line, items, True, seeds=0, most_tasks=20)
    assert found is not None
    assert (found.tasks, found.all_tasks) == (20, 30)
    assert any("simulated 20 of 30 tasks" in note for note in found.notes)
    chosen = sample(items, 20)
    waited = {job: sum(i.start_s - i.ready_s for i in items if i.workload == job) for job in ("train-0", "train-2")}
    assert {item.workload for item in chosen} == {"train-1", max(waited, key=lambda job: waited[job])}


def test_one_job_of_several() -> None:
    """Its tasks alone, on what the nodes offer."""
    one = only_job(ran(jobs=3), "train-1")
    line = build_timeline(one.records)
    assert {item.workload for item in items_of(line)} == {"train-1"}
    assert line.capacities


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(*[st.integers(0, 20).map(lambda n: n / 4)] * 4, st.booleans()), min_size=1, max_size=12),
    st.sampled_from(list(Reading)),
    st.booleans(),
)
def test_any_history_can_be_rebuilt(
    times: list[tuple[float, float, float, float, bool]], reading: Reading, hints: bool
) -> None:
    """Whatever the times, each task is there once, nothing waits for itself, and every phase has a belief."""
    items = []
    for number, (submitted, waits, queues, lasts, gpu) in enumerate(times):
        ready, start = submitted + waits, submitted + waits + queues
        items.append(Item("w", f"t{number}", "t", submitted, ready, start, start + lasts, lasts, 1, float(gpu), "n"))
    rebuilt = rebuild(items, reading, edges_known=False, seed=1, hints=hints)
    graph = rebuilt.workloads[0].graph
    assert sorted(set(graph.ids) - {f"before {item.task}" for item in items}) == sorted(item.task for item in items)
    assert all(parent < task for task, parents in enumerate(graph.parents) for parent in parents)
    assert len(rebuilt.believed["w"]) == graph.n_phases
    assert all(0 <= p50 <= p95 for p50, p95 in rebuilt.believed["w"])


def test_gaps_do_not_tie_tasks_to_a_node() -> None:
    """Tasks that come one after another, on all GPUs of two nodes: the simulated native run is as long as it was."""
    items = []
    for number in range(16):
        at = 0.25 * number
        items.append(Item("w", f"t{number}", "t", at, at, at, at + 1, 1, 1, 1, f"n{number % 2}"))
    line = build_timeline([Capacity(0, "n0", 4, 2), Capacity(0, "n1", 4, 2)])
    found = forecast(line, items, False, seeds=0)
    assert found is not None
    assert found.native_error == pytest.approx(0, abs=1e-6)


def test_band() -> None:
    """What lies between its ends is in it; what is saved is a share of what was observed."""
    band = Band(10, 8, 7, 9)
    assert [band.holds(value) for value in (6.9, 7, 9, 9.1)] == [False, True, True, False]
    assert band.saved == pytest.approx(0.2)
    assert msgspec.structs.replace(band, observed=0).saved == 0
