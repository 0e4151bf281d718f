"""What all objects of Kubernetes have, and how they are written: the same bytes for the same objects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml

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
    return f"{HEADER}{comment}{yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=1000)}"


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]  # PyYAML is not typed
    """No aliases, and texts of several lines as people write them."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002  # PyYAML's signature
        return True


def _text(dumper: Any, text: str) -> Any:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)
