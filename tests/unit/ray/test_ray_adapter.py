"""What the adapter tells the command line about itself."""

from __future__ import annotations

import subprocess
import sys

import pytest

from egs_core.adapter import CAPABILITIES, Adapter, load_adapter
from egs_ray.adapter import ADAPTER


def test_importing_the_adapter_imports_no_ray() -> None:
    """`egs doctor` asks every adapter, also where its framework is missing or broken."""
    program = "import sys, egs_ray.adapter; sys.exit(any(name.split('.')[0] == 'ray' for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0


def test_every_capability_is_answered() -> None:
    """Each is `yes`, or `no` with the reason; none is left out or made up."""
    answers = ADAPTER.capabilities()
    assert set(answers) == set(CAPABILITIES)
    assert all(answer == "yes" or answer.startswith("no: ") for answer in answers.values())
    assert [name for name, answer in answers.items() if answer == "yes"] == [
        "observe",
        "order",
        "split",
        "preload",
        "limits",
        "abort",
    ]


def test_installed_adapter_is_this_one() -> None:
    """The entry point leads here, and what it leads to has the contract's shape."""
    assert load_adapter("ray") is ADAPTER
    assert isinstance(ADAPTER, Adapter)


def test_doctor_of_a_whole_installation() -> None:
    """The tests' own Ray is a known version with all the private API that EGS uses."""
    checks = {check.name: check for check in ADAPTER.doctor()}
    assert list(checks) == ["ray", "private API", "hook"]
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
    from importlib.metadata import PackageNotFoundError

    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("egs_ray.adapter.version", missing)
    (check,) = ADAPTER.doctor()
    assert (check.ok, check.detail) == (False, "not installed: pip install egs-ray")


def test_another_tools_hook_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray takes one hook: whose it is decides whether unmodified scripts are seen."""
    monkeypatch.setenv("RAY_RUNTIME_ENV_HOOK", "other.hook")
    assert "other.hook is another tool's" in ADAPTER.doctor()[-1].detail
