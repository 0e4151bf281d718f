"""What Airflow asks of a provider and of a plugin, answered as it wants it; and what of EGS it is told to load."""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("airflow", reason="apache-airflow is not installed")

from egs_airflow import adapter, cli, config, options, plugin, provider
from egs_core.adapter import CAPABILITIES, Adapter


def test_the_provider_info_is_what_airflow_wants() -> None:
    """Airflow's own schema accepts it, and every option can be read from airflow.cfg."""
    import airflow
    from jsonschema import validate

    schema = json.loads((Path(airflow.__file__).parent / "provider_info.schema.json").read_text())
    info = provider.get_provider_info()
    validate(info, schema)
    assert "plugins" not in info  # two ways to one plugin are refused by Airflow
    assert set(info["config"]["egs"]["options"]) == set(options.OPTIONS)


def test_the_command_line_is_loaded_lazily() -> None:
    """The function that the provider names gives the group `egs`, and imports nothing of EGS that is heavy."""
    program = (
        "import sys; from egs_airflow.cli import get_cli_commands; print([c.name for c in get_cli_commands()]);"
        "print([m for m in sys.modules if m.startswith(('egs_core', 'numpy', 'pydantic_core', 'sqlalchemy.orm'))"
        " and m not in before])"
    )
    program = "import sys, airflow.cli.cli_config; before = set(sys.modules); " + program
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-2:] == ["['egs']", "[]"]


def test_the_plugin_is_light() -> None:
    """All processes of Airflow load the plugin: it brings no database stack, no numpy, and of the core only the table
    of features and the words of the mode, which need the standard library alone."""
    program = "import sys, airflow.plugins_manager; before = set(sys.modules); import egs_airflow.plugin; "
    program += (
        "print(sorted(m for m in set(sys.modules) - before if m.startswith(('numpy', 'pydantic', 'rich', 'egs_core'))))"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "['egs_core', 'egs_core.compat', 'egs_core.mode', 'egs_core.notices']"


def test_parts_are_registered() -> None:
    """Each part gives what Airflow registers."""
    for attribute in plugin.PARTS:
        assert plugin.load_part(attribute)
        assert getattr(plugin.EgsPlugin, attribute)


def test_off_registers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """In mode off Airflow gets no part of EGS."""
    monkeypatch.setenv("EGS_MODE", "off")
    assert [plugin.load_part(attribute) for attribute in plugin.PARTS] == [[]] * len(plugin.PARTS)


@pytest.mark.parametrize("problem", [ImportError("gone"), RuntimeError("broken"), SystemExit(3), MemoryError()])
def test_a_broken_part_is_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, problem: BaseException
) -> None:
    """Whatever a part does while Airflow starts, Airflow starts; the other parts are there."""

    def breaks() -> list[Any]:
        raise problem

    module = ModuleType("egs_broken_part")
    module.__dict__["breaks"] = breaks
    monkeypatch.setitem(sys.modules, "egs_broken_part", module)
    monkeypatch.setitem(plugin.PARTS, "listeners", "egs_broken_part:breaks")
    assert plugin.load_part("listeners") == []
    assert plugin.load_part("listeners") == []
    assert plugin.load_part("priority_weight_strategies")
    assert [r.getMessage() for r in caplog.records if r.name == "egs_airflow"] == [
        f"egs: egs_broken_part:breaks is off, Airflow runs without it: {type(problem).__name__}: {problem}"
    ]


def test_the_adapter_keeps_the_contract() -> None:
    """It is an adapter; each way has all that the one before it can do, and the last everything but preemption."""
    assert isinstance(adapter.ADAPTER, Adapter)
    can = [{name for name in CAPABILITIES if surface.has(name)} for surface in adapter.ADAPTER.surfaces()]
    assert can[0] < can[1] < can[2] == set(CAPABILITIES) - {"preempt"}


def lines() -> dict[str, tuple[bool, str]]:
    """The doctor's checks by name."""
    return {check.name: (check.ok, check.detail) for check in adapter.ADAPTER.doctor()}


def test_doctor_says_what_is_active(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mode, for which DAGs, where that was set, and each part by name."""
    monkeypatch.setenv("EGS_MODE", "on")
    monkeypatch.setenv("EGS_TAGS", "gpu")
    found = lines()
    assert found["mode"] == (True, "on (EGS_MODE in the environment) for DAGs with tag gpu")
    assert all(found[part][0] for part in plugin.PARTS)
    assert found["entry points"] == (True, "Airflow finds EGS")


def test_doctor_says_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistyped mode, an unknown version, a missing API and a broken part are each a failed line that says why."""
    monkeypatch.setenv("EGS_MODE", "onn")
    assert lines()["mode"][0] is False
    monkeypatch.setenv("EGS_MODE", "on")
    monkeypatch.setenv("EGS_AIRFLOW_WITHOUT", "version,dag_file")
    monkeypatch.setitem(plugin.PARTS, "listeners", "egs_airflow.no_such_module:listeners")
    found = lines()
    assert found["airflow"][0] is False
    assert found["mode"][0] is False
    assert found["private API: dag_file"] == (False, "`egs graph` cannot read DAG files")
    assert found["listeners"] == (False, "off: ModuleNotFoundError: No module named 'egs_airflow.no_such_module'")


def test_doctor_sets_up_no_airflow(tmp_path: Path) -> None:
    """`egs doctor` on a machine where Airflow is installed and not used leaves no home behind."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": ":".join(p for p in sys.path if p)}
    program = "from egs_airflow.adapter import ADAPTER; print([c.name for c in ADAPTER.doctor()])"
    out = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert out.stdout.splitlines()[-1] == "['airflow', 'entry points', 'home']"
    assert list(tmp_path.iterdir()) == []


def test_airflow_egs_doctor(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints the same lines, as JSON when asked, and exits with 1 when one of them is bad."""
    cli.run_doctor(Namespace(json=True))
    told = json.loads(capsys.readouterr().out)
    assert {line["name"] for line in told} >= {"airflow", "mode", *plugin.PARTS}
    monkeypatch.setenv("EGS_MODE", "onn")
    config.settings.cache_clear()
    with pytest.raises(SystemExit, match="1"):
        cli.run_doctor(Namespace(json=False))
    assert "no  mode " in capsys.readouterr().out
