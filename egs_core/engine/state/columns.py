"""What the engine knows, as columns, and the questions that they answer without a search.

Tasks and phases carry the engine's own numbers, given in topological order: a parent's number is always below its
child's.

    task t     phases first_phase[t] … first_phase[t + 1] - 1, `cursor[t]` is the current one
    phase p    status, ready_at …, rank_s[p] = seconds of the longest path from p's start to an exit
"""

from __future__ import annotations

import msgspec

from egs_core.engine.meters import Meter
from egs_core.engine.specs import NO_QUEUE, Amounts, FlavorSpec
from egs_core.engine.state.histories import QueueHistory, Submission
from egs_core.engine.state.lifecycle import SKIPPED, SUCCEEDED
from egs_core.engine.state.nodes import Lease, Node
from egs_core.engine.state.records import Gang, Over, Pause, QueueState, Rates, Reads, Reservation, Workload
from egs_core.graph.columns import DEFAULT_OPTIONS, Shape, TaskOptions

STATE_VERSION = 1
NEVER = 1 << 62  # a decision that is never reached


class Columns(msgspec.Struct):
    """See the module. Lists are indexed by task number (first group) or phase number (second group)."""

    version: int = STATE_VERSION
    now: float = 0.0
    seq: int = 0  # order in which phases became ready
    next_decision: int = 1
    held_until: float | None = None  # nothing is granted before
    plan_at: float | None = None  # when the preload planner wants to look again
    nodes: list[Node] = []
    workloads: list[Workload] = []
    workload_numbers: dict[str, int] = {}  # id -> index in `workloads`
    submissions: list[Submission] = []
    submission_numbers: dict[str, int] = {}  # id -> index in `submissions`, of those that have one
    histories: dict[str, QueueHistory] = {}  # by queue, "" for work without one
    grown_totals: dict[str, int] = {}  # name of a submission that grew while it ran -> work of its last run
    unknown: set[int] = set()  # phases whose length nobody knows
    shapes: list[Shape] = []
    options: dict[int, TaskOptions] = {}

    task_ids: list[str] = []
    task_names: list[str] = []
    task_workload: list[int] = []
    parents: list[tuple[int, ...]] = []
    children: list[list[int]] = []
    waiting: list[int] = []  # parents not yet done
    first_phase: list[int] = msgspec.field(default_factory=lambda: [0])
    cursor: list[int] = []
    attempt: list[int] = []
    warmth: list[int] = []
    home: dict[int, int] = {}  # task -> node of its process, running or parked; later phases stay there
    parked: dict[int, int] = {}  # task whose process waits for it, warm or warming -> its Preload's number
    start_cold: set[int] = set()  # tasks whose preload failed: they may start without a warm process
    stopping: set[int] = set()  # tasks with an abort under way
    queues: list[QueueState] = []
    queue_numbers: dict[str, int] = {}  # name -> index in `queues`
    queues_since: int = NEVER  # the first decision after the queues were configured as they are
    gangs: list[Gang] = []
    gang_numbers: dict[str, int] = {}  # "workload number/name" -> index in `gangs`
    gang_of: dict[int, int] = {}  # task -> gang
    recalled: set[int] = set()  # tasks being stopped to start again: preempted, or their gang has lost a member
    failures: dict[int, int] = {}  # open task -> how many of its attempts have failed
    checkpoint_at: dict[int, float] = {}  # task -> when its running phase last saved what it had done
    reservations: dict[int, Reservation] = {}  # phase, the leading one of a gang -> what is kept for it

    reads: dict[int, Reads] = {}  # task -> (parent, bytes of its files); empty unless a node states a bandwidth
    written_on: dict[int, int] = {}  # task -> node of its latest start, where its files are

    pauses: dict[str, Pause] = {}  # "scope:target" -> who has paused it
    paused: set[int] = set()  # held phases that wait for a resume

    has_deadlines: bool = False  # whether a deadline, or a promise at risk, was ever told: time moves what waits
    latest_end_s: dict[int, float] = {}  # task -> after its workload's submission, by what it and tasks after it state
    is_metered: bool = False  # whether anybody has limited anything
    meters: dict[int, Meter] = {}  # task -> what it has used, from its first start to its end
    workload_meters: dict[int, Meter] = {}  # workload -> what it has used
    charges: dict[int, Rates] = {}  # running phase -> what its meters count for it
    workload_charges: set[int] = set()  # those of them that the workload's meter counts
    over_limit: dict[int, Over] = {}  # task -> the limit that it has reached
    limit_requeues: dict[int, int] = {}  # task -> how often it was requeued by a limit

    kind: list[int] = []
    shape: list[int] = []
    task_of: list[int] = []
    estimate_s: list[float] = []
    estimate_p95_s: list[float] = []
    left_ms: list[int] = []  # what the phase counts in its submission's work, UNKNOWN or OVER
    rank_s: list[float] = []
    rank_boost_s: dict[int, float] = msgspec.field(
        default_factory=dict, name="lift_s"
    )  # seconds that a plan adds to the rank of some phases
    plan_is_firm: bool = False  # the plan gains more than all files cost
    status: list[int] = []
    ready_at: list[float] = []
    started_at: list[float] = []
    order: list[int] = []  # `seq` at the moment it became ready
    flavors: dict[str, FlavorSpec] = {}  # by name, in the order given
    flavor_estimates: dict[int, dict[str, tuple[float, float]]] = {}  # phase -> flavor -> median, 95th percentile
    review_at: float | None = None  # when it should be seen again whether waiting for a better flavor pays
    scaling: dict[str, tuple[int, int, float]] = {}  # flavor -> GPUs, CPUs and time of the last scaling hint
    scaled_at: float = -1.0  # when scaling was looked at last
    scale_at: float | None = None  # when it should be again at the latest
    retry_at: dict[int, float] = {}  # phase -> when a held one is tried again
    rejections: dict[int, int] = {}
    leases: dict[int, Lease] = {}
    leased_on: dict[int, set[int]] = {}  # node -> phases that have a lease there
    decisions: dict[int, int] = {}  # open decision -> phase (grants) or -1 - task (preloads)

    # --- questions ---

    def is_done(self, task: int) -> bool:
        """Finished in a way that lets its children run."""
        first, end = self.first_phase[task], self.first_phase[task + 1]
        if task in self.stopping:
            return False
        return all(status in (SUCCEEDED, SKIPPED) for status in self.status[first:end])

    def phases_of(self, task: int) -> range:
        return range(self.first_phase[task], self.first_phase[task + 1])

    def shape_of(self, phase: int) -> Shape:
        """What the phase needs."""
        return self.shapes[self.shape[phase]]

    def submission_of(self, task: int) -> int:
        """The number of the submission that the task belongs to."""
        return self.workloads[self.task_workload[task]].submission

    def options_of(self, task: int) -> TaskOptions:
        return self.options.get(task, DEFAULT_OPTIONS)

    def pause_of(self, task: int) -> Pause | None:
        """The pause that keeps the task from starting anything: its workload's, its stage's or its own."""
        workload = self.workloads[self.task_workload[task]].id
        stage = self.options_of(task).stage
        for key in (f"workload:{workload}", f"stage:{workload}/{stage}", f"task:{task}"):
            if key in self.pauses:
                return self.pauses[key]
        return None

    def deadline_of(self, task: int) -> float | None:
        """When the task should have ended: by its own deadline or its workload's, whichever is sooner."""
        workload = self.workloads[self.task_workload[task]]
        stated = [s for s in (self.workload_deadline_s(task), self.options_of(task).deadline_s) if s is not None]
        return workload.submitted_at + min(stated) if stated else None

    def workload_deadline_s(self, task: int) -> float | None:
        """The deadline of the task's workload, or what its queue says for those that state none."""
        stated = self.workloads[self.task_workload[task]].deadline_s
        number = self.queue_of(task) if stated is None else NO_QUEUE
        return stated if number == NO_QUEUE else self.queues[number].spec.deadline_s

    def is_job(self, task: int) -> bool:
        """Whether nothing waits for the task and it is, alone or with its gang, all that its workload consists of,
        which is no part of a larger submission."""
        if self.children[task] or self.submissions[self.submission_of(task)].id:
            return False
        size = len(self.workloads[self.task_workload[task]].numbers)
        gang = self.gang_of.get(task) if size > 1 and self.gang_of else None
        return size == (1 if gang is None else len(self.gangs[gang].members))

    def warm_key_of(self, task: int) -> str:
        options = self.options.get(task)
        return options.warm_key if options is not None else ""

    def needs_slot(self, task: int) -> bool:
        """Whether the task has a process slot of its node from its start to its end: it has a warm key, or a process
        that waits between two phases for what the second one needs."""
        first, end = self.first_phase[task], self.first_phase[task + 1]
        if task in self.options and self.options[task].warm_key:
            return True
        if end - first == 1:
            return False
        for number in self.shape[first + 1 : end]:
            shape = self.shapes[number]
            if shape.gpu_milli or shape.cpu_milli or shape.memory_bytes:
                return True
        return False

    def memory_of(self, task: int) -> int:
        """Bytes of host memory that the task states, the most of all its phases: its process keeps it between them."""
        shapes = self.shape[self.first_phase[task] : self.first_phase[task + 1]]
        return max([self.shapes[shape].memory_bytes for shape in shapes])

    def is_first_phase(self, phase: int) -> bool:
        return self.first_phase[self.task_of[phase]] == phase

    def workload_number(self, workload_id: str) -> int:
        """Raises KeyError for an unknown one."""
        return self.workload_numbers[workload_id]

    def queue_of(self, task: int) -> int:
        """The number of the queue that the task's workload is in; NO_QUEUE when none of that name is configured."""
        if not self.queues:
            return NO_QUEUE
        return self.queue_numbers.get(self.workloads[self.task_workload[task]].queue, NO_QUEUE)

    def capacity(self) -> Amounts:
        """What all nodes that are there offer."""
        alive = [node for node in self.nodes if node.alive]
        memory = sum(max(node.memory_bytes, 0) for node in alive)
        return sum(n.cpu_milli for n in alive), sum(n.gpus for n in alive) * 1000, memory
