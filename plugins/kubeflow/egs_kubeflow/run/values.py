"""What passes between tasks: the arguments of a task, the items of a loop, the outputs of a DAG.

A value is a plain Python value or a `kfp.dsl.Artifact`; a list of either where the pipeline says so. A loop's output
is the list of its iterations' outputs, in the order of the items, and of loops in loops one flat list, as on a cluster;
that is all there is to `dsl.Collected`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from egs_core.errors import InputError
from egs_kubeflow.convert.values import plain

Values = dict[str, Any]
INTEGER = 2  # ParameterType.NUMBER_INTEGER
OutputsOf = Callable[[str], Values | None]
"""The outputs of a task of the same DAG, by its name; None for one that was skipped."""

_SELECTOR = re.compile(r"""parseJson\(string_value\)((?:\[(?:"[^"]*"|\d+)\])*)""")
_KEY = re.compile(r"""\["([^"]*)"\]|\[(\d+)\]""")


def arguments_of(
    inputs: Any, given: Mapping[str, Any], outputs_of: OutputsOf, status_of: Callable[[str], Values], place: str
) -> Values:
    """The arguments of a task from its TaskInputsSpec. given: the inputs of the DAG that it is in.

    An input that nothing gives is left out: it is optional, or kfp wrote it for a loop item that is not there.
    """
    found: Values = {}
    for name, spec in inputs.parameters.items():
        kind = spec.WhichOneof("kind")
        if kind == "runtime_value":
            found[name] = plain(spec.runtime_value.constant)
        elif kind == "component_input_parameter":
            if spec.component_input_parameter in given:
                found[name] = given[spec.component_input_parameter]
        elif kind == "task_output_parameter":
            wanted = spec.task_output_parameter
            _take(found, name, outputs_of(wanted.producer_task), wanted.output_parameter_key)
        elif kind == "task_final_status":
            found[name] = status_of(spec.task_final_status.producer_task)
        if name in found and spec.parameter_expression_selector:
            found[name] = select(found[name], spec.parameter_expression_selector, f"{place}: {name}")
    for name, spec in inputs.artifacts.items():
        if spec.WhichOneof("kind") == "task_output_artifact":
            wanted = spec.task_output_artifact
            _take(found, name, outputs_of(wanted.producer_task), wanted.output_artifact_key)
        elif spec.component_input_artifact in given:
            found[name] = given[spec.component_input_artifact]
    return found


def _take(found: Values, name: str, outputs: Values | None, key: str) -> None:
    if outputs is not None and key in outputs:
        found[name] = outputs[key]


def select(value: Any, selector: str, place: str) -> Any:
    """The part of a loop item that a task takes: `parseJson(string_value)["a"]`. InputError where there is none."""
    parsed = _SELECTOR.fullmatch(selector)
    if parsed is None:
        raise InputError(place, f"the selector {selector!r} is not understood")
    try:
        value = json.loads(value) if isinstance(value, str) else value
        for key, index in _KEY.findall(parsed[1]):
            value = value[int(index)] if index else value[key]
    except (LookupError, TypeError, ValueError):
        raise InputError(place, f"{value!r} has no {selector}") from None
    return value


def items_of(task: Any, arguments: Values, place: str) -> tuple[str, list[Any]]:
    """The input that a loop's items go to, and the items. Raises InputError for what is no list."""
    kind = task.WhichOneof("iterator")
    items = getattr(task, kind).items
    source = items.input_artifact if kind == "artifact_iterator" else items.input_parameter
    found = arguments.get(source) if source else items.raw
    if isinstance(found, str):
        try:
            found = json.loads(found)
        except ValueError:
            raise InputError(place, f"the loop's items {found!r} are no JSON list") from None
    if not isinstance(found, list):
        raise InputError(place, f"the loop's items are no list but {type(found).__name__}")
    return getattr(task, kind).item_input, found


def outputs_of_dag(spec: Any, outputs_of: OutputsOf) -> Values:
    """The outputs of a DAG from its DagOutputsSpec: of several producers (`dsl.OneOf`) the one that ran."""
    found: Values = {}
    for name in (*spec.parameters, *spec.artifacts):
        for task, key in producers_of(spec, name):
            if name not in found:
                _take(found, name, outputs_of(task), key)
    return found


def producers_of(spec: Any, name: str) -> list[tuple[str, str]]:
    """The tasks of a DAG that may give an output of it, each with what it calls that."""
    if name in spec.artifacts:
        return [(each.producer_subtask, each.output_artifact_key) for each in spec.artifacts[name].artifact_selectors]
    parameter = spec.parameters[name]
    several = parameter.WhichOneof("kind") == "value_from_oneof"
    chosen = parameter.value_from_oneof.parameter_selectors if several else [parameter.value_from_parameter]
    return [(each.producer_subtask, each.output_parameter_key) for each in chosen]


def collected(values: list[Any], is_nested: bool) -> list[Any]:
    """What the iterations of a loop give together. is_nested: each gives what a loop in it has collected."""
    return [one for value in values for one in value] if is_nested else values


def cast(values: Values, component: Any) -> Values:
    """Whole numbers as such where the component says so: protobuf has only one kind of number."""
    known = component.input_definitions.parameters
    return {
        name: int(value) if name in known and known[name].parameter_type == INTEGER and _is_whole(value) else value
        for name, value in values.items()
    }


def with_defaults(values: Values, component: Any) -> Values:
    """The inputs of a DAG inside the pipeline, with its defaults where nothing was given."""
    known = component.input_definitions.parameters
    defaults = {name: plain(spec.default_value) for name, spec in known.items() if spec.HasField("default_value")}
    return cast({**defaults, **values}, component)


def _is_whole(value: Any) -> bool:
    return isinstance(value, float) and value.is_integer()
