"""The table of `[egs]` options: what doctor says of values that cannot work, and that there is no other table."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("airflow", reason="apache-airflow is not installed")

import egs_airflow
from egs_airflow import config, provider
from egs_airflow.option_checks import CHECKS, option_checks, problem_of
from egs_airflow.options import OPTIONS, TAKES


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """User folders of the test's own."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("runlog", "/dev/null", "is no folder"),
        ("runlog", "lines", "is relative"),
        ("durations", "/proc/durations.json", "nothing can be written into /proc"),
        ("durations", "/", "is no file"),
        ("history", "mysql://x", "no database there"),
        ("history", "nonsense", "no database there"),
        ("history", "sqlite:////proc/egs.sqlite", "nothing can be written into /proc"),
        ("learn_every", "x", "'x' is not a duration"),
        ("reserve_after", "banana", "'banana' is not a duration"),
        ("keep_slots", "maybe", "'maybe' is none of yes, on, true, 1, no, off, false, 0, never"),
        ("ready_processes", "many", "'many' is no whole number"),
        ("preload_modules", "os;rm", "'os;rm': not the name of a module"),
        ("pools", "gpu=none", "'gpu=none' is not a pool with at least one slot"),
        ("pool_flavors", "gpu", "'gpu' is not a pool with a flavor"),
        ("stage_bytes", "lots", "'lots' is not a size"),
        ("limits", "/no/such/file.yaml", "/no/such/file.yaml"),
    ],
)
def test_doctor_names_what_cannot_work(name: str, text: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the option, where it was stated, and why; all other options are well."""
    monkeypatch.setenv(OPTIONS[name].variable, text)
    (check,) = option_checks()
    assert (check.name, check.ok) == (f"[egs] {name}", False)
    assert said in check.detail
    assert check.detail.startswith(f"EGS_{name.upper()} in the environment: ")


def test_what_can_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Defaults, examples, and places that are there or can be made; nothing is made by asking."""
    (check,) = option_checks()
    assert (check.name, check.ok) == ("options", True)
    for option in OPTIONS.values():
        if option.name not in ("history", "limits"):  # of servers and files that are not there
            assert not problem_of(option, option.example), option
        assert not option.default or not problem_of(option, option.default), option
    for name in ("runlog", "durations"):
        monkeypatch.setenv(f"EGS_{name.upper()}", str(tmp_path / "new" / name))
    monkeypatch.setenv("EGS_HISTORY", f"sqlite:///{tmp_path}/new/history.sqlite")
    assert [check.ok for check in option_checks()] == [True]
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistyped option would be silently without effect."""
    monkeypatch.setenv("AIRFLOW__EGS__KEEP_SLOT", "no")
    (check,) = option_checks()
    assert (check.name, check.detail) == ("[egs] keep_slot", "there is no such option: did you mean keep_slots?")


def test_an_option_of_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that had an effect once says what stands in its place, wherever it is stated."""
    monkeypatch.setenv("EGS_REFRESH_WEIGHTS", "1min")
    (check,) = option_checks()
    assert (check.name, check.ok) == ("[egs] refresh_weights", False)
    assert "has no effect any more" in check.detail


def test_what_means_nothing_is_the_default_and_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where doctor is not asked."""
    monkeypatch.setenv("EGS_KEEP_SLOTS", "maybe")
    monkeypatch.setenv("EGS_RESERVE_AFTER", "banana")
    monkeypatch.setenv("EGS_LEARN_EVERY", "banana")
    for _ in range(2):
        assert config.is_yes("keep_slots")
        assert (config.seconds_of("reserve_after"), config.seconds_of("learn_every")) == (30.0, 3600.0)
    assert len(caplog.records) == 3


def test_one_table() -> None:
    """Every option that is read stands in it, and every one in it is read, can be checked, and is told to Airflow."""
    read = set()
    for path in Path(egs_airflow.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and re.search(
                r"option|words|is_yes|number_of|seconds_of", ast.unparse(node.func)
            ):
                read |= {one.value for one in node.args[:1] if isinstance(one, ast.Constant)}
    assert {name for name in read if isinstance(name, str)} >= OPTIONS.keys()
    assert CHECKS.keys() == TAKES.keys() == {option.kind for option in OPTIONS.values()}
    told = provider.get_provider_info()["config"]["egs"]["options"]
    assert {name: one["default"] for name, one in told.items()} == {o.name: o.default for o in OPTIONS.values()}


def test_doctor_without_the_core(tmp_path: Path) -> None:
    """One line and exit code 1, no traceback."""
    (tmp_path / "egs_core.py").write_text("raise ImportError('No module named egs_core')")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
    program += "from argparse import Namespace; from egs_airflow import cli; cli.run_doctor(Namespace(json=False))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].startswith("no  egs-core  cannot be imported, so EGS is off: ")
    assert "Traceback" not in done.stderr + done.stdout
