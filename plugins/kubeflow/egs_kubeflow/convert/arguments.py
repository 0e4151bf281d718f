"""Arguments of a pipeline as a command line has them: `--arg name=value`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from egs_core.errors import InputError
from egs_kubeflow.convert.documents import Documents

Argument = Annotated[
    list[str], typer.Option("--arg", help="An argument of the pipeline, `name=value`; JSON where it is no text.")
]


def split_arguments(texts: Sequence[str]) -> dict[str, str]:
    """The names and values of options. Raises InputError."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise InputError(f"--arg {text}", "is not of the form name=value")
        found[name] = value
    return found


def parse_arguments(documents: Documents, arguments: Mapping[str, str], place: str) -> dict[str, Any]:
    """The values by the types that the pipeline states. Raises InputError that names the argument."""
    root = documents.pipeline.get("root") or {}
    known = (root.get("inputDefinitions") or {}).get("parameters") or {} if isinstance(root, dict) else {}
    found: dict[str, Any] = {}
    for name, text in arguments.items():
        kind = (known.get(name) or {}).get("parameterType", "STRING") if isinstance(known, dict) else "STRING"
        try:
            found[name] = text if kind == "STRING" else json.loads(text)
        except ValueError:
            raise InputError(f"{place}: argument {name!r}", f"{text!r} is no {kind}", "write it as JSON") from None
    return found
