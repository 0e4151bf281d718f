"""The door of a run: real sockets, other processes' folders, and whatever may be said at it."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from egs_core.adapter import ControlOutcome, ControlRequest, RunningWorkload
from egs_core.cli.app import run
from egs_core.errors import InputError
from egs_kubeflow.run.door import DOOR, Door, folder_of_doors, knocked
from egs_kubeflow.run.reach import control, running


class Behind:
    """A run that takes everything."""

    def __init__(self, workload: str) -> None:
        self.workload = workload
        self.asked: list[ControlRequest] = []

    def running(self) -> RunningWorkload:
        return RunningWorkload(self.workload, str(os.getpid()), os.getpid())

    def carry_out(self, request: ControlRequest) -> ControlOutcome:
        if request.task == "none":
            raise InputError(self.workload, "has no task 'none'", "its tasks: a")
        self.asked.append(request)
        return ControlOutcome(self.workload, str(os.getpid()), ("a",))


TRAIN, OTHER = "train-20260101-000000-1-000001", "train-20260101-000000-1-000002"


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder whose path is too long for a socket's address."""
    found = tmp_path / ("long" * 25)
    monkeypatch.setenv("XDG_DATA_HOME", str(found))
    return found


@pytest.fixture
def behind() -> Iterator[Behind]:
    door, found = Door(), Behind(TRAIN)
    door.open(found)
    yield found
    door.close()
    assert not list(folder_of_doors().iterdir())


def test_a_request_reaches_the_run(behind: Behind) -> None:
    """By the run's name or its pipeline's; the run hears who asks, and which run is meant."""
    assert [found.workload for found in running()] == [TRAIN]
    assert control(ControlRequest("abort", "train", reason="wrong data")).tasks == ("a",)
    assert behind.asked[0].workload == TRAIN
    assert behind.asked[0].actor.endswith(f"@{socket.gethostname()}")


def test_only_this_user_can_knock(behind: Behind) -> None:
    """The socket and its folder are nobody else's."""
    (folder,) = folder_of_doors().iterdir()
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / DOOR)]
    assert (modes, behind.asked) == ([0o700, 0o600], [])


def test_what_cannot_be_done_names_what_there_is(behind: Behind, capsys: pytest.CaptureFixture[str]) -> None:
    """One line and exit code 2: an unknown workload, task or driver, an address, several runs of one name."""
    for words, problem in (
        (["abort", "nothing"], f"nothing: no such workload runs (there are: {TRAIN} (driver {os.getpid()}))"),
        (["abort", "train", "--task", "none"], f"{TRAIN}: has no task 'none' (its tasks: a)"),
        (["pause", "train", "--driver", "1"], "train: no such workload runs in driver 1"),
        (["ps", "--address", "here:1"], "--address: a local run has none"),
    ):
        assert run([*words, "--on", "kubeflow"]) == 2
        assert problem in capsys.readouterr().err
    second = Door()
    second.open(Behind(OTHER))
    try:
        with pytest.raises(InputError, match=f"2 runs are called so: .*{OTHER}"):
            control(ControlRequest("abort", "train"))
    finally:
        second.close()
    assert behind.asked == []


def test_a_door_that_nobody_is_behind_is_removed(behind: Behind) -> None:
    """As `kill -9` leaves it; one that is being made stays."""
    left, made = folder_of_doors() / "1-left", folder_of_doors() / "1-made"
    left.mkdir()
    made.mkdir()
    with socket.socket(socket.AF_UNIX) as gone:
        folder = os.open(left, os.O_RDONLY)
        gone.bind(f"/proc/self/fd/{folder}/{DOOR}")
        os.close(folder)
    assert [found.workload for found in running()] == [behind.workload]
    assert (left.exists(), made.exists()) == (False, True)
    made.rmdir()


def test_whatever_is_said_the_run_goes_on(behind: Behind) -> None:
    """Nothing, no JSON, a verb of another kind: an answer or none, and the next one is heard."""
    (folder,) = folder_of_doors().iterdir()
    for said in (b"", b"\n", b"what\n", b'{"request":{"verb":1}}\n'):
        with knocked(folder, 60.0) as connection:
            connection.sendall(said)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(4096):
                pass
    assert [found.workload for found in running()] == [behind.workload]


def test_a_run_may_be_out_of_reach(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """EGS_CONTROL=off, silently; a folder that cannot be made, with one line. Either way nothing runs, to `egs ps`."""
    monkeypatch.setenv("EGS_CONTROL", "off")
    closed = Door()
    closed.open(Behind(TRAIN))
    closed.close()
    assert not capsys.readouterr().err
    monkeypatch.delenv("EGS_CONTROL")
    data.touch()
    closed = Door()
    closed.open(Behind(TRAIN))
    closed.close()
    assert capsys.readouterr().err.startswith("egs: no control of this run from other processes: ")
    assert run(["ps", "--on", "kubeflow"]) == 0
    assert capsys.readouterr().out == "nothing runs\n"
