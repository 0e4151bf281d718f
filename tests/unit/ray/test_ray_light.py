"""What drivers and workers wait for because it is imported: each heavy import is a second of a core shared by many."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
import ray
before = set(sys.modules)
import {module}
heavy = {heavy}
print(sorted(name for name in set(sys.modules) - before if name.startswith(heavy)))
"""


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        (
            "egs_ray.worker.reach",
            ("msgspec", "pydantic", "ray.dag", "egs_core.engine", "egs_core.site", "egs_ray.gate"),
        ),
        ("egs_ray.worker.nested", ("pydantic", "ray.dag", "egs_core.engine", "egs_core.site", "egs_core.predict")),
        ("egs_ray.gate.act", ("pydantic", "ray.dag", "egs_core.engine", "egs_core.site", "egs_ray.session.session")),
        ("egs_ray.session.nested", ("pydantic", "ray.dag", "egs_core.engine", "egs_core.site")),
        ("egs_ray.session.program", ("ray.dag",)),
        ("egs_ray.session.api", ("ray.dag",)),
    ],
)
def test_what_every_process_imports_stays_light(module: str, heavy: tuple[str, ...]) -> None:
    """`reach` is imported by each task of a script, `worker.nested` by each that submits something or waits for it:
    neither brings the engine, Ray's graphs or pydantic. `gate.act` is imported inside of `ray.init`, `session.nested`
    at a script's first task: the engine comes with the first one that needs a GPU or has hints, pydantic with files of
    settings. In a process of its own, as the tests import everything."""
    program = PROGRAM.format(module=module, heavy=heavy)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=False)
    assert done.stdout == "[]\n", done.stdout + done.stderr
