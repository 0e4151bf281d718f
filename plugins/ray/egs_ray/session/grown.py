"""The books of a script's submissions: how what arrives becomes tasks with edges, for the site and for this session.

What is submitted without a ticket is known to the site only where it waits for a task there, so that this one's
remaining path is known; it needs nothing of the site's capacity. What Ray waits for on other grounds (an actor's
method, a task of another driver) is taken in with the first task that takes its result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from egs_core.graph.columns import CPU, GPU, Graph, Shape, TaskOptions
from egs_ray.payload import Converted
from egs_ray.session.described import Described, Phases
from egs_ray.session.tasks import Job, RunBooks, Way
from egs_ray.settings import chosen_priority
from egs_ray.submission import Arrival, is_driver

NOTHING = Shape(0)
OUTSIDE = "outside"
NO_OPTIONS = TaskOptions()


class Grown(RunBooks):
    """The books of a program.

    numbers: a task's id, or an outside reference's, until it has ended -> its index. also: index -> a job that ends
    with it. markers: index of an actor that waits for its turn -> a job that ends with that wait. keeps_process:
    whether the process of a task with this warm key can serve another one. waits_inside: a task starts after those
    whose references are inside its arguments: it may wait for them with a GPU that they need, where a quota is less
    than the GPUs that there are.
    """

    def __init__(
        self, workload: str, name: str, keeps_process: Callable[[Job], bool], *, waits_inside: bool = False
    ) -> None:
        super().__init__(workload, Converted(name, Graph(), [], None), None)
        self.block = self.converted.graph
        self.numbers: dict[str, int] = {}
        self._streams: set[str] = set()  # tasks whose values are there before their ends: nobody waits for those
        self.also: dict[int, Job] = {}
        self.markers: dict[int, Job] = {}
        self.open: dict[int, Job] = {}  # by index
        self._keys: set[str] = set()
        self._priority = chosen_priority()[0]
        self._keeps_process, self._waits_inside = keeps_process, waits_inside

    @property
    def grows(self) -> bool:
        return True

    @property
    def unfinished(self) -> Iterable[Job]:
        return list(self.open.values())

    def take_in(
        self, arrival: Arrival, described: Described | None, block: Graph, after: Iterable[int] = ()
    ) -> list[tuple[Job, str]]:
        """Append what was submitted to the block for the site. The tasks whose ends are to be heard of, each with the
        id of its reference; none where it has no ticket and waits for nothing that is known: it is nobody's concern.
        after: what it must not overtake, besides what it waits for.
        """
        new: list[tuple[Job, str]] = []
        known = [self._waited_for(task) for task in arrival.nested]
        nested = tuple(dict.fromkeys(number for number in known if number is not None))
        if arrival.key:
            parents = [self._producer(*named, block, new) for named in arrival.direct if not is_driver(named[1])]
            kind, shape = Way.TICKET, Shape(0, max(1, round(arrival.needs.gpus * 1000)))
            if self._waits_inside:
                parents, nested = parents + list(nested), ()
        else:
            found = (self._waited_for(task) for _, task in arrival.direct)
            parents = [number for number in found if number is not None] + list(nested)
            kind, shape, nested = Way.OUTSIDE, NOTHING, ()
            if not parents:
                return new
        parents += after
        name = arrival.needs.name
        said_s = described.expected_s if arrival.seconds is None and described is not None else arrival.seconds
        phases: Phases = ((GPU if shape.gpu_milli else CPU, shape, said_s),)
        if described is not None and described.is_shell:
            kind, phases = Way.SHELL, described.phases
        elif described is not None and described.is_actor:
            kind, phases, nested = Way.ACTOR, described.phases, ()
            name = name.removesuffix(".__init__").rpartition(".")[2]
        elif described is not None and described.is_group:
            kind, phases = Way.GROUP, described.phases
        job = self._append(block, kind, arrival.task_id, parents, phases, name, described)
        job.ticket, job.framework_id = arrival.key, arrival.task_id
        self.numbers[arrival.task_id] = job.index
        if arrival.streams:
            self._streams.add(arrival.task_id)
        new.append((job, arrival.task_id))
        if kind is Way.ACTOR:
            self.markers[job.index] = self._append(
                block, Way.OUTSIDE, f"{arrival.task_id}+", (), ((CPU, NOTHING, 0.0),), name
            )
        if nested:
            # Ray does not wait for these, so nothing here must; but they are worth as much as the path through here.
            phases = ((CPU, NOTHING, arrival.seconds),)
            self.also[job.index] = self._append(block, Way.OUTSIDE, f"{arrival.task_id}*", nested, phases, name)
        return new

    def release_parents(self, index: int) -> None:
        """Task `index` has ended."""
        self.open.pop(index, None)
        self.results.pop(index, None)
        self.converted.nodes[index] = None  # type: ignore[call-overload]  # its function and arguments may go

    def forget(self, task_id: str) -> None:
        """Nothing that is submitted from now on waits for this task, or outside reference."""
        self.numbers.pop(task_id, None)
        self._streams.discard(task_id)

    def number_of(self, task: str) -> int:
        """The site's, of a task by Ray's id; below 0 for one that nobody orders, or that has ended."""
        index = self.numbers.get(task)
        return -1 if index is None else self.jobs[index].number

    def _waited_for(self, task: str) -> int | None:
        """The index of the task for whose end somebody waits who takes its value."""
        return None if task in self._streams else self.numbers.get(task)

    def _producer(self, reference: str, task: str, block: Graph, new: list[tuple[Job, str]]) -> int:
        """The index of what makes this argument; something outside is taken in for it."""
        found = self._waited_for(task)
        if found is None:
            found = self.numbers.get(reference)
        if found is None:
            job = self._append(block, Way.OUTSIDE, reference, (), ((CPU, NOTHING, 0.0),), OUTSIDE)
            found = self.numbers[reference] = job.index
            new.append((job, reference))
        return found

    def _append(
        self,
        block: Graph,
        way: Way,
        task_id: str,
        parents: Iterable[int],
        phases: Phases,
        name: str,
        described: Described | None = None,
    ) -> Job:
        """One task more; what follows from a parent follows from all that ends with it."""
        after = dict.fromkeys(parents)
        after.update(dict.fromkeys(self.also[parent].index for parent in tuple(after) if parent in self.also))
        options = NO_OPTIONS if described is None else described.options
        if self._priority and not options.priority:
            options = msgspec.structs.replace(options, priority=self._priority)
        job = Job(self, len(self.jobs), -1, way)
        job.gpus = max(shape.gpu_milli for _, shape, _ in phases) / 1000
        self.converted.graph.add_task(task_id, tuple(after), phases, name, options)
        self.converted.nodes.append(None if described is None else described.payload)  # type: ignore[arg-type]  # for shells
        self.jobs.append(job)
        self.open[job.index] = job
        self.children.append([])
        for parent in after:
            self.children[parent].append(job.index)
        if (key := options.warm_key) in self._keys:
            self.shared_keys.add(key)
        elif key:
            self._keys.add(key)
        if key and not self._keeps_process(job):
            options = msgspec.structs.replace(options, warm_key=f"{key}#{task_id}")
        block.add_task(task_id, tuple(after), phases, name, options)
        return job
