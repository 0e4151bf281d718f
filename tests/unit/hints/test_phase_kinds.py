"""Which phases a task has: seen in its bytecode on every supported Python, or said by the author."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import pytest

import egs_core as egs
from egs_core.errors import InputError
from egs_core.hints import phase_kinds

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


@pytest.fixture(scope="module")
def cases() -> ModuleType:
    spec = importlib.util.spec_from_file_location("split_cases", HERE / "split_cases.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_blocks_are_seen_exactly(cases: ModuleType) -> None:
    """On this Python: every way to write the block is seen, and nothing that only looks like it."""
    cases.check()


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_blocks_are_seen_on_every_python(version: str) -> None:
    """The same cases on the other supported Pythons of this machine, with the standard library alone."""
    python = find_python(version)
    if python is None:
        pytest.skip(f"no Python {version} here")
    done = subprocess.run(
        [python, "-S", str(HERE / "split_cases.py")],
        env={"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"on Python {version}" in done.stdout


def find_python(version: str) -> str | None:
    """A Python of this version: this one, one of pyenv's, or one on the path that really starts."""
    if sys.version.startswith(version + "."):
        return sys.executable
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = sorted(pyenv.glob(f"versions/{version}.*/bin/python"))
    on_path = shutil.which(f"python{version}")
    for python in [*map(str, found), *([on_path] if on_path else [])]:
        probe = subprocess.run([python, "-S", "-c", ""], capture_output=True, timeout=240, check=False)
        if probe.returncode == 0:
            return python
    return None


def test_a_pickled_function_keeps_its_block(cases: ModuleType) -> None:
    """Unpickled by value in a worker, the block is still seen."""
    cloudpickle.register_pickle_by_value(sys.modules.setdefault("split_cases", cases))
    try:
        assert phase_kinds(cloudpickle.loads(cloudpickle.dumps(cases.attribute))) == ("cpu", "gpu", "cpu")
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules.pop("split_cases"))


def unsplit() -> Callable[[], int]:
    def whole() -> int:
        return 1

    return whole


def with_block() -> Callable[[], None]:
    def mixed() -> None:
        with egs.gpu():
            pass

    return mixed


def in_phases() -> Callable[..., Any]:
    return egs.phases(unsplit(), egs.on_gpu(str), name="two")


SPLIT = ("cpu", "gpu", "cpu")


@pytest.mark.parametrize(
    ("make", "hints", "framework_gpus", "kinds"),
    [
        (unsplit, {}, None, ("cpu",)),
        (unsplit, {"gpus": 1}, None, ("gpu",)),
        (unsplit, {"gpus": 0.5}, None, ("gpu",)),
        (unsplit, {}, 1, ("gpu",)),
        (unsplit, {"gpus": 1}, 0, ("cpu",)),
        (unsplit, {"gpus": 1, "split": True}, None, SPLIT),
        (with_block, {}, None, SPLIT),
        (with_block, {"gpus": 1}, None, SPLIT),
        (with_block, {}, 1, SPLIT),
        (with_block, {"gpus": 0}, None, ("cpu",)),
        (with_block, {"gpus": 1, "split": False}, None, ("gpu",)),
        (with_block, {"split": False}, None, ("gpu",)),
        (in_phases, {}, None, ("cpu", "gpu")),
        (in_phases, {"gpus": 1}, None, ("cpu", "gpu")),
        (in_phases, {"gpus": 1, "split": False}, None, ("gpu",)),
    ],
)
def test_hints_and_framework_decide(
    make: Callable[[], Callable[..., Any]], hints: dict[str, Any], framework_gpus: float | None, kinds: tuple[str, ...]
) -> None:
    """The code shows the split, `split` overrides it, and the framework's GPU count goes before the hint's."""
    assert phase_kinds(egs.task(**hints)(make()), framework_gpus) == kinds


def test_there_is_nothing_to_split_without_gpus() -> None:
    """gpus=0 with split=True contradict each other."""
    with pytest.raises(InputError, match="split: there is nothing to split"):
        egs.task(gpus=0, split=True)(unsplit())
