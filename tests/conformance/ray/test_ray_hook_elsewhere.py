"""`EGS_HOOK=ray` reaches only environments that have the package; the others are as they are without EGS."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PLUGIN = ROOT / "plugins" / "ray"

DRIVER = """
import os, subprocess, sys
import ray

@ray.remote
def f():
    return os.environ.get("RAY_RUNTIME_ENV_HOOK")

for _ in range(2):
    ray.init(log_to_driver=False)
    print(ray.get(f.remote()), os.environ.get("RAY_RUNTIME_ENV_HOOK"), flush=True)
    ray.shutdown()
"""


@pytest.fixture
def environments(tmp_path: Path) -> dict[str, Path]:
    """Two environments with Ray, one of them with EGS as its wheel installs it: the packages, and the .pth file."""
    found = {}
    for name in ("with", "without"):
        venv.create(tmp_path / name, symlinks=True, with_pip=False)
        (site,) = (tmp_path / name).glob("lib/python*/site-packages")
        (site / "rest.pth").write_text("\n".join(_site_folders()))
        found[name] = tmp_path / name / "bin" / "python"
        if name == "with":
            (site / "egs.pth").write_text(f"{ROOT}\n{PLUGIN}\n")
            (site / "egs_ray_hook.pth").write_text((PLUGIN / "egs_ray_hook.pth").read_text())
        else:
            (site / "sitecustomize.py").write_text(HIDE)
    return found


HIDE = """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("egs_ray", "egs_core"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hide())
"""


def _site_folders() -> list[str]:
    return [folder for folder in sys.path if folder.endswith("site-packages")]


def run(python: Path, tmp_path: Path, ray_address: str, **variables: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "driver.py").write_text(DRIVER)
    own = {"RAY_ADDRESS": ray_address, "XDG_DATA_HOME": str(tmp_path / "data"), **variables}
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "EGS_MODE")}
    return subprocess.run(
        [python, "driver.py"], cwd=tmp_path, env={**kept, **own}, capture_output=True, text=True, timeout=240
    )


def test_the_package_decides_where_the_hook_is(environments: dict[str, Path], tmp_path: Path, ray_address: str) -> None:
    """With the package each Ray session of a driver is observed, and what it starts does not inherit Ray's variable.
    Without, `ray.init` is native, where Ray's own variable fails."""
    observed = run(environments["with"], tmp_path, ray_address, EGS_HOOK="ray")
    assert observed.returncode == 0, observed.stderr
    assert observed.stdout.splitlines() == ["None None"] * 2
    assert "egs: observed only: 2 tasks seen" in observed.stderr
    native = run(environments["without"], tmp_path, ray_address, EGS_HOOK="ray")
    assert (native.returncode, native.stdout.splitlines()) == (0, ["None None"] * 2), native.stderr
    assert "egs" not in native.stderr
    failing = run(environments["without"], tmp_path, ray_address, RAY_RUNTIME_ENV_HOOK="egs_ray.hook")
    assert "ModuleNotFoundError" in failing.stderr, "else none of this is needed"
