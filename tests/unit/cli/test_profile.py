"""`egs profile` where there is no site server: a command is measured on this host, kept, and asked about again."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

import pytest

from egs_core.cli.app import run as egs
from egs_core.client.places import socket_places
from egs_core.graph.columns import Shape
from egs_core.history.opened import open_history
from egs_core.history.rows import HistoryRow
from egs_core.profiling import running

pytestmark = pytest.mark.usefixtures("alone")
Out = pytest.CaptureFixture[str]
WORK = """
import sys, time
import egs_core as egs
held = bytearray(60_000_000)
until = time.monotonic() + 0.6
while time.monotonic() < until:
    sum(range(1000))
if len(sys.argv) > 1:
    size = int(sys.argv[1])
    if size > 16:
        sys.exit(3)
    egs.work(images=size * 10)
print("printed by the command")
"""


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No server, no GPU, and a history of its own."""
    for name in ("EGS_URL", "EGS_HISTORY", "EGS_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "run").mkdir()
    monkeypatch.setenv("EGS_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(running, "local_gpus", dict)
    monkeypatch.setattr("egs_core.cli.profile.local_gpus", dict)


@pytest.fixture
def script(tmp_path: Path) -> str:
    file = tmp_path / "train.py"
    file.write_text(WORK)
    return str(file)


def test_what_was_measured_is_told_kept_and_asked_about_again(script: str, capfd: Out) -> None:
    """One JSON object on stdout, the command's output on stderr; its memory and its work, and that no GPU was there; no
    advice on a flavor, as there is none. The same from the history."""
    assert egs(["profile", "--json", "--", sys.executable, script]) == 0
    shown = capfd.readouterr()
    told = json.loads(shown.out)
    assert "printed by the command" in shown.err
    (one,) = told["measured"]
    assert (told["name"], told["emulated"], one["flavor"], one["is_emulated"]) == ("train.py", True, "emulated", True)
    assert one["seconds"] >= 0.6
    assert one["peak_bytes"] > 60_000_000
    assert 0 < one["busy"] <= 1
    assert (told["advice"], told["no_advice"]) == (None, "it ran on no flavor of GPU that is known")
    assert egs(["profile", "--json", "train.py"]) == 0
    assert json.loads(capfd.readouterr().out)["measured"] == told["measured"]


def test_where_none_of_the_flavors_of_a_file_is_at_hand_it_is_said(tmp_path: Path, script: str, capfd: Out) -> None:
    """Before the command runs, on stderr, and with the reason that there is no advice; both say what to do."""
    file = tmp_path / "flavors.yaml"
    file.write_text("flavors: [{name: a100, gpu_hour: 3.0}, {name: t4, gpu_hour: 0.5}]")
    assert egs(["profile", "--flavors", str(file), "--", sys.executable, script]) == 0
    shown = capfd.readouterr()
    trial = "(for a trial without GPUs: egs serve --emulated-gpus a100=1,t4=1)"
    assert f"none of a100, t4 is here: it runs on emulated {trial}" in shown.err
    assert f"train.py: it ran on no flavor of GPU that is known, so there is no advice {trial}" in shown.out
    assert egs(["profile", "--", sys.executable, script]) == 0
    assert "is here" not in capfd.readouterr().err


def test_batches_and_what_a_command_tells_of_its_work(script: str, capfd: Out) -> None:
    """Each size in its place; throughput in the command's own unit; a size with which it fails counts for nothing and
    is named, with its exit code."""
    line = ["profile", "--json", "--batch", "8,16,32", "--name", "t", "--", sys.executable, script, "{batch}"]
    assert egs(line) == 0
    told = json.loads(capfd.readouterr().out)
    assert [(one["batch"], one["unit"], one["work"]) for one in told["measured"]] == [
        (8, "images", {"images": 80.0}),
        (16, "images", {"images": 160.0}),
    ]
    assert told["failed"] == [{"flavor": "emulated", "batch": 32, "exit_code": 3}]
    assert egs(["profile", "t"]) == 0
    shown = capfd.readouterr().out
    assert "images/s" in shown
    assert "no GPU was there" in shown


def test_advice_from_runs_of_a_pipeline(tmp_path: Path, capfd: Out) -> None:
    """Rows with a flavor, as runs on Ray leave them, and prices: the cheapest within twice the fastest, against what is
    asked for now."""
    store = open_history()
    shape = Shape(1000, 1000)
    rows = [("A100", 100.0), ("A100", 104.0), ("A100", 96.0), ("T4", 150.0), ("T4", 151.0), ("T4", 149.0)]
    store.record([HistoryRow("dag", "train", 0, shape, seconds, flavor) for flavor, seconds in rows])
    store.record([HistoryRow("dag", "train", 0, shape, 1.0), HistoryRow("dag", "train", 0, Shape(1000), 1.0, "T4")])
    store.close()
    prices = tmp_path / "flavors.yaml"
    prices.write_text("flavors: [{name: a100, gpu_hour: 3.0}, {name: t4, gpu_hour: 0.5}]")
    assert egs(["profile", "--flavors", str(prices), "--asked", "a100", "--json", "train"]) == 0
    advice = json.loads(capfd.readouterr().out)["advice"]
    assert (advice["flavor"], advice["instead"], advice["risk"]) == ("T4", "A100", "low")
    assert advice["saving"] == pytest.approx(0.75)
    assert egs(["profile", "--flavors", str(prices), "train"]) == 0
    shown = capfd.readouterr().out
    assert "train: ask for T4: the cheapest of those that take at most 2 times as long as the fastest" in shown
    assert "it costs 75% less than A100" in shown
    assert egs(["profile", "--flavors", str(prices), "--deadline", "120s", "--json", "train"]) == 0
    assert json.loads(capfd.readouterr().out)["advice"]["flavor"] == "A100"


def test_numbers_of_gpus_are_compared_like_flavors(tmp_path: Path, capfd: Out) -> None:
    """Of a task that ran on one and on two: two T4 take less time and cost more than one, and neither is the other; the
    table has each with what a run cost."""
    store = open_history()
    seen = [("A100", 1, 100.0), ("T4", 1, 190.0), ("T4", 2, 101.0)]
    rows = [HistoryRow("dag", "fit", 0, Shape(0, 1000 * gpus), seconds, flavor) for flavor, gpus, seconds in seen]
    store.record(rows)
    store.close()
    prices = tmp_path / "flavors.yaml"
    prices.write_text("flavors: [{name: a100, gpu_hour: 3.6}, {name: t4, gpu_hour: 0.36}]")
    line = ["profile", "--flavors", str(prices), "--asked", "t4"]
    assert egs([*line, "--json", "fit"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert {one["flavor"]: one["cost"] for one in told["advice"]["choices"]} == pytest.approx(
        {"A100": 0.1, "T4": 0.019, "2 x T4": 0.0202}
    )
    assert (told["advice"]["instead"], told["no_advice"]) == ("T4", "")
    assert egs([*line, "fit"]) == 0
    shown = [tuple(row.split()) for row in capfd.readouterr().out.splitlines()]
    assert ("2", "x", "T4", "-", "101", "s", "0.0202", "-", "-", "-") in shown
    assert ("T4", "-", "190", "s", "0.019", "-", "-", "-") in shown


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (["--runs", "3", "nobody"], "--runs: says how a command is run, and a TASK's runs are over"),
        (["--gpus", "2", "nobody"], "--gpus: says how a command is run"),
        (["--gpus", "2", "--flavor", "h100", "--", "true"], "there are no 2 GPUs of h100 here"),
        (["nobody"], "no run of a task of this name is known"),
        (["--batch", "8", "--", "true"], "there is no {batch} among the command's arguments"),
        (["--", "true", "{batch}"], "no sizes are named for it"),
        (["--batch", "8,x", "--", "true", "{batch}"], "are no sizes"),
        (["--batch", "0", "--", "true", "{batch}"], "are no sizes"),
        (["--flavor", "h100", "--", "true"], "there is no GPU of h100 here"),
        (["--", "/no/such/program"], "cannot be started"),
        (["--deadline", "soon", "--", "true"], "--deadline"),
        (["--queue", "lab", "--", "true"], "--queue: there is no site server here"),
        (["true", "--json"], "--json: stands behind true, where words are the command's own (egs profile OPTIONS TASK"),
        (["true", "--asked=a100"], "--asked=a100: stands behind true"),
    ],
)
def test_what_a_user_can_mend_is_one_line(line: list[str], text: str, capfd: Out) -> None:
    assert egs(["profile", *line]) == 2
    error = capfd.readouterr().err
    assert text in error
    assert len(error.splitlines()) == 1


def test_a_command_that_fails_is_no_measurement(capfd: Out) -> None:
    """Its exit code is told, nothing is kept, and the check has failed."""
    assert egs(["profile", "--", "false"]) == 1
    shown = capfd.readouterr().out
    assert "on emulated it failed with exit code 1" in shown
    assert "nothing was measured, so there is no advice" in shown
    assert egs(["profile", "false"]) == 2
    assert egs(["profile", "--", "sh", "-c", "kill -9 $$"]) == 1
    assert "on emulated it failed with exit code 137" in capfd.readouterr().out


def test_what_a_server_left_is_no_server(capfd: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its socket is there, and nobody listens: the command is measured on this host."""
    (place,) = socket_places()
    monkeypatch.chdir(place.parent)  # a socket's path may not be long
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as left:
        left.bind(place.name)
    assert egs(["profile", "--json", "--", "true"]) == 0
    assert json.loads(capfd.readouterr().out)["measured"][0]["flavor"] == "emulated"
