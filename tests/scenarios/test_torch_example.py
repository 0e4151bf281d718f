"""A plan of `egs split-model` executed: real modules of torch on two workers of a real Ray, against the whole model.

torch is no requirement of EGS: where it is missing, this skips.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "torch" / "01_split_model.py"
TIMEOUT_S = 300

pytestmark = pytest.mark.ray
pytest.importorskip("torch", reason="torch is not installed: pip install 'egs-core[model]'")


def test_two_workers_that_each_are_too_small_give_the_same_output(tmp_path: Path) -> None:
    """As recorded: the model fits neither, each holds a part of its weights in a process of its own, and what comes out
    is what the whole model makes of the same input."""
    environment = {
        **os.environ,
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "XDG_DATA_HOME": str(tmp_path),
    }
    command = [sys.executable, str(EXAMPLE)]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    assert done.stdout == EXAMPLE.with_suffix(".out").read_text()
    assert "planned" in done.stderr
