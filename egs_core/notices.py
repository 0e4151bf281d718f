"""One line to the user on stderr, from anywhere: also where stderr is closed, missing or a full pipe.

What EGS has to say must never become an error of the code that it was called from: a user's `.remote()`, a task, a
scheduler's loop. Standard library only, as workers use it too.
"""

from __future__ import annotations

import contextlib
import os
import sys


def warn(problem: str) -> None:
    """Write "egs: problem" as one line, with EGS_LOG=json as JSON. Never raises; without a usable stderr the line is
    lost."""
    line = f"egs: {problem}"
    if "EGS_LOG" in os.environ:
        with contextlib.suppress(Exception):  # then as it is said to people
            from egs_core.json_log import is_json, json_line  # each process of a framework loads this module

            line = json_line("warning", problem) if is_json() else line
    say(line)


_said: set[str] = set()


def warn_once(problem: str) -> None:
    """The same, at most once a process for the same words."""
    if problem not in _said:
        _said.add(problem)
        warn(problem)


MAX_COST_UNUSED = "max_cost is not applied: the hardware here has no prices; use max_gpu_time"


def say(line: str) -> None:
    """Write one line as it is, under the same promise."""
    if (stream := sys.stderr) is not None:  # a daemon or a windowed program has none
        with contextlib.suppress(Exception):  # closed (ValueError), gone (OSError), or an object of the user's
            stream.write(f"{line}\n")
            stream.flush()
