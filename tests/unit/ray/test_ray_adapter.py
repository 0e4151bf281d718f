"""What the adapter tells the command line about itself."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest

from egs_core.adapter import CAPABILITIES, Adapter, load_adapter
from egs_ray import install
from egs_ray.adapter import ADAPTER


def test_importing_the_adapter_imports_no_ray() -> None:
    """`egs doctor` asks every adapter, also where its framework is missing or broken."""
    program = "import sys, egs_ray.adapter; sys.exit(any(name.split('.')[0] == 'ray' for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", program], timeout=240, check=False).returncode == 0


def test_each_surface_says_what_is_true_of_it() -> None:
    """A script under the hook is ordered, with hints also split, preloaded, limited and preempted; gangs are for
    `egs_ray.run`. Through a site server counts only what was tried there."""
    can = {surface.name: {name for name in CAPABILITIES if surface.has(name)} for surface in ADAPTER.surfaces()}
    by_hook = {"observe", "order", "abort", "audit"}
    assert can == {
        "script": by_hook,
        "hinted script": by_hook | {"split", "preload", "limits", "preempt"},
        "cluster": by_hook - {"observe"},
        "run": set(CAPABILITIES) - {"observe"},
        "site script": {"order", "abort"},
        "site run": {"order", "split", "preload", "gang", "abort"},
        "keep-ready": {"preload"},
    }


def test_installed_adapter_is_this_one() -> None:
    """The entry point leads here, and what it leads to has the contract's shape."""
    assert load_adapter("ray") is ADAPTER
    assert isinstance(ADAPTER, Adapter)


def test_doctor_of_a_whole_installation() -> None:
    """The tests' own Ray is a known version with all the private API that EGS uses (2.59 has no _on_ready)."""
    checks = {check.name: check for check in ADAPTER.doctor()}
    if version("ray").startswith("2.59"):
        assert checks.pop("private API: ready").ok is False
        checks["private API"] = checks["ray"]
    assert sorted(checks) == ["hook", "mode", "private API", "ray"]
    assert all(check.ok for check in checks.values())
    assert "not set" in checks["hook"].detail


def test_doctor_names_what_is_missing_and_what_that_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line for each use of private API that does not work here."""
    monkeypatch.setenv("EGS_RAY_WITHOUT", "dag, ready")
    failed = {check.name: check.detail for check in ADAPTER.doctor() if not check.ok}
    assert failed == {
        "private API: ready": "ends of tasks are found by polling",
        "private API: dag": "egs_ray.run cannot read graphs: use the hook",
    }


def test_doctor_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Ray is not installed, that is the one thing to say."""
    monkeypatch.setattr("egs_ray.adapter.installed_version", lambda _: "")
    (check,) = ADAPTER.doctor()
    assert (check.ok, check.detail) == (False, "not installed: pip install egs-ray")


def test_another_tools_hook_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray takes one hook: whose it is decides whether unmodified scripts are seen."""
    monkeypatch.setenv("RAY_RUNTIME_ENV_HOOK", "other.hook")
    assert "other.hook is another tool's" in ADAPTER.doctor()[-1].detail


@pytest.mark.parametrize(
    ("mode", "gate", "ok", "words"),
    [
        ("", "", True, "observe; EGS_MODE=on orders"),
        ("on", "", True, "on, local gate"),
        ("ON", " cluster ", True, "on, cluster gate: GPU tasks are ordered with those of all"),
        ("on", "clusterr", False, "EGS_GATE='clusterr' is none of local, cluster"),
        ("onn", "", False, "EGS_MODE='onn' is none of off, observe, on: observing"),
    ],
)
def test_mode_and_gate_are_told(mode: str, gate: str, ok: bool, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the variables of this shell would have a script do, and what a mistyped one comes to."""
    monkeypatch.setenv("EGS_MODE", mode)
    monkeypatch.setenv("EGS_GATE", gate)
    check = next(check for check in ADAPTER.doctor() if check.name == "mode")
    assert (check.ok, words in check.detail) == (ok, True), check.detail


@pytest.mark.parametrize(
    ("variables", "unread"),
    [
        ({}, ""),
        ({"EGS_QUEUE": "red"}, "EGS_QUEUE is not read: this driver orders its own work only."),
        ({"EGS_QUEUE": "red", "EGS_QUEUES": "q.yaml"}, "EGS_QUEUE and EGS_QUEUES are not read: this driver orders"),
        ({"EGS_QUEUES": "q.yaml", "EGS_GATE": "clusterr"}, "EGS_QUEUES is not read: this driver orders"),
        ({"EGS_QUEUE": "red", "EGS_QUEUES": "q.yaml", "EGS_GATE": "cluster"}, ""),
        ({"EGS_QUEUE": "red", "EGS_URL": "http://site"}, ""),
        ({"EGS_QUEUE": "red", "EGS_QUEUES": "q.yaml", "EGS_URL": "http://site"}, "EGS_QUEUES is not read: the queues"),
    ],
)
def test_queues_that_nobody_reads_are_told(
    variables: dict[str, str], unread: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A driver whose own gate knows no queues says so once, with what would heed them, and so does doctor."""
    for name in ("EGS_QUEUE", "EGS_QUEUES", "EGS_GATE", "EGS_URL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ({"EGS_MODE": "on"} | variables).items():
        monkeypatch.setenv(name, value)
    install._warn_of_settings()
    said = [line for line in capsys.readouterr().err.splitlines() if "not read" in line]
    assert len(said) == bool(unread), said
    assert all(line.startswith(f"egs: {unread}") for line in said), said
    check = next(check for check in ADAPTER.doctor() if check.name == "mode")
    told = unread if "clusterr" not in variables.values() else "EGS_GATE='clusterr' is none of"
    assert (check.ok, told in check.detail) == (not unread, True), check.detail


def test_hook_that_ray_skips_under_uv(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under `uv run` egs_ray.hook is never called: doctor says so, and which variables have both hooks run."""
    monkeypatch.setattr("egs_ray.launch.runs_under_uv", lambda: True)
    monkeypatch.setenv("RAY_RUNTIME_ENV_HOOK", "egs_ray.hook")
    assert not ADAPTER.doctor()[-1].ok
    monkeypatch.setenv("RAY_RUNTIME_ENV_HOOK", "egs_ray.uv_hook")
    monkeypatch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    assert ADAPTER.doctor()[-1].ok
