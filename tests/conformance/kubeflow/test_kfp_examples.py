"""Each example runs as a user would run it, and prints what is recorded beside it; the page's profile is one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from kfp import components

from egs_kubeflow.rewrite.profile import load_profile, parse_profile

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples" / "kubeflow"
TIMEOUT_S = 240


NOTE = (
    "note: publish: queue 'team' is not written: its node selector pool=edge fits none of the pools that ClusterQueue "
    "'shared' has: a100, cpu\n"
)
"""What of the example's author Kueue would keep waiting for ever."""


def run_in(folder: Path, *command: str, notes: str = "") -> str:
    """stdout of a command, in a folder and with a home and data of its own; on stderr these notes."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EGS_")}
    environment |= {"HOME": str(folder), "XDG_DATA_HOME": str(folder)}
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    assert done.stderr == notes
    return done.stdout


def recorded(name: str) -> str:
    return (EXAMPLES / f"{name}.out").read_text()


@pytest.fixture(scope="module")
def rewritten(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """What the two commands of the first example print and write."""
    tmp_path = tmp_path_factory.mktemp("rewritten")
    run_in(tmp_path, sys.executable, str(EXAMPLES / "01_rewrite.py"), "pipeline.yaml")
    options = ["--profile", str(EXAMPLES / "site.yaml"), "--diff", "-o", "for-site.yaml"]
    compiled = ("kubeflow", "compile", "pipeline.yaml", *options)
    return run_in(
        tmp_path, str(Path(sys.executable).with_name("egs")), *compiled, notes=NOTE
    ), tmp_path / "for-site.yaml"


def test_the_rewrite_says_what_is_recorded(rewritten: tuple[str, Path]) -> None:
    """The recorded explanation is the explanation."""
    assert rewritten[0] == recorded("01_rewrite")


def test_the_written_pipeline_is_one_that_kfp_loads_and_places(rewritten: tuple[str, Path]) -> None:
    """The example's claim, read from the file: GPU step on its pool, all others off it, the author's choice left."""
    assert components.load_component_from_file(str(rewritten[1])).name == "images"
    _, platform = yaml.safe_load_all(rewritten[1].read_text())
    executors: dict[str, Any] = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    pools = {name: config["nodeSelector"]["labels"]["pool"] for name, config in executors.items()}
    assert pools == {"exec-decode": "cpu", "exec-publish": "edge", "exec-shards": "cpu", "exec-train": "a100"}


def test_the_manifests_are_said_as_recorded(tmp_path: Path) -> None:
    """The recorded output of the fourth example, and what it says of `train`: its pod asks for no GPU."""
    run_in(tmp_path, sys.executable, str(EXAMPLES / "04_manifests.py"), "pipeline.yaml")
    options = ["--profile", str(EXAMPLES / "site.yaml"), "-o", "gitops"]
    egs = str(Path(sys.executable).with_name("egs"))
    assert run_in(tmp_path, egs, "kubeflow", "manifests", "pipeline.yaml", *options) == recorded("04_manifests")
    pod = yaml.safe_load((tmp_path / "gitops/pipelines/images/preload-train.yaml").read_text())
    assert pod["spec"]["nodeSelector"] == {"pool": "a100"}
    assert set(pod["spec"]["containers"][0]["resources"]["limits"]) == {"cpu", "memory"}


def test_every_example_is_tested() -> None:
    """One of the two ways above and below runs each of them."""
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {"01_rewrite", "02_run", "03_phases", "04_manifests"}


@pytest.mark.parametrize("name", ["02_run", "03_phases"])
def test_an_example_prints_what_is_recorded(name: str, tmp_path: Path) -> None:
    """The recorded output is the output: `decode` of 02 ends only if its three shards run at once, `train` at its
    second attempt; 03 counts the GPUs that each phase held."""
    assert run_in(tmp_path, sys.executable, str(EXAMPLES / f"{name}.py")) == recorded(name)


def test_the_profiles_that_users_see_are_profiles() -> None:
    """The example's, and the one of the documentation."""
    assert load_profile(EXAMPLES / "site.yaml").pools
    blocks = re.findall(r"```yaml\n(pools:.*?)```", (ROOT / "docs" / "kubeflow.md").read_text(), re.DOTALL)
    assert [len(parse_profile(block).pools) for block in blocks] == [2]
