"""What the environment of a driver asks of the hook: `EGS_MODE`, `EGS_GATE`, `EGS_SPLIT`. Standard library only."""

from __future__ import annotations

import os
import sys

GATES = ("local", "cluster")
"""Who orders GPU tasks in mode on: each driver its own, or one named actor those of all drivers and their workers."""


def chosen_gate() -> tuple[str, str]:
    """Whose gate EGS_GATE asks for, one of GATES, and what is wrong with it: then the gate is local."""
    said = os.environ.get("EGS_GATE", "")
    gate = said.strip().lower() or "local"
    return (gate, "") if gate in GATES else ("local", f"EGS_GATE={said!r} is none of {', '.join(GATES)}: local")


SPLITS = ("hints", "auto")
"""Which tasks of a script are split: those whose functions have hints, or all that say `with egs.gpu():`."""


def chosen_split() -> tuple[str, str]:
    """What EGS_SPLIT asks for, one of SPLITS, and what is wrong with it."""
    said = os.environ.get("EGS_SPLIT", "")
    split = said.strip().lower() or "hints"
    return (split, "") if split in SPLITS else ("hints", f"EGS_SPLIT={said!r} is none of {', '.join(SPLITS)}: hints")


def for_workers() -> dict[str, str]:
    """What workers are told of this driver: its EGS_ variables, but where its own run log goes and its token, and its
    name."""
    own = ("EGS_RUNLOG", "EGS_TOKEN")
    told = {name: value for name, value in os.environ.items() if name.startswith("EGS_") and not name.startswith(own)}
    script = os.path.splitext(os.path.basename(sys.argv[0] if sys.argv else ""))[0]
    return {**told, "EGS_MODE": "on", "EGS_GATE": chosen_gate()[0], "EGS_SCRIPT": script or "python"}
