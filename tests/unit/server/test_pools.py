"""Drivers that share a pool, without HTTP: one order, quotas that hold across them, and no driver in another's way."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import msgspec
import pytest

from egs_core.client import messages as c
from egs_core.engine import messages as m
from egs_core.engine.specs import UNLIMITED, QueueSpec
from egs_core.graph.columns import GPU, Graph, Shape, TaskOptions
from egs_core.runlog import records as r
from egs_core.server.pools import Pools
from egs_core.server.principals import Principal
from egs_core.server.runs import Refusal
from egs_core.site import messages as s
from egs_core.site import wire
from egs_core.site.pooled import MOST_DRIVERS, TTL_S

ANN, BEN, ROOT = Principal("ann"), Principal("ben"), Principal("root", "admin")
EPOCH = "e"
ONE_GPU = Shape(0, 1000)
NODE = m.NodeAdded("n", cpus=8.0, gpus=2)


class Client:
    """A driver's end without threads: what it was told lies in `told`, its run log in `records`."""

    def __init__(self, pools: Pools, who: Principal, name: str, *, pool: str = "cluster", queue: str = "") -> None:
        ask = c.DriverRequest(key=f"{who.name}-{name}-12345678", framework="ray", pool=pool, name=name, queue=queue)
        self.pools, self.who = pools, who
        self.driver = pools.join(who, ask)
        self.seq = self.ack = self.size = 0
        self.told: list[s.AnyTold] = []
        self.records: list[r.Record] = []
        self.asked: list[s.Asked] = []
        self.held: dict[int, s.Grant] = {}

    @property
    def id(self) -> str:
        return self.driver.id

    def send(self, *items: wire.Item) -> tuple[wire.Answer, ...]:
        self.seq += 1
        body = msgspec.json.encode(
            wire.Encoded(self.driver.epoch, self.seq, [msgspec.Raw(msgspec.json.encode(item)) for item in items])
        )
        answer = self.pools.batch(self.who, self.id, body)
        assert self.pools.batch(self.who, self.id, body) == answer, "a repeated batch has another answer"
        self.pools.validate()
        return msgspec.json.decode(answer, type=wire.Answers).answers

    def report(self, *events: m.Event) -> None:
        self.send(*[wire.Reported(event) for event in events])  # type: ignore[arg-type]

    def submit(self, tasks: int, priority: int = 0, deadline_s: float | None = None) -> s.Grown:
        """More tasks with one GPU each, in one workload."""
        self.report(NODE, m.WorkloadSubmitted("w", "w", submission="job"))
        graph, options = Graph(), TaskOptions(priority=priority, deadline_s=deadline_s)
        for number in range(self.size, self.size + tasks):
            graph.add_task(f"t{number}", (), ((GPU, ONE_GPU, 1.0),), options=options)
        (answer,) = self.send(wire.Growing("w", self.size, graph))
        self.size += tasks
        return msgspec.json.decode(answer.value, type=s.Grown)

    def poll(self) -> None:
        """Take what there is; grants are held and started."""
        for message in self.pools.poll(self.who, self.id, c.Poll(epoch=self.driver.epoch, ack=self.ack)):
            assert message.number == self.ack + 1
            self.ack = message.number
            if isinstance(message.told, s.Grant):
                self.held[message.told.phase] = message.told
                self.send(wire.Noted(s.Granted(message.told)))
                self.report(m.PhaseStarted(message.told.phase, message.told.attempt))
            if message.told is not None:
                self.told.append(message.told)
            if message.record is not None:
                self.records.append(message.record)
            if message.asked is not None:
                self.asked.append(message.asked)

    def end_one(self) -> None:
        """The first of what it holds ends well."""
        grant = self.held.pop(next(iter(self.held)))
        self.send(wire.Noted(s.Ended(grant.phase, grant.attempt)))
        self.report(m.PhaseEnded(grant.phase, grant.attempt))

    def leave(self) -> None:
        self.pools.leave(self.who, self.id, c.Leave(epoch=self.driver.epoch))


def wait(pools: Pools, begin: float, end: float, *others: Client) -> None:
    """Time passes; the others give signs of life."""
    now = begin
    while now < end:
        now = min(end, now + 1.0)
        pools.at(now)
        for client in others:
            client.poll()


@pytest.fixture
def pools() -> Iterator[Pools]:
    found = Pools((QueueSpec("one", nominal=(UNLIMITED, 1000, UNLIMITED)),), EPOCH, 0.0)
    yield found
    found.validate()


def test_a_quota_holds_across_drivers(pools: Pools) -> None:
    """Two drivers, a queue with one GPU of two: never two tasks at once, and each gets all of its tasks done."""
    clients = [Client(pools, ANN, "a"), Client(pools, BEN, "b")]
    for client in clients:
        client.submit(3)
    done = 0
    while done < 6:
        for client in clients:
            client.poll()
        assert sum(len(client.held) for client in clients) == 1
        next(client for client in clients if client.held).end_one()
        done += 1
    for client in clients:
        client.poll()
        assert client.told[-1] == s.Settled("w"), client.told
        assert {one.workload for one in client.records if hasattr(one, "workload")} == {"w"}


def test_priority_goes_before_another_drivers_waiting_tasks(pools: Pools) -> None:
    """What runs goes on; then the later driver's task with priority, then the rest."""
    low, high = Client(pools, ANN, "low"), Client(pools, BEN, "high")
    low.submit(4)
    low.poll()
    high.submit(1, priority=100)
    low.end_one()
    low.poll()
    high.poll()
    assert (len(low.held), len(high.held)) == (0, 1)


def test_a_silent_driver_is_gone_and_what_it_held_is_free(pools: Pools) -> None:
    """After its time to live another driver gets its GPU, and the silent one is told 410, also when it speaks again."""
    silent, other = Client(pools, ANN, "silent"), Client(pools, BEN, "other")
    silent.submit(2)
    silent.poll()
    other.submit(1)
    wait(pools, 0.0, TTL_S * 0.9, other)
    assert (len(silent.held), len(other.held)) == (1, 0)
    wait(pools, TTL_S * 0.9, TTL_S * 1.1, other)
    assert len(other.held) == 1
    with pytest.raises(Refusal, match="does not know") as refused:
        silent.poll()
    assert refused.value.status == 410
    assert [view.id for view in pools.listed(ROOT)] == [other.id]


def test_a_server_that_stood_still_drops_nobody(pools: Pools) -> None:
    """Its host was suspended: nobody could be heard, and each driver has its whole time to live again."""
    client = Client(pools, ANN, "a")
    pools.at(100 * TTL_S)
    client.poll()
    assert [view.id for view in pools.listed(ROOT)] == [client.id]


def test_what_is_anothers_is_out_of_reach(pools: Pools) -> None:
    """Events, notes and questions about another driver's tasks change and tell nothing; nor may another user speak for
    a driver, change it, or change the site's queues."""
    mine, other = Client(pools, ANN, "mine"), Client(pools, BEN, "other")
    mine.submit(2)
    mine.poll()
    (grant,) = mine.held.values()
    other.report(
        NODE,
        m.PhaseEnded(grant.phase, grant.attempt),
        m.DecisionLost(grant.id),
        m.AbortRequested("task", str(grant.task)),
        m.AbortRequested("workload", "w"),
        m.TasksSeen((m.Sight(grant.task, "over"),)),
        m.QueuesChanged(()),
        m.GrantsHeld(60.0),
    )
    other.send(wire.Noted(s.Ended(grant.phase, grant.attempt)))
    (answer,) = other.send(wire.Why(grant.task))
    assert answer.problem == "a task that is not the driver's"
    (unknown,) = other.send(wire.Workload("w"))
    assert unknown.is_unknown
    mine.poll()
    assert not any(isinstance(one, (r.Ended, s.Stop)) for one in [*mine.records, *mine.told])
    other.submit(1)
    other.poll()
    assert not other.held, "the quota has been changed"
    with pytest.raises(Refusal) as refused:
        pools.poll(BEN, mine.id, c.Poll(epoch=EPOCH))
    assert refused.value.status == 410
    with pytest.raises(Refusal) as refused:
        pools.control(BEN, mine.id, "abort", c.Control())
    assert refused.value.status == 403


def test_what_people_see_and_ask(pools: Pools) -> None:
    """Users, frameworks, counts, order and the reason; an operator's abort reaches the driver, which carries it out."""
    first, second = Client(pools, ANN, "first"), Client(pools, BEN, "second")
    first.submit(2)
    first.poll()
    second.submit(1)
    views = {view.name: view for view in pools.listed(ROOT)}
    assert [(view.user, view.framework, view.state) for view in views.values()] == [
        ("ann", "ray", "running"),
        ("ben", "ray", "waiting"),
    ]
    assert views["first"].tasks == c.DriverTasks(running=1, waiting=1)
    assert views["second"].kind == "quota"
    assert {view.name for view in pools.queue(ROOT)} == {"first", "second"}
    assert pools.view(ROOT, second.id).reason.startswith("t0: ")
    assert pools.control(ROOT, first.id, "abort", c.Control(reason="full", grace_s=1.0)).state == "stopping"
    first.poll()
    assert first.asked == [s.Asked("abort", "root", "full", 1.0)]
    with pytest.raises(Refusal, match="no driver"):
        pools.view(ROOT, "r99")


def test_moments_are_told_by_the_calendar() -> None:
    """Not as seconds of a clock that only the server knows; this one was 0 at second 0 of 1970."""
    pools = Pools((), EPOCH, 0.0)
    ann = Client(pools, ANN, "one")
    ann.submit(3, deadline_s=3600.0)
    ann.poll()
    assert "meet its deadline at 1970-01-01 01:00:00 UTC" in pools.view(ROOT, ann.id).reason


def test_teams_see_and_use_their_own() -> None:
    """A queue of another team is refused, one's own is the default; another team's driver is not there, for an operator
    of one team either; who may not submit joins nothing."""
    specs = tuple([QueueSpec(name) for name in ("red", "blue")])
    pools = Pools(specs, EPOCH, 0.0, {"red": "red", "blue": "blue"})
    ann, ben = Principal("ann", teams=("red",)), Principal("ben", "operator", ("blue",))
    mine = Client(pools, ann, "mine")
    assert mine.driver.queue == "red"
    with pytest.raises(Refusal, match="there are red: choose by EGS_QUEUE"):
        Client(pools, ann, "other", queue="blue")
    assert (len(pools.listed(ann)), len(pools.listed(ben)), len(pools.listed(ROOT))) == (1, 0, 1)
    acts: tuple[Callable[[], object], ...] = (
        lambda: pools.view(ben, mine.id),
        lambda: pools.control(ben, mine.id, "abort", c.Control()),
    )
    for act in acts:
        with pytest.raises(Refusal) as refused:
            act()
        assert refused.value.status == 404
    with pytest.raises(Refusal, match="needs the role"):
        Client(pools, Principal("eve", "viewer"), "x")


def test_a_workload_in_another_teams_queue_is_in_its_drivers() -> None:
    """A driver names a queue for each workload: another team's gets no work by that; one that it may use does."""
    specs = tuple([QueueSpec(name) for name in ("red", "blue", "all")])
    pools = Pools(specs, EPOCH, 0.0, {"red": "red", "blue": "blue"})
    mine = Client(pools, Principal("ann", teams=("red",)), "mine")
    for queue in ("blue", "all", "none"):
        mine.report(NODE, m.WorkloadSubmitted(queue, queue, submission=queue, queue=queue))
    state = pools._pools["ray:cluster"].engine.state
    assert [workload.queue for workload in state.workloads] == ["red", "all", "red"]


def test_a_wait_behind_another_team_names_none_of_its_tasks() -> None:
    """Both share a cluster: why one waits is told with who is ahead to whoever sees both, else without."""
    specs = tuple([QueueSpec(name) for name in ("red", "blue")])
    pools = Pools(specs, EPOCH, 0.0, {"red": "red", "blue": "blue"})
    ann, ben = Principal("ann", teams=("red",)), Principal("ben", teams=("blue",))
    theirs, mine = Client(pools, ann, "theirs"), Client(pools, ben, "mine")
    theirs.submit(4)
    theirs.poll()
    mine.submit(1)
    assert "ahead of it, first" in (told := pools.view(ROOT, mine.id).reason)
    assert f"'{theirs.id}." in told
    own = pools.view(ben, mine.id).reason
    assert own.endswith("n has 0 of 2 GPUs wholly free; others are ahead of it"), own
    assert [view.reason for view in pools.queue(ben)] == [own]


def test_clusters_are_apart_under_one_quota(pools: Pools) -> None:
    """Each cluster is a pool of its own; a queue's quota holds over both, and what waits is told who has it. A cluster
    without drivers is forgotten, and what it held is free."""
    one, two = Client(pools, ANN, "one", pool="x"), Client(pools, BEN, "two", pool="y")
    one.submit(1)
    two.submit(2)
    one.poll()
    two.poll()
    assert (len(one.held), len(two.held)) == (1, 0)
    reason = pools.view(ROOT, two.id).reason
    assert "it uses 1 GPU, 1 GPU of it in other pools; in other pools it is used by r1 (one, ann)" in reason
    one.end_one()
    pools.take_news()
    two.poll()
    assert len(two.held) == 1
    one.submit(1)
    two.leave()
    pools.take_news()
    one.poll()
    assert len(one.held) == 1
    again = Client(pools, ANN, "again", pool="y")
    assert again.submit(1) == s.Grown(0, 0)


def test_wrong_requests_say_what_is_wrong(pools: Pools) -> None:
    """An unknown queue, a body that is no batch, an old number, another server's epoch, no graph, too many drivers."""
    with pytest.raises(Refusal, match="there are one: choose by EGS_QUEUE"):
        Client(pools, ANN, "x", queue="two")
    client = Client(pools, ANN, "a")
    for body in (b"", b"{}", b"[" * 100_000, b"\xff", b'{"epoch":"e","seq":1,"items":[{"i":"what"}]}'):
        with pytest.raises(Refusal, match="no batch") as refused:
            pools.batch(ANN, client.id, body)
        assert refused.value.status == 422
    client.submit(1)
    client.seq = 0
    with pytest.raises(Refusal) as refused:
        client.send(wire.Order())
    assert refused.value.status == 409
    with pytest.raises(Refusal) as refused:
        pools.poll(ANN, client.id, c.Poll(epoch="earlier"))
    assert refused.value.status == 410
    (answer,) = Client(pools, ANN, "b").send(wire.Growing("w", 5, Graph()))
    assert "unknown workload" in answer.problem
    for number in range(MOST_DRIVERS - 2):
        Client(pools, ANN, f"many{number}")
    with pytest.raises(Refusal, match="have joined"):
        Client(pools, ANN, "one more")


@pytest.mark.parametrize("seed", [*range(30), 197, 267, 270])
def test_any_order_of_things(seed: int) -> None:
    """Drivers that come, grow, end tasks, fall silent and leave in any order: invariants hold after each request, the
    quota at each moment, no task is granted twice, and whoever stays gets all of its tasks done."""
    chance = random.Random(seed)
    quota = chance.choice([1, 2, 3])
    pools = Pools((QueueSpec("q", nominal=(UNLIMITED, 1000 * quota, UNLIMITED)),), EPOCH, 0.0)
    now, clients, granted = 0.0, list[Client](), set[tuple[int, int]]()

    def look() -> None:
        for client in clients:
            client.poll()
            fresh = {(grant.phase, grant.attempt) for grant in client.held.values()}
            assert fresh <= granted or not (fresh - granted) & granted
            granted.update(fresh)
        assert sum(len(client.held) for client in clients) <= min(quota, 2)

    for step in range(60):
        act = chance.random()
        if act < 0.15 or not clients:
            clients.append(Client(pools, chance.choice([ANN, BEN]), f"{seed}-{step}"))
        elif act < 0.5:
            chance.choice(clients).submit(chance.randrange(1, 4), chance.choice([0, 0, 5]))
        elif act < 0.85:
            holding = [client for client in clients if client.held]
            if holding:
                chance.choice(holding).end_one()
        elif act < 0.92:
            clients.pop(chance.randrange(len(clients))).leave()
        else:
            gone = clients.pop(chance.randrange(len(clients)))
            wait(pools, now, now + TTL_S * 1.2, *clients)
            now += TTL_S * 1.2
            assert gone.id not in {view.id for view in pools.listed(ROOT)}
        look()
    while any(client.held for client in clients):
        next(client for client in clients if client.held).end_one()
        look()
    for client in clients:
        assert not client.size or client.told[-1] == s.Settled("w")


def test_a_grant_comes_with_the_answer_to_the_end_that_freed_its_gpu(pools: Pools) -> None:
    """A batch that says what has arrived is answered with what it causes, and no poll is woken for that; a repeated one
    tells again what has not arrived; what is left over (here: another driver's end) wakes the poll."""
    ann, ben = (Client(pools, who, "d") for who in (ANN, BEN))
    ann.submit(2)
    ann.poll()
    ben.submit(1)
    pools.take_news()
    (held,) = ann.held.values()
    ends = wire.Noted(s.Ended(held.phase, held.attempt)), wire.Reported(m.PhaseEnded(held.phase, held.attempt))
    body = msgspec.json.encode(wire.Batch(EPOCH, ann.seq + 1, ends, ann.ack))
    answered = [msgspec.json.decode(pools.batch(ANN, ann.id, body), type=wire.Answers) for _ in range(2)]
    assert answered[0] == answered[1]
    numbers = [message.number for message in answered[0].messages]
    assert numbers == list(range(ann.ack + 1, ann.ack + 1 + len(numbers)))
    (grant,) = [one.told for one in answered[0].messages if isinstance(one.told, s.Grant)]
    assert grant.task != held.task
    assert pools.take_news() == []
    last = msgspec.json.encode(wire.Batch(EPOCH, ann.seq + 2, (), numbers[-1]))
    assert msgspec.json.decode(pools.batch(ANN, ann.id, last), type=wire.Answers).messages == ()
    assert pools.poll(ANN, ann.id, c.Poll(epoch=EPOCH, ack=numbers[-1])) == ()
    ann.leave()
    assert ben.id in pools.take_news()
