"""`python -m egs_core.sim.rolling`: roll-outs in a process of their own, beside whoever asks, at a low priority.

Reads one `Asked` from standard input and writes the futures of each order to standard output, both in msgpack.
"""

from __future__ import annotations

import os
import sys

import msgspec

from egs_core.engine import EngineConfig
from egs_core.sim.rollout import Future, Question, roll_out

Answered = dict[str, tuple[Future, ...]]
NICE = 10


class Asked(msgspec.Struct, frozen=True):
    """What to roll out: see `roll_out`."""

    snapshot: bytes
    config: EngineConfig
    question: Question


def main() -> int:
    os.nice(NICE)
    asked = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Asked)
    answer = roll_out(asked.snapshot, asked.config, asked.question)
    sys.stdout.buffer.write(msgspec.msgpack.encode(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
