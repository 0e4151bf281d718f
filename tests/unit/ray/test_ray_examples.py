"""The manifest and the command line that users copy name what the code reads."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml
from ray._common.utils import load_class
from ray.runtime_env import RuntimeEnv

import egs_ray
from egs_ray import compat, install, observe, settings

ROOT = Path(__file__).resolve().parents[3]
MANIFEST = ROOT / "examples" / "rayjob.yaml"


def test_rayjob_manifest(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a RayJob of a version EGS knows, whose runtime environment Ray accepts and whose variables EGS reads."""
    job = yaml.safe_load(MANIFEST.read_text())
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    cluster = job["spec"]["rayClusterSpec"]
    assert compat.supported(cluster["rayVersion"])
    runtime_env = RuntimeEnv(**yaml.safe_load(job["spec"]["runtimeEnvYAML"]))
    variables = runtime_env.env_vars()
    assert load_class(variables.pop("RAY_RUNTIME_ENV_HOOK")) is egs_ray.hook
    assert variables.keys() == {"EGS_MODE", "EGS_GATE", "XDG_DATA_HOME"}
    for name, value in {**variables, "EGS_RUNLOG": ""}.items():
        monkeypatch.setenv(name, value)
    assert (install._mode(), settings.chosen_gate()[0]) == (variables["EGS_MODE"], variables["EGS_GATE"])
    assert observe.runlog_path().parent == Path("/data/egs/runs")
    mounts = cluster["headGroupSpec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    assert [mount["mountPath"] for mount in mounts] == [variables["XDG_DATA_HOME"]]


def test_submit_command() -> None:
    """The `ray job submit` line of the manifest's comment parses, and sets the hook where the driver sees it."""
    (line,) = re.findall(r"^#\s+(ray job submit .*)$", MANIFEST.read_text(), re.MULTILINE)
    words = shlex.split(line)
    told = json.loads(words[words.index("--runtime-env-json") + 1])
    assert load_class(told["env_vars"]["RAY_RUNTIME_ENV_HOOK"]) is egs_ray.hook
    assert words[words.index("--") + 1 :] == ["python", "train.py"]


def test_versions_that_are_tested() -> None:
    """`make test` and `make test-versions` run on exactly the minor versions that EGS says it knows."""
    pinned = re.findall(r"^ray==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    others = re.findall(r"^OTHER_RAYS = (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[0].split()
    assert sorted(version.rpartition(".")[0] for version in [*pinned, *others]) == sorted(compat.KNOWN_VERSIONS)
