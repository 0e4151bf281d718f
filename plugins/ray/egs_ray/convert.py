"""From a static Ray graph (`f.bind(...)`) to EGS's graph, and to what is needed to run it task by task.

    load.bind() ──► clean.bind(·) ──► fit.bind(·, lr=0.1)     graph.ids  load-0, clean-0, fit-0, fit-1
                                 └──► fit.bind(·, lr=0.2)     graph.parents  (), (0,), (1,), (1,)

Total: a node that a task graph cannot represent (actors, collectives) and a node hidden where it cannot be replaced
raise an InputError that names it; no edge is ever dropped. Nothing here needs a running Ray.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import ray
from ray.dag import (
    ClassMethodNode,
    ClassNode,
    DAGNode,
    FunctionNode,
    InputAttributeNode,
    InputNode,
    MultiOutputNode,
)

from egs_core.errors import InputError
from egs_core.graph.analysis import find_gang_cycle
from egs_core.graph.columns import Graph
from egs_core.hints import TaskHints, hints_of
from egs_ray import compat, functions
from egs_ray.conflicts import check_agreement
from egs_ray.payload import (
    Converted,
    Given,
    Payload,
    Produced,
    fill,
    first_of,
    graph_input,
    phases_of,
    rebuild,
    submit,
    task_options,
)


def convert(dag_node: DAGNode, name: str = "dag") -> Converted:
    """Convert a static graph, given its last node. Raises InputError for what a task graph cannot represent.

    Task ids are the function's name and a number in argument order, so they are the same in every run.
    """
    if not isinstance(dag_node, DAGNode):
        raise InputError(name, f"{type(dag_node).__name__} is not a Ray graph", "pass what .bind(...) returned")
    if not compat.available("dag"):
        raise InputError(name, f"the graphs of Ray {ray.__version__} do not show their functions", "use the Ray hook")
    conversion = _Conversion(name)
    for node in _in_order(dag_node):
        conversion.add(node)
    if not conversion.out.nodes:
        raise InputError(name, "has no task", "bind at least one remote function")
    if waiting := find_gang_cycle(conversion.out.graph):
        problem = f"tasks of gang {waiting[0]!r} wait for each other, so they cannot start together"
        raise InputError(name, problem, "a gang's tasks must not depend on each other")
    conversion.out.output = conversion.stand_ins[id(dag_node)]
    return conversion.out


def submit_all(converted: Converted, *args: Any, **kwargs: Any) -> Any:
    """Submit the whole graph to Ray in its order, without EGS; what `execute` would return, for any num_gpus."""
    given, results = graph_input(*args, **kwargs), list[Any]()
    for payload in converted.nodes:
        results.append(submit(payload, results, given))
    return fill(converted.output, results, given)


class _Conversion:
    """Adds nodes in topological order; stand_ins holds what replaces each node in the arguments of later ones."""

    def __init__(self, name: str) -> None:
        self.out = Converted(name=name, graph=Graph(), nodes=[], output=None)
        self.stand_ins: dict[int, Any] = {}
        self._counts: Counter[str] = Counter()
        self._remotes: dict[tuple[int, Any], Any] = {}

    def add(self, node: DAGNode) -> None:
        """Turn one node, whose upstream nodes were all added, into a task or a stand-in."""
        if isinstance(node, FunctionNode):
            self.stand_ins[id(node)] = self._add_task(node)
        elif isinstance(node, MultiOutputNode):
            self.stand_ins[id(node)] = self._replace(list(node.get_args()), [])
        elif isinstance(node, InputAttributeNode):
            parts = node.get_other_args_to_resolve()
            self.stand_ins[id(node)] = Given(accessor=parts["accessor_method"], key=parts["key"])
        elif isinstance(node, InputNode):
            self.stand_ins[id(node)] = Given()
        else:
            raise self._unsupported(node)

    def _add_task(self, node: FunctionNode) -> Produced:
        function, options = functions.function_of(node), node.get_options()
        task_id = self._next_id(getattr(function, "__name__", "task"))
        _check_returns(self._place(task_id), function, options.get("num_returns"))
        found: list[DAGNode] = []
        try:
            args = self._replace(tuple(node.get_args()), found)
            kwargs = self._replace(node.get_kwargs(), found)
        except RecursionError:
            raise InputError(self._place(task_id), "its arguments are nested too deeply, or in themselves") from None
        self._check_none_hidden(node, task_id, found)
        remote_function = self._remote(function, options.pop("max_calls", None))
        payload = Payload(task_id, function, remote_function, args, kwargs, options)
        self._describe(payload, _payloads_in([args, kwargs]))
        self.out.nodes.append(payload)
        return Produced(len(self.out.nodes) - 1)

    def _next_id(self, name: str) -> str:
        number = self._counts[name]
        self._counts[name] += 1
        return f"{name}-{number}"

    def _remote(self, function: Callable[..., Any], max_calls: int | None) -> Any:
        """One RemoteFunction a function: Ray exports each of them to the cluster."""
        key = (id(function), max_calls)
        if key not in self._remotes:
            decorate = ray.remote if max_calls is None else ray.remote(max_calls=max_calls)
            self._remotes[key] = decorate(function)
        return self._remotes[key]

    def _replace(self, value: Any, found: list[DAGNode]) -> Any:
        if isinstance(value, DAGNode):
            found.append(value)
            return self.stand_ins[id(value)]
        return rebuild(value, lambda item: self._replace(item, found))

    def _check_none_hidden(self, node: DAGNode, task_id: str, found: list[DAGNode]) -> None:
        replaced = {id(other) for other in found}
        for other in functions.upstream_of(node):
            if id(other) not in replaced:
                problem = f"{_label(other)} is hidden inside an object among its arguments"
                hint = "pass it as an argument, or in a list, tuple, set or dict"
                raise InputError(self._place(task_id), problem, hint)

    def _describe(self, payload: Payload, parents: tuple[int, ...]) -> None:
        """Add the payload's task to the graph: its phases and their shapes, and what the hints say."""
        options, hints = payload.options, hints_of(payload.function) or TaskHints()
        check_agreement(self._place(payload.task_id), hints, options)
        payload.cpus = first_of(options.get("num_cpus"), hints.cpus, 1.0)
        payload.gpus = first_of(options.get("num_gpus"), hints.gpus, 0.0)
        payload.memory_bytes = int(first_of(options.get("memory"), hints.memory_bytes, 0))
        if payload.gpus > 1 and not float(payload.gpus).is_integer():
            problem = f"num_gpus={payload.gpus:g} cannot be given"
            raise InputError(self._place(payload.task_id), problem, "a share of one GPU (below 1) or a whole number")
        self.out.graph.add_task(
            payload.task_id,
            parents,
            phases_of(payload, hints),
            name=hints.name or payload.task_id.rpartition("-")[0],
            options=task_options(hints, has_prices=True),  # whoever applies it knows the prices
        )

    def _place(self, task_id: str) -> str:
        return f"{self.out.name}: {task_id}" if task_id else self.out.name

    def _unsupported(self, node: DAGNode) -> InputError:
        if isinstance(node, ClassNode | ClassMethodNode):
            problem = f"{_label(node)} holds its resources for its whole life, which a graph of tasks cannot say"
            return InputError(self.out.name, problem, "create the actor yourself and let the Ray hook observe it")
        return InputError(self.out.name, f"{_label(node)} is no task", "only remote functions and inputs convert")


def _in_order(root: DAGNode) -> Iterable[DAGNode]:
    """Every node once, each after its upstream nodes, in the order of the arguments. Not recursive: chains are long."""
    done: set[int] = set()
    stack: list[tuple[DAGNode, bool]] = [(root, False)]
    while stack:
        node, expanded = stack.pop()
        if id(node) in done:
            continue
        if expanded:
            done.add(id(node))
            yield node
        else:
            stack.append((node, True))
            stack.extend((other, False) for other in reversed(functions.upstream_of(node)) if id(other) not in done)


def _payloads_in(value: Any) -> tuple[int, ...]:
    """The payloads that stand-ins in a value point at: each once, in order."""
    found: dict[int, None] = {}

    def note(item: Any) -> Any:
        if type(item) is Produced:
            found[item.payload] = None
            return item
        return rebuild(item, note)

    note(value)
    return tuple(found)


def _check_returns(place: str, function: Callable[..., Any], num_returns: Any) -> None:
    """A task of a graph has a fixed number of values, at least one: others wait for them by number."""
    if inspect.isgeneratorfunction(function):
        raise InputError(place, "is a generator: how many values it yields is not known", "return a list")
    if num_returns is not None and (not isinstance(num_returns, int) or num_returns < 1):
        raise InputError(place, f"num_returns={num_returns!r} gives nothing to wait for", "a number of one or more")


def _label(node: Any) -> str:
    if isinstance(node, ClassMethodNode):
        return f"actor method '{node.get_method_name()}'"
    body = vars(node).get("_body")  # not getattr: some nodes answer to any name
    kind = "actor" if isinstance(node, ClassNode) else "task" if isinstance(node, FunctionNode) else type(node).__name__
    return f"{kind} '{getattr(body, '__name__', '?')}'" if body is not None else kind
