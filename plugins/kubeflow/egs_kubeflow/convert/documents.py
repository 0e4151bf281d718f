"""A compiled pipeline as its documents: PipelineSpec and, where it has one, PlatformSpec; read, checked, written.

    file or text ─┐                     Documents.pipeline, .platform    plain values, as YAML has them
                  ├─► Documents ──►
    dsl.pipeline ─┘                     checked(documents) ──► Spec      the same as kfp's protobuf messages

Whatever is in a file, reading it takes bounded time and memory; kfp itself decides what a pipeline is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec

from egs_core.errors import InputError
from egs_core.graph.places import join
from egs_core.yaml_file import read_documents, read_text
from egs_kubeflow import compat
from egs_kubeflow.convert.unknown import Unknown, split_unknown
from egs_kubeflow.yaml_text import dump_like_kfp

MOST_BYTES = 32 << 20  # what the API server of Kubeflow Pipelines takes
MOST_DEEP = 90  # protobuf itself reads at most 100 levels
_HINT = "compile it with kfp 2: kfp.compiler.Compiler().compile(pipeline, 'pipeline.yaml')"

M = TypeVar("M")


class Documents(msgspec.Struct):
    """A compiled pipeline. comments: the lines that kfp writes above it. platform: empty where there is none."""

    pipeline: dict[str, Any]
    platform: dict[str, Any] = {}
    comments: str = ""

    @property
    def name(self) -> str:
        """The pipeline's name, as it was compiled; only checked documents are sure to have one."""
        info = self.pipeline.get("pipelineInfo") or self.pipeline.get("pipeline_info") or {}
        return str(info.get("name") or "") if isinstance(info, dict) else ""


class Spec(msgspec.Struct):
    """Checked documents as messages of kfp. executors: by label; kubernetes: what the platform says of each, and
    unknown: fields of that which this kfp-kubernetes does not know, as they were."""

    name: str
    pipeline: Any
    platform: Any
    executors: dict[str, Any]
    kubernetes: dict[str, Any]
    unknown: dict[str, Unknown] = {}


def load_documents(path: str | Path) -> Documents:
    """The documents of a compiled pipeline's file. Raises InputError that names the file."""
    return parse_documents(read_text(Path(path), "a pipeline", MOST_BYTES), str(path))


def parse_documents(text: str, place: str = "pipeline") -> Documents:
    """The documents of a compiled pipeline's text; they are not checked yet."""
    found = [value for value, _ in read_documents(text, place, MOST_DEEP)]
    if not found or all(value is None for value in found):
        raise InputError(place, "is empty", _HINT)
    if len(found) > 2:
        raise InputError(place, f"has {len(found)} documents", "a pipeline has one, and one of its platform")
    for value in found:
        if not isinstance(value, dict):
            raise InputError(place, "is no compiled pipeline", _HINT)
    if "pipelineSpec" in (found[0].get("spec") or {}):
        raise InputError(place, "is a manifest around a pipeline", "compile it without kubernetes_manifest_format")
    return Documents(found[0], found[1] if len(found) > 1 else {}, _comments(text))


def documents_of(pipeline: Any) -> Documents:
    """The documents of a live `@dsl.pipeline` or component, compiled in memory. InputError for something else."""
    from kfp.dsl.base_component import BaseComponent

    if not isinstance(pipeline, BaseComponent):
        raise InputError(f"{type(pipeline).__name__}", "is no pipeline or component of kfp", "decorate @dsl.pipeline")
    return Documents(as_plain(pipeline.pipeline_spec), as_plain(pipeline.platform_spec))


def dump_documents(documents: Documents) -> str:
    """The text as kfp's own compiler writes it."""
    found = [documents.pipeline, documents.platform] if documents.platform else [documents.pipeline]
    return documents.comments + dump_like_kfp(found)


def checked(documents: Documents, place: str, strict: bool = False) -> Spec:
    """The documents as messages. Raises InputError for what kfp would not read either, naming where it is.

    strict: also for values of the platform that kfp passes on unread, and this kfp-kubernetes does not know.
    """
    from kfp.pipeline_spec import pipeline_spec_pb2 as pb

    pipeline = parsed(documents.pipeline, pb.PipelineSpec(), place)
    if not pipeline.pipeline_info.name:
        raise InputError(join(place, "pipelineInfo.name"), "is missing", _HINT)
    if not pipeline.HasField("root"):
        raise InputError(join(place, "root"), "is missing", _HINT)
    stated = as_plain(pipeline.deployment_spec, join(place, "deploymentSpec"))
    deployment = parsed(stated, pb.PipelineDeploymentConfig(), place, "deploymentSpec")
    platform = parsed(documents.platform, pb.PlatformSpec(), place, "platform")
    kubernetes: dict[str, Any] = {}
    unknown: dict[str, Unknown] = {}
    for label, config in compat.kubernetes_executors(platform).items():
        where = f"platforms.kubernetes: {label}"
        known, left = split_unknown(config, compat.executor_config())
        kubernetes[label] = parsed(known, compat.executor_config(), place, where, strict)
        unknown |= {label: left} if left else {}
    return Spec(pipeline.pipeline_info.name, pipeline, platform, dict(deployment.executors), kubernetes, unknown)


def parsed(value: Any, message: M, place: str, inside: str = "", strict: bool = True) -> M:
    """Fill a message. protobuf raises far more than its ParseError for values of the wrong kind."""
    from google.protobuf import json_format

    try:
        json_format.ParseDict(value, message, ignore_unknown_fields=not strict)
    except Exception as error:
        problem = " ".join(str(error).split()) or type(error).__name__
        newer = (
            f"a newer kfp wrote it? This one is {compat.kfp_version()}" if "has no field named" in problem else _HINT
        )
        raise InputError(join(place, inside), f"is no pipeline that kfp reads: {problem[:300]}", newer) from None
    return message


def as_plain(message: Any, place: str = "the pipeline") -> dict[str, Any]:
    """A message as kfp writes it into a document. Raises InputError where JSON cannot say it: an infinite number."""
    from google.protobuf import json_format

    try:
        found: dict[str, Any] = json_format.MessageToDict(message)
    except ValueError as error:
        raise InputError(place, f"is no pipeline that kfp reads: {error}", _HINT) from None
    return found


def _comments(text: str) -> str:
    lines = text.splitlines(keepends=True)
    end = next((number for number, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return "".join(lines[:end])
