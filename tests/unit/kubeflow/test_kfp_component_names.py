"""Ordinary Python, cut anywhere at a `with egs.gpu():`, gives what it gives uncut; names by Python's scope rules."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import egs_core as egs
from egs_core.errors import InputError
from egs_core.hints import TaskHints
from egs_core.splitting.names import names_in
from egs_kubeflow.components.phases import Part, parts_of
from egs_kubeflow.components.source import make_function

STATEMENTS = [
    "a = [float(i) for i in range(n)]",
    "b = sum(int(x) for x in a)",
    "a = [i * n for i in a if i]",
    "n = sum(map(lambda x: x + b, a))",
    "b += n",
    "twice = lambda x: x * 2 + b",
    "n = twice(n)",
    "a = sorted({i: str(i) for i in a}.values(), key=lambda text: (len(text), text))\na = [float(x) for x in a]",
    "a = [x + y for x in a[:3] for y in range(b % 3)]",
    "a = [y for x in a[:3] for y in [x, *[len(a) for b in range(2)]] if y != b]",
    "n = max([best := int(x) for x in [*a, 1]] + [best])",
    "def helper(x, by=b):\n    return [float(x) * by for _ in range(n % 3)]",
    "a = [*a, *helper(1)]",
    "def counted():\n    count = 0\n    def up():\n        nonlocal count\n        count += n\n    up()\n"
    "    return count",
    "b = counted() + b",
    "class Box:\n    b = 1\n    def value(self):\n        return b + self.b",
    "b = Box().value()",
    "import math as m",
    "b = m.floor(b / 3)",
    "try:\n    n = n // 0\nexcept ZeroDivisionError as error:\n    b = len(str(error)) + b",
    "if b % 2:\n    c = n\nelse:\n    c = b",
    "match (n, a):\n    case (int(x), [first, *rest]):\n        b = x + len(rest)\n    case _:\n        b = 0",
    "(n, b), d = (b, n), {'k': b}",
    "for i, x in enumerate(a):\n    b += i + int(x)",
    "a = list(zip(a, a))\na = [float(x) for x, _ in a]",
    "def walk():\n    yield from (x for x in a)",
    "a = [*walk()][:5]",
    "text = f'{b!r:>{n % 5 + 1}} {[i for i in range(b % 3)]}'",
    "del d\nd = {}",
    "n = n % 97\nb = b % 89\na = a[:6]",
]
BEGIN = [
    "n = n + 0\na = [1.0, 2.0]\nb, c, d, text = 3, 0, {}, ''\nimport math as m",
    "def helper(x):\n    return [x * b]",
    "def counted():\n    return n",
    "def walk():\n    return iter(a)",
    "class Box:\n    def value(self):\n        return n",
    "twice = lambda x: x",
]
RETURN = "return repr((n, a, b, c, d, text))"


class File:
    """An artifact as a part sees it."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)


def parts_together(parts: list[Part], folder: Path, given: dict[str, Any]) -> Any:
    """Called one after the other, with files between them, in this process."""
    result: Any = None
    for number, part in enumerate(parts):
        files = {"egs_state": File(folder / str(number - 1))} if part.takes_state else {}
        if number < len(parts) - 1:
            files["egs_state_out"] = File(folder / str(number))
        result = part.function(**files, **{name: given[name] for name in part.inputs})
    return result


def function_of(before: list[str], block: list[str], after: list[str]) -> Any:
    """The same statements, some of them in a GPU block."""
    inside = textwrap.indent("\n".join(block), "    ")
    lines = [*before, "with egs.gpu():", inside, *after, RETURN]
    text = "def work(n: int) -> str:\n" + textwrap.indent("\n".join(lines), "    ") + "\n"
    return make_function("work", text, {"egs": egs}, function_of)


@settings(deadline=None, max_examples=150)
@given(
    found=st.lists(st.sampled_from(STATEMENTS), min_size=2, max_size=9),
    at=st.tuples(st.integers(0, 8), st.integers(1, 8)),
    n=st.integers(0, 5),
)
def test_a_cut_function_gives_what_it_gave(
    tmp_path_factory: pytest.TempPathFactory, found: list[str], at: tuple[int, int], n: int
) -> None:
    """Comprehensions, generators, lambdas, functions, classes, patterns, handlers, on either side of the block."""
    first = at[0] % len(found)
    last = min(first + at[1], len(found))
    function = function_of([*BEGIN, *found[:first]], found[first:last], found[last:])
    try:
        parts = parts_of(egs.task(gpus=1)(function), TaskHints(gpus=1))
    except InputError as error:
        if "is written again" not in error.problem:  # `def helper(by=b)`, and b changes before the block
            raise
        return
    assert len(parts) == 3
    try:
        wanted = function(n)
    except Exception as error:  # as its author has written it
        with pytest.raises(type(error)):
            parts_together(parts, tmp_path_factory.mktemp("parts"), {"n": n})
    else:
        assert parts_together(parts, tmp_path_factory.mktemp("parts"), {"n": n}) == wanted


NAMES = {
    "y = [float(i) for i in range(n)]": ("y", "float range n"),
    "y = {i for i in i}": ("y", "i"),
    "y = sum(x for x in a for a in b)": ("y", "sum a b"),
    "y = [(last := x) for x in a]": ("y last", "a"),
    "f = lambda x, y=z: x + y + w": ("f", "z w"),
    "x += 1": ("x", "x"),
    "del x": ("x", "x"),
    "def f(x: T = d) -> R:\n    global g\n    g = x + y": ("f", "T d R y"),
    "def f():\n    x = 1\n    def inner():\n        nonlocal x\n        x = y": ("f", "y"),
    "class C(B, k=v):\n    x = 1\n    z = x\n    def f(self):\n        return x": ("C", "B v x"),
    "import a.b, c as d": ("a d", ""),
    "try:\n    pass\nexcept E as e:\n    pass": ("e", "E"),
    "match s:\n    case {'a': A(b), **c}:\n        pass\n    case [*d] as e:\n        pass": ("b c d e", "s A"),
    "with f() as x, g as (y, z):\n    pass": ("x y z", "f g"),
    "async def f():\n    return [x async for x in y]": ("f", "y"),
}


@pytest.mark.parametrize("text", NAMES)
def test_names_follow_pythons_scopes(text: str) -> None:
    """What is bound, and what is used from around it."""
    bound, used = NAMES[text]
    assert names_in(ast.parse(text).body) == (set(bound.split()), set(used.split()))


def test_a_definition_whose_default_changes_is_named() -> None:
    """Written again behind the block it would take another value."""
    function = function_of([*BEGIN, "def late(x, by=b):\n    return [x * by]", "b = 5"], ["a = late(1)"], [])
    with pytest.raises(InputError, match=r":\d+: is written again in a later part, and b changes in between"):
        parts_of(egs.task(gpus=1)(function), TaskHints(gpus=1))


def test_a_generator_that_would_have_to_be_handed_on_is_named() -> None:
    """pickle takes none: an error when the component is made, not in the container."""
    function = function_of([*BEGIN, "rows = (x for x in a)"], ["a = [*rows]"], [])
    with pytest.raises(InputError, match="the generator rows"):
        parts_of(egs.task(gpus=1)(function), TaskHints(gpus=1))
