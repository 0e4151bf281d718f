"""`with egs.gpu():` in a function: the statements before it, in it and after it, as parts of their own.

    def train(path: str) -> float:         before   egs_state = {batch}
        import torch                       in it    import torch again, batch from the state; {loss}
        batch = decode(path)               after    loss from the state; returns
        with egs.gpu():
            loss = fit(torch, batch)       A part gets what earlier parts have bound and it or a later one uses.
        return write(loss)                 Imports, functions and classes are not handed on but written again.

What cannot be cut so is an error that names its line: a block in a loop, a branch or another `with`, several blocks, a
`return` before its end, an open file that would have to be handed on.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Sequence
from typing import Any

from egs_core.errors import InputError
from egs_core.gpu_phase import gpu
from egs_core.splitting.names import names_in, used_at_once
from egs_core.splitting.own_imports import imported_names, value_of
from egs_core.splitting.source import Source

_DEFINITIONS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
"""A lambda with a name is one, too: pickle takes none. See `_is_definition`."""
_NO_PARTS = (ast.Yield, ast.YieldFrom, ast.Await, ast.Global, ast.Nonlocal)
_HINT = "use egs.phases(...), or move it into the block or behind it"


def cut(source: Source, *, may_end: bool = False) -> tuple[list[ast.stmt], list[ast.stmt], list[ast.stmt]]:
    """The statements before the block, in it, and after it. may_end: whether the block may return, where nothing comes
    after it. Raises InputError that names the line in the way."""
    body = source.tree.body
    blocks = [node for node in ast.walk(source.tree) if isinstance(node, ast.With) and _is_gpu(node, source)]
    if not blocks:
        raise InputError(source.place(source.tree), "has no 'with egs.gpu():' that can be seen", _HINT)
    if len(blocks) > 1:
        raise InputError(
            source.place(blocks[1]), "is a second 'with egs.gpu():'", "a function is cut at one; egs.phases"
        )
    block = blocks[0]
    if block not in body:
        raise InputError(source.place(block), "'with egs.gpu():' is inside another statement", _HINT)
    _check_alone(block, source)
    at = body.index(block)
    parts = body[:at], block.body, body[at + 1 :]
    _check(parts[:2] if may_end and not parts[2] else parts, source)
    return parts


def _check_alone(block: ast.With, source: Source) -> None:
    if len(block.items) > 1 or block.items[0].optional_vars is not None:
        problem = "'with egs.gpu():' has more in it than that"
        raise InputError(source.place(block), problem, "write it alone, without 'as'")


def without_blocks(source: Source) -> list[ast.stmt]:
    """The statements of a function that is not to be split, with what is in its GPU blocks in their place: where it
    runs there is no `egs`."""
    return [found for statement in source.tree.body for found in _opened(statement, source)]


def _opened(node: ast.stmt, source: Source) -> list[ast.stmt]:
    for name in ("body", "orelse", "finalbody"):
        if isinstance(inner := getattr(node, name, None), list):
            setattr(node, name, [found for statement in inner for found in _opened(statement, source)])
    for handler in getattr(node, "handlers", []):
        handler.body = [found for statement in handler.body for found in _opened(statement, source)]
    if not isinstance(node, ast.With) or not _is_gpu(node, source):
        return [node]
    _check_alone(node, source)
    return node.body


def cpus_of(source: Source) -> float | None:
    """The number in `with egs.gpu(cpus=2):`."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.With) and _is_gpu(node, source):
            call = node.items[0].context_expr
            stated = [*call.args, *[word.value for word in call.keywords]] if isinstance(call, ast.Call) else []
            match stated:
                case []:
                    return None
                case [ast.Constant(int() | float() as cpus)]:
                    return float(cpus)
            raise InputError(source.place(node), "its cpus are known at run time only", "write a number")
    return None


def handed_on(parts: Sequence[list[ast.stmt]], source: Source) -> tuple[list[list[ast.stmt]], list[list[str]]]:
    """The parts, each with the definitions of earlier ones that it uses before it; and what each hands on, by name."""
    whole = [[*_definitions(parts[:number], part), *part] for number, part in enumerate(parts)]
    bound: set[str] = set()
    state: list[list[str]] = []
    for number, part in enumerate(parts):
        bound |= names_in(part)[0] - _defined(parts[: number + 1])
        later = set[str]().union(*[names_in(each)[1] for each in whole[number + 1 :]])
        state.append(sorted(bound & later))
        for statement in part:
            _check_can_go_on(statement, set(state[-1]), source)
        for definition in whole[number][: len(whole[number]) - len(part)]:
            _check_can_be_repeated(definition, [s for each in parts[:number] for s in each], source)
    return whole, state


def _definitions(earlier: Sequence[list[ast.stmt]], part: list[ast.stmt]) -> list[ast.stmt]:
    """Definitions in earlier parts that a part needs, and those that they need in turn."""
    known: list[ast.stmt] = [statement for each in earlier for statement in each if _is_definition(statement)]
    chosen: list[ast.stmt] = []
    while True:
        used = names_in([*chosen, *part])[1]
        found = [statement for statement in known if names_in([statement])[0] & used]
        if found == chosen:
            return chosen
        chosen = found


def _defined(parts: Sequence[list[ast.stmt]]) -> set[str]:
    return names_in([s for part in parts for s in part if _is_definition(s)])[0]


def _is_definition(statement: ast.stmt) -> bool:
    names_a_lambda = isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Lambda)
    return isinstance(statement, _DEFINITIONS) or names_a_lambda


def _check_can_go_on(statement: ast.stmt, state: set[str], source: Source) -> None:
    """Handles, generators and modules cannot go from one process to another."""
    if _is_definition(statement):
        return
    for node in ast.walk(statement):
        if isinstance(node, (ast.Import, ast.ImportFrom)) and (lost := names_in([node])[0] & state):
            problem = (
                f"{', '.join(sorted(lost))} is imported inside a statement and used on the other side of the block"
            )
            raise InputError(source.place(node), problem, "import it at the function's own level")
        what = _bound_to_a_process(node.value) if isinstance(node, ast.Assign) else ""
        if what and (lost := names_in([node])[0] & state):
            problem = f"the {what} {', '.join(sorted(lost))} is used on the other side of the block"
            hint = "open it where it is used" if what == "open file" else "make it a list"
            raise InputError(source.place(node), problem, hint)


def _check_can_be_repeated(definition: ast.stmt, earlier: Sequence[ast.stmt], source: Source) -> None:
    """It is written again in a later part: with the same result only where nothing it takes has changed meanwhile."""
    after = [statement for statement in earlier[earlier.index(definition) + 1 :] if not _is_definition(statement)]
    if changed := (names_in([definition])[0] | used_at_once(definition)) & names_in(after)[0]:
        problem = f"is written again in a later part, and {', '.join(sorted(changed))} changes in between"
        raise InputError(source.place(definition), problem, "define it where it is used")


def _bound_to_a_process(value: ast.expr) -> str:
    """What a value is that pickle does not take, as far as its expression shows; "" for any other."""
    if isinstance(value, ast.GeneratorExp):
        return "generator"
    is_open = isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "open"
    return "open file" if is_open else ""


def _check(parts: Sequence[list[ast.stmt]], source: Source) -> None:
    for number, part in enumerate(parts):
        for statement in part:
            for node in own_nodes(statement):
                if isinstance(node, _NO_PARTS):
                    raise InputError(source.place(node), "cannot be cut into parts", _HINT)
                if isinstance(node, ast.Return) and number < len(parts) - 1:
                    raise InputError(source.place(node), "returns before the end of 'with egs.gpu():'", _HINT)


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """A statement and all in it, but what is in functions of its own."""
    yield node
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
        for child in ast.iter_child_nodes(node):
            yield from own_nodes(child)


def _is_gpu(node: ast.With, source: Source) -> bool:
    names = inspect.getclosurevars(source.function)
    known: dict[str, Any] = {**vars(__import__("builtins")), **names.globals, **names.nonlocals}
    known |= imported_names(source.tree.body)
    return any(isinstance(i.context_expr, ast.Call) and value_of(i.context_expr.func, known) is gpu for i in node.items)
