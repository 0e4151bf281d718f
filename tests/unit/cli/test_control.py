"""`egs ps`, `abort` and their kind: what they ask of an adapter, what they print, and how they fail."""

from __future__ import annotations

import json
import time

import pytest

from egs_core import adapter as adapters
from egs_core.adapter import ControlOutcome, ControlRequest, RunningTask, RunningWorkload
from egs_core.cli.app import run
from egs_core.errors import InputError


class Adapter:
    """An adapter that notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[ControlRequest] = []
        self.hangs = False

    def control(self, request: ControlRequest) -> ControlOutcome:
        self.asked.append(request)
        if request.workload != "train#0":
            raise InputError(request.workload, "no such workload runs", "there are: train#0")
        return ControlOutcome(request.workload, "ab12", ("fit-0", "fit-1"), self.hangs)

    def running(self, address: str) -> list[RunningWorkload]:
        task = RunningTask("fit-0", "fit", "train", "running", time.time(), 1.0, "node1", 77)
        waits = RunningTask("eval-0", state="pending", waiting_for=("fit-0", "fit-1"))
        tasks = (task, waits)
        return [RunningWorkload("train#0", "ab12", 5, "host", "running", 4, 3, ("train",), tasks)] if address else []


@pytest.fixture
def adapter(monkeypatch: pytest.MonkeyPatch) -> Adapter:
    made = Adapter()
    monkeypatch.setattr(adapters, "load_adapter", lambda _: made)
    return made


def test_options_become_a_request(adapter: Adapter, capsys: pytest.CaptureFixture[str]) -> None:
    """Every option of an abort reaches the adapter, and the answer names the tasks."""
    command = "abort train#0 --on x --stage fit --task f --address h:1 --driver d --reason r --actor a --grace 2m"
    assert run(command.split()) == 0
    assert adapter.asked == [ControlRequest("abort", "train#0", "fit", "f", "h:1", "d", "a", "r", 120.0)]
    assert capsys.readouterr().out == "train#0, stage fit: ended (2 tasks: fit-0, fit-1)\n"


@pytest.mark.parametrize(
    ("verb", "says"), [("pause", "paused"), ("resume", "resumed"), ("preempt", "stopped, to start again")]
)
def test_the_other_verbs(adapter: Adapter, capsys: pytest.CaptureFixture[str], verb: str, says: str) -> None:
    """Each asks for itself; `--json` prints the outcome."""
    assert run([verb, "train#0"]) == 0
    assert f"train#0: {says}" in capsys.readouterr().out
    assert run([verb, "train#0", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["verb"], told["tasks"], told["hangs"]) == (verb, ["fit-0", "fit-1"], False)
    assert [request.verb for request in adapter.asked] == [verb, verb]


def test_a_driver_that_hangs(adapter: Adapter, capsys: pytest.CaptureFixture[str]) -> None:
    """The answer says what was done without it, and what was not."""
    adapter.hangs = True
    assert run(["abort", "train#0"]) == 0
    assert "what ran of it was ended (2 tasks" in capsys.readouterr().out
    assert run(["pause", "train#0"]) == 0
    assert "nothing was done; it is told when it goes on" in capsys.readouterr().out


def test_an_unknown_target_is_one_line(adapter: Adapter, capsys: pytest.CaptureFixture[str]) -> None:
    """It names what there is; exit code 2."""
    assert run(["abort", "other"]) == 2
    assert capsys.readouterr().err.endswith("; and other: no such workload runs (there are: train#0)\n")
    assert run(["abort", "other", "--on", "x"]) == 2
    assert capsys.readouterr().err == "error: other: no such workload runs (there are: train#0)\n"
    assert run(["abort", "train#0", "--grace", "soon"]) == 2
    assert "--grace" in capsys.readouterr().err
    assert len(adapter.asked) == 2


def test_ps(adapter: Adapter, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Workloads with their running tasks; nothing to list is said."""
    monkeypatch.setenv("COLUMNS", "120")
    assert run(["ps", "--on", "x", "--address", "h:1"]) == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("train#0", "1 of 4 ended", "fit-0", "train", "node1", "77"))
    assert "after fit-0 +1" in shown, "a task that is pending is listed with what it waits for"
    assert run(["ps", "--address", "h:1", "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)["workloads"]
    assert (one["workload"], one["running"][0]["task"]) == ("train#0", "fit-0")
    assert run(["ps", "--on", "x"]) == 0
    assert capsys.readouterr().out == "nothing runs\n"
    assert adapter.asked == []


@pytest.mark.parametrize("columns", ["", "60"])
def test_rows_in_a_pipe_are_whole(
    adapter: Adapter, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    """What `grep` reads has each row in one line, however long; a width that a user states is kept."""
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns:
        monkeypatch.setenv("COLUMNS", columns)
    assert run(["ps", "--on", "x", "--address", "h:1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (row,) = [line for line in lines if "node1" in line]
    assert ("77" in row and len(row) > 80) == (not columns), lines
    assert adapter.asked == []


def test_a_number_without_a_server_says_who_was_asked_instead(
    adapter: Adapter, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where this user has a cluster on this host: the server was looked for, then that one was asked."""
    monkeypatch.setattr(adapter, "at_hand", lambda: "10.0.0.7:6379", raising=False)
    assert run(["abort", "1"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: no EGS server here (EGS_URL is not set, and no server listens at ")
    asked = f"{adapters.default_adapter()} at 10.0.0.7:6379 was asked instead"
    assert told.endswith(f"; and {asked}: 1: no such workload runs (there are: train#0)\n")
    assert adapter.asked[-1].address == "10.0.0.7:6379"


def test_what_is_shown_without_a_server_says_whose_it_is(
    adapter: Adapter, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody named that cluster, and it may be another program's; `--json` has it always."""
    name = adapters.default_adapter()
    assert run(["ps"]) == 0
    shown = f"no EGS server is here: this is {name}\n"
    assert capsys.readouterr().out == f"{shown}nothing runs\n"
    monkeypatch.setattr(adapter, "at_hand", lambda: "10.0.0.7:6379", raising=False)
    assert run(["ps"]) == 0
    line, *rows = capsys.readouterr().out.splitlines()
    assert line == f"no EGS server is here: this is {name} at 10.0.0.7:6379"
    assert any("train#0" in row for row in rows)
    assert run(["ps", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["framework"], told["address"]) == (name, "10.0.0.7:6379")
    assert run(["pause", "train#0"]) == 0
    asked = f"no EGS server is here: {name} at 10.0.0.7:6379 was asked\n"
    assert capsys.readouterr().out.startswith(f"{asked}train#0: paused")


def test_an_adapter_without_control(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A framework that cannot is named."""
    monkeypatch.setattr(adapters, "load_adapter", lambda _: object())
    assert run(["ps", "--on", "other"]) == 2
    assert "adapter 'other': cannot be controlled from here (these can: " in capsys.readouterr().err


def test_ps_where_there_is_nothing(
    adapter: Adapter, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a site server nor a cluster: both are said, for whoever meant the other; with `--on` only the cluster."""

    def fails(_address: str) -> list[RunningWorkload]:
        raise InputError("control of Ray", "no cluster found")

    monkeypatch.setattr(adapter, "running", fails)
    assert run(["ps"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: no EGS server here (EGS_URL is not set, and no server listens at ")
    assert told.endswith("): start `egs serve`, or name one by EGS_URL; and control of Ray: no cluster found\n")
    assert run(["ps", "--on", "ray"]) == 2
    assert "server" not in capsys.readouterr().err
