"""Which nested tasks go on the turn of a task whose code waits, on the books of a script's submissions."""

from __future__ import annotations

from egs_core.graph.columns import Graph, TaskOptions
from egs_ray.session.described import Described, member
from egs_ray.session.grown import Grown
from egs_ray.session.loans import PATIENCE_S, Loans
from egs_ray.session.tasks import Job
from egs_ray.submission import Arrival, Needs


class Script:
    """A script's books with loans, a clock that the test sets, and the tickets that have been opened."""

    def __init__(self) -> None:
        self.now = 0.0
        self.books = Grown("train#1", "train", lambda _: False)
        self.turns: dict[int, float] = {}
        self.opened: list[str] = []
        self.loans = Loans(self.books, lambda job: self.turns.get(job.index), self.opened.append, lambda: self.now)

    def submits(self, name: str, gpus: float = 1.0, works_for: str = "", after: str = "") -> Job:
        """A task that waits for its turn; works_for: nested in this one's code."""
        direct = [(after, after)] if after else []
        arrival = Arrival(name, name, Needs(name, 0.0, gpus, 0), direct, [], None, works_for, bool(works_for))
        job = self.books.take_in(arrival, None, Graph())[-1][0]
        if works_for:
            self.loans.arrived(job, works_for)
        return job

    def turn(self, name: str) -> None:
        self.turns[self.books.numbers[name]] = self.now

    def ends(self, name: str) -> None:
        self.books.jobs[self.books.numbers[name]].succeeded = True
        self.loans.look()


def a_groups_member(name: str, gang: str) -> Described:
    return member(Needs(name, 0.0, 1.0, 0), TaskOptions(gang=gang))


def test_a_gang_goes_whole_or_not_at_all() -> None:
    """The bundles of a placement group that a task's code waits for go together on its turn, though they need more
    GPUs than it has: a part of them would keep what it has, and the parent wait for ever."""
    script = Script()
    script.submits("parent")
    script.turn("parent")
    for name in ("a", "b"):
        arrival = Arrival(name, name, Needs(name, 0.0, 1.0, 0), [], [], 0.0, "parent", True)
        job = script.books.take_in(arrival, a_groups_member(name, "group"), Graph())[-1][0]
        script.loans.arrived(job, "parent")
    script.loans.look()
    assert script.opened == []
    script.loans.waits("parent")
    assert script.opened == ["a", "b"]


def parent_and_children(children: int, gpus: float = 1.0) -> Script:
    script = Script()
    script.submits("parent")
    script.turn("parent")
    for number in range(children):
        script.submits(f"child{number}", gpus, works_for="parent")
    script.loans.look()
    return script


def test_one_after_the_other_while_the_parent_waits() -> None:
    """A parent with one GPU lends it while it waits, to one child at a time; to none while it does not."""
    script = parent_and_children(3)
    assert script.opened == []
    script.loans.waits("parent")
    script.loans.look()
    assert script.opened == ["child0"]
    script.ends("child0")
    assert script.opened == ["child0", "child1"]
    script.loans.goes("parent")
    script.ends("child1")
    assert script.opened == ["child0", "child1"]


def test_a_larger_child_goes_alone() -> None:
    """What the parent waits for goes whatever it needs, else it would wait for ever."""
    script = parent_and_children(2, gpus=4.0)
    script.loans.waits("parent")
    assert script.opened == ["child0"]


def test_only_what_works_for_it_and_is_ready() -> None:
    """Another parent's child is not what this one waits for, and a child whose argument is not there is not ready."""
    script = Script()
    script.submits("parent")
    script.turn("parent")
    script.submits("stranger", works_for="other")
    script.submits("first", works_for="parent")
    script.submits("second", works_for="parent", after="first")
    script.loans.waits("parent")
    assert script.opened == ["first"]
    script.ends("first")
    assert script.opened == ["first", "second"]


def test_waits_that_nobody_tells_of_count_after_a_while() -> None:
    """A parent that waits in a thread; an actor between a parent and the task that it waits for."""
    script = parent_and_children(1)
    script.now = PATIENCE_S + 1
    script.loans.look()
    assert script.opened == ["child0"]
    script = Script()
    script.submits("parent")
    script.turn("parent")
    script.submits("of an actor", works_for="nobody who is known")
    script.loans.waits("parent")
    assert script.opened == []
    script.now = PATIENCE_S + 1
    script.loans.look()
    assert script.opened == ["of an actor"]


def test_what_has_no_turn_lends_none() -> None:
    """A task that waits for its own turn, one that has ended, and one that the site does not know."""
    script = Script()
    for name in ("waits", "over"):
        script.submits(name)
        script.submits(f"child of {name}", works_for=name)
    script.turn("over")
    script.loans.waits("waits")
    script.loans.waits("nowhere")
    script.books.jobs[script.books.numbers["over"]].succeeded = True
    script.loans.waits("over")
    assert script.opened == []


def test_each_turn_is_lent_by_itself() -> None:
    """Two parents wait: one's two children do not go on the other's turn, whose own child goes whatever it needs."""
    script = Script()
    for name in ("a", "b"):
        script.submits(name)
        script.turn(name)
    for name, gpus, parent in (("a1", 1.0, "a"), ("a2", 1.0, "a"), ("b1", 4.0, "b")):
        script.submits(name, gpus, works_for=parent)
    script.loans.waits("a")
    script.loans.waits("b")
    assert script.opened == ["a1", "b1"]
    script.ends("a1")
    assert script.opened == ["a1", "b1", "a2"]


def test_what_was_lent_is_lent_on() -> None:
    """A child that waits computes nothing: what works for it goes, or another child that it may wait for, but one at a
    time on one turn."""
    script = parent_and_children(2)
    script.loans.waits("parent")
    script.turn("child0")
    script.submits("grandchild", 4.0, works_for="child0")
    script.loans.look()
    assert script.opened == ["child0"]
    script.loans.waits("child0")
    assert script.opened == ["child0", "child1"]
    script.turn("child1")
    script.loans.waits("child1")
    assert script.opened == ["child0", "child1", "grandchild"]
