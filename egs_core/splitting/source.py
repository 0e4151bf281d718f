"""The source of a function as a syntax tree, with places in its file for errors."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from egs_core.errors import InputError


@dataclass(frozen=True)
class Source:
    """A function's `def`, and where it is written."""

    function: Callable[..., Any]
    tree: ast.FunctionDef
    file: str
    first_line: int

    def place(self, node: ast.AST) -> str:
        """File and line of a part of it."""
        return f"{self.file}:{self.first_line + getattr(node, 'lineno', 1) - 1}"


def source_of(function: Callable[..., Any]) -> Source:
    """The source of a function. Raises InputError where there is none, or it is no `def`."""
    name = getattr(function, "__qualname__", repr(function))
    try:
        lines, first = inspect.getsourcelines(function)
        file = inspect.getsourcefile(function) or "?"
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        raise InputError(name, "has no source that could be cut", "write it with def, in a file") from None
    found = tree.body[0]
    if not isinstance(found, ast.FunctionDef):
        raise InputError(f"{file}:{first}", f"{name} is no plain def", "neither async functions nor lambdas can be cut")
    return Source(function, found, file, first)
