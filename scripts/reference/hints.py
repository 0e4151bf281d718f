"""The page of the hints of `egs.task`, from the code that checks them."""

from __future__ import annotations

import inspect
import textwrap
from dataclasses import fields
from types import ModuleType
from typing import Any

from egs_core import hints
from egs_core.hint_meanings import MEANINGS
from egs_core.units import parse_bytes, parse_seconds
from scripts.reference.markdown import MissingText, code, table
from scripts.reference.types import SIZE, SPAN

TYPES: dict[Any, str] = {
    hints._check_gpus: "number: a share below 1, or whole",
    hints._check_count: "number",
    hints._check_positive: "number",
    hints._check_limit: SPAN,
    hints._check_int: "whole number",
    hints._check_text: "text",
    hints._check_bool: "`True` or `False`",
    hints._check_preload: "`egs.modules(…)`, `egs.files(…)`, `egs.call(…)`, or a list of them",
    hints._check_expect: "time, or a list with one a phase",
    hints._check_flavors: "text, or a list of texts",
    parse_bytes: SIZE,
    parse_seconds: SPAN,
}

INTRO = """# Hints

What a pipeline may say about a task, with `@egs.task(…)` directly above `def`, below the framework's own decorator:

```python
{example}
```

All hints are optional. A hint that is wrong is an error at its line, with the function's and the hint's name. Which
hints an adapter applies differs: [what works where](capabilities.md).
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
)
"""Functions for pipeline authors beside `task`, in the order of the page."""


def hints_page() -> str:
    """Every hint with its type, default and meaning, then the functions beside them."""
    defaults = {field.name: field.default for field in fields(hints.TaskHints)}
    rows = []
    for name, (field, check) in hints._CHECKS.items():
        if name not in MEANINGS:
            raise MissingText(f"egs_core.hint_meanings.MEANINGS lacks the hint {name!r}")
        rows.append((code(name), TYPES[check], _default(defaults.get(field)), MEANINGS[name]))
    if unknown := MEANINGS.keys() - hints._CHECKS.keys():
        raise MissingText(f"egs_core.hint_meanings.MEANINGS describes what is no hint: {sorted(unknown)}")
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
