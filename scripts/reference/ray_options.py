"""The page of the options of `egs_ray`, from their class."""

from __future__ import annotations

from typing import get_type_hints

import msgspec

from egs_ray import Options
from scripts.reference.files import attribute_docs
from scripts.reference.markdown import MissingText, code, table
from scripts.reference.types import type_name

INTRO = """# Options of `egs_ray`

```python
with egs_ray.Session(egs_ray.Options(policy="least-work")) as session:
    egs_ray.run(dag, session=session).get()
```

Without `session`, `egs_ray.run` uses a session of the process, with the defaults. The hook for unmodified scripts is
configured by [environment variables](environment.md).
"""


def ray_options_page() -> str:
    """Every option with its type, default and meaning."""
    meanings, hints, rows = attribute_docs(Options), get_type_hints(Options), []
    for field in msgspec.structs.fields(Options):
        if field.name not in meanings:
            raise MissingText(f"egs_ray.Options.{field.name} has no description: add a string below the field")
        default = "" if field.default is None else code(field.default)
        rows.append((code(field.name), type_name(hints[field.name]), default, meanings[field.name]))
    return f"{INTRO}\n{table(('option', 'value', 'default', 'meaning'), rows)}"
