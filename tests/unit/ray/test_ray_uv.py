"""`egs_ray.uv_hook` under a real `uv run`: what it hands to Ray is what Ray's own hook does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import egs_ray

PROGRAM = """
import json, sys
from ray._common.utils import load_class
print(json.dumps(load_class(sys.argv[1])({"env_vars": {"A": "1"}})))
"""


def test_same_as_rays_own_hook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are to run under the driver's `uv run`, from its folder; EGS itself adds nothing to that."""
    uv = pytest.importorskip("uv").find_uv_bin()
    monkeypatch.setenv("EGS_MODE", "off")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    words = [uv, "run", "--no-project", "--offline", "--no-python-downloads", "--python", sys.executable, "python"]
    said = []
    for hook in ("egs_ray.uv_hook", "ray._private.runtime_env.uv_runtime_env_hook.hook"):
        command = [*words, "-c", PROGRAM, hook]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    assert said[0] == said[1]
    assert "py_executable" in said[0]


def test_nothing_changes_without_uv(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a driver that was not started by uv it is `egs_ray.hook`."""
    monkeypatch.setenv("EGS_MODE", "off")
    runtime_env = {"working_dir": "."}
    assert egs_ray.uv_hook(runtime_env) is runtime_env
