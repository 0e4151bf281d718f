"""Functions made from the source of others.

kfp compiles a component from `inspect.getsource`, so a function that is made here gets a source of its own, which
Python keeps in `linecache`. `ast.unparse` writes it: the same text for the same function, without its comments.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Callable
from typing import Any


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
