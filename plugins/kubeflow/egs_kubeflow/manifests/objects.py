"""What all objects of Kubernetes have, and how they are written: the same bytes for the same objects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from egs_kubeflow.yaml_text import dump_objects

HEADER = "# Written by `egs kubeflow manifests`, which writes over changes.\n"
PART = "egs.io/part"

Object = dict[str, Any]


def made(api: str, kind: str, name: str, part: str, namespace: str = "", **content: Any) -> Object:
    """An object. part: the label by which those that belong together are found."""
    metadata: Object = {"name": name}
    if namespace:
        metadata["namespace"] = namespace
    return {"apiVersion": api, "kind": kind, "metadata": metadata | {"labels": {PART: part}}, **content}


def as_yaml(documents: Iterable[Object], about: str = "") -> str:
    """The text of a file with these documents. about: lines of a comment at its top."""
    comment = "".join(f"# {line}\n" for line in about.splitlines())
    return f"{HEADER}{comment}{dump_objects(documents)}"
