"""Quotas over several engines: never more than the quota, none kept for nobody, and everybody's turn comes."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from egs_core.engine import Engine, EngineConfig
from egs_core.engine import messages as m
from egs_core.engine.rules import quota
from egs_core.engine.rules.reservation import select_gang
from egs_core.engine.specs import NO_LIMIT, NO_QUEUE, UNLIMITED, QueueSpec
from egs_core.engine.state.journal import fold
from egs_core.engine.state.lifecycle import READY
from egs_core.engine.state.records import QueueState
from egs_core.engine.state.state import State
from egs_core.site.spanning import Spanning
from egs_core.testing.engine_bench import canonical, gpu, graph_of


def gpus(number: float) -> tuple[int, int, int]:
    return UNLIMITED, round(1000 * number), UNLIMITED


class Pool:
    """An engine whose work starts as it is granted. held: its phases, with their attempts. Its transitions are folded
    beside it."""

    def __init__(self, spanning: Spanning, devices: int, queues: Sequence[QueueSpec]) -> None:
        self.spanning, self.now, self.woken = spanning, 0.0, 0
        self.engine = Engine(EngineConfig(record=True))
        self.held: dict[int, int] = {}
        self.granted: list[str] = []
        self.events = 0
        self.decisions: list[m.Decision] = []
        self._folded = State()
        self.member = spanning.join(self.engine, self._take, lambda queue: [(self, f"somebody in {queue}")], self._wake)
        self.handle(m.QueuesChanged(tuple(queues)))
        self.handle(m.NodeAdded("n", 64.0, devices))

    def _wake(self) -> None:
        self.woken += 1

    def handle(self, event: m.Event) -> None:
        self.spanning.handle(self.member, event)

    def _take(self, event: m.Event) -> None:
        self.events += 1
        decisions = self.engine.handle(event, self.now)
        self.decisions += decisions
        for one in decisions:
            assert isinstance(one, m.Grant)
            self.held[one.phase] = one.attempt
            self.granted.append(self.engine.state.task_ids[one.task])
        fold(self._folded, event, self.engine.take_transitions())
        assert canonical(self._folded) == canonical(self.engine.state)
        self.engine.validate_state()

    def submit(self, queue: str, name: str, each: float = 1.0, tasks: int = 1) -> None:
        workload = f"{name}-{len(self.engine.state.workloads)}"
        self.handle(m.WorkloadSubmitted(workload, queue=queue))
        names = [f"{name}{number}" for number in range(tasks)]
        self.handle(m.TasksAdded(workload, graph_of(dict.fromkeys(names, ()), default=(gpu(5.0, gpus=each),))))

    def end_one(self, chance: random.Random | None = None) -> None:
        phase = chance.choice(sorted(self.held)) if chance else min(self.held)
        self.handle(m.PhaseEnded(phase, self.held.pop(phase)))


def totals(pools: Sequence[Pool], number: int) -> tuple[int, int, int]:
    used = [pool.engine.state.queues[number].used for pool in pools]
    return sum(u[0] for u in used), sum(u[1] for u in used), sum(u[2] for u in used)


def check(pools: Sequence[Pool]) -> None:
    """By what all pools hold together, counted here: no cohort holds more than its quotas, and nothing waits for which
    there are room and quota."""
    specs = [queue.spec for queue in pools[0].engine.state.queues]
    for cohort in {queue.cohort for queue in pools[0].engine.state.queues}:
        held = sum(totals(pools, number)[1] for number in cohort)
        assert held <= sum(specs[number].nominal[1] for number in cohort), f"cohort of {specs[cohort[0]].name}: {held}"
    for number, spec in enumerate(specs):
        assert totals(pools, number)[1] <= spec.nominal[1] + spec.borrowing_limit[1]
    for pool in pools:
        state = pool.engine.state
        queues = [QueueState(q.spec, q.cohort, list(totals(pools, n))) for n, q in enumerate(state.queues)]
        for phase in [p for p, status in enumerate(state.status) if status == READY]:
            wanted, number = quota.demand(state, (phase,)), state.queue_of(state.task_of[phase])
            may_start = number == NO_QUEUE or quota.blocked_by(queues, number, wanted) is None
            assert not (may_start and select_gang(state, (phase,))), f"{state.task_ids[state.task_of[phase]]} waits"


def draw_queues(chance: random.Random) -> list[QueueSpec]:
    """Two alone and two to three in a cohort, with limits of lending and borrowing or without."""
    queues = [QueueSpec(name, nominal=gpus(chance.randint(1, 4))) for name in ("x", "y")]
    for name in ("a", "b", "c")[: chance.randint(2, 3)]:
        borrowing, lending = (gpus(chance.randint(0, 2)) if chance.random() < 0.3 else NO_LIMIT for _ in range(2))
        weight = chance.choice([1.0, 2.0])
        queues.append(QueueSpec(name, "lab", gpus(chance.randint(0, 3)), borrowing, lending, weight))
    return queues


@pytest.mark.parametrize("seed", [*range(20), *[pytest.param(n, marks=pytest.mark.slow) for n in range(20, 60)]])
def test_any_pools_and_queues(seed: int) -> None:
    """Pools that come and go, work of all sizes in all queues: quotas hold over all of them after each event, no idle
    quota is withheld where there is room, transitions fold, and all that can ever start has its end."""
    chance = random.Random(seed)
    spanning, queues = Spanning(), draw_queues(chance)
    pools = [Pool(spanning, chance.randint(1, 4), queues) for _ in range(chance.randint(2, 4))]
    for step in range(70):
        pool = chance.choice(pools)
        for one in pools:
            one.now += chance.random()
        act = chance.random()
        if act < 0.45:
            queue = chance.choice([*[spec.name for spec in queues], ""])
            pool.submit(queue, f"{queue}-{step}-", chance.choice([0.5, 1.0, 1.0, 2.0]), chance.randint(1, 3))
        elif act < 0.9 and pool.held:
            pool.end_one(chance)
        elif act < 0.93 and len(pools) > 2:
            pools.remove(pool)
            spanning.leave(pool.member)
        elif act < 0.95:
            pools.append(Pool(spanning, chance.randint(1, 4), queues))
        else:
            spanning.refresh(pool.member, pool.now)
        check(pools)
    while busy := [pool for pool in pools if pool.held]:
        chance.choice(busy).end_one(chance)
        check(pools)
    for pool in pools:
        spanning.refresh(pool.member, pool.now)
        state = pool.engine.state
        left = [p for p, status in enumerate(state.status) if status == READY]
        reasons = [pool.engine.explain(state.task_of[p]).kind for p in left]
        assert set(reasons) <= {"infeasible"}, reasons


def test_a_pool_with_others_that_have_no_work_decides_as_if_alone() -> None:
    """The same events give the same decisions bit for bit, and no more events than without."""
    chance = random.Random(5)
    queues = [QueueSpec("a", "lab", gpus(1)), QueueSpec("b", "lab", gpus(2)), QueueSpec("x", nominal=gpus(2))]
    spanning = Spanning()
    alone, beside = Pool(Spanning(), 3, queues), Pool(spanning, 3, queues)
    Pool(spanning, 4, queues)
    for step in range(200):
        queue, each = chance.choice("abx"), chance.choice([0.5, 1.0, 2.0])
        is_end = bool(alone.held) and chance.random() < 0.5
        number = chance.randrange(1000)
        for pool in (alone, beside):
            pool.now += 0.5
            if is_end:
                pool.end_one(random.Random(number))
            else:
                pool.submit(queue, f"t{step}-", each)
    assert beside.decisions == alone.decisions
    assert (beside.events, canonical(beside.engine.state)) == (alone.events, canonical(alone.engine.state))


def test_what_comes_free_goes_to_the_pools_in_turns() -> None:
    """Two pools with many tasks under a quota of one: neither keeps it, although each could at its own ends. The second
    task of the first one has waited for longest."""
    spanning, queues = Spanning(), [QueueSpec("q", nominal=gpus(1))]
    pools = [Pool(spanning, 2, queues) for _ in range(2)]
    for pool in pools:
        pool.submit("q", "t", tasks=5)
    order = []
    for _ in range(10):
        (holder,) = [number for number, pool in enumerate(pools) if pool.held]
        order.append(holder)
        pools[holder].end_one()
    assert order == [0, *[0, 1] * 4, 1]
    assert [pool.woken for pool in pools] == [3, 4], "each is woken for what it got by the other's end"


def test_the_lender_goes_before_the_borrower_in_another_pool() -> None:
    """A borrower with more to run gives what it has back, at its task's end, to the queue whose it is, in whichever
    pool that waits."""
    spanning, queues = Spanning(), [QueueSpec("own", "lab", gpus(1)), QueueSpec("guest", "lab", gpus(0))]
    here, there = Pool(spanning, 1, queues), Pool(spanning, 1, queues)
    here.submit("guest", "g", tasks=3)
    there.submit("own", "o")
    assert (here.granted, there.granted) == (["g0"], [])
    here.end_one()
    assert (here.granted, there.granted) == (["g0"], ["o0"])
    there.end_one()
    assert here.granted == ["g0", "g1"]


def test_who_has_used_less_goes_first_in_whichever_pool() -> None:
    """Two queues without quota of their own borrow from a third: what is freed goes to the one with the smaller
    share, counted over both pools."""
    spanning = Spanning()
    queues = [QueueSpec("idle", "lab", gpus(3)), QueueSpec("a", "lab", gpus(0)), QueueSpec("b", "lab", gpus(0))]
    here, there = Pool(spanning, 3, queues), Pool(spanning, 3, queues)
    here.submit("a", "a", tasks=2)
    there.submit("a", "more")
    here.submit("a", "again")
    there.submit("b", "b")
    assert there.granted == ["more0"]
    here.end_one()
    assert (there.granted, here.granted) == (["more0", "b0"], ["a0", "a1"])


def test_a_pool_without_room_keeps_nothing_from_others() -> None:
    """The queue waits in a pool whose devices are all taken by others: its quota is used where there is room."""
    spanning, queues = Spanning(), [QueueSpec("q", nominal=gpus(1))]
    full, free = Pool(spanning, 1, queues), Pool(spanning, 1, queues)
    full.submit("", "blocker")
    full.submit("q", "waits")
    free.submit("q", "t", tasks=2)
    assert free.granted == ["t0"]
    free.end_one()
    assert free.granted == ["t0", "t1"]


def test_one_that_fails_in_its_turn_is_counted_and_the_others_go_on() -> None:
    """Its error is its own, raised where it is asked next."""
    spanning, queues = Spanning(), [QueueSpec("q", nominal=gpus(2))]
    good, bad = Pool(spanning, 2, queues), Pool(spanning, 2, queues)
    bad.submit("q", "held")
    good.submit("q", "t", tasks=3)
    bad.submit("q", "next")
    bad.member.take = lambda _event: 1 / 0  # type: ignore[assignment]  # it fails
    good.end_one()
    assert good.granted == ["t0", "t1"]
    with pytest.raises(ZeroDivisionError):
        bad.member.check()
    good.end_one()
    assert good.granted == ["t0", "t1", "t2"]
    spanning.leave(bad.member)
    good.submit("q", "last")
    assert good.granted[-1] == "last0"


def test_one_that_is_closed_gets_no_turns_and_is_counted() -> None:
    spanning, queues = Spanning(), [QueueSpec("q", nominal=gpus(1))]
    here, closed = Pool(spanning, 1, queues), Pool(spanning, 1, queues)
    here.submit("q", "t", tasks=2)
    closed.submit("q", "c")
    closed.member.is_closed = True
    here.end_one()
    assert (here.granted, closed.granted) == (["t0", "t1"], [])


def test_one_without_work_hears_of_others_now_and_then() -> None:
    """Its shares decay from what was used elsewhere, which it is told at most every ten seconds; one with work each
    time."""
    spanning, queues = Spanning(), [QueueSpec("q", nominal=gpus(4))]
    busy, idle = Pool(spanning, 4, queues), Pool(spanning, 4, queues)
    seen = []
    for now in range(30):
        busy.now = idle.now = float(now + 1)
        busy.submit("q", "t")
        if now % 2:
            busy.end_one()
        spanning.refresh(idle.member, idle.now)
        seen.append(idle.engine.state.queues[0].elsewhere[1])
    assert len(set(seen)) > 1
    assert sum(before != after for before, after in zip([0, *seen], seen, strict=False)) <= 3
    idle.submit("q", "mine")
    busy.submit("q", "t")
    spanning.refresh(idle.member, idle.now)
    assert idle.engine.state.queues[0].elsewhere[1] == busy.engine.state.queues[0].used[1]


def test_whoever_asks_is_told_only_of_those_that_it_sees() -> None:
    spanning, queues = Spanning(), [QueueSpec("q", nominal=gpus(1))]
    here, there = Pool(spanning, 1, queues), Pool(spanning, 1, queues)
    told = spanning.holders(here.member, "q", lambda owner: owner is there)
    assert told == "; in other pools it is used by somebody in q"
    assert spanning.holders(here.member, "q", lambda _owner: False) == "; in other pools it is used by 1 of other teams"
