"""`@egs_kubeflow.component`: a kfp component that carries EGS's hints and records what it took.

    @component(base_image="python:3.12", gpus=1, gpu_memory="20GiB", max_runtime="2h")
    def train(data: Input[Dataset], epochs: int) -> float:
        ...

It takes all that `@kfp.dsl.component` takes. In a pipeline each of its tasks gets the resources and the limit of the
hints, and an annotation with all of them; what a pipeline's author then sets on a task goes before. A function made by
`egs.phases`, or one with a `with egs.gpu():` block, becomes a small pipeline: see `phases` and `block`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kfp import compiler, dsl

from egs_core.errors import InputError
from egs_core.graph.places import did_you_mean
from egs_core.hints import HINT_NAMES, TaskHints, has_gpu_block, hints_of, phase_steps, task
from egs_kubeflow import compat
from egs_kubeflow.components.phases import check_sees_blocks, graph_of, parts_of
from egs_kubeflow.convert.hints import ANNOTATION, encode_hints

HINTS = HINT_NAMES - {"name"}
"""The arguments of `egs.task`, but for the name, which is the function's in kfp; all others are kfp's."""

ACCELERATOR = "nvidia.com/gpu"
RECORDER = (Path(__file__).parent / "recorder.py").read_text()
_RUN_RECORDER = ["python3", "-IS", "-c", RECORDER]


class Component(compat.python_component()):  # type: ignore[misc]  # kfp ships no types
    """A kfp component whose tasks carry hints."""

    def __init__(self, component: Any, hints: TaskHints) -> None:
        super().__init__(component.component_spec, component.python_func)
        self.hints = hints

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """A task of a pipeline, or outside of one a local run, as kfp has it."""
        made = super().__call__(*args, **kwargs)
        if compat.in_pipeline():
            apply_hints(made, self.hints)
        return made


def component(function: Any = None, /, *, record: bool = True, **arguments: Any) -> Any:
    """Make a function a kfp component. arguments: of `@kfp.dsl.component`, and hints as `egs.task` takes them.

    record: note start, end, exit code, peak memory and GPU use, in a line of its output and the pod's termination
    message; it becomes part of the cache key. Raises InputError for an argument that is neither, a wrong hint, and for
    what cannot be split.
    """
    _check_names(arguments)
    if function is None:
        return lambda decorated: component(decorated, record=record, **arguments)
    hints = {name: arguments.pop(name) for name in [*arguments] if name in HINTS}
    function = task(**hints)(function) if hints or hints_of(function) is None else function
    return _made(function, record, arguments)


def _check_names(arguments: dict[str, Any]) -> None:
    known = [*sorted(HINTS), *inspect.signature(dsl.component).parameters]
    for name in arguments:
        if name not in known:
            hint = (
                did_you_mean(name, known)
                or "it takes the arguments of kfp's component and, but for `name`, of egs.task"
            )
            raise InputError(f"@egs_kubeflow.component: {name}", "unknown argument", hint)


def _made(function: Callable[..., Any], record: bool, arguments: dict[str, Any]) -> Any:
    hints = hints_of(function) or TaskHints()
    output = arguments.pop("output_component_file", None)
    if phase_steps(function) or has_gpu_block(function):
        parts = parts_of(function, hints)
        made = _single(parts[0].function, record, arguments)
        if len(parts) > 1:
            made = graph_of(function, parts, [_single(part.function, record, arguments) for part in parts])
    else:
        check_sees_blocks(function)
        made = _single(function, record, arguments)
    if output is not None:
        compiler.Compiler().compile(made, str(output))
    return made


def _single(function: Callable[..., Any], record: bool, arguments: dict[str, Any]) -> Component:
    made = dsl.component(**arguments)(function)
    if record:
        container = compat.container_of(made)
        container.command = recorded(list(container.command))
    return Component(made, hints_of(function) or TaskHints())


def recorded(command: list[str]) -> list[str]:
    """The command with the recorder before the component's own part, after what installs its packages."""
    at = next((n - 1 for n, word in enumerate(command) if n and word == "-ec"), 0)
    return [*command[:at], *_RUN_RECORDER, *command[at:]]


def apply_hints(made: Any, hints: TaskHints) -> None:
    """What a task's hints mean to kfp and Kubernetes. A share of a GPU is a whole one there."""
    from kfp import kubernetes

    cpus = hints.gpu_cpus if hints.gpus and hints.gpu_cpus is not None else hints.cpus
    if cpus is not None:
        made.set_cpu_limit(f"{cpus:g}")
    if hints.memory_bytes is not None:
        made.set_memory_limit(f"{math.ceil(hints.memory_bytes / 2**20)}Mi")
    if hints.gpus:
        made.set_accelerator_type(ACCELERATOR).set_accelerator_limit(math.ceil(hints.gpus))
    if hints.max_runtime_s is not None:
        kubernetes.set_timeout(made, math.ceil(hints.max_runtime_s))
    if (text := encode_hints(hints)) != "{}":
        kubernetes.add_pod_annotation(made, ANNOTATION, text)
