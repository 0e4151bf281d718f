"""The page of what each adapter can do, as the adapters declare it to `egs doctor`."""

from __future__ import annotations

from collections.abc import Mapping

from egs_core.adapter import CAPABILITIES, Adapter, adapter_names, load_adapter
from scripts.reference.markdown import table

INTRO = """# What works where

What each adapter declares that it can do. Surfaces are ways of using EGS; each has a column.
The page shows the versions of the frameworks with which this site was built. For your installation, run
`egs doctor`.
"""


def capabilities_page() -> str:
    """One section an adapter."""
    return "\n".join([INTRO, *(_section(load_adapter(name)) for name in adapter_names())])


def _section(adapter: Adapter) -> str:
    surfaces = list(adapter.surfaces())
    uses = "".join(f"- **{one.name}**: {one.use}\n" for one in surfaces)
    return f"## {adapter.name}\n\n{uses}\n" + _rows({one.name: one.can for one in surfaces})


def _rows(answers: Mapping[str, Mapping[str, str]]) -> str:
    rows = [[name, *(can.get(name, "") for can in answers.values())] for name in CAPABILITIES]
    return table(["capability", *answers], rows)
