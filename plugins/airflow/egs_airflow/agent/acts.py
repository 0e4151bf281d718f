"""What the agent has done, as lines of a file beside those of the listener, one JSON object each; users see notes.

{"v": 1, "at": 1.7e9, "act": "ended", "dag": "d", "run": "r", "task": "fit[3]", "try": 1, "reason": "…"}
"""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from egs_airflow import config
from egs_airflow.agent.instances import Instance
from egs_airflow.observe.listener import folder

VERSION = 1


def acts_path() -> Path:
    """The file of this host."""
    return folder() / f"agent-{socket.gethostname()}.jsonl"


def note_act(act: str, one: Instance, reason: str, figures: Mapping[str, float] = MappingProxyType({})) -> None:
    """Add a line, and say it on stderr. figures: more of the line. A disk that is full stops no act."""
    kept = {
        "v": VERSION,
        "at": time.time(),
        "act": act,
        "dag": one.dag_id,
        "run": one.run_id,
        "task": one.name,
        "try": one.number,
        "reason": reason,
        **figures,
    }
    say(f"{act} {one.workload} {one.name}, try {one.number}: {reason}")
    try:
        acts_path().parent.mkdir(parents=True, exist_ok=True)
        with acts_path().open("a") as file:
            file.write(json.dumps(kept, separators=(",", ":")) + "\n")
    except OSError as error:
        config.warn(f"{acts_path()}: what the agent does is not kept: {error.strerror}")


def say(line: str) -> None:
    """One line for whoever started the agent."""
    print(f"egs agent: {line}", file=sys.stderr, flush=True)
