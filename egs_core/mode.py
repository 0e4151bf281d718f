"""The mode of EGS in a process: off, observe (change nothing, and say what would be done), on."""

from __future__ import annotations

import os
from functools import cache
from typing import Literal, get_args

from egs_core.notices import warn

Mode = Literal["off", "observe", "on"]
MODES: tuple[Mode, ...] = get_args(Mode)
VARIABLE = "EGS_MODE"


def parse_mode(stated: str, default: Mode, what: str = f"{VARIABLE}=") -> tuple[Mode, str]:
    """The mode that a text names, and what is wrong with it: then the mode is observe. what: before it in an error.

    >>> parse_mode(" On ", "observe"), parse_mode("", "on")
    (('on', ''), ('on', ''))
    >>> parse_mode("banana", "on")
    ('observe', "EGS_MODE='banana' is none of off, observe, on: observing")
    """
    word = stated.strip().lower()
    for mode in MODES:
        if word == mode:
            return mode, ""
    return ("observe", f"{what}{stated!r} is none of {', '.join(MODES)}: observing") if word else (default, "")


def current_mode(default: Mode) -> Mode:
    """The mode that `EGS_MODE` asks for; one warning a process for a text that names none."""
    mode, problem = parse_mode(os.environ.get(VARIABLE, ""), default)
    if problem:
        _warn_once(problem)
    return mode


@cache
def _warn_once(problem: str) -> None:
    warn(problem)
