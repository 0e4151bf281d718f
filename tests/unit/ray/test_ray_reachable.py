"""Which Ray on a host a user can connect to, by the processes that are seen: made-up ones here, a real Ray's in
tests/conformance/ray/test_ray_other_user.py."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray._private.utils as its_own

from egs_core.cli.app import run
from egs_core.errors import InputError
from egs_ray.control import at_hand, commands, reachable

NODE = "192.0.2.7"


def node(folder: Path, pid: int, port: int, session: Path, *, host: str = NODE) -> None:
    """A node's process among those of a host."""
    flags = (f"--gcs-address={host}:{port}", f"--session_dir={session}", f"--node_ip_address={NODE}")
    (folder / str(pid)).mkdir(parents=True)
    (folder / str(pid) / "cmdline").write_text("\0".join(("/ray/raylet/raylet", *flags, "--labels=", "")))


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Processes of a host; sessions below `locked` are another user's."""
    processes = tmp_path / "proc"
    (processes / "1").mkdir(parents=True)
    (processes / "1" / "cmdline").write_text("python\0-m\0raylet\0")
    (processes / "2").mkdir()  # has ended
    for name in ("locked", "own", "other"):
        (tmp_path / name / "logs" / "events").mkdir(parents=True)

    def access(path: str, _mode: int) -> bool:
        return f"{tmp_path}/locked/" not in path

    monkeypatch.setattr(reachable, "PROCESSES", processes)
    monkeypatch.setattr(os, "access", access)
    return tmp_path


def test_nothing_is_said_where_ray_has_its_own_words(host: Path) -> None:
    """No node on this host, one of another cluster with the same port, and Ray's client: Ray is asked as it is."""
    assert reachable.chosen_address("auto", "here") == "auto"
    node(host / "proc", 10, 6379, host / "locked")
    for address in ("192.0.2.8:6379", f"{NODE}:6380", "ray://192.0.2.7:6379"):
        assert reachable.chosen_address(address, "here") == address


@pytest.mark.parametrize("address", ["auto", f"{NODE}:6379", "127.0.0.1:6379", "localhost:6379"])
def test_the_session_of_another_user_is_refused(host: Path, address: str) -> None:
    """By each name that it has."""
    node(host / "proc", 10, 6379, host / "locked")
    with pytest.raises(InputError, match=f"the Ray at {NODE}:6379 is of user .*/locked/logs is not writable for you"):
        reachable.chosen_address(address, "here")


def test_of_several_the_own_one_is_taken(host: Path) -> None:
    """Ray itself would take any of them, and end at the other user's; two own ones have to be told apart."""
    node(host / "proc", 10, 6379, host / "locked")
    node(host / "proc", 11, 6380, host / "own")
    assert reachable.chosen_address("auto", "here") == f"{NODE}:6380"
    node(host / "proc", 12, 6381, host / "other")
    with pytest.raises(InputError, match=rf"several clusters: {NODE}:6380, {NODE}:6381 \(say which with --address"):
        reachable.chosen_address("auto", "here")
    assert reachable.chosen_address(f"{NODE}:6381", "here") == f"{NODE}:6381"


def test_what_ray_says_of_another_version_is_told_whole() -> None:
    """Its message has the versions in lines of their own; the first line alone ends with a colon."""
    others = {"ray_version": "1.0.0", "python_version": "3.8.0"}
    with pytest.raises(RuntimeError, match="Version mismatch") as said:
        its_own.check_version_info(others, "this process", raise_on_mismatch=True)
    told = commands.in_one_line(said.value)
    assert "\n" not in told
    assert "Ray: 1.0.0" in told
    assert f"Ray: {its_own.ray.__version__}" in told


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of something that takes connections and says nothing, as a cluster may that refuses a token."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        yield f"127.0.0.1:{door.getsockname()[1]}"


@pytest.fixture
def no_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EGS_RUNTIME_DIR", str(tmp_path))
    for name in ("EGS_URL", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(at_hand, "ANSWER_S", 0.5)


@pytest.mark.usefixtures("no_server")
@pytest.mark.parametrize("command", ["ps", "abort 5", "pause 5"])
@pytest.mark.parametrize("whose", ["nobody", "another", "own"])
def test_without_a_server_only_an_own_ray_that_answers_is_asked(
    host: Path,
    silent: str,
    whose: str,
    command: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """One line, whatever Ray there is, and nothing of Ray's own; Ray itself would try for twenty seconds."""
    ip, port = silent.split(":")
    if whose != "nobody":
        node(host / "proc", 10, int(port), host / "own", host=ip)
    if whose == "another":
        monkeypatch.setattr(os, "getuid", lambda: 12345)
    if whose != "own":
        monkeypatch.setattr(at_hand, "PROBE", "raise SystemExit('nothing is to be asked')")
    began = time.monotonic()
    assert run(command.split()) == 2
    asked_s = time.monotonic() - began
    told = capfd.readouterr()
    looked = f"EGS_URL is not set, and no server listens at {os.environ['EGS_RUNTIME_DIR']}/egs.sock or "
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert told.err.startswith(f"error: no EGS server here ({looked}")
    assert told.err.endswith(
        "): start `egs serve`, or name one by EGS_URL; and no ray of this user on this host answers: "
        "--on ray --address ADDRESS asks another\n"
    )
    assert asked_s < at_hand.START_S


@pytest.mark.usefixtures("no_server")
def test_a_ray_that_is_named_and_does_not_answer_is_one_line(
    silent: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """RAY_ADDRESS says which is meant, so the line is about that one."""
    monkeypatch.setenv("RAY_ADDRESS", silent)
    assert run(["ps"]) == 2
    told = capfd.readouterr().err
    assert f"the Ray at {silent}, which RAY_ADDRESS names, does not answer within 0.5 s" in told
    assert len(told.splitlines()) == 1
