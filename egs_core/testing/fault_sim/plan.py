"""What a seed stands for: the work, the machines, and how often and when things go wrong. Pure: `draw(seed)`."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import msgspec

from egs_core.engine import EngineConfig
from egs_core.engine import messages as m
from egs_core.engine.specs import NO_LIMIT, NOTHING, Amounts, QueueSpec
from egs_core.graph.columns import CPU, GPU, ON_LIMIT, Graph, Shape, TaskOptions

GIB = 1 << 30
SHAPES = (
    Shape(1000),
    Shape(1000),
    Shape(2000, 0, GIB),
    Shape(0, 1000),
    Shape(1000, 1000),
    Shape(1000, 500),
    Shape(0, 250, 0, GIB),
    Shape(1000, 2000),
)
GANG_SHAPES = (Shape(1000), Shape(0, 500), Shape(500, 1000))  # two of each fit the first node, and any queue
ENOUGH: tuple[Amounts, ...] = ((2000, 2000, 2 * GIB), (4000, 3000, 4 * GIB))  # for the largest phase and gang
LIMITS: tuple[Amounts, ...] = (NOTHING, (1000, 1000, GIB), NO_LIMIT)
CHAOS_S = (15.0, 60.0)  # how long things go wrong; afterwards all must come to its end
MISHAPS = ("crash at a write", "crash while deciding", "disk error", "node loss", "less capacity", "clock jump")


class Rates(msgspec.Struct, frozen=True):
    """How likely each fault is where it can happen. gives_up: that a driver fences a grant nobody has answered;
    checkpoint: that a phase
    saves what it has done; applies: whether a driver tells the engine of grants that were taken."""

    drop: float = 0.0
    double: float = 0.0
    late: float = 0.0
    reject: float = 0.0
    fail: float = 0.0
    die: float = 0.0
    finish_early: float = 0.0
    gives_up: float = 0.0
    checkpoint: float = 0.0
    applies: bool = False


class Submission(msgspec.Struct, frozen=True):
    """A block of a workload; known: how many tasks its earlier blocks have."""

    at: float
    workload: str
    queue: str
    known: int
    graph: Graph


class Wish(msgspec.Struct, frozen=True):
    """Something asked of one task of a workload, by its number within it: abort of scope task, stage or workload, a
    branch skipped, new estimates, or "pause" and such a scope, for so many seconds."""

    at: float
    kind: str
    workload: str
    task: int
    seconds: float = 1.0


class Reconfiguration(msgspec.Struct, frozen=True):
    """Somebody edits the queues while work goes on."""

    at: float
    queues: tuple[QueueSpec, ...]


class Plan(msgspec.Struct, frozen=True):
    """See the module. compact_every: entries after which a snapshot replaces them; mishaps: (time, one of MISHAPS)."""

    seed: int
    config: EngineConfig
    compact_every: int
    nodes: tuple[m.NodeAdded, ...]
    queues: tuple[QueueSpec, ...]
    submissions: tuple[Submission, ...]
    wishes: tuple[Wish, ...]
    rates: Rates
    mishaps: tuple[tuple[float, str], ...]
    calm_at: float
    reconfigurations: tuple[Reconfiguration, ...] = ()


def draw(seed: int) -> Plan:
    """The plan of a seed: the same in every process."""
    rng = random.Random(seed)
    calm_at = rng.uniform(*CHAOS_S)
    submissions = with_limits(random.Random(f"{seed} limits"), _draw_work(rng, calm_at))
    plan = Plan(
        seed,
        EngineConfig(
            policy=rng.choice(("egs", "egs", "egs", "fifo", "random")),
            preload=rng.random() < 0.8,
            default_max_wait_s=rng.choice((None, None, 0.0, 5.0)),
            seed=seed,
            record=True,
            preempt=rng.random() < 0.7,
            grace_s=0.5,
            min_gain_s=rng.choice((0.0, 2.0)),
        ),
        compact_every=rng.choice((3, 10, 40, 10**6)),
        nodes=_draw_nodes(rng),
        queues=_draw_queues(rng),
        submissions=tuple(submissions),
        wishes=tuple(_draw_wishes(rng, submissions, calm_at)),
        rates=_draw_rates(rng),
        mishaps=tuple(sorted((rng.uniform(0, calm_at), _mishap(rng)) for _ in range(rng.randrange(8)))),
        calm_at=calm_at,
    )
    return msgspec.structs.replace(
        plan,
        wishes=(*plan.wishes, *_draw_pauses(rng, submissions, calm_at)),
        reconfigurations=tuple(_draw_reconfigurations(rng, plan.queues, calm_at)),
    )


def _mishap(rng: random.Random) -> str:
    return rng.choice((*MISHAPS, MISHAPS[0], MISHAPS[0], MISHAPS[1]))


def _draw_rates(rng: random.Random) -> Rates:
    """Each fault is off in many seeds, so that a seed can show what one of them does alone."""

    def rate(most: float) -> float:
        return rng.choice((0.0, 0.3, 1.0)) * most

    return Rates(
        drop=rate(0.4),
        double=rate(0.25),
        late=rate(0.3),
        reject=rate(0.2),
        fail=rate(0.15),
        die=rate(0.15),
        finish_early=rate(0.1),
        gives_up=rate(0.6),
        checkpoint=rate(0.3),
        applies=rng.random() < 0.5,
    )


def _draw_nodes(rng: random.Random) -> tuple[m.NodeAdded, ...]:
    """One to three; the first can run everything."""
    slots, memory = rng.choice((1, 2, 4)), rng.choice((None, 8 * GIB))
    nodes = [m.NodeAdded("n0", rng.choice((2.0, 4.0)), 2, memory, memory, rng.randint(1, 2), slots)]
    if rng.random() < 0.6:
        nodes.append(m.NodeAdded("n1", 3.0, 0, None, None, rng.randrange(3), rng.randrange(3)))
    if rng.random() < 0.5:
        nodes.append(m.NodeAdded("n2", 1.0, 1, None, None, 1, rng.randint(1, 3)))
    return tuple(nodes)


def _draw_work(rng: random.Random, calm_at: float) -> list[Submission]:
    """5 to 40 tasks, mostly few, in up to three workloads of up to three blocks."""
    left = 5 + int(36 * rng.random() ** 3)
    submissions: list[Submission] = []
    known: dict[str, int] = {}
    while left > 0:
        workload = f"w{rng.randrange(3)}"
        size = min(left, rng.randint(1, 12))
        left -= size
        before = known.get(workload, 0)
        at = rng.uniform(0, calm_at / 2)
        earlier = [s.at for s in submissions if s.workload == workload]
        graph = _draw_block(rng, workload, before, size)
        submissions.append(Submission(max([at, *earlier]), workload, f"q{workload[1:]}", before, graph))
        known[workload] = before + graph.n_tasks
    return submissions


def _draw_block(rng: random.Random, workload: str, known: int, size: int) -> Graph:
    graph = Graph()
    for number in range(known, known + size):
        parents = sorted({rng.randrange(max(0, number - 8), number) for _ in range(rng.randrange(4)) if number})
        phases = tuple(_draw_phase(rng) for _ in range(rng.choice((1, 1, 2, 3))))
        graph.add_task(f"{workload}.{number}", tuple(parents), phases, name="t", options=_draw_options(rng))
    if rng.random() < 0.3:
        _draw_gang(rng, graph, workload, known)
    return graph


def _draw_gang(rng: random.Random, graph: Graph, workload: str, known: int) -> None:
    """Two tasks that start together; of one block, and waiting for earlier blocks only."""
    first = known + graph.n_tasks
    options = TaskOptions(priority=rng.randrange(2), retries=rng.randrange(3), gang=f"g{first}")
    for number in (first, first + 1):
        parents = {rng.randrange(known) for _ in range(rng.randrange(3)) if known}
        phases = (_draw_phase(rng, GANG_SHAPES),) * rng.choice((1, 1, 2))
        graph.add_task(f"{workload}.{number}", tuple(sorted(parents)), phases, name="g", options=options)


def _draw_queues(rng: random.Random) -> tuple[QueueSpec, ...]:
    """None, or one for each workload or for all but one; each could run any phase and gang alone."""
    if rng.random() < 0.25:
        return ()
    cohort = rng.choice(("", "lab", "lab", "lab"))
    return tuple(
        QueueSpec(f"q{i}", cohort, rng.choice(ENOUGH), rng.choice(LIMITS), NO_LIMIT, rng.choice((1.0, 3.0)))
        for i in range(rng.choice((2, 3, 3)))
    )


def _draw_phase(rng: random.Random, shapes: Sequence[Shape] = SHAPES) -> tuple[int, Shape, float | None]:
    shape = rng.choice(shapes)
    return GPU if shape.gpu_milli else CPU, shape, rng.choice((None, 0.5, 2.0, 5.0))


def _draw_options(rng: random.Random) -> TaskOptions | None:
    if rng.random() < 0.4:
        return None
    return TaskOptions(
        stage=rng.choice(("", "x")),
        priority=rng.randrange(2),
        max_wait_s=rng.choice((None, 0.5, 5.0)),
        warm_key=rng.choice(("", "", "k1", "k2")),
        warmup_s=rng.choice((0.0, 0.5, 2.0)),
        retries=rng.randrange(3),
    )


def with_limits(rng: random.Random, submissions: list[Submission]) -> list[Submission]:
    """In one seed of four some tasks are limited; numbers of their own, so that the rest of the plan stays as it is."""
    if rng.random() < 0.75:
        return submissions
    for submission in submissions:
        graph = submission.graph
        for task in range(graph.n_tasks):
            if rng.random() < 0.5:
                limits = {
                    "max_runtime_s": rng.choice((None, 1.0, 3.0)),
                    "max_gpu_s": rng.choice((None, 2.0)),
                    "on_limit": rng.choice(ON_LIMIT),
                }
                graph.options[task] = msgspec.structs.replace(graph.options_of(task), **limits)
    return submissions


def _draw_wishes(rng: random.Random, submissions: Sequence[Submission], calm_at: float) -> list[Wish]:
    wishes: list[Wish] = []
    for _ in range(rng.choice((0, 0, 1, 2, 4))):
        block = rng.choice(submissions)
        task = block.known + rng.randrange(block.graph.n_tasks)
        kind = rng.choice(("task", "task", "stage", "workload", "skip", "skip", "estimate", "estimate"))
        wishes.append(Wish(rng.uniform(block.at, calm_at), kind, block.workload, task, rng.uniform(0, 8)))
    return wishes


def _draw_pauses(rng: random.Random, submissions: Sequence[Submission], calm_at: float) -> list[Wish]:
    wishes: list[Wish] = []
    for _ in range(rng.choice((0, 0, 1, 3))):
        block = rng.choice(submissions)
        task = block.known + rng.randrange(block.graph.n_tasks)
        scope = rng.choice(("task", "task", "stage", "workload"))
        wishes.append(Wish(rng.uniform(block.at, calm_at), f"pause {scope}", block.workload, task, rng.uniform(0, 20)))
    return wishes


def _draw_reconfigurations(
    rng: random.Random, queues: Sequence[QueueSpec], calm_at: float
) -> Iterator[Reconfiguration]:
    """Other amounts for the same queues, of which one may go."""
    for _ in range(rng.choice((0, 1, 2)) if queues else 0):
        kept = [queue for queue in queues if rng.random() < 0.9]
        yield Reconfiguration(
            rng.uniform(0, calm_at),
            tuple(
                msgspec.structs.replace(
                    queue, nominal=rng.choice(ENOUGH), borrowing_limit=rng.choice(LIMITS), lending_limit=NO_LIMIT
                )
                for queue in kept
            ),
        )
