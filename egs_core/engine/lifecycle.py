"""The life of a phase, as a table; `State` moves phases only along it.

    pending → ready → (held →) granted → running → succeeded | failed | aborted
                 ▲                 │         │
                 └─── requeue ─────┴─────────┴── preempted
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
    READY: frozenset({HELD, GRANTED, PENDING, ABORTED, SKIPPED}),
    HELD: frozenset({READY, PENDING, ABORTED, SKIPPED}),
    GRANTED: frozenset({RUNNING, READY, HELD, SUCCEEDED, FAILED, PREEMPTED, ABORTED}),
    RUNNING: frozenset({SUCCEEDED, FAILED, PREEMPTED, ABORTED}),
    # A task starts again as a whole: its ended phases go back to pending, only through `State.requeue`.
    SUCCEEDED: frozenset({PENDING}),
    FAILED: frozenset({PENDING}),
    PREEMPTED: frozenset({PENDING}),
    ABORTED: frozenset(),
    SKIPPED: frozenset(),
}

HOLDS_LEASE = frozenset({GRANTED, RUNNING})
ENDED = frozenset({SUCCEEDED, FAILED, PREEMPTED, ABORTED, SKIPPED})
OUTCOMES = {"succeeded": SUCCEEDED, "failed": FAILED, "preempted": PREEMPTED, "aborted": ABORTED}

COLD, WARMING, WARM = 0, 1, 2
