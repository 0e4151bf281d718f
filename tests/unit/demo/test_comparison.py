"""How the benchmarks compare the rounds of the variants, with ratios computed by hand."""

from __future__ import annotations

from typing import Any

from benchmarks.__main__ import Options, commands_of
from benchmarks.demo import VARIANTS, compare


def run(makespan_s: float, digest: str = "same") -> dict[str, Any]:
    return {
        "makespan_s": makespan_s,
        "wastage_effective": 0.1,
        "gpu_held_s": 8.0,
        "gpu_used_s": 4.0,
        "cold_starts": 1,
        "ideal_bound_s": 10.0,
        "emulated_gpus": True,
        "gpu_time": dict.fromkeys(("used", "held_cold", "held_else", "idle_before", "idle_between", "idle_after"), 1.0),
        "digest": digest,
        "said": [],
    }


ROUNDS = {
    "native": [run(100.0), run(80.0), run(90.0)],
    "tuned": [run(30.0), run(36.0), run(33.0)],
    "egs": [run(25.0), run(40.0), run(30.0)],
}


def test_ratios_are_taken_within_a_round() -> None:
    """100/25, 80/40 and 90/30: median 3, which is neither the ratio of the medians nor of the best."""
    found = compare(ROUNDS)["variants"]["egs"]
    assert found["makespan_s"] == {"median": 30.0, "min": 25.0, "max": 40.0, "n": 3}
    assert found["times_native"] == {"median": 3.0, "min": 2.0, "max": 4.0, "n": 3}
    assert found["times_tuned"] == {"median": 1.1, "min": 0.9, "max": 1.2, "n": 3}


def test_one_different_result_is_seen() -> None:
    """Figures of variants that did different things are not comparable."""
    assert compare(ROUNDS)["results_identical"]
    assert not compare({**ROUNDS, "hook": [run(90.0), run(90.0), run(90.0, "other")]})["results_identical"]


def test_table_says_how_far_from_the_ideal() -> None:
    """The median of 30 s is three times the ideal 10 s."""
    rows = {row["variant"]: row for row in compare(ROUNDS)["rows"]}
    assert rows["egs"]["over ideal"] == "200%"
    assert rows["egs"]["x native"] == "3.00 (2.00-4.00)"


def test_bench_runs_all_variants_five_times_unless_told_otherwise() -> None:
    """`make bench` is the whole comparison; --quick and the options shorten it."""
    (whole,) = commands_of("demo", Options())
    assert whole[-4:] == ["--rounds", "5", "--variants", ",".join(VARIANTS)]
    (short,) = commands_of("demo", Options(rounds=2, variants="native,egs", quick=True))
    assert short[-4:] == ["--rounds", "2", "--variants", "native,egs"]
    assert [command[-1] for command in commands_of("scale", Options())] == ["100000", "1000000"]
