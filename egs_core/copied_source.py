"""Frameworks that run a copy of a function's source where this package may be missing: there `@egs.task` must not be.

    @task.virtualenv(requirements=[…])        taken out by Airflow before it copies
    @egs.task(gpus=1)                         would be a NameError in the new interpreter
    def train(): …

They ask `inspect.getsource`, which follows `__wrapped__`. So the function gets one that begins at its `def`: the same
code, never called, without the lines of its decorators. Standard library only.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from types import CodeType, FunctionType

COPYING = ("airflow",)
"""Frameworks that copy source. Where none of them is imported, functions stay as they are."""


def begin_at_def(function: FunctionType) -> None:
    """Let `inspect.getsource` leave out the function's decorators; nothing where its source cannot be read."""
    innermost = inspect.unwrap(function)  # whoever wraps a function hands its source on
    if not any(name in sys.modules for name in COPYING) or not isinstance(innermost, FunctionType):
        return
    try:
        lines, first = inspect.getsourcelines(innermost)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return
    code = innermost.__code__.replace(co_firstlineno=first + tree.body[0].lineno - 1)
    innermost.__dict__["__wrapped__"] = _twin(innermost, code)


def _twin(function: FunctionType, code: CodeType) -> FunctionType:
    """A function like this one with other code: signature and names must be the same for whoever looks through it."""
    twin = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    twin.__kwdefaults__, twin.__annotations__ = function.__kwdefaults__, function.__annotations__
    twin.__module__, twin.__qualname__, twin.__doc__ = function.__module__, function.__qualname__, function.__doc__
    return twin
