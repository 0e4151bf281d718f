"""A compiled pipeline's nested DAGs as one list of tasks, parents first.

    root:  load ─► for-loop-1 [ train ─► test ] ─► report          load, for-loop-1.train, for-loop-1.test, report

A DAG waits for what its task waits for, and whoever waits for a DAG waits for the last tasks in it. A task that is
written in a DAG which several tasks run is there several times. Where more than MOST_ENDS tasks would be waited for,
one task that does nothing stands between, so that edges stay few.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from typing import Any

import msgspec

from egs_core.errors import InputError
from egs_core.graph.places import did_you_mean, join
from egs_kubeflow.convert.documents import Spec, as_plain
from egs_kubeflow.convert.values import Scope

MOST_TASKS = 100_000
MOST_EDGES = 2_000_000
MOST_LEVELS = 30
MOST_ENDS = 64

COMPLETED = 2  # TriggerPolicy.strategy: ALL_UPSTREAM_TASKS_COMPLETED


class Loop(msgspec.Struct, frozen=True):
    """A loop around a task. width: how many iterations, None where it is known at run time only; parallel: how many
    of them at once, 0 for all; defaulted: the pipeline's parameters whose defaults decide the width."""

    task: str
    width: int | None
    parallel: int = 0
    defaulted: tuple[str, ...] = ()


class Around(msgspec.Struct, frozen=True):
    """Where a task is: the component whose DAG it is written in ("" for the root), the path of tasks that leads to
    that DAG, its loops, outermost first, and the conditions under which it runs. waits: for what its DAG waits."""

    component: str
    path: tuple[str, ...]
    loops: tuple[Loop, ...]
    conditions: tuple[str, ...]
    components: tuple[str, ...]
    waits: tuple[int, ...]
    after_failure: bool


class FlatTask(msgspec.Struct, frozen=True):
    """One task that is no DAG. spec: its PipelineTaskSpec; parents: numbers of earlier ones; scope: its inputs.

    after_failure: it runs when its parents have ended, however they did. join: it is not in the pipeline, and nothing.
    """

    name: str
    parents: tuple[int, ...]
    around: Around
    after_failure: bool = False
    conditions: tuple[str, ...] = ()
    component_name: str = ""
    component: Any = None
    spec: Any = None
    scope: Scope | None = None
    join: bool = False

    @property
    def id(self) -> str:
        """The path of task names, as in the names of a run's pods."""
        return ".".join((*self.around.path, self.name))


class Flattener:
    """Collects the tasks of one pipeline."""

    def __init__(self, spec: Spec, place: str) -> None:
        self._spec, self._place = spec, place
        self._tasks: list[FlatTask] = []
        self._seen = self._edges = 0
        self._orders: dict[str, list[tuple[str, tuple[str, ...]]]] = {}

    def flatten(self, scope: Scope) -> list[FlatTask]:
        """The tasks. Raises InputError that names the task for a cycle, a missing component, or too many of them."""
        self._dag(self._spec.pipeline.root, Around("", (), (), (), (), (), False), scope)
        return self._tasks

    def _dag(self, component: Any, around: Around, scope: Scope) -> tuple[int, ...]:
        """Add the tasks of a DAG; returns those that nothing else in it waits for."""
        ends: dict[str, tuple[int, ...]] = {}
        inner: set[str] = set()
        for name, links in self._order(component, around):
            self._seen += 1
            if self._seen > MOST_TASKS:
                raise InputError(self._place, f"has more than {MOST_TASKS:,} tasks", "DAGs that are used many times?")
            waits = tuple(sorted({end for link in links for end in ends[link]})) if links else around.waits
            inner.update(links)
            ends[name] = self._task(name, component.dag.tasks[name], around, waits, scope, first=not links)
        return tuple(sorted({end for name, found in ends.items() if name not in inner for end in found}))

    def _task(
        self, name: str, task: Any, around: Around, waits: tuple[int, ...], scope: Scope, first: bool
    ) -> tuple[int, ...]:
        component_name = task.component_ref.name
        component = self._component(component_name, name, around)
        inputs = Scope(component, task, scope)
        policy = task.trigger_policy
        after_failure = policy.strategy == COMPLETED or (first and around.after_failure)
        conditions = (*around.conditions, policy.condition) if policy.condition else around.conditions
        if component.WhichOneof("implementation") != "dag":
            flat = FlatTask(name, waits, around, after_failure, conditions, component_name, component, task, inputs)
            return (self._add(flat),)
        inside = Around(
            component_name,
            (*around.path, name),
            (*around.loops, *_loop(name, task, inputs)),
            conditions,
            (*around.components, component_name),
            self._few(waits, around, f"{name}.begin"),
            after_failure,
        )
        return self._few(self._dag(component, inside, inputs), around, f"{name}.end")

    def _few(self, numbers: tuple[int, ...], around: Around, name: str) -> tuple[int, ...]:
        return numbers if len(numbers) <= MOST_ENDS else (self._add(FlatTask(name, numbers, around, join=True)),)

    def _add(self, task: FlatTask) -> int:
        self._edges += len(task.parents)
        if self._edges > MOST_EDGES:
            raise InputError(self._place, f"has more than {MOST_EDGES:,} edges", "DAGs that are used many times?")
        self._tasks.append(task)
        return len(self._tasks) - 1

    def _component(self, name: str, task: str, around: Around) -> Any:
        place = self._where(task, around)
        components = self._spec.pipeline.components
        if name not in components:
            raise InputError(place, f"there is no component {name!r}", did_you_mean(name, list(components)))
        if name in around.components:
            raise InputError(place, f"component {name!r} contains itself")
        if len(around.components) >= MOST_LEVELS:
            raise InputError(place, f"is nested more than {MOST_LEVELS} levels deep")
        return components[name]

    def _order(self, component: Any, around: Around) -> list[tuple[str, tuple[str, ...]]]:
        """The tasks of a DAG with what each waits for, in an order in which that comes first; else as written."""
        if around.component not in self._orders:
            tasks = component.dag.tasks
            if not tasks:
                where = join(self._place, around.component or "root")
                raise InputError(where, "has a DAG without tasks", "a pipeline has at least one task")
            links = {name: self._links(name, tasks, around) for name in sorted(tasks)}
            self._orders[around.component] = [(name, links[name]) for name in self._sorted(links, around)]
        return self._orders[around.component]

    def _links(self, name: str, tasks: Any, around: Around) -> tuple[str, ...]:
        """All links of a task: the backend and kfp.local see different ones where a compiler left some out."""
        task = tasks[name]
        component = self._spec.pipeline.components.get(task.component_ref.name)
        label = component.executor_label if component is not None else ""
        found = dict.fromkeys([*task.dependent_tasks, *_producers(task), *_named(self._spec.kubernetes.get(label))])
        for producer in found:
            if producer not in tasks:
                place = self._where(name, around)
                raise InputError(place, f"waits for {producer!r}, which is not there", did_you_mean(producer, tasks))
        return tuple(sorted(found))

    def _sorted(self, links: dict[str, tuple[str, ...]], around: Around) -> list[str]:
        try:
            return list(TopologicalSorter(links).static_order())
        except CycleError as error:
            stuck = error.args[1][0]
            raise InputError(self._where(stuck, around), "waits for itself", "a DAG has no cycle") from None

    def _where(self, task: str, around: Around) -> str:
        return join(self._place, f"task {'.'.join((*around.path, task))!r}")


def _producers(task: Any) -> Iterator[str]:
    """The tasks whose results or final status a task's inputs are."""
    for parameter in task.inputs.parameters.values():
        kind = parameter.WhichOneof("kind")
        if kind in ("task_output_parameter", "task_final_status"):
            yield getattr(parameter, kind).producer_task
    for artifact in task.inputs.artifacts.values():
        if artifact.WhichOneof("kind") == "task_output_artifact":
            yield artifact.task_output_artifact.producer_task


def _named(config: Any) -> Iterable[str]:
    """The tasks whose results an executor's configuration on the platform uses: the name of a volume, say."""
    return [] if config is None else _producers_in(as_plain(config))


def _producers_in(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "taskOutputParameter" and isinstance(inner, dict) and "producerTask" in inner:
                yield inner["producerTask"]
            else:
                yield from _producers_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _producers_in(inner)


def _loop(name: str, task: Any, inputs: Scope) -> tuple[Loop, ...]:
    kind = task.WhichOneof("iterator")
    if kind is None:
        return ()
    over_values = kind == "parameter_iterator"
    width = inputs.width() if over_values else None
    defaulted = tuple(sorted(inputs.defaults_of_items())) if over_values and width is not None else ()
    return (Loop(name, width, max(0, task.iterator_policy.parallelism_limit), defaulted),)
