"""A task with CPU and GPU phases as a small pipeline, so that a GPU is held in its GPU phases only.

    train = component(egs.task(gpus=1)(egs.phases(decode, egs.on_gpu(fit), write, name="train")))

    in a pipeline:  train(path=…)     decode ──egs_state──► fit ──egs_state──► write        in the DAG "train"
                                      CPU                   GPU                CPU

What one phase hands on is an artifact, written with pickle: values must be such that pickle takes them, and the images
of the phases such that they read them. Parameters and artifacts of the function go to the phases that use them.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, get_args, get_type_hints

from kfp import dsl
from kfp.dsl import Artifact, Input, Output

from egs_core.errors import InputError
from egs_core.hints import OnGpu, PhaseKind, TaskHints, has_gpu_block, phase_kinds, phase_steps
from egs_core.splitting.block import cpus_of, cut, handed_on, without_blocks
from egs_core.splitting.lost_state import warn_of_lost_state
from egs_core.splitting.names import names_in
from egs_core.splitting.own_imports import blocks_that_import, without_unused
from egs_core.splitting.source import Source, source_of
from egs_kubeflow import compat
from egs_kubeflow.components.source import bare, make_function

STATE_IN, STATE_OUT = "egs_state", "egs_state_out"
_LOAD = f"with open({STATE_IN}.path, 'rb') as egs_file:\n    egs_values = pickle.load(egs_file)"
_SAVE = f"with open({STATE_OUT}.path, 'wb') as egs_file:\n    pickle.dump(egs_values, egs_file)"


@dataclass(frozen=True)
class Part:
    """One phase as a function that kfp can compile; which of the whole's inputs it takes; whether it also takes what
    the phase before it hands on."""

    function: Callable[..., Any]
    inputs: tuple[str, ...]
    takes_state: bool


@dataclass(frozen=True)
class _Cut:
    """A function in pieces, before they are functions. first, last: whose parameters and result the whole has. written:
    the statements of each piece as their author wrote them, and where."""

    names: list[str]
    bodies: list[list[ast.stmt]]
    first: Source
    last: Source
    written: list[tuple[Source, list[ast.stmt]]]
    gpu_cpus: float | None = None

    @property
    def parameters(self) -> dict[str, ast.arg]:
        arguments = self.first.tree.args
        return {argument.arg: argument for argument in [*arguments.args, *arguments.kwonlyargs]}

    def merged(self, name: str) -> _Cut:
        """The same in one piece."""
        return replace(self, names=[name], bodies=[[statement for body in self.bodies for statement in body]])


def parts_of(function: Callable[..., Any], hints: TaskHints) -> list[Part]:
    """The phases of a function made by `egs.phases`, or of one with a `with egs.gpu():` block; one part where it is not
    to be split. Raises InputError that names the line which cannot be cut."""
    kinds = phase_kinds(function)
    whole = _steps(function) if phase_steps(function) else _block(function, is_split=len(kinds) > 1)
    if len(kinds) != len(whole.bodies):
        whole = whole.merged(function.__name__)
    if len(whole.bodies) > 1:
        warn_of_lost_state(whole.written)
    bodies, states = handed_on(whole.bodies, whole.first)
    parts, bound = [], set[str]()
    for number, (name, written) in enumerate(zip(whole.names, bodies, strict=True)):
        body = without_unused(written)  # `import egs_core` was for the block: the image need not have it
        before, after = states[number - 1] if number else [], states[number] if number < len(bodies) - 1 else None
        own, used = names_in(body)
        used = (own | used) - set(before) - bound  # what it binds, too: it may do so under a condition
        inputs = tuple(parameter for parameter in whole.parameters if parameter in used)
        made = _function(name, _text(name, body, inputs, before, after, whole), whole)
        made.__dict__["__egs__"] = _hints_of_phase(hints, number, kinds[number], whole.gpu_cpus)
        parts.append(Part(made, inputs, bool(before)))
        bound |= own
    _check_outputs(parts, whole)
    return parts


def check_sees_blocks(function: Callable[..., Any]) -> None:
    """Raise InputError that names the line of a GPU block that uses the function's own import of EGS, but in a way that
    cannot be cut: in a function of its own, under a name that something else binds, too."""
    try:
        source = source_of(function)
    except InputError:
        return  # kfp says what it thinks of that
    if (block := next(blocks_that_import(source.tree), None)) is not None:
        hint = "import egs_core once, at the function's own level, and write the block there"
        raise InputError(source.place(block), "is a GPU block that cannot be cut", hint)


def _steps(function: Callable[..., Any]) -> _Cut:
    """Each phase function as: its definition, and a call with what the one before gave."""
    steps = phase_steps(function)
    sources = [source_of(step.function if isinstance(step, OnGpu) else step) for step in steps]
    names: list[str] = []
    bodies: list[list[ast.stmt]] = []
    for number, source in enumerate(sources):
        if has_gpu_block(source.function):
            problem = "has a GPU block, and is a phase itself"
            raise InputError(source.place(source.tree), problem, "mark it with egs.on_gpu")
        own = source.tree.name
        given = "egs_value" if number else ", ".join(f"{p}={p}" for p in inspect.signature(function).parameters)
        call = f"return {own}({given})" if number == len(sources) - 1 else f"egs_value = {own}({given})"
        names.append(own if own not in names else f"{own}_{number + 1}")
        bodies.append([bare(source.tree), _statement(call)])
    cpus = next((step.cpus for step in steps if isinstance(step, OnGpu)), None)
    return _Cut(names, bodies, sources[0], sources[-1], [(source, source.tree.body) for source in sources], cpus)


def _block(function: Callable[..., Any], *, is_split: bool) -> _Cut:
    source = source_of(function)
    if not is_split:
        return _Cut([source.tree.name], [without_blocks(source)], source, source, [])
    names = [f"{source.tree.name}_{word}" for word in ("before", "gpu", "after")]
    bodies = list(cut(source))
    return _Cut(names, bodies, source, source, [(source, body) for body in bodies], cpus_of(source))


def _statement(text: str) -> ast.stmt:
    """One statement; `return` too, which no module may have."""
    found = ast.parse(f"def part():\n    {text}").body[0]
    assert isinstance(found, ast.FunctionDef)
    return found.body[0]


def _text(
    name: str,
    body: Sequence[ast.stmt],
    inputs: Sequence[str],
    before: Sequence[str],
    after: Sequence[str] | None,
    whole: _Cut,
) -> str:
    """The source of one part. before, after: the names that it gets and hands on; after is None for the last.

    Annotations are as their author wrote them: kfp copies them into the container, where its own names are known.
    """
    arguments = [f"{STATE_OUT}: Output[Artifact]"] if after is not None else []
    arguments += [f"{STATE_IN}: Input[Artifact]"] if before else []
    arguments += [ast.unparse(whole.parameters[parameter]) for parameter in inputs]
    lines = ["import pickle"]
    if before:
        lines += [_LOAD, *[f"if {n!r} in egs_values:\n    {n} = egs_values[{n!r}]" for n in before]]
    lines += map(ast.unparse, body)
    if after is not None:
        lines += [f"egs_values = {{n: v for n, v in locals().items() if n in {tuple(after)!r}}}", _SAVE]
    returns = whole.last.tree.returns
    arrow = f" -> {ast.unparse(returns)}" if after is None and returns is not None else ""
    indented = [f"    {line}" for line in "\n".join(lines).splitlines()]
    return "\n".join([f"def {name}({', '.join(arguments)}){arrow}:", *indented, ""])


def _function(name: str, text: str, whole: _Cut) -> Callable[..., Any]:
    known = {**whole.last.function.__globals__, **whole.first.function.__globals__}
    return make_function(
        name, text, {**known, "Artifact": Artifact, "Input": Input, "Output": Output}, whole.first.function
    )


def _hints_of_phase(hints: TaskHints, number: int, kind: PhaseKind, gpu_cpus: float | None) -> TaskHints:
    """The task's hints as they hold for one of its phases. Limits are the whole task's: no phase may pass them.

    A gang starts together phase by phase, so each phase has a gang of its own.
    """
    gang = f"{hints.gang}.{number}" if hints.gang else ""
    own = replace(hints, split=None, expect_s=hints.expect_s[number : number + 1], name="", gang=gang)
    if kind == "cpu":
        return replace(own, gpus=0.0, gpu_cpus=None, gpu_memory_bytes=None, max_gpu_s=None)
    return replace(own, gpus=hints.gpus or 1.0, gpu_cpus=hints.gpu_cpus if gpu_cpus is None else gpu_cpus)


# --- the pipeline -----------------------------------------------------------------------------------------------------


def graph_of(function: Callable[..., Any], parts: Sequence[Part], components: Sequence[Any]) -> Any:
    """The pipeline of the parts' components; it takes and gives what the function does."""
    signature = inspect.signature(function)
    outputs = {n: get_args(p.annotation)[0] for n, p in signature.parameters.items() if compat.is_output(p.annotation)}
    given = [parameter for name, parameter in signature.parameters.items() if name not in outputs]
    last = phase_steps(function)[-1] if phase_steps(function) else function
    returns = inspect.signature(last.function if isinstance(last, OnGpu) else last).return_annotation
    results_of_last = _results(returns)
    fields = [*outputs.items(), *results_of_last.items()]
    is_plain = not outputs and results_of_last.get("Output") is returns
    results: Any = NamedTuple("Outputs", fields)  # type: ignore[misc]  # its fields are the function's

    def build(*values: Any) -> Any:
        known, tasks, found = dict(zip([p.name for p in given], values, strict=True)), list[Any](), dict[str, Any]()
        for part, component in zip(parts, components, strict=True):
            arguments = {name: known[name] for name in part.inputs if name not in outputs}
            if part.takes_state:
                arguments[STATE_IN] = tasks[-1].outputs[STATE_OUT]
            made = component(**arguments)
            tasks.append(made.after(tasks[-1]) if tasks and not part.takes_state else made)
            found.update({name: made.outputs[name] for name in part.inputs if name in outputs})
        found.update({name: tasks[-1].outputs[name] for name in results_of_last})
        return found["Output"] if is_plain else results(**found) if found else None

    annotation: Any = None if not fields else returns if is_plain else results
    build.__name__, build.__doc__ = function.__name__, function.__doc__
    build.__dict__["__signature__"] = signature.replace(parameters=given, return_annotation=annotation)
    return dsl.pipeline(build)


def _results(returns: Any) -> dict[str, Any]:
    """The outputs that a function's return annotation makes, by name: the fields of a NamedTuple, else `Output`."""
    if returns in (inspect.Signature.empty, None):
        return {}
    is_named = isinstance(returns, type) and issubclass(returns, tuple) and hasattr(returns, "_fields")
    return get_type_hints(returns, include_extras=True) if is_named else {"Output": returns}


def _check_outputs(parts: Sequence[Part], whole: _Cut) -> None:
    """A file that a part writes must be of that part alone: no other sees it before it has ended."""
    for name, argument in whole.parameters.items():
        text = ast.unparse(argument.annotation) if argument.annotation else ""
        users = sum(name in part.inputs for part in parts)
        if "OutputPath" in text and len(parts) > 1:
            raise InputError(
                whole.first.place(argument), f"{name} is a path of one container", "return it, or use Output[]"
            )
        if "Output[" in text and users > 1:
            problem = f"the output {name} is used in {users} phases"
            raise InputError(whole.first.place(argument), problem, "use it in one of them")
