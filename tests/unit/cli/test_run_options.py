"""What `egs run` and its like say of options: those that do nothing beside another one, and those out of bounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from egs_core.cli.app import run as egs

USELESS = [
    ("--retry-on 75", "--retry-on", "--retries"),
    ("--retry-on 75 --retries 0", "--retry-on", "--retries"),
    ("--json", "--json", "--check or --detach"),
    ("--json --gpus 1 --array 2", "--json", "--check or --detach"),
    ("--split", "--split", "--gpus or --gpu-memory"),
    ("--split --gpus 0", "--split", "--gpus or --gpu-memory"),
    ("--check --detach", "--detach", "--check"),
    ("--check --pty", "--pty", "--check"),
    ("--check --gang zz:2 --gang-wait 5s", "--gang-wait", "--check"),
    ("--check --gang zz:2 --torch-env", "--torch-env", "--check"),
    ("--check --preload torch", "--preload", "--check"),
    ("--preload torch --pty", "--preload", "--pty"),
    ("--preload torch --keep-ready 1 --gpus 1 --split", "--keep-ready", "--split"),
    ("--preload torch --keep-ready 1 --suspend", "--keep-ready", "--suspend"),
    ("--preload torch --keep-ready 1 --gang a:2", "--keep-ready", "--gang"),
    ("--keep-ready 1", "--keep-ready", "--preload"),
    ("--preload torch --gpus 1 --or-flavor a100", "--preload", "--or-flavor"),
    ("--check --array 3", "--array", "--check"),
    ("--check --retries 3", "--retries", "--check"),
    ("--check --idle-timeout 5m", "--idle-timeout", "--check"),
    ("--check --split --gpus 1", "--split", "--check"),
    ("--array 2 --pty", "--pty", "--array"),
    ("--in 7 --gpus 1", "--gpus", "--in"),
    ("--in 7 --queue a", "--queue", "--in"),
    ("--gang-wait 5m", "--gang-wait", "--gang"),
    ("--torch-env", "--torch-env", "--gang or --in"),
    ("--split --gpus 1 --gang a:2", "--gang", "--split"),
    ("--in 7 --gang a:2", "--gang", "--in"),
    ("--split --gpus 1 --requeue", "--requeue", "--split"),
    ("--split --gpus 1 --deadline 2h", "--deadline", "--split"),
]
BOUNDS = [
    ("run --for 0s -- true", "--for"),
    ("run --expect 99999999d -- true", "--expect"),
    ("run --gpu-memory 99999999GiB -- true", "--gpu-memory"),
    ("run --in " + "7" * 40 + " -- true", "--in"),
    ("run --idle-timeout 0s --gpus 1 -- true", "--idle-timeout"),
    ("run --array 0 -- true", "--array"),
    ("run --array 300 -- true", "--array"),
    ("run --gang a:2 --gang-wait 0 -- true", "--gang-wait"),
    ("run --gang a:2:3 -- true", "--gang"),
    ("run --gang a:1 -- true", "--gang"),
    ("run --preload torch -- true", "--preload"),
    ("run --preload 1x -- python train.py", "--preload"),
    ("run --preload torch -- python -I train.py", "--preload"),
    ("update 1 --deadline 99999999d", "--deadline"),
    ("request --gpus 1 --for 1h --idle-timeout 99999999d", "--idle-timeout"),
    ("request extend 1 --for 0s", "--for"),
    ("request release 1 --grace 400d", "--grace"),
    ("release 1 --grace 400d", "--grace"),
    ("abort 1 --grace 400d", "--grace"),
    ("token create --role viewer --expires 99999999d", "--expires"),
]


@pytest.fixture(autouse=True)
def a_server_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """None is there, and none is asked: what is wrong is said before."""
    monkeypatch.setenv("EGS_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))


@pytest.mark.parametrize(("words", "option", "other"), USELESS, ids=[one[0] for one in USELESS])
def test_an_option_that_does_nothing_is_refused(
    words: str, option: str, other: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line that names both, and exit code 2."""
    assert egs(["run", *words.split(), "--", "true"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {option}: does nothing with"), line
    assert f" {other}: " in line
    assert f"leave {option} " in line


@pytest.mark.parametrize(("words", "option"), BOUNDS, ids=[one[0][:40] for one in BOUNDS])
def test_what_is_out_of_bounds_is_named_by_its_option(
    words: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Never by the field that the protocol has for it."""
    assert egs(words.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {option}: "), line
    assert "nput should" not in line


def test_a_role_that_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    """All that there are, as people write a list."""
    assert egs(["token", "create", "--role", "boss"]) == 2
    known = "'viewer', 'submitter', 'operator', 'admin' or 'agent'"
    assert capsys.readouterr().err == f"error: --role: must be one of {known}\n"
