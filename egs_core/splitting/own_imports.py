"""Imports of EGS inside a function, as authors write them where its body alone goes to the place where it runs:

def train(path: str) -> float:
    import egs_core as egs            names: {egs: the module}

    batch = decode(path)
    with egs.gpu():                   the only use: without it the import is left out
        return fit(batch)
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType

from egs_core.gpu_phase import gpu
from egs_core.splitting.names import names_in

_PACKAGE = __name__.partition(".")[0]
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def imported_names(statements: Sequence[ast.stmt]) -> dict[str, object]:
    """What names of a function stand for that it imports from this package itself, anywhere but in functions of its
    own."""
    found: dict[str, object] = {}
    for node in (inner for statement in statements for inner in _imports(statement)):
        for alias in node.names:
            name, value = _bound(node, alias)
            found[name] = value
    return found


def blocks_that_import(function: ast.FunctionDef) -> Iterator[ast.stmt]:
    """`with` statements in a function, also in functions of its own, that call the `gpu` of what is imported in it."""
    nodes = list(ast.walk(function))
    inside = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    names = imported_names(inside)
    for node in nodes:
        if isinstance(node, ast.With | ast.AsyncWith):
            called = [i.context_expr.func for i in node.items if isinstance(i.context_expr, ast.Call)]
            if any(value_of(one, names) is gpu for one in called):
                yield node


def without_unused(statements: Sequence[ast.stmt]) -> list[ast.stmt]:
    """The statements without those imports of this package that nothing in them uses: a copy where one goes."""
    used = names_in(statements)[1]
    kept = [_Pruned(used).visit(statement) for statement in statements]
    return [left for left in kept if isinstance(left, ast.stmt)]


class _Pruned(ast.NodeTransformer):
    def __init__(self, used: set[str]) -> None:
        self._used = used

    def visit(self, node: ast.AST) -> ast.AST | None:
        if isinstance(node, _SCOPES):
            return node
        if isinstance(node, ast.Import | ast.ImportFrom):
            return self._import(node)
        visited: ast.AST = self.generic_visit(node)
        if getattr(visited, "body", None) == []:
            visited.body = [ast.Pass()]  # type: ignore[attr-defined]  # it has one, and Python wants something in it
        return visited

    def _import(self, node: ast.Import | ast.ImportFrom) -> ast.stmt | None:
        kept = [alias for alias in node.names if not _is_ours(node, alias) or _bound(node, alias)[0] in self._used]
        if len(kept) == len(node.names):
            return node
        return ast.copy_location(_with_names(node, kept), node) if kept else None


def value_of(node: ast.expr, known: Mapping[str, object]) -> object:
    """What a dotted name stands for; only modules are looked into."""
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.Attribute):
        inside = value_of(node.value, known)
        return getattr(inside, node.attr, None) if isinstance(inside, ModuleType) else None
    return None


def _with_names(node: ast.Import | ast.ImportFrom, names: list[ast.alias]) -> ast.stmt:
    return ast.Import(names) if isinstance(node, ast.Import) else ast.ImportFrom(node.module, names, node.level)


def _imports(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        names = [alias for alias in node.names if _is_ours(node, alias)]
        if names:
            yield _with_names(node, names)  # type: ignore[misc]  # of the same kind
    elif not isinstance(node, _SCOPES):
        for child in ast.iter_child_nodes(node):
            yield from _imports(child)


def _is_ours(node: ast.Import | ast.ImportFrom, alias: ast.alias) -> bool:
    if isinstance(node, ast.ImportFrom):
        return not node.level and alias.name != "*" and (node.module or "").partition(".")[0] == _PACKAGE
    return alias.name.partition(".")[0] == _PACKAGE


def _bound(node: ast.Import | ast.ImportFrom, alias: ast.alias) -> tuple[str, object]:
    """The name that is bound, and to what; to None where there is no such module here."""
    name = alias.asname or (alias.name if isinstance(node, ast.ImportFrom) else alias.name.partition(".")[0])
    try:
        if isinstance(node, ast.ImportFrom):
            return name, getattr(importlib.import_module(node.module or ""), alias.name, None)
        module = importlib.import_module(alias.name)
        return name, module if alias.asname else importlib.import_module(_PACKAGE)
    except ImportError:
        return name, None
