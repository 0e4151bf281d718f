"""The source of a function as a syntax tree, with places in its file for errors; and functions made from such trees.

kfp compiles a component from `inspect.getsource`, so a function that is made here gets a source of its own, which
Python keeps in `linecache`. `ast.unparse` writes it: the same text for the same function, without its comments.
"""

from __future__ import annotations

import ast
import inspect
import linecache
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
        raise InputError(name, "has no source that kfp could copy", "write it with def, in a file") from None
    found = tree.body[0]
    if not isinstance(found, ast.FunctionDef):
        raise InputError(f"{file}:{first}", f"{name} is no plain def", "kfp runs neither async functions nor lambdas")
    return Source(function, found, file, first)


def bare(tree: ast.FunctionDef) -> ast.FunctionDef:
    """The same function without decorators and annotations, whose names need not be there where it runs."""
    found = ast.parse(ast.unparse(tree)).body[0]
    assert isinstance(found, ast.FunctionDef)
    found.decorator_list, found.returns = [], None
    for argument in ast.walk(found.args):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    return found


def make_function(name: str, text: str, names: dict[str, Any], like: Callable[..., Any]) -> Callable[..., Any]:
    """The function that `text` defines, with that text as its source. names: what its annotations need."""
    file = f"<egs {like.__module__}.{like.__qualname__}: {name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    found: dict[str, Any] = {**names, "__name__": like.__module__}
    exec(compile(text, file, "exec", dont_inherit=True), found)
    function: Callable[..., Any] = found[name]
    return function
