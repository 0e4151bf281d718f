"""The life of a phase, as a table; `State` moves phases only along it.

pending → ready → granted → running → succeeded | failed | aborted | preempted
   ▲       ▲  ▼      ▼         ▼                   ▼                   ▼
   │       held ◄─ rejected    │                   │                   │
   └───────────────────────────┴─── requeue ───────┴───────────────────┘
"""

from __future__ import annotations

PENDING, READY, HELD, GRANTED, RUNNING, SUCCEEDED, FAILED, PREEMPTED, ABORTED, SKIPPED = range(10)

STATUS_NAMES = (
    "pending",
    "ready",
    "held",
    "granted",
    "running",
    "succeeded",
    "failed",
    "preempted",
    "aborted",
    "skipped",
)

ALLOWED: dict[int, frozenset[int]] = {
    PENDING: frozenset({READY, ABORTED, SKIPPED}),
    READY: frozenset({HELD, GRANTED, ABORTED, SKIPPED}),
    HELD: frozenset({READY, ABORTED, SKIPPED}),
    GRANTED: frozenset({RUNNING, HELD, SUCCEEDED, FAILED, PREEMPTED, ABORTED}),
    RUNNING: frozenset({SUCCEEDED, FAILED, PREEMPTED, ABORTED}),
    # What has ended never moves by this table. `State.requeue` starts a task again as a whole, with a new attempt
    # number: all its phases go back to pending.
    SUCCEEDED: frozenset(),
    FAILED: frozenset(),
    PREEMPTED: frozenset({ABORTED}),  # preempted while an abort is under way: there is no next attempt
    ABORTED: frozenset(),
    SKIPPED: frozenset(),
}

HOLDS_LEASE = frozenset({GRANTED, RUNNING})
ENDED = frozenset({SUCCEEDED, FAILED, PREEMPTED, ABORTED, SKIPPED})
OUTCOMES = {"succeeded": SUCCEEDED, "failed": FAILED, "preempted": PREEMPTED, "aborted": ABORTED}

COLD, WARMING, WARM = 0, 1, 2
