"""Which names a piece of Python binds and which it uses, by the scope rules of the language.

    total = sum(float(i) for i in rows)      bound: total      used: sum, float, rows      i is the generator's own

Read from the syntax tree and not with `symtable`: since Python 3.12 that counts a comprehension's variables as the
function's, and it never counts the target of `x += 1` as used.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

_AnyComprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


def names_in(statements: Sequence[ast.AST]) -> tuple[set[str], set[str]]:
    """The names that statements of one function bind, and those that they use; of the scopes inside them (functions,
    classes, comprehensions) those that such a scope does not bind itself."""
    scope = _Scope()
    scope.visit_all(statements)
    return scope.bound, scope.used | scope.used_inside


def used_at_once(definition: ast.stmt) -> set[str]:
    """The names whose values a definition takes when it is executed: defaults, decorators, bases, the body of a class.
    What a function's own body uses is looked up when it is called."""
    value = definition.value if isinstance(definition, ast.Assign) else definition
    scope = _Scope()
    scope.visit(value)
    return scope.used


class _Scope(ast.NodeVisitor):
    """The names of one scope. used: by its own statements; used_inside: by the scopes in it, which do not bind them;
    declared: `global` or `nonlocal` here, so bound elsewhere."""

    def __init__(self) -> None:
        self.bound: set[str] = set()
        self.used: set[str] = set()
        self.used_inside: set[str] = set()
        self.declared: set[str] = set()

    def visit_all(self, nodes: Iterable[ast.AST | None]) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)

    # --- what binds or uses a name ---

    def visit_Name(self, node: ast.Name) -> None:
        if not isinstance(node.ctx, ast.Store):
            self.used.add(node.id)  # `del x` needs x, too
        if not isinstance(node.ctx, ast.Load):
            self.bound.add(node.id)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self.used.add(node.target.id)
        self.generic_visit(node)

    def visit_alias(self, node: ast.alias) -> None:
        self.bound.add(node.asname or node.name.partition(".")[0])

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        self._bind(node.name, node)

    def visit_MatchAs(self, node: ast.MatchAs) -> None:
        self._bind(node.name, node)

    def visit_MatchStar(self, node: ast.MatchStar) -> None:
        self._bind(node.name, node)

    def visit_MatchMapping(self, node: ast.MatchMapping) -> None:
        self._bind(node.rest, node)

    def _bind(self, name: str | None, node: ast.AST) -> None:
        if name is not None:
            self.bound.add(name)
        self.generic_visit(node)

    def visit_Global(self, node: ast.Global) -> None:
        self.declared.update(node.names)

    def visit_Nonlocal(self, node: ast.Nonlocal) -> None:
        self.declared.update(node.names)
        self.used.update(node.names)

    # --- scopes inside ---

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        own = {argument.arg for argument in _arguments(node.args)} | _type_parameters(node)
        self.bound.add(node.name)
        self.visit_all([*node.decorator_list, *_defaults(node.args)])
        self._enter([*(each.annotation for each in _arguments(node.args)), node.returns], _type_parameters(node))
        self._enter(node.body, own)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.visit_FunctionDef(node)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.visit_all(_defaults(node.args))
        self._enter([node.body], {argument.arg for argument in _arguments(node.args)})

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.bound.add(node.name)
        body, around = _Scope(), _Scope()
        body.visit_all(node.body)
        around.visit_all([*node.decorator_list, *node.bases, *node.keywords])
        self.used |= ((body.used - body.bound) | around.used) - _type_parameters(node)
        # functions in a class do not see the names of its body
        self.used_inside |= (body.used_inside | around.used_inside) - _type_parameters(node)

    def visit_ListComp(self, node: ast.ListComp) -> None:
        self._comprehend(node, node.elt)

    def visit_SetComp(self, node: ast.SetComp) -> None:
        self._comprehend(node, node.elt)

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> None:
        self._comprehend(node, node.elt)

    def visit_DictComp(self, node: ast.DictComp) -> None:
        self._comprehend(node, node.key, node.value)

    def _comprehend(self, node: _AnyComprehension, *elements: ast.expr) -> None:
        """The first iterable is evaluated in the scope around the comprehension, and `:=` binds there."""
        first, *others = node.generators
        self.visit(first.iter)
        inside, targets = _Scope(), _Scope()
        targets.visit_all(generator.target for generator in node.generators)
        inside.visit_all(
            [*elements, *(each.iter for each in others), *(i for each in node.generators for i in each.ifs)]
        )
        self.bound |= inside.bound
        self.used_inside |= (inside.used | inside.used_inside | targets.used) - targets.bound

    def _enter(self, nodes: Iterable[ast.AST | None], own: set[str]) -> None:
        """A scope that binds the names `own` and what its nodes bind."""
        scope = _Scope()
        scope.visit_all(nodes)
        self.used_inside |= (scope.used | scope.used_inside) - ((scope.bound | own) - scope.declared)


def _arguments(of: ast.arguments) -> list[ast.arg]:
    rest = [argument for argument in (of.vararg, of.kwarg) if argument is not None]
    return [*of.posonlyargs, *of.args, *of.kwonlyargs, *rest]


def _defaults(of: ast.arguments) -> list[ast.expr | None]:
    return [*of.defaults, *of.kw_defaults]


def _type_parameters(node: ast.AST) -> set[str]:
    """Of `def f[T](x: T)`, which Python has since 3.12."""
    return {str(each.name) for each in getattr(node, "type_params", [])}
