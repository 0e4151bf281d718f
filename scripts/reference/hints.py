"""The page of the hints of `egs.task`, from the code that checks them."""

from __future__ import annotations

import inspect
import textwrap
from types import ModuleType
from typing import Any

from egs_core import hint_checks as checks
from egs_core import hints
from egs_core.units import parse_bytes, parse_seconds
from scripts.reference.files import attribute_docs
from scripts.reference.markdown import MissingText, code, table
from scripts.reference.types import SIZE, SPAN

TYPES: dict[Any, str] = {
    checks.check_gpus: "number: a share below 1, or whole",
    checks.check_count: "number",
    checks.check_positive: "number",
    checks.check_limit: SPAN,
    checks.check_int: "whole number",
    checks.check_text: "text",
    checks.check_bool: "`True` or `False`",
    checks.check_preload: "`egs.modules(…)`, `egs.files(…)`, `egs.call(…)`, or a list of them",
    checks.check_expect: "time, or a list with one a phase",
    checks.check_flavors: "text, or a list of texts",
    parse_bytes: SIZE,
    parse_seconds: SPAN,
}

INTRO = """# Hints

What a pipeline may say about a task, with `@egs.task(…)` directly above `def`, below the framework's own decorator:

```python
{example}
```

All hints are optional. A hint that is wrong is an error at its line, with the function's and the hint's name. Which
hints an adapter applies differs: [what works where](../what-works-where.md).
"""

FUNCTIONS = (
    "gpu",
    "phases",
    "on_gpu",
    "modules",
    "files",
    "call",
    "loaded",
    "checkpoint",
    "restored",
    "work",
    "progress",
)
"""Functions for pipeline authors beside `task`, in the order of the page."""


def hints_page() -> str:
    """Every hint with its type, default and meaning, then the functions beside them."""
    rows, meanings = [], attribute_docs(hints.TaskHints)
    for one in hints.HINTS.values():
        if one.field not in meanings:
            raise MissingText(f"egs_core.hints.TaskHints.{one.field} has no description: add a string below the field")
        rows.append((code(one.argument), TYPES[one.check], _default(one.default), meanings[one.field]))
    described = "\n".join(_function(name) for name in FUNCTIONS)
    intro = INTRO.replace("{example}", example_in(hints))
    return f"{intro}\n{table(('hint', 'value', 'default', 'meaning'), rows)}\n## Functions\n\n{described}"


def example_in(module: ModuleType) -> str:
    """The code in a module's docstring: its indented lines."""
    lines = inspect.getdoc(module) or ""
    code_lines = [line for line in lines.splitlines() if line.startswith("    ") or not line]
    return textwrap.dedent("\n".join(code_lines)).strip()


def _default(value: object) -> str:
    return "" if value in (None, (), "") else code(f"{value:g}" if isinstance(value, float) else value)


def _function(name: str) -> str:
    function = getattr(hints, name)
    doc = " ".join((function.__doc__ or "").split())
    if not doc:
        raise MissingText(f"egs.{name} has no docstring")
    return f"### `egs.{name}`\n\n{doc}\n"
