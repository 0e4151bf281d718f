"""The image of the controller, as far as that can be tried without a container runtime: what its file says, and its own
line of pip in an environment that has nothing else."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest

from egs_core.kubernetes.manifests import Installation, objects

ROOT = Path(__file__).resolve().parents[3]
PLACE = "/opt/egs"
PATIENCE_S = 600.0
LISTED = """import importlib.metadata, json
print(json.dumps([{"name": one.name, "version": one.version} for one in importlib.metadata.distributions()]))"""


def instructions() -> list[tuple[str, str]]:
    lines = (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    words = [line.partition(" ") for line in lines if line and not line.startswith("#")]
    return [(word, rest.strip()) for word, _, rest in words]


def said(word: str) -> list[str]:
    return [rest for one, rest in instructions() if one == word]


def copied() -> list[str]:
    """What is taken of the working tree."""
    found = [shlex.split(one) for one in said("COPY") if "--from" not in one]
    return [path for *paths, _ in found for path in paths]


def test_the_image_is_what_the_manifests_expect() -> None:
    """A slim Python, twice the same; the user that the pods ask for, by number; arguments go to `egs`."""
    (first, second) = [one.split()[0] for one in said("FROM")]
    assert first == second
    assert first.startswith("python:3.")
    assert first.endswith("-slim")
    pods = [one["spec"]["template"]["spec"] for one in objects(Installation("egs:1")) if one["kind"] == "Deployment"]
    assert said("USER") == [f"{pods[0]['securityContext']['runAsUser']}:65534"]
    assert [json.loads(one) for one in said("ENTRYPOINT")] == [["egs"]]
    assert pods[0]["containers"][0]["args"][:2] == json.loads(said("CMD")[0])
    assert instructions().index(("USER", "65534:65534")) > max(
        n for n, one in enumerate(instructions()) if "RUN" in one
    )


def test_nothing_else_of_a_working_tree_goes_to_the_builder() -> None:
    """Everything is ignored but what is copied, and that is there."""
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*"
    assert {line[1:] for line in lines if line.startswith("!")} == set(copied())
    assert all((ROOT / path).exists() for path in copied())


@pytest.fixture
def folder() -> Iterator[Path]:
    """It goes again at once: an environment is large."""
    found = Path(mkdtemp(prefix="egs-image-"))
    yield found
    shutil.rmtree(found, ignore_errors=True)


@pytest.mark.slow
def test_its_own_line_of_pip_makes_an_egs_that_runs(folder: Path) -> None:
    """With what is copied and nothing else: versions are those of the constraints, and the entry point runs with no
    variables but the image's and writes nothing."""
    if sys.version_info[:2] != (3, 11):
        pytest.skip("the constraints, and so the image, are for Python 3.11")
    source, place = folder / "src", folder / "egs"
    source.mkdir()
    for path in copied():
        whole = ROOT / path
        if whole.is_dir():
            shutil.copytree(whole, source / path, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(whole, source / path)
    for line in said("RUN"):
        command = [word.replace(PLACE, str(place)) for word in shlex.split(line)]
        command[0] = sys.executable if command[0] == "python" else command[0]
        done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        if "No matching distribution" in done.stderr or "NewConnectionError" in done.stderr:
            pytest.skip("no package index can be reached")
        assert done.returncode == 0, done.stderr[-2000:]
    pinned = dict(
        line.strip().split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line
    )
    listed = json.loads(_run([str(place / "bin/python"), "-c", LISTED], folder))
    others = {one["name"]: one["version"] for one in listed}
    for name in ("egs-core", "pip", "setuptools", "wheel"):
        others.pop(name, None)
    assert {"kubernetes", "cryptography", "requests"} <= set(others)
    wanted = {name.lower().replace("_", "-"): version for name, version in pinned.items()}
    assert {name: wanted.get(name.lower().replace("_", "-")) for name in others} == others
    egs = shutil.which(json.loads(said("ENTRYPOINT")[0])[0], path=str(place / "bin"))
    assert egs is not None
    assert "webhook" in _run([egs, *json.loads(said("CMD")[0]), "--help"], folder)
    assert "kind: Deployment" in _run([egs, "kubernetes", "manifests", "--image", "egs:1"], folder)


def _run(command: list[str], folder: Path) -> str:
    """What it prints. It leaves nothing behind where it lives."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    done = subprocess.run(
        command,
        cwd="/",
        env={"HOME": str(home), "PATH": f"{folder / 'egs/bin'}:/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert not list(home.iterdir())
    return done.stdout
