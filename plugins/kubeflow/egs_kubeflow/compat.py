"""Every use of private or version-dependent kfp API: `FEATURES` has each with its probe, fallback and what is lost.

`available(feature)` is asked where a feature is used, never at import. Naming features in the environment variable
EGS_KUBEFLOW_WITHOUT (comma separated) makes their probes fail, and `version` there makes this kfp an unknown one:
for tests, and for users of a broken build. Importing this module imports no kfp.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any, get_args

from egs_core.compat import Feature, Features, installed_version
from egs_core.errors import InputError

KNOWN_VERSIONS = ("2.16", "2.17")
WITHOUT = "EGS_KUBEFLOW_WITHOUT"


@cache
def kfp_version() -> str:
    """The installed version of kfp, without importing it; empty where there is none."""
    return installed_version("kfp")


def supported(found: str) -> bool:
    """Whether EGS was tried with this minor version of kfp."""
    return FEATURES.knows(found, KNOWN_VERSIONS)


def available(feature: str) -> bool:
    """Whether the API behind a feature is there, and not forbidden by EGS_KUBEFLOW_WITHOUT."""
    return FEATURES.has(feature)


def has_callable(module: str, *names: str) -> bool:
    """Whether a module has that function or class, or one inside it."""
    found: Any = importlib.import_module(module)
    for name in names:
        found = getattr(found, name)
    return callable(found)


# --- kubernetes: the message that the backend parses strictly has no public name --------------------------------------


def executor_config() -> Any:
    """An empty KubernetesExecutorConfig. Raises InputError where this kfp has none that EGS knows."""
    if not available("kubernetes"):
        raise InputError("kfp-kubernetes", "what a platform document says cannot be checked", "install kfp-kubernetes")
    from kfp.kubernetes import kubernetes_executor_config_pb2

    return kubernetes_executor_config_pb2.KubernetesExecutorConfig()


def kubernetes_executors(platform: Any) -> dict[str, Any]:
    """The configuration of each executor in a PlatformSpec message, as plain values."""
    from google.protobuf import json_format

    if "kubernetes" not in platform.platforms:
        return {}
    executors = platform.platforms["kubernetes"].deployment_spec.executors
    return {label: json_format.MessageToDict(config) for label, config in executors.items()}


# --- local: what kfp.local does around one task, without its global state, its printing and its runners ---------------


def task_inputs(component: Any, arguments: dict[str, Any], folder: str) -> tuple[Any, dict[str, Any]]:
    """The ExecutorInput message of a task that runs in `folder`, and the same as plain values, whole numbers as such.

    kfp.local makes neither a list of artifacts nor an optional input that was not given: the one is put in here, the
    other is left out, so that the component has its own default.
    """
    from kfp.local import executor_input_utils as utils
    from kfp.pipeline_spec import pipeline_spec_pb2 as pb

    known = component.input_definitions.artifacts
    artifacts = {name: arguments.get(name) for name in known}
    plain = type(component)()
    plain.CopyFrom(component)
    plain.input_definitions.ClearField("artifacts")
    given = {name: value for name, value in arguments.items() if name not in known and value is not None}
    for name, stated in component.input_definitions.parameters.items():
        if name not in given and stated.default_value.WhichOneof("kind") in (None, "null_value"):
            del plain.input_definitions.parameters[name]
    message = utils.construct_executor_input(
        component_spec=plain,
        arguments=given,
        task_root=folder,
        block_input_artifact=False,
    )
    for name, found in artifacts.items():
        if found is not None:
            several = found if isinstance(found, list) else [found]
            lists = [utils.dsl_artifact_to_artifact_list(artifact) for artifact in several]
            merged = pb.ArtifactList(artifacts=[artifact for each in lists for artifact in each.artifacts])
            message.inputs.artifacts[name].CopyFrom(merged)
    inputs = utils.executor_input_to_dict(executor_input=message, component_spec=component)
    values = inputs.get("inputs", {}).get("parameterValues", {})
    of_type = component.input_definitions.parameters
    for name, value in values.items():
        if name not in of_type or of_type[name].parameter_type != pb.ParameterType.NUMBER_DOUBLE:
            values[name] = _whole_numbers(value)
    return message, inputs


def _whole_numbers(value: Any) -> Any:
    """Whole numbers inside a value as the backend writes them, without the `.0` that protobuf gives them in Python."""
    if isinstance(value, dict):
        return {key: _whole_numbers(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_whole_numbers(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def filled_command(parts: list[str], inputs: dict[str, Any], names: dict[str, str]) -> list[str]:
    """Command and arguments with their placeholders filled in. names: pipeline_resource_name, task_resource_name,
    pipeline_root and unique_pipeline_id, as kfp.local calls them."""
    from kfp.local import placeholder_utils

    values = inputs.get("inputs", {}).get("parameterValues", {})
    values.update({name: _everywhere(value, names) for name, value in values.items()})
    parts = [_of_run(part, names) for part in parts]
    found: list[str] = placeholder_utils.replace_placeholders(full_command=parts, executor_input_dict=inputs, **names)
    return found


def _everywhere(value: Any, names: dict[str, str]) -> Any:
    """Placeholders of the run in all text of a value."""
    if isinstance(value, dict):
        return {key: _everywhere(inner, names) for key, inner in value.items()}
    if isinstance(value, list):
        return [_everywhere(inner, names) for inner in value]
    return _of_run(value, names) if isinstance(value, str) else value


def _of_run(text: str, names: dict[str, str]) -> str:
    """Placeholders of the run that kfp.local fails on. The workspace is a folder of the run, in place of the volume."""
    if WORKSPACE in text:
        folder = os.path.join(names["pipeline_root"], "workspace")
        os.makedirs(folder, exist_ok=True)
        text = text.replace(WORKSPACE, folder)
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    text = text.replace("{{$.pipeline_job_resource_name}}", names["pipeline_resource_name"])
    return text.replace("{{$.pipeline_job_create_time_utc}}", now).replace("{{$.pipeline_job_schedule_time_utc}}", now)


WORKSPACE = "{{$.workspace_path}}"


def with_python(command: list[str], python: str) -> list[str]:
    """The command with this interpreter for its `python3`; the user's code stays as it is."""
    from kfp.local import subprocess_task_handler

    found: list[str] = subprocess_task_handler.replace_python_executable(command, python)
    return found


def runs_user_code(command: list[str]) -> bool:
    """Whether a container's command is that of a lightweight Python component, which brings its code along."""
    from kfp.dsl import component_factory

    containerized = component_factory.CONTAINERIZED_PYTHON_COMPONENT_COMMAND
    is_executor = any(component_factory.EXECUTOR_MODULE in part for part in command)
    return is_executor and command[: len(containerized)] != containerized


_CALL = """program_path=$(mktemp -d) printf "%s" "$0" > "$program_path/ephemeral_component.py" _KFP_RUNTIME=true {} -m
kfp.dsl.executor_main --component_module_path "$program_path/ephemeral_component.py" "$@\""""


def executor_call(command: Sequence[str], python: str) -> tuple[str, list[str]] | None:
    """The source and the executor's arguments in the command of a lightweight component for this interpreter; None for
    a command that does anything else."""
    if list(command[:2]) != ["sh", "-ec"] or len(command) < 4:
        return None
    is_plain = command[2].split() == _CALL.format(python).split()
    return (command[3], list(command[4:])) if is_plain else None


def task_outputs(message: Any, component: Any) -> dict[str, Any]:
    """What a task that has succeeded gives, read from the files that it wrote. An artifact of which a container has
    written no more than the file is as it was foreseen, as on the backend; kfp.local leaves it out."""
    from kfp.local import executor_output_utils as utils

    _bring_custom_paths(utils.load_executor_output(message.outputs.output_file), message)
    found: dict[str, Any] = utils.get_outputs_for_task(message, component)
    stated = component.output_definitions.artifacts
    for name, artifacts in message.outputs.artifacts.items():
        if name not in found:
            found[name] = utils.artifact_list_to_dsl_artifact(artifacts, stated[name].is_artifact_list)
    return found


def _bring_custom_paths(output: Any, message: Any) -> None:
    """Copy what a task has written where `Artifact.set_path` says to where its artifact is. A launcher uploads it from
    there, and whoever reads the artifact finds it at its URI. Raises OSError."""
    for name, artifacts in output.artifacts.items():
        for artifact in artifacts.artifacts:
            given, at = artifact.custom_path, artifact.uri or message.outputs.artifacts[name].artifacts[0].uri
            if not given or not os.path.exists(given) or os.path.realpath(given) == os.path.realpath(at):
                continue
            if os.path.isdir(given):
                shutil.copytree(given, at, dirs_exist_ok=True)
            else:
                os.makedirs(os.path.dirname(at), exist_ok=True)
                shutil.copy2(given, at)


def imported(importer: Any, message: Any, inputs: dict[str, Any], names: dict[str, str]) -> Any:
    """The artifact of an importer. As kfp.local makes it, less its logging, which changes the process's loggers."""
    from google.protobuf import json_format
    from kfp.local import importer_handler, placeholder_utils

    of_run = dict(names)
    metadata = placeholder_utils.recursively_resolve_json_dict_placeholders(
        json_format.MessageToDict(importer.metadata),
        executor_input_dict=inputs,
        pipeline_job_id=of_run.pop("unique_pipeline_id"),
        pipeline_task_id=placeholder_utils.make_random_id(),
        **of_run,
    )
    kind = importer_handler.get_artifact_class_from_schema_title(importer.type_schema.schema_title)
    uri = importer_handler.get_importer_uri(importer_spec=importer, executor_input=message)
    return kind(name="artifact", uri=uri, metadata=metadata)


def _has_local() -> bool:
    from kfp.local import executor_input_utils as inputs

    of_inputs = ("construct_executor_input", "dsl_artifact_to_artifact_list", "executor_input_to_dict")
    of_placeholders = ("replace_placeholders", "recursively_resolve_json_dict_placeholders", "make_random_id")
    of_importer = ("get_importer_uri", "get_artifact_class_from_schema_title")
    return (
        all(callable(getattr(inputs, name)) for name in of_inputs)
        and all(has_callable("kfp.local.placeholder_utils", name) for name in of_placeholders)
        and all(has_callable("kfp.local.importer_handler", name) for name in of_importer)
        and has_callable("kfp.local.executor_output_utils", "get_outputs_for_task")
        and has_callable("kfp.local.executor_output_utils", "artifact_list_to_dsl_artifact")
        and has_callable("kfp.local.subprocess_task_handler", "replace_python_executable")
    )


# --- component: what a component is made of, and whether a pipeline is being traced, have no public names -----------


def python_component() -> Any:
    """kfp's class of components that are made from a function."""
    from kfp.dsl import python_component

    return python_component.PythonComponent


def container_of(component: Any) -> Any:
    """The image, command and arguments of a component's container, to be changed before it is compiled."""
    return component.component_spec.implementation.container


def is_output(annotation: Any) -> bool:
    """Whether a function's parameter is an artifact that it writes: `Output[Model]`."""
    from kfp.dsl.types import type_annotations

    return type_annotations.OutputAnnotation in get_args(annotation)


def in_pipeline() -> bool:
    """Whether a pipeline is being traced: outside of one, calling a component runs it. Yes where kfp does not say."""
    if not available("component"):
        return True
    from kfp.dsl import pipeline_context

    return pipeline_context.Pipeline.get_default_pipeline() is not None


def _has_component() -> bool:
    return (
        has_callable("kfp.dsl.pipeline_context", "Pipeline", "get_default_pipeline")
        and has_callable("kfp.dsl.types.type_annotations", "OutputAnnotation")
        and has_callable("kfp.dsl.python_component", "PythonComponent")
    )


FEATURES = Features(
    WITHOUT,
    Feature(
        "kubernetes",
        "kfp.kubernetes.kubernetes_executor_config_pb2",
        lambda: has_callable("kfp.kubernetes.kubernetes_executor_config_pb2", "KubernetesExecutorConfig"),
        "none",
        "pipelines with a platform document cannot be read, and none can be rewritten",
    ),
    Feature(
        "local",
        "kfp.local: inputs, placeholders, outputs of one task",
        _has_local,
        "none",
        "pipelines cannot be run on this machine",
    ),
    Feature(
        "component",
        "PythonComponent, Pipeline, OutputAnnotation, a component's container",
        _has_component,
        "tasks count as a pipeline's",
        "a component that is called outside of a pipeline does not run",
    ),
)


# --- said: the words of kfp's executor about itself, which are in each task's output beside what its author prints ----

_SAID = re.compile(
    r"\[KFP Executor [^\]]* INFO\]: (?:Looking for component `|--component_module_path is not specified\. "
    r'|Loading KFP component "|Got executor_input:$|Wrote executor output file to |Did not write output file\.$)'
)


def said_by_executor(line: str) -> tuple[int, bool]:
    """Where in a line the executor begins to speak of itself, its length where nowhere; and whether the executor's
    input follows, as JSON over several lines from `{` to `}`."""
    found = _SAID.search(line)
    return (len(line), False) if found is None else (found.start(), found[0].endswith("input:"))
