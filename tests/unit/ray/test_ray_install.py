"""The hook's choices that need no Ray: which mode, which version, and that it never raises."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import egs_ray
from egs_ray import compat, install, observe


@pytest.mark.parametrize(
    ("version", "known"),
    [
        ("2.59.0", True),
        ("2.60.1", True),
        ("2.60", True),
        ("2.61.0", False),
        ("2.6.0", False),
        ("3.0.0.dev0", False),
        ("?", False),
    ],
)
def test_supported_versions(version: str, known: bool) -> None:
    """Exactly the minor versions that were tried count as known."""
    assert compat.supported(version) is known


def test_hook_resolves_as_ray_does() -> None:
    """`egs_ray.hook` is the function that Ray's load_class finds, and stays it after its module was used."""
    from ray._common.utils import load_class

    assert load_class("egs_ray.hook") is egs_ray.hook
    assert callable(egs_ray.hook)


def test_off_touches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """EGS_MODE=off returns the very object and installs nothing."""
    monkeypatch.setenv("EGS_MODE", "off")
    runtime_env = {"env_vars": {"A": "1"}}
    assert egs_ray.hook(runtime_env) is runtime_env
    assert install.interceptor is None


def test_unknown_mode_observes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A mistyped mode is one warning and observe, never on."""
    monkeypatch.setenv("EGS_MODE", "onn")
    assert install._mode() == "observe"
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("mode", ["observe", "on"])
def test_unknown_version_observes(
    mode: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a Ray that EGS does not know, even `on` observes, with one warning."""
    monkeypatch.setenv("EGS_MODE", mode)
    monkeypatch.setattr("ray.__version__", "2.99.0")
    assert install._mode() == "observe"
    assert capsys.readouterr().err.count("\n") == 1


def test_on_without_submission_hook_observes(monkeypatch: pytest.MonkeyPatch) -> None:
    """`on` cannot act where submissions cannot be seen."""
    monkeypatch.setenv("EGS_MODE", "on")
    monkeypatch.setenv("EGS_RAY_WITHOUT", "submit")
    assert install._mode() == "observe"


def test_hook_never_raises(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A run log that cannot be written leaves Ray native, with one line."""
    monkeypatch.setattr("ray.is_initialized", lambda: False)  # other tests of this process may have connected
    monkeypatch.setenv("EGS_RUNLOG", "/proc/no/such/log.jsonl")
    runtime_env = {"working_dir": "."}
    assert egs_ray.hook(runtime_env) is runtime_env
    assert capsys.readouterr().err.startswith("egs: off, Ray runs as it would without EGS:")
    assert install.interceptor is None


@pytest.mark.parametrize(
    "feature",
    ["submit", "auto_init", "ready", "task_events", "actors", "actor_handles", "waits", "disconnect", "uv", "dag"],
)
def test_features_of_this_ray(feature: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each probe finds its API in a known version (2.59 has no _on_ready), and can be made to fail."""
    import ray

    expected = not (feature == "ready" and ray.__version__.startswith("2.59"))
    assert compat.available(feature) is expected
    monkeypatch.setenv(compat.WITHOUT, f"x, {feature}")
    assert not compat.available(feature)


def test_probe_survives_a_moved_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe that raises means: not available."""
    monkeypatch.delattr("ray._private.worker.disconnect")
    assert not compat.available("disconnect")


@pytest.mark.parametrize("mode", ["off", "observe", "on"])
def test_workers_of_a_job_do_not_get_the_hook(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A submitted job names the hook in its env_vars: its workers get all of these but that one, in every mode."""
    monkeypatch.setenv("EGS_MODE", mode)
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    given = {"env_vars": {"RAY_RUNTIME_ENV_HOOK": "egs_ray.hook", "EGS_MODE": mode, "A": "1"}, "working_dir": "."}
    assert egs_ray.hook(given) == {"env_vars": {"EGS_MODE": mode, "A": "1"}, "working_dir": "."}
    assert "RAY_RUNTIME_ENV_HOOK" in given["env_vars"]
    others: list[Any] = [
        {"env_vars": {"RAY_RUNTIME_ENV_HOOK": "other.hook"}},
        {"env_vars": {}},
        {"env_vars": 3},
        {},
        None,
    ]
    for other in others:
        assert egs_ray.hook(other) is other


def test_a_drivers_driver_has_a_run_log_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """EGS_RUNLOG names the first driver's; one that it starts inherits the variable and leaves that log alone."""
    monkeypatch.setenv("EGS_RUNLOG", str(tmp_path / "log.jsonl"))
    monkeypatch.setenv("EGS_RUNLOG_OWNER", "1 of another.jsonl")
    assert observe.runlog_path() == observe.runlog_path() == tmp_path / "log.jsonl"
    monkeypatch.setenv("EGS_RUNLOG_OWNER", f"1 {tmp_path / 'log.jsonl'}")
    assert observe.runlog_path() == tmp_path / f"log-{os.getpid()}.jsonl"


def test_a_hook_by_another_name_is_told_once(tmp_path: Path) -> None:
    """By the line that Python reads when it starts: in the process where that is set, and in none that it starts. The
    right name, and none, say nothing."""
    lines = Path(egs_ray.__file__).parent.parent / "egs_ray_hook.pth"
    (tmp_path / "egs_ray_hook.pth").write_text(lines.read_text())
    inner = f"import site; site.addsitedir({str(tmp_path)!r})"
    outer = f"{inner}; import os, subprocess, sys; subprocess.run([sys.executable, '-S', '-c', {inner!r}], check=True);"
    outer += "print(os.environ.get('RAY_RUNTIME_ENV_HOOK'))"

    def said(name: str | None) -> tuple[str, str]:
        env = {key: value for key, value in os.environ.items() if not key.startswith(("EGS_", "RAY_"))}
        env |= {} if name is None else {"EGS_HOOK": name}
        done = subprocess.run([sys.executable, "-S", "-c", outer], env=env, capture_output=True, text=True, timeout=240)
        return done.stdout.strip(), done.stderr

    assert said("rey") == ("None", "egs: EGS_HOOK=rey does nothing: it must be `ray`\n")
    assert (said("ray"), said(""), said(None)) == (("egs_ray.hook", ""), ("None", ""), ("None", ""))
