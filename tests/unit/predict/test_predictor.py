"""Where an estimate comes from, what it says, and how it moves while a task runs."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from egs_core.errors import InputError
from egs_core.graph.columns import CPU, GPU, Graph, Shape
from egs_core.history import HistoryRow
from egs_core.predict import Estimate, Features, Forecaster, Predictor, Signature, input_size_bucket, signature_of
from egs_core.predict.predictor import LEARNED_ROWS

HERE = Path(__file__).parent
TRAIN = signature_of("digits", "train", 1, Shape(4000, 1000))
OTHER = signature_of("digits", "embed", 1, Shape(4000, 1000))
LOAD = signature_of("digits", "load", 0, Shape(1000))


def trained(*seconds: float, signature: Signature = TRAIN) -> Predictor:
    predictor = Predictor()
    for duration in seconds:
        predictor.observe(signature, duration)
    return predictor


def quantiles(estimate: Estimate) -> tuple[float, float, float]:
    return estimate.p50_s, estimate.p90_s, estimate.p95_s


def test_history_is_quantiles_of_its_durations() -> None:
    """Of 1 … 40 s in any order: the median is near 20 s, p90 near 36 s, p95 near 38 s, all within 15 %."""
    durations = [float(i) for i in range(1, 41)]
    Random(4).shuffle(durations)
    estimate = trained(*durations).estimate(TRAIN)
    assert quantiles(estimate) == pytest.approx((20.5, 36.5, 38.5), rel=0.15)
    assert (estimate.n, estimate.source) == (40, "history")


def test_one_sample_is_not_certain() -> None:
    """After one run of 8 s the median is 8 s, but p95 leaves room for twice that."""
    estimate = trained(8.0).estimate(TRAIN)
    assert quantiles(estimate) == pytest.approx((8.0, 12.0, 16.0))
    assert (estimate.n, estimate.source) == (1, "history")


def test_a_shift_moves_the_estimate() -> None:
    """100 runs of 10 s, then six of 2 s: the median is 2 s, and what was before the shift no longer counts."""
    estimate = trained(*[10.0] * 100, *[2.0] * 6).estimate(TRAIN)
    assert estimate.p50_s == pytest.approx(2.0, rel=0.1)
    assert estimate.n == 6


def test_other_tasks_do_not_blur_what_is_certain() -> None:
    """Four tasks that always take 1, 10, 100 and 1,000 s: three runs of each are enough for the median."""
    predictor = Predictor()
    signatures = [signature_of("p", f"t{i}") for i in range(4)]
    for _ in range(3):
        for i, signature in enumerate(signatures):
            predictor.observe(signature, 10.0**i)
    medians = [predictor.estimate(signature).p50_s for signature in signatures]
    assert medians == pytest.approx([1.0, 10.0, 100.0, 1000.0])


def test_the_window_forgets() -> None:
    """The 201st duration pushes out the first one; n counts the window."""
    estimate = trained(1000.0, *[1.0] * 200).estimate(TRAIN)
    assert estimate.n == 200
    assert trained(1000.0, *[1.0] * 200).remaining(TRAIN, 2.0).n == 0  # no sample above 2 s is left


def test_the_input_size_is_a_feature_of_one_history() -> None:
    """Durations proportional to the input: sizes of one signature teach each other, from its bucket or in bytes."""
    predictor, rng = Predictor(), Random(2)
    for _ in range(300):
        size = 10 ** rng.uniform(6, 9)
        predictor.observe(TRAIN, size / 1e6, Features(input_bytes=size))
    small = predictor.estimate(TRAIN, features=Features(input_bytes=3e6)).p50_s
    assert small == pytest.approx(3.0, rel=0.25)
    large = signature_of("digits", "train", 1, Shape(4000, 1000), input_bytes=400_000_000)
    assert predictor.estimate(large).p50_s == pytest.approx(400.0, rel=0.35)
    assert predictor.signatures() == [TRAIN]


def test_labels_and_runs_are_features() -> None:
    """One task for two users, 10 and 40 s, in runs that are all slow or all quick: both are told apart."""
    predictor = Predictor()
    for i in range(600):
        factor = 2.0 if i // 20 % 2 else 1.0
        features = Features(f"run{i // 20}", (("ann", "bob")[i % 2],))
        predictor.observe(TRAIN, factor * (10.0, 40.0)[i % 2], features)
    for _ in range(4):
        predictor.observe(TRAIN, 20.0, Features("slow", ("ann",)))
    assert predictor.estimate(TRAIN, features=Features("slow", ("ann",))).p50_s == pytest.approx(20.0, rel=0.2)
    bob = predictor.estimate(TRAIN, features=Features("slow", ("bob",))).p50_s
    assert bob > 1.5 * predictor.estimate(TRAIN, features=Features("slow", ("ann",))).p50_s


def test_the_order_of_sources() -> None:
    """History before hint, hint before prior, and each says which one it is."""
    predictor = trained(4.0)
    assert predictor.estimate(TRAIN, GPU, hint_s=99.0).source == "history"
    hint = predictor.estimate(OTHER, GPU, hint_s=3.0)
    assert (hint.p50_s, hint.p95_s, hint.n, hint.source) == (3.0, 6.0, 0, "hint")
    assert predictor.estimate(OTHER, GPU).source == "prior"


def test_an_impossible_hint_is_no_hint() -> None:
    """NaN and negative hints fall through to the prior."""
    for hint_s in (float("nan"), -1.0, float("inf")):
        assert trained(4.0).estimate(OTHER, GPU, hint_s) == trained(4.0).estimate(OTHER, GPU)


def test_priors_go_from_near_to_far() -> None:
    """The same phase on another shape counts first, then all of the kind, then the fixed prior."""
    predictor = trained(4.0)
    for seconds, name in ((20.0, "a"), (30.0, "b"), (40.0, "c")):
        predictor.observe(signature_of("x", name, 0, Shape(1000, 1000)), seconds)
    assert predictor.estimate(signature_of("digits", "train", 1, Shape(8000, 2000))).p50_s == 4.0
    assert predictor.estimate(OTHER).p50_s == 25.0
    assert predictor.estimate(LOAD).p50_s == 10.0
    assert Predictor().estimate(OTHER).p50_s == 60.0


def test_a_task_of_this_name_in_another_pipeline_is_a_prior() -> None:
    """Another instance of a workflow has another name: its tasks teach, size included, but only as a prior."""
    predictor, rng = Predictor(), Random(2)
    for _ in range(200):
        size = 10 ** rng.uniform(6, 9)
        predictor.observe(signature_of("small-001", "sort"), size / 1e6, Features(input_bytes=size))
    new = signature_of("large-001", "sort")
    estimate = predictor.estimate(new, features=Features(input_bytes=2e8))
    assert estimate.source == "prior"
    assert estimate.p50_s == pytest.approx(200.0, rel=0.25)
    assert predictor.estimate(new, CPU, hint_s=5.0).source == "hint"


def test_the_kind_pool_follows_the_signatures() -> None:
    """A signature counts once in the pool, with its present median."""
    predictor = trained(4.0)
    predictor.observe(OTHER, 100.0)
    for _ in range(500):
        predictor.observe(TRAIN, 8.0)
    new = signature_of("p", "new", 0, Shape(1000, 1000))
    assert predictor.estimate(new).p50_s == pytest.approx(54.0)
    assert predictor.estimate(new).n == 2


def test_a_task_that_outlived_its_median_is_not_about_to_end() -> None:
    """Of nine runs of 10 s and one of 100 s: after 11 s it is the long one."""
    predictor = trained(*[10.0] * 4, 100.0, *[10.0] * 5)
    assert predictor.remaining(TRAIN, 4.0).p50_s == pytest.approx(6.0, rel=0.1)
    assert predictor.remaining(TRAIN, 11.0).p50_s == pytest.approx(89.0)


def test_beyond_all_samples_the_tail_is_heavy() -> None:
    """A run ten times as long as any before: half of such end within another 0.41 of its age, 95 % within 3.5."""
    left = trained(*[10.0] * 20).remaining(TRAIN, 100.0)
    assert quantiles(left) == pytest.approx((41.42, 216.23, 347.21), abs=0.01)


def test_an_estimate_alone_is_enough_for_what_is_left() -> None:
    """From a hint of 10 s: all of it at the start, less at 5 s, and more than nothing at 20 s and at 1,000 s."""
    predictor = Predictor()
    estimate = predictor.estimate(TRAIN, GPU, hint_s=10.0)
    assert predictor.remaining(estimate, 0.0) == estimate
    assert 5.0 <= predictor.remaining(estimate, 5.0).p50_s < 6.0
    assert predictor.remaining(estimate, 20.0).p50_s > 1.0
    assert predictor.remaining(estimate, 1000.0).p50_s == pytest.approx(414.2, abs=0.1)


def test_impossible_durations_teach_nothing() -> None:
    """NaN, infinite and negative durations are refused without an exception."""
    predictor = Predictor()
    assert [predictor.observe(TRAIN, seconds) for seconds in (float("nan"), float("inf"), -0.1)] == [False] * 3
    assert predictor.signatures() == []
    assert predictor.estimate(TRAIN).source == "prior"


def test_signatures_leave_out_reserved_memory() -> None:
    """The same code with another memory reservation shares history; another GPU count or input size does not."""
    same = signature_of("digits", "train", 1, Shape(4000, 1000, 5 << 30, 20 << 30))
    assert same == TRAIN
    assert signature_of("digits", "train", 1, Shape(4000, 2000)) != TRAIN
    assert signature_of("digits", "train", 1, Shape(4000, 1000), input_bytes=1000) != TRAIN
    assert (TRAIN.kind, LOAD.kind) == (GPU, CPU)
    assert input_size_bucket(1500) == input_size_bucket(1100) != input_size_bucket(3000)


def test_learning_rows_is_observing_them() -> None:
    """Rows of a history give the same predictor as observing one by one; failed ones do not count."""
    shape = Shape(4000, 1000)
    rows = [HistoryRow("digits", "train", 1, shape, float(s % 7), warmup_s=2.0) for s in range(LEARNED_ROWS)]
    failed = HistoryRow("digits", "train", 1, shape, 1e6, outcome="failed")
    predictor = Predictor()
    assert predictor.learn([*rows, failed]) == LEARNED_ROWS
    one_by_one = trained(*(row.seconds for row in rows))
    assert predictor.estimate(TRAIN) == one_by_one.estimate(TRAIN)
    assert predictor.estimate(OTHER) == one_by_one.estimate(OTHER)
    older = [HistoryRow("digits", "train", 1, shape, 1e5)] * 50
    assert Predictor().learn([*older, *rows]) == LEARNED_ROWS
    warmup = predictor.warmup("digits", "train")
    assert warmup is not None
    assert warmup.p50_s == 2.0
    assert predictor.warmup("digits", "load") is None


def test_what_is_believed_of_a_graph_is_history_before_hints() -> None:
    """Of a known task each phase's own median, by the name it has in the history; else its hint; else nothing."""
    cpu, gpu = Shape(1000), Shape(4000, 1000)
    graph = Graph()
    graph.add_task("1", (), ((CPU, cpu, 50.0), (GPU, gpu, None)))
    graph.add_task("2", (0,), ((GPU, gpu, 7.0),))
    graph.add_task("3", (1,), ((GPU, gpu, None),))
    predictor = Predictor()
    predictor.observe(signature_of("digits", "train", 0, cpu), 3.0)
    predictor.observe(signature_of("digits", "train", 1, gpu), 9.0)
    believed = predictor.believed_s(graph, "digits", ("train", "embed", "unheard of"))
    assert believed[:3] == pytest.approx([3.0, 9.0, 7.0])
    assert believed[3] is None
    assert predictor.believed_s(graph, "other", ("train", "embed", "report")) == [50.0, None, 7.0, None]


def test_a_snapshot_survives_json() -> None:
    """Through JSON and back: the same answers now and after further durations."""
    predictor = trained(*(float(i * 37 % 101) for i in range(260)))
    predictor.observe(LOAD, 3.0)
    predictor.observe_warmup("digits", "train", 1.5)
    restored = Predictor.from_dict(json.loads(json.dumps(predictor.to_dict())))
    for both in (predictor, restored):
        for _ in range(30):
            both.observe(TRAIN, 55.5)
    assert restored.to_dict() == predictor.to_dict()
    for signature in (TRAIN, OTHER, LOAD):
        assert restored.estimate(signature) == predictor.estimate(signature)
    assert restored.warmup("digits", "train") == predictor.warmup("digits", "train")


def test_snapshot_version_1_stays_readable() -> None:
    """A committed snapshot of version 1, which kept durations only, teaches them: 3.5, 1, 2.5 and 1.5 s."""
    predictor = Predictor.from_dict(json.loads((HERE / "predictor-v1.json").read_text()))
    estimate = predictor.estimate(TRAIN)
    assert estimate.p50_s == pytest.approx(2.0, rel=0.1)
    assert (estimate.n, estimate.source) == (4, "history")
    assert predictor.to_dict() == trained(3.5, 1.0, 2.5, 1.5).to_dict() | {"warmups": [["digits", "train", [2.25]]]}
    warmup = predictor.warmup("digits", "train")
    assert warmup is not None
    assert warmup.p50_s == 2.25


@pytest.mark.parametrize(
    "snapshot",
    [
        {},
        {"format": "egs-predictor", "version": 3, "signatures": []},
        {"format": "egs-predictor", "version": 2, "signatures": []},
        {"format": "egs-predictor", "version": 2, "signatures": [], "forecaster": {"format": "egs-forecaster"}},
        {"format": "egs-predictor", "version": 2, "signatures": [["p", "t"]], "forecaster": Forecaster().to_dict()},
        {"format": "egs-runlog", "version": 1},
        {"format": "egs-predictor", "version": 1},
        {"format": "egs-predictor", "version": 1, "signatures": [["p", "t", 0]]},
        {"format": "egs-predictor", "version": 1, "signatures": [["p", "t", 0, [1000, 0, 0, 0], "", -1, ["soon"]]]},
        {"format": "egs-predictor", "version": 1, "signatures": [], "warmups": 3},
    ],
)
def test_an_unreadable_snapshot_is_a_clear_error(snapshot: dict[str, object]) -> None:
    """Another format, a later version or a broken form is an InputError."""
    with pytest.raises(InputError, match=r"(predictor|forecaster) snapshot"):
        Predictor.from_dict(snapshot)


def test_a_row_with_a_flavor_counts_there_and_wherever_the_task_runs() -> None:
    """100 s on one, 300 s on the other: each as it is there, and what is between for who does not know where; a flavor
    that was never tried has no history of its own."""
    shape = Shape(4000, 1000)
    predictor = Predictor()
    rows = [
        HistoryRow("digits", "train", 1, shape, s, f) for s, f in ((100.0, "a100"), (300.0, "t4")) for _ in range(2)
    ]
    assert predictor.learn(rows) == 4
    found = {f: predictor.estimate(signature_of("digits", "train", 1, shape, f)) for f in ("a100", "t4", "", "l4")}
    assert [found[f].p50_s for f in ("a100", "t4")] == pytest.approx([100.0, 300.0])
    assert 100.0 < found[""].p50_s < 300.0
    assert [one.source for one in found.values()] == ["history", "history", "history", "prior"]
