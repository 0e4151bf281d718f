"""What is needed to run one task of a converted graph: its function, its options, and arguments with stand-ins.

Without `ray.dag`, for which each driver under the hook would wait. Its import at the wrong time is seen from outside,
too: after an unhandled Ctrl-C CPython ends a process by SIGINT, unless a string of code is executed in between. Ray's
shutdown imports `ray.dag`, whose dataclasses do that, so Ray's drivers exit with 1; those that had it already do not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from egs_core.adapter import options_of_hints
from egs_core.graph.columns import CPU, GPU, Graph, Shape, TaskOptions
from egs_core.hints import OnGpu, TaskHints, phase_kinds, phase_steps, warm_key

PRIOR_WARMUP_S = 2.0
"""What starting a process and importing takes before anything was measured; see the first predictor's priors."""


class Produced(msgspec.Struct, frozen=True):
    """Stands in a payload's arguments for what another payload returns (as Ray would pass it: a reference)."""

    payload: int


class Given(msgspec.Struct, frozen=True):
    """Stands for the graph's input (InputNode), or, with an accessor, for a part of it (InputAttributeNode)."""

    accessor: str = ""  # "", "__getitem__" or "__getattr__"
    key: int | str = ""


RAYS_CPUS = 1.0
"""Of a task that states none."""


class Payload(msgspec.Struct):
    """What one task of the graph runs: `remote_function.options(**options).remote(*args, **kwargs)` after `fill`.

    options are the user's, verbatim, except that a max_calls (only allowed in the decorator) sits in remote_function.
    cpus, gpus, memory_bytes: what the whole task holds, from the options, else from the hints, else Ray's defaults.
    """

    task_id: str
    function: Callable[..., Any]
    remote_function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    options: dict[str, Any]
    cpus: float = RAYS_CPUS
    gpus: float = 0.0
    memory_bytes: int = 0

    @property
    def all_options(self) -> dict[str, Any]:
        """The options, and with them what only the hints declare (`egs.task(gpus=1)`), for the whole task."""
        told = {"num_cpus": self.cpus, "num_gpus": self.gpus, "memory": self.memory_bytes}
        natively = {"num_cpus": RAYS_CPUS, "num_gpus": 0, "memory": 0}
        needs = {name: told[name] for name, usual in natively.items() if told[name] != usual}
        return {**self.options, **{name: one for name, one in needs.items() if self.options.get(name) is None}}


class Converted(msgspec.Struct):
    """nodes[i] is the payload of task i of the graph; parents come before children. output: what `execute` returns."""

    name: str
    graph: Graph
    nodes: list[Payload]
    output: Any  # Produced, or a list of them (MultiOutputNode)


def fill(value: Any, results: Sequence[Any] | Mapping[int, Any], given: Any = None) -> Any:
    """Arguments with every stand-in replaced: by `results[payload]`, or from `given`, the value of `graph_input`."""
    if type(value) is Produced:
        return results[value.payload]
    if type(value) is Given:
        return _part_of(given, value)
    return rebuild(value, lambda item: fill(item, results, given))


def graph_input(*args: Any, **kwargs: Any) -> Any:
    """What InputNode stands for when the graph is called with these arguments: as `DAGNode.execute` has it."""
    if len(args) == 1 and not kwargs:
        return args[0]
    from ray.dag import DAGInputData

    return DAGInputData(*args, **kwargs)


def submit(payload: Payload, results: Sequence[Any] | Mapping[int, Any], given: Any = None) -> Any:
    """Submit one payload to Ray as it was bound, with needs that only hints declare; `results` has what its parents'
    submissions returned."""
    remote_function, options = payload.remote_function, payload.all_options
    if options:
        remote_function = remote_function.options(**options)
    kwargs = {key: fill(value, results, given) for key, value in payload.kwargs.items()}
    return remote_function.remote(*(fill(value, results, given) for value in payload.args), **kwargs)


def phases_of(payload: Payload, hints: TaskHints) -> tuple[tuple[int, Shape, float | None], ...]:
    """Kind, needs and expected seconds of each phase of a task."""
    kinds = phase_kinds(payload.function, payload.options.get("num_gpus"))
    steps = phase_steps(payload.function)
    expected = hints.expect_s if len(hints.expect_s) == len(kinds) else (None,) * len(kinds)
    out: list[tuple[int, Shape, float | None]] = []
    for number, kind in enumerate(kinds):
        if kind == "cpu":
            out.append((CPU, Shape(_milli(payload.cpus), memory_bytes=payload.memory_bytes), expected[number]))
            continue
        step = steps[number] if len(steps) == len(kinds) else None
        cpus = first_of(step.cpus if isinstance(step, OnGpu) else None, hints.gpu_cpus, payload.cpus)
        gpus = payload.gpus or 1.0  # code that asks for a GPU without saying how many means one
        shape = Shape(_milli(cpus), _milli(gpus), payload.memory_bytes, hints.gpu_memory_bytes or 0)
        out.append((GPU, shape, expected[number]))
    return tuple(out)


def task_options(hints: TaskHints, *, has_prices: bool = False) -> TaskOptions:
    """What the engine is told. has_prices: see `options_of_hints`."""
    key = warm_key(hints)
    return options_of_hints(
        hints,
        has_prices=has_prices,
        warm_key=key,
        warmup_s=PRIOR_WARMUP_S if key else 0.0,
        warm_cpu_milli=0,  # num_cpus is logical; how many load at once is bounded by the real cores instead
        retries=0,  # Ray retries by itself, as its max_retries says
    )


def rebuild(value: Any, replace: Callable[[Any], Any]) -> Any:
    """The container with its items replaced; the same object when none changed, or when it is no plain container."""
    if type(value) is dict:
        new: Any = {replace(key): replace(item) for key, item in value.items()}
        return value if all(key in new and new[key] is item for key, item in value.items()) else new
    if type(value) in (list, tuple, set, frozenset) or (isinstance(value, tuple) and hasattr(value, "_fields")):
        items = [replace(item) for item in value]
        if all(a is b for a, b in zip(value, items, strict=True)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def _part_of(given: Any, part: Given) -> Any:
    if not part.accessor:
        return given
    if part.accessor == "__getattr__":
        from ray.dag import DAGInputData

        if not isinstance(given, DAGInputData):
            return getattr(given, str(part.key))
    return given[part.key]


def _milli(amount: float) -> int:
    return round(amount * 1000)


def first_of(*values: float | None) -> float:
    """The first that is stated; the last has to be."""
    return next(value for value in values if value is not None)
