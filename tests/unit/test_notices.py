"""What EGS has to say never becomes an error of whoever it is said to."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest

from egs_core.notices import warn


def test_one_line_at_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    """With its prefix, on stderr, and written at once: threads do not mix their lines."""
    warn("a disk is full")
    assert capsys.readouterr() == ("", "egs: a disk is full\n")


class Broken(io.StringIO):
    """A stream of the user's that raises what nobody expects."""

    def write(self, _text: str) -> int:
        raise RuntimeError("no")


@pytest.mark.parametrize("kind", ["closed", "none", "users"])
def test_a_stream_that_cannot_be_used(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closed, missing (a daemon's), or an object of the user's that raises."""
    stream = {"closed": io.StringIO(), "none": None, "users": Broken()}[kind]
    if kind == "closed" and stream is not None:
        stream.close()
    monkeypatch.setattr(sys, "stderr", stream)
    warn("nobody hears this")


def test_a_descriptor_that_is_gone() -> None:
    """stderr's descriptor is closed below Python: nothing is raised, and nothing goes to stdout instead."""
    code = "import os; from egs_core.notices import warn; os.close(2); warn('lost'); print('goes on')"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, timeout=240)
    assert (done.stdout, done.returncode) == ("goes on\n", 0)
