"""What the command line learns from the installed adapters, whatever their framework is called."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from egs_core import adapter as adapters
from egs_core.adapter import AuditSource, audit_sources, default_adapter, source_of_suffix
from egs_core.cli import app
from tests.unit.test_surfaces import TwoWays


class Slurm(TwoWays):
    """An adapter of a framework that the core has never heard of; it reads its own pipeline files."""

    suffixes = (".slurm",)
    audit_source = AuditSource("Accounting file.", is_path=True, events="alone")

    def read_history(self, request: object) -> None:
        raise AssertionError(f"not asked for: {request}")


class Flyte(TwoWays):
    is_default = True


SLURM, FLYTE = Slurm(), Flyte()


@pytest.fixture(autouse=True)
def two_adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are installed, and one that cannot be imported."""
    found = {"flyte": f"{__name__}:FLYTE", "broken": "no.such.module:ADAPTER", "slurm": f"{__name__}:SLURM"}
    entries = [EntryPoint(name, value, adapters.GROUP) for name, value in found.items()]
    monkeypatch.setattr(adapters, "entry_points", lambda group: entries if group == adapters.GROUP else [])


def test_the_default_is_what_an_adapter_says_of_itself() -> None:
    """One that cannot be imported takes nothing else down."""
    assert default_adapter() == "flyte"


def test_the_only_adapter_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without asking it, and without one there is none."""
    entry = EntryPoint("slurm", f"{__name__}:SLURM", adapters.GROUP)
    monkeypatch.setattr(adapters, "entry_points", lambda **_: [entry])
    assert default_adapter() == "slurm"
    monkeypatch.setattr(adapters, "entry_points", lambda **_: [])
    assert default_adapter() == ""


def test_audits_and_files_come_from_the_adapters() -> None:
    """The option of `egs audit`, and whose files end so."""
    assert audit_sources() == {"slurm": SLURM.audit_source}
    assert (source_of_suffix(".slurm"), source_of_suffix(".yaml"), source_of_suffix("")) == ("slurm", "", "")


def test_nobody_can_collect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line that says so, and how to name one; one that is named and cannot is told who can."""
    assert app.run(["collect", "--out", str(tmp_path)]) == 2
    assert "0 installed adapters can collect (name one with --on" in capsys.readouterr().err
    assert app.run(["collect", "--out", str(tmp_path), "--on", "slurm"]) == 2
    assert "adapter 'slurm': cannot collect (these can: none that is installed)" in capsys.readouterr().err


def test_an_unknown_framework_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the names that there are."""
    assert app.run(["demo", "--on", "airflow", "--out", str(tmp_path)]) == 2
    assert "--on: unknown 'airflow' (one of broken, flyte, slurm)" in capsys.readouterr().err
