"""Which Ray on a host a user can connect to, by the processes that are seen: made-up ones here, a real Ray's in
tests/conformance/ray/test_ray_other_user.py."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import ray._private.utils as its_own

from egs_core.errors import InputError
from egs_ray.control import commands, reachable

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
