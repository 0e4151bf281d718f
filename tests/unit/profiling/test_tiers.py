"""The advice on a flavor: its rules one by one, and what holds for whatever was measured."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from egs_core.profiling.tiers import GIB, NO_WISHES, Advice, Measured, Tier, Wishes, choices_of, recommend

TIERS = (Tier("k80", 0.45, 12 * GIB), Tier("p100", 1.46, 16 * GIB), Tier("v100", 2.48, 32 * GIB))


def runs(times: dict[str, float], count: int = 3, **more: object) -> list[Measured]:
    return [Measured(flavor, seconds, **more) for flavor, seconds in times.items() for _ in range(count)]  # type: ignore[arg-type]  # its fields


def advice(times: dict[str, float], wishes: Wishes = NO_WISHES, **more: object) -> Advice:
    found = recommend(runs(times, **more), TIERS, wishes)  # type: ignore[arg-type]  # its fields
    assert found is not None
    return found


def test_the_cheapest_within_twice_the_fastest() -> None:
    """The K80 is cheaper still and takes three times as long: the P100, which saves 41 % of what the V100 costs."""
    found = advice({"k80": 900.0, "p100": 300.0, "v100": 300.0})
    assert (found.flavor, found.instead, round(found.saving or 0, 2)) == ("p100", "p100", 0.0)
    assert found.reason == (
        "the cheapest of those that take at most 2 times as long as the fastest; "
        "k80 costs 8% less and takes 3 times as long"
    )
    found = advice({"k80": 900.0, "p100": 301.0, "v100": 300.0})
    assert (found.flavor, found.instead, round(found.saving or 0, 2), found.risk) == ("p100", "v100", 0.41, "low")
    assert found.reason == (
        "the cheapest of those that take at most 2 times as long as the fastest: 5.02 min, 5 min on v100; "
        "it costs 41% less than v100"
    )


def test_a_deadline_and_the_worth_of_an_hour_decide_instead() -> None:
    """In 20 minutes the K80 is in time, and cheapest; if an hour is worth 10 the fastest is."""
    times = {"k80": 900.0, "p100": 400.0, "v100": 300.0}
    assert advice(times, Wishes(deadline_s=1200.0)).flavor == "k80"
    assert advice(times, Wishes(hour_worth=10.0)).flavor == "v100"
    late = advice(times, Wishes(deadline_s=60.0))
    assert (late.flavor, late.risk) == ("v100", "some")
    assert late.reason == "none surely ends within 60 s; v100 is the soonest (5 min)"
    late = advice(times, Wishes(deadline_s=60.0, asked="k80"))
    assert late.reason == "none surely ends within 60 s; v100 is the soonest (5 min, 15 min on k80)"
    assert "it may end after its deadline" in late.risks


def test_what_it_is_compared_with_is_what_was_asked_for() -> None:
    found = advice({"k80": 500.0, "v100": 300.0}, Wishes(asked="v100"))
    assert (found.flavor, found.instead, round(found.saving or 0, 2)) == ("k80", "v100", 0.7)
    found = advice({"k80": 300.0, "v100": 300.0}, Wishes(asked="k80"))
    assert (found.flavor, found.saving) == ("k80", 0.0)


def test_without_prices_the_fastest_and_of_equals_the_smaller_memory() -> None:
    tiers = tuple(msgspec.structs.replace(tier, gpu_hour=0.0) for tier in TIERS)
    found = recommend(runs({"p100": 303.0, "v100": 300.0, "k80": 900.0}), tiers)
    assert found is not None
    assert (found.flavor, found.saving, found.instead) == ("p100", None, "v100")
    assert "no prices are known" in found.reason


def test_memory_that_is_nearly_full_is_a_risk_with_a_way_out() -> None:
    """Measured once, at 11.5 of 12 GiB: a high risk, and the next larger memory to fall back to."""
    found = advice({"k80": 300.0, "p100": 299.0, "v100": 298.0}, count=1, peak_bytes=int(11.5 * GIB))
    assert (found.flavor, found.risk, found.fallback) == ("k80", "high", "p100")
    assert "nearly full (11.5 of 12.0 GiB)" in found.risks[0]
    assert advice({"v100": 298.0}).fallback == ""


def test_a_gpu_that_mostly_idles_has_room_for_others() -> None:
    """It works 12 % of the time and needs 4 of 12 GiB: a part that covers both. Not what was emulated, nor several."""
    found = advice({"k80": 300.0}, busy=0.12, peak_bytes=4 * GIB)
    assert found.part == pytest.approx(0.4)
    assert "others slow it down" in found.risks[-1]
    assert advice({"k80": 300.0}, busy=0.12, peak_bytes=4 * GIB, is_emulated=True).part == 1.0
    assert advice({"k80": 300.0}, busy=0.12, peak_bytes=4 * GIB, gpus=2.0).part == 1.0
    assert advice({"k80": 300.0}, busy=0.9, peak_bytes=4 * GIB).part == 1.0
    assert advice({"k80": 300.0}, busy=0.12, peak_bytes=10 * GIB).part == 1.0


def test_nothing_measured_is_no_advice() -> None:
    assert recommend([], TIERS) is None
    assert recommend(runs({"h100": 1.0}), TIERS) is None
    assert "alone" in advice({"k80": 10.0}).reason


seconds = st.floats(0.1, 1e6)
times = st.dictionaries(
    st.sampled_from([tier.flavor for tier in TIERS]), st.lists(seconds, min_size=1, max_size=5), min_size=1
)
wishes = st.builds(
    Wishes,
    deadline_s=st.none() | seconds,
    stretch=st.floats(0.5, 10.0),
    hour_worth=st.floats(0.0, 100.0),
    asked=st.sampled_from(["", "k80", "v100", "none"]),
)


def flat(found: dict[str, list[float]]) -> list[Measured]:
    return [Measured(flavor, one) for flavor, each in found.items() for one in each]


@given(times, wishes)
def test_what_is_chosen_is_allowed_and_nothing_allowed_costs_less(found: dict[str, list[float]], wish: Wishes) -> None:
    """In time where anything is; else within the stretch; and by cost with the worth of its time the least of those."""
    advised = recommend(flat(found), TIERS, wish)
    assert advised is not None
    choices = {one.flavor: one for one in advised.choices}
    best, fastest = choices[advised.flavor], min(one.seconds for one in choices.values())
    if wish.deadline_s is not None:
        allowed = [one for one in choices.values() if one.p95_s <= wish.deadline_s] or [best]
        assert best in allowed
        if best.p95_s > wish.deadline_s:
            assert best.p95_s == min(one.p95_s for one in choices.values())
    elif not wish.hour_worth:
        allowed = [one for one in choices.values() if one.seconds <= fastest * max(wish.stretch, 1.0)]
        assert best in allowed
    else:
        allowed = list(choices.values())
    worth = [one.cost + wish.hour_worth * one.seconds / 3600 for one in allowed]
    assert best.cost + wish.hour_worth * best.seconds / 3600 <= min(worth) + 1e-9


@given(times, wishes, st.randoms(use_true_random=False))
def test_the_order_of_what_was_measured_and_the_currency_do_not_matter(
    found: dict[str, list[float]], wish: Wishes, draw: object
) -> None:
    """Shuffled, and in another currency, the worth of an hour included: the same flavor and the same saving."""
    measured, tiers = flat(found), list(TIERS)
    once = recommend(measured, tiers, wish)
    draw.shuffle(measured)  # type: ignore[attr-defined]  # a Random
    draw.shuffle(tiers)  # type: ignore[attr-defined]  # a Random
    dear = [msgspec.structs.replace(tier, gpu_hour=tier.gpu_hour * 8) for tier in tiers]
    again = recommend(measured, dear, msgspec.structs.replace(wish, hour_worth=wish.hour_worth * 8))
    assert once is not None
    assert again is not None
    assert (again.flavor, again.instead) == (once.flavor, once.instead)
    assert again.saving == pytest.approx(once.saving)


@given(times, st.floats(1.0, 10.0), st.floats(1.0, 10.0))
def test_who_can_wait_longer_never_pays_more(found: dict[str, list[float]], one: float, other: float) -> None:
    less, more = sorted((one, other))
    paid = [recommend(flat(found), TIERS, Wishes(stretch=stretch)) for stretch in (less, more)]
    assert paid[0] is not None
    assert paid[1] is not None
    assert paid[1].cost <= paid[0].cost


@given(times)
def test_each_flavor_that_was_tried_is_among_the_choices_once(found: dict[str, list[float]]) -> None:
    flavors = [one.flavor for one in choices_of(flat(found), TIERS)]
    assert sorted(flavors) == sorted(found)
