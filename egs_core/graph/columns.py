"""The graph as columns: what the engine, the analysis and the simulator work on.

Tasks and phases are numbered; every column is a list indexed by that number. A million tasks are ordinary, so there is
no object per task: what only some tasks have (`TaskOptions`, files) sits in dictionaries keyed by task number.

    task     0          1                 2
    parents  ()         (0,)              (0, 1)
    phases   [0]        [1 cpu, 2 gpu, 3 cpu]   [4]
    phase_offsets = [0, 1, 4, 5]

A `Graph` is also the unit of growth: `TasksAdded` carries one whose parents may point at earlier tasks of the workload.
"""

from __future__ import annotations

from operator import attrgetter

import msgspec

CPU, GPU = 0, 1
KIND_NAMES = ("cpu", "gpu")

GIB = 1024**3
ON_LIMIT = ("", "fail", "requeue", "end")  # what becomes of a task at its limit; "": not stated, so it fails


class Shape(msgspec.Struct, frozen=True, array_like=True):
    """What one phase holds while it runs, in whole units so that sums are exact.

    cpu_milli and gpu_milli are thousandths (2.5 CPUs = 2500); a gpu_milli below 1000 is a share of one device,
    above it must be a multiple of 1000. gpu_memory_bytes is per device.
    """

    cpu_milli: int = 1000
    gpu_milli: int = 0
    memory_bytes: int = 0
    gpu_memory_bytes: int = 0


class Limits(msgspec.Struct, frozen=True, omit_defaults=True):
    """The most that a task, or all of a workload, may use; None: no limit. A workload has no idle_timeout_s, and always
    fails on its limit.

    on_limit: fail; requeue, to go on from its checkpoint with as much again, a few times; end: it has had what it
    asked for and counts as succeeded (a time-boxed interactive request). "": not stated.
    """

    max_runtime_s: float | None = None  # of one attempt
    max_gpu_s: float | None = None  # GPU seconds held, in all attempts
    max_cost: float | None = None
    idle_timeout_s: float | None = None
    on_limit: str = ""  # one of ON_LIMIT

    @property
    def stated(self) -> tuple[float | None, ...]:
        """The limits themselves, in the order of LIMITS."""
        found: tuple[float | None, ...] = _stated(self)
        return found

    @property
    def amounts(self) -> tuple[float | None, ...]:
        """Those that are used up: time, GPU time and cost, in this order."""
        return self.stated[:3]

    @property
    def is_none(self) -> bool:
        return self.stated == NOT_STATED


LIMITS = Limits.__struct_fields__[:-1]
"""The limits by name: all fields but what follows then."""
_stated = attrgetter(*LIMITS)
NOT_STATED = (None,) * len(LIMITS)


class TaskOptions(Limits, frozen=True, omit_defaults=True, kw_only=True):
    """What a task may carry beyond its phases; absent means default for most tasks of most workloads.

    warm_key names the set of things (modules, files, load functions) that make a process warm for this task; two
    tasks with the same key can use the same process. warmup_s is the expected time to get there from cold.
    """

    stage: str = ""
    priority: int = 0
    max_wait_s: float | None = None
    warm_key: str = ""
    warmup_s: float = 0.0
    warm_cpu_milli: int = 1000
    warm_memory_bytes: int = 0
    gang: str = ""
    retries: int = 0
    deadline_s: float | None = None  # after its workload's submission
    flavors: tuple[str, ...] = ()  # of hardware on which it may run; none named: any
    only_on: tuple[str, tuple[int, ...]] | None = None  # a node, and devices of it: on no others; None: on any
    may_restart: bool = True  # whether it may be stopped so that another one can start, to begin anew
    gang_same: str = ""  # level of the topology ("node", "rack" …) at which all members of its gang must be together
    gang_apart: str = ""  # the same, at which each member of its gang must be in a group of its own


DEFAULT_OPTIONS = TaskOptions()


class Graph(msgspec.Struct):
    """One workload's tasks (or a block of them), as columns. See the module's drawing."""

    ids: list[str] = []
    names: list[str] = []  # shown; tasks with one name are runs of the same code, and share what is learned of them
    parents: list[tuple[int, ...]] = []
    phase_offsets: list[int] = msgspec.field(default_factory=lambda: [0])  # len(ids) + 1 entries
    phase_kind: list[int] = []  # CPU or GPU
    phase_shape: list[int] = []  # index into shapes
    phase_duration_s: list[float | None] = []  # what the trace or hint states; None: unknown until run
    shapes: list[Shape] = []
    options: dict[int, TaskOptions] = {}
    file_ids: list[str] = []
    file_sizes: list[int] = []  # bytes
    inputs: dict[int, tuple[int, ...]] = {}  # task -> files read
    outputs: dict[int, tuple[int, ...]] = {}  # task -> files written
    phase_flavor_s: dict[int, dict[str, float]] = {}  # phase -> flavor -> seconds there, where it is known apart

    @property
    def n_tasks(self) -> int:
        return len(self.ids)

    @property
    def n_phases(self) -> int:
        return len(self.phase_kind)

    def phases_of(self, task: int) -> range:
        return range(self.phase_offsets[task], self.phase_offsets[task + 1])

    def options_of(self, task: int) -> TaskOptions:
        return self.options.get(task, DEFAULT_OPTIONS)

    def work_s(self, task: int) -> float:
        """Seconds of all phases of a task; unknown phases count as zero."""
        return sum(self.phase_duration_s[p] or 0.0 for p in self.phases_of(task))

    def add_task(
        self,
        task_id: str,
        parents: tuple[int, ...] = (),
        phases: tuple[tuple[int, Shape, float | None], ...] = ((CPU, Shape(), None),),
        name: str = "",
        options: TaskOptions | None = None,
    ) -> int:
        """Append a task with phases (kind, shape, seconds) and return its number. Checks nothing: see `validate`."""
        number = len(self.ids)
        self.ids.append(task_id)
        self.names.append(name or task_id)
        self.parents.append(parents)
        for kind, shape, seconds in phases:
            self.phase_kind.append(kind)
            self.phase_shape.append(self.intern_shape(shape))
            self.phase_duration_s.append(seconds)
        self.phase_offsets.append(len(self.phase_kind))
        if options is not None and options != DEFAULT_OPTIONS:
            self.options[number] = options
        return number

    def intern_shape(self, shape: Shape) -> int:
        """The index of an equal shape, added when new. Graphs have few shapes, so a scan is right."""
        try:
            return self.shapes.index(shape)
        except ValueError:
            self.shapes.append(shape)
            return len(self.shapes) - 1

    def children(self) -> list[list[int]]:
        """Successors of each task, in task order; computed, not stored."""
        out: list[list[int]] = [[] for _ in range(self.n_tasks)]
        for task, parents in enumerate(self.parents):
            for parent in parents:
                out[parent].append(task)
        return out

    def edge_bytes(self, parent: int, child: int) -> int:
        """Bytes of the files that `parent` writes and `child` reads."""
        written = self.outputs.get(parent, ())
        if not written:
            return 0
        read = set(self.inputs.get(child, ()))
        return sum(self.file_sizes[f] for f in written if f in read)
