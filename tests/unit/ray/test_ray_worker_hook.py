"""The hook for workers: pickled with its code, unable to raise of its own, the user's own hook after it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ray import cloudpickle

from egs_ray import compat, install, launch, settings
from egs_ray.worker.hook import FIELD, NAME, chain, with_hook

TOLD = {"EGS_MODE": "on", "EGS_GATE": "cluster", "EGS_HISTORY": "sqlite:///x"}
PICKLE = """
import sys
from ray import cloudpickle
from egs_ray.worker.hook import chain
sys.stdout.buffer.write(cloudpickle.dumps(chain({told!r}, "users.hook")))
"""


def run_pickled(pickled: bytes, folder: Path, **files: str) -> str:
    """Run a pickled hook in a fresh Python that finds these modules and, unless one of them, no egs_ray."""
    for name, source in {"egs_ray": "raise ImportError('not here')", **files}.items():
        (folder / f"{name}.py").write_text(source)
    (folder / "hook.pickle").write_bytes(pickled)
    program = "import pickle; pickle.load(open('hook.pickle', 'rb'))(); print('alive')"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout + done.stderr.strip().rpartition("\n")[2]


def test_equal_arguments_pickle_equally(tmp_path: Path) -> None:
    """Ray compares hooks by their pickled bytes: another process has the same, whatever the order of settings, and
    whether Python has compiled EGS's modules there or has read them from its cache."""
    here = cloudpickle.dumps(chain(dict(reversed(TOLD.items())), "users.hook"))
    program = PICKLE.format(told=TOLD)
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(tmp_path)}
    command = [sys.executable, "-c", program]
    compiled, read = (
        subprocess.run(command, env=environment, capture_output=True, timeout=60, check=True).stdout for _ in range(2)
    )
    assert here == compiled == read == cloudpickle.dumps(chain(TOLD, "users.hook"))
    assert here != cloudpickle.dumps(chain(TOLD, "users.other"))


@pytest.mark.parametrize(
    "package",
    [
        "raise ImportError('not here')",
        "import sys; sys.exit(3)",
        "raise KeyboardInterrupt",
        "1 / 0",
        "def __getattr__(name): raise RuntimeError(name)",
    ],
)
def test_package_that_is_missing_or_broken(package: str, tmp_path: Path) -> None:
    """Whatever happens at the import of this package in a worker, the worker lives and runs the user's hook."""
    pickled = cloudpickle.dumps(chain(TOLD, "users.hook"))
    assert run_pickled(pickled, tmp_path, egs_ray=package, users="def hook(): print('users')") == "users\nalive\n"


def test_users_exception_is_the_users(tmp_path: Path) -> None:
    """The user's hook raises as it would without EGS, and one that is not there is an error as well."""
    pickled = cloudpickle.dumps(chain(TOLD, "users.hook"))
    assert run_pickled(pickled, tmp_path, users="def hook(): raise ValueError('mine')") == "ValueError: mine"
    assert "no attribute 'hook'" in run_pickled(pickled, tmp_path, users="")


def test_users_function_is_called_after_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """A callable is called once, without arguments, after EGS's part, which is told the settings."""
    calls: list[Any] = []
    monkeypatch.setattr("egs_ray.worker.start.start", calls.append)
    chain(TOLD, lambda: calls.append("users"))()
    chain(TOLD, "")()
    chain(TOLD)()
    assert calls == [TOLD, "users", TOLD, TOLD]


def test_runtime_env_is_copied() -> None:
    """What the user passed stays as it was, so that a second ray.init with it works; all its other fields are kept."""
    given = {"env_vars": {"A": "1"}, "working_dir": "."}
    changed = with_hook(given, TOLD)
    assert changed is not None
    assert changed.pop(FIELD).__name__ == NAME
    assert changed == given == {"env_vars": {"A": "1"}, "working_dir": "."}
    assert changed["env_vars"] is not given["env_vars"]
    for nothing in (None, {}, {"env_vars": None}):  # Ray writes into env_vars
        assert (with_hook(nothing, TOLD) or {}).keys() == {"env_vars", FIELD}


@pytest.mark.parametrize(
    "runtime_env",
    [
        {"container": {"image": "x"}},
        {"image_uri": "x"},
        {FIELD: 3},
    ],
)
def test_no_room_for_a_hook(runtime_env: dict[str, Any]) -> None:
    """Where Ray would refuse the environment with our hook, there is none of ours."""
    assert with_hook(runtime_env, TOLD) is None


def test_exported_hook_serves() -> None:
    """An environment handed on from another driver keeps a user's hook as Ray exported it for that one; our name, which
    Ray would take for a second hook, goes; and a hook that is only ours is made anew."""
    exported = {launch.SETUP_HOOK_VARIABLE: "ray_runtime_env_func::x"}
    for theirs in ({FIELD: "users", "env_vars": exported}, {"env_vars": exported}):
        assert with_hook(theirs, TOLD) == theirs
    both, ours = chain(TOLD, "users.hook").__name__, chain(TOLD).__name__
    assert with_hook({FIELD: both, "env_vars": exported}, TOLD) == {"env_vars": exported}
    anew = with_hook({FIELD: ours, "env_vars": {**exported, "A": "1"}}, TOLD) or {}
    assert (anew["env_vars"], anew[FIELD].__name__) == ({"A": "1"}, ours)


def test_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are told the driver's EGS_ variables but its run log; mode and gate as understood, not as typed."""
    monkeypatch.setattr("sys.argv", ["/some/where/train.py"])
    for name, value in {"EGS_RUNLOG": "x", "EGS_HISTORY": "y", "EGS_MODE": " ON ", "EGS_GATE": "Cluster"}.items():
        monkeypatch.setenv(name, value)
    told = {
        name: value for name, value in settings.for_workers().items() if name in {*TOLD, "EGS_SCRIPT", "EGS_RUNLOG"}
    }
    assert told == {"EGS_MODE": "on", "EGS_GATE": "cluster", "EGS_HISTORY": "y", "EGS_SCRIPT": "train"}


@pytest.mark.parametrize(("said", "gate", "lines"), [("", "local", 0), ("local", "local", 0), ("clusterr", "local", 1)])
def test_gate(
    said: str, gate: str, lines: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The local gate is the default, and what a mistyped word means, with one warning."""
    monkeypatch.setenv("EGS_GATE", said)
    assert install._gate() == gate
    assert capsys.readouterr().err.count("\n") == lines


def test_runtime_env_stays_where_it_cannot_be_changed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without room, or with the private API gone that finds the user's own, the very object goes back, with a line."""
    container: dict[str, Any] = {"container": {"image": "x"}}
    assert install._for_workers(container) is container
    monkeypatch.setenv(compat.WITHOUT, "job_config")
    assert install._for_workers(None) is None
    assert capsys.readouterr().err.count("egs: GPU tasks that workers submit are not ordered") == 2
