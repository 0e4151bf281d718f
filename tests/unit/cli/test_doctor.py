"""`egs doctor`: each check on its own, and the whole as a user calls it."""

from __future__ import annotations

import json
import socket
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from egs_core import adapter as adapters
from egs_core.adapter import Adapter, Check, combined, load_adapter
from egs_core.cli import app, doctor
from egs_core.cli.server_check import server_check
from egs_core.errors import InputError
from egs_core.graph.columns import Shape
from egs_core.history.rows import HistoryRow
from egs_core.history.sql import FILE_NAME, SqlHistory
from tests.unit.test_surfaces import HOOK, RUN, TwoWays


class Framework(TwoWays):
    """An adapter of this test: its one check is as it was made."""

    name = "framework"

    def __init__(self, check: Check) -> None:
        self.check = check

    def doctor(self) -> list[Check]:
        return [self.check]


class Broken(Framework):
    """An adapter whose own check fails with an exception."""

    def doctor(self) -> list[Check]:
        raise RuntimeError("no such hook")


WORKS = Framework(Check("version", True, "2.0"))
FAILS = Framework(Check("version", False, "1.0; needs 2.0"))
BROKEN = Broken(Check("never", True))
NO_ADAPTER = object()


@pytest.fixture(autouse=True)
def _no_keeper(monkeypatch: pytest.MonkeyPatch) -> None:
    """This user's other runs may have processes that stand ready: `test_serve_ready.py` shows those."""
    monkeypatch.setattr(doctor, "shown", list)


def install(monkeypatch: pytest.MonkeyPatch, name: str | None) -> None:
    """Make the object `name` of this file the only installed adapter; none for None."""
    found = [] if name is None else [EntryPoint("framework", f"{__name__}:{name}", adapters.GROUP)]
    monkeypatch.setattr(adapters, "entry_points", lambda group: [e for e in found if e.group == group])


def diagnosis(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What `egs doctor --json` printed."""
    shown: dict[str, Any] = json.loads(capsys.readouterr().out)
    return shown


@pytest.mark.parametrize(
    ("found", "ok"), [((3, 10, 14), False), ((3, 11, 0), True), ((3, 13, 9), True), ((3, 14, 0), False)]
)
def test_python_is_supported_from_311_to_313(found: tuple[int, int, int], ok: bool) -> None:
    """Only the versions that the tests run on are called good."""
    assert doctor.python_check(found).ok is ok


@pytest.mark.parametrize(
    ("environment", "mode", "ok"),
    [({}, "observe", True), ({"EGS_MODE": "on"}, "on", True), ({"EGS_MODE": "onn"}, "observe", False)],
)
def test_the_mode_and_where_it_was_set(environment: dict[str, str], mode: str, ok: bool) -> None:
    """The mode is the environment's, `observe` without one, and a misspelt one is a failed check."""
    found, check = doctor.current_mode(environment)
    assert (found, check.ok) == (mode, ok)
    assert "EGS_MODE" in check.detail


def test_the_history_store_is_read(tmp_path: Path) -> None:
    """A store that does not exist yet is fine, one with a pipeline is counted, and one that is no database is not."""
    assert doctor.history_check(tmp_path).ok
    assert "nothing recorded yet" in doctor.history_check(tmp_path).detail
    history = SqlHistory.in_folder(tmp_path)
    assert history.record([HistoryRow(pipeline="digits", task="train", phase=0, shape=Shape(), seconds=1.5)]) == 1
    history.close()
    assert doctor.history_check(tmp_path).detail.endswith(": 1 pipelines")
    (tmp_path / FILE_NAME).write_bytes(b"no database" * 100)
    assert not doctor.history_check(tmp_path).ok


def test_json_is_one_object(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`egs doctor --json` prints one object with packages, adapters and checks; exit code 0 when all is well."""
    install(monkeypatch, "WORKS")
    code = app.run(["doctor", "--json"])
    shown = diagnosis(capsys)
    assert [a["name"] for a in shown["adapters"]] == ["framework"]
    assert shown["adapters"][0]["capabilities"] == combined([HOOK, RUN])
    assert {check["name"] for check in shown["checks"]} == {
        "python",
        "mode",
        "gpus",
        "history",
        "adapters",
        "server",
    }
    assert "numpy" in shown["packages"]
    assert (code, shown["ok"]) == (0, True), shown


@pytest.mark.parametrize("name", ["FAILS", "BROKEN", "NO_ADAPTER", "ABSENT"])
def test_a_failed_check_is_exit_code_1(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An adapter that fails, breaks, is none or cannot be found: a failed check, never a traceback."""
    install(monkeypatch, name)
    assert app.run(["doctor"]) == 1
    out, err = capsys.readouterr()
    assert "no " in out
    assert err == ""


def test_a_gpu_server_needs_no_framework(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without an adapter nothing is wrong: it is said, and the exit code is 0."""
    install(monkeypatch, None)
    code = app.run(["doctor", "--json"])
    shown = diagnosis(capsys)
    (found,) = [check for check in shown["checks"] if check["name"] == "adapters"]
    assert (code, shown["ok"], found["ok"]) == (0, True, True), shown
    assert found["detail"].startswith("none installed")


def test_the_first_view_has_a_line_a_part_and_what_is_wrong_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of an adapter that is well one line has all checks, of one that is not the failed one; with --all the rest."""
    monkeypatch.delenv("COLUMNS", raising=False)
    install(monkeypatch, "WORKS")
    assert app.run(["doctor"]) == 0
    _, *lines, last = capsys.readouterr().out.splitlines()
    found = {line.split()[1]: line.split()[0] for line in lines}
    assert list(found) == ["python", "mode", "gpus", "history", "adapters", "server", "framework", "packages"]
    assert (set(found.values()), "--all" in last) == ({"ok"}, True)
    install(monkeypatch, "FAILS")
    assert app.run(["doctor"]) == 1
    _, first, *lines, last = capsys.readouterr().out.splitlines()
    assert first.split() == ["no", "framework:", "version", "1.0;", "needs", "2.0"]
    assert not any("framework: can" in line for line in lines)
    assert app.run(["doctor", "--all"]) == 1
    assert "framework: can order" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("", "none listens on this host, and EGS_URL names none"),
        ("unix:///nowhere/egs.sock", "unix:///nowhere/egs.sock: no answer from an EGS server ([Errno 2] No such file"),
        ("http://127.0.0.1:1", "is the server up (`egs serve`), and is EGS_URL right?"),
        ("somewhere", "EGS_URL: 'somewhere' is not the address of a server"),
    ],
)
def test_a_server_that_is_named_has_to_answer(url: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one nothing is wrong."""
    monkeypatch.setenv("EGS_URL", url)
    check = server_check()
    assert (check.ok, told in check.detail) == (not url, True), check.detail


def test_a_socket_that_a_killed_server_left_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EGS_RUNTIME_DIR", str(tmp_path))
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(tmp_path / "egs.sock"))
    check = server_check()
    assert (check.ok, check.detail) == (
        False,
        f"unix://{tmp_path}/egs.sock was left by one that has ended: start `egs serve`",
    )


def test_an_adapter_that_is_not_installed_is_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking for an adapter that is not there says which are, and how to install it."""
    install(monkeypatch, "WORKS")
    with pytest.raises(
        InputError, match=r"adapter 'kubeflow': not installed; installed: framework \(pip install 'egs-core\[kubeflow"
    ):
        load_adapter("kubeflow")


def test_the_installed_adapter_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry point's object comes back when it has the contract's shape, and an error names it when not."""
    install(monkeypatch, "WORKS")
    assert isinstance(load_adapter("framework"), Adapter)
    install(monkeypatch, "NO_ADAPTER")
    with pytest.raises(InputError, match=r"is not an egs_core\.adapter\.Adapter"):
        load_adapter("framework")
