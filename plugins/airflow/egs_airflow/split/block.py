"""A function with one `with egs.gpu():` block at its top level, as functions of which Airflow makes a task each.

    @split                             train.before   {"batch": …} ──► XCom
    @egs.task(gpus=1)                  train.gpu      egs_values, and the parameters that it uses; {"loss": …} ──► XCom
    def train(path, ti):               train.after    egs_values; its value is the function's
        batch = decode(path)
        with egs.gpu():                A part gets what earlier parts have bound and it or a later one uses, as values
            loss = fit(batch)          that XCom takes. Imports, functions and classes are written again instead.
        write(loss)

A part is code of the same file, at the same lines, with the same globals: what it raises names the author's line. One
without a statement of its own is left out. Names of a function around it cannot be had there, and are an error.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from egs_core.errors import InputError
from egs_core.splitting.block import cpus_of, cut, handed_on
from egs_core.splitting.lost_state import warn_of_lost_state
from egs_core.splitting.names import names_in
from egs_core.splitting.source import Source, source_of

VALUES = "egs_values"
"""What an earlier part hands on, as a parameter of the later one."""

NAMES = ("before", "gpu", "after")
GPU = 1
"""The part that is always there."""


@dataclass(frozen=True)
class Part:
    """One part. number: of the phase that it is; inputs: parameters of the whole that it takes; takes_values: whether
    it also takes what the part before hands on."""

    name: str
    number: int
    function: Callable[..., Any]
    inputs: tuple[str, ...]
    takes_values: bool


def parts_of(function: Any) -> tuple[list[Part], float | None]:
    """The parts in order, and the CPUs that the block states. Raises InputError that names the line in the way."""
    source = source_of(function)
    bodies = _joined([_without_text(body) for body in cut(source, may_end=True)])
    _check(source, bodies)
    warn_of_lost_state([(source, body) for body in bodies])
    whole, states = handed_on(bodies, source)
    parts: list[Part] = []
    bound, given = set[str](), list[str]()
    for number, body in enumerate(whole):
        if number != GPU and not any(map(_does_something, bodies[number])):
            continue
        known, used = names_in(body)
        inputs = tuple(name for name in _parameters(source) if name in (known | used) - set(given) - bound)
        goes_on = any(_does_something(statement) for later in bodies[number + 1 :] for statement in later)
        text = _frame(source.tree.name, inputs, given, states[number] if goes_on else None)
        made = _function(source, number, text, body, inputs)
        parts.append(Part(NAMES[number], number, made, inputs, bool(given)))
        bound, given = bound | known, states[number] if goes_on else []
    return parts, cpus_of(source)


def _joined(bodies: list[list[ast.stmt]]) -> list[list[ast.stmt]]:
    """A value that is there when the block ends needs no task to be returned."""
    last = bodies[-1]
    if not last:
        return bodies[:-1]
    is_there = len(last) == 1 and isinstance(last[0], ast.Return)
    if is_there and not any(isinstance(node, ast.Call) for node in ast.walk(last[0])):
        return [bodies[0], [*bodies[GPU], *last]]
    return bodies


def _check(source: Source, bodies: Sequence[list[ast.stmt]]) -> None:
    arguments = source.tree.args
    if arguments.vararg or arguments.kwarg or arguments.posonlyargs:
        problem = "has parameters without a name of their own, of which no part could be given its own"
        raise InputError(source.place(source.tree), problem, "write them one by one, without *, ** and /")
    used = names_in([statement for body in bodies for statement in body])[1]
    if around := sorted(inspect.getclosurevars(source.function).nonlocals.keys() & used):
        problem = f"uses {', '.join(around)} of the function around it, which a part of it cannot"
        raise InputError(source.place(source.tree), problem, "hand it over as an argument")


def _without_text(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Without its docstring."""
    return [one for one in body if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))]


def _does_something(statement: ast.stmt) -> bool:
    """Whether a part is there for it: what defines something is written again where it is used."""
    return not isinstance(statement, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Pass))


def _parameters(source: Source) -> list[str]:
    return [argument.arg for argument in [*source.tree.args.args, *source.tree.args.kwonlyargs]]


def _frame(name: str, inputs: Sequence[str], before: Sequence[str], after: Sequence[str] | None) -> str:
    """What stands around the statements of a part, in whose place is `pass`. before, after: names that it gets and
    hands on; after is None for the last."""
    names = [*([VALUES] if before else []), *inputs]
    lines = [f"if {one!r} in {VALUES}: {one} = {VALUES}[{one!r}]" for one in before]
    kept = f"{{name: value for name, value in locals().items() if name in {tuple(after or ())!r}}}"
    lines += ["pass", *([] if after is None else [f"return {kept}"])]
    return "\n".join([f"def {name}({'*, ' if names else ''}{', '.join(names)}):", *(f"    {line}" for line in lines)])


def _function(
    source: Source, number: int, text: str, body: Sequence[ast.stmt], inputs: Sequence[str]
) -> Callable[..., Any]:
    """One part as a function of the author's file: its statements at their own lines, with the same globals."""
    module = ast.parse(text)
    (tree,) = module.body
    assert isinstance(tree, ast.FunctionDef)
    first = body[0].lineno if body else source.tree.lineno
    for node in ast.walk(tree):
        if isinstance(node, (ast.stmt, ast.expr, ast.arg)):
            node.lineno = node.end_lineno = first
    at = next(number for number, one in enumerate(tree.body) if isinstance(one, ast.Pass))
    tree.body[at : at + 1] = deepcopy(list(body)) or [tree.body[at]]
    ast.increment_lineno(module, source.first_line - 1)
    found: dict[str, Any] = {}
    exec(compile(module, source.file, "exec", dont_inherit=True), source.function.__globals__, found)
    made, whole = found[tree.name], source.function
    stated = inspect.signature(whole).parameters
    made.__kwdefaults__ = {n: stated[n].default for n in inputs if stated[n].default is not inspect.Parameter.empty}
    made.__qualname__, made.__doc__ = f"{whole.__qualname__}.{NAMES[number]}", whole.__doc__
    if "return" in whole.__annotations__ and "return {name" not in text:
        made.__annotations__["return"] = whole.__annotations__["return"]
    function: Callable[..., Any] = made
    return function
