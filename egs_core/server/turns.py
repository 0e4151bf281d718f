"""Since when it is a run's turn to wait for its GPUs. Pure.

    submitted ──── after others, held, a gang not whole ────► turn_at ── waits ── held ── waits ──► granted
                                                                  └─ waited_s: without what it was held ┘

Whatever its place in the line is meanwhile: a run with other wishes, one on another host, and one whose grant nobody
saw are given to the engine anew, and have waited since their turn began. What had its GPUs, and was evicted or has not
claimed them, waits anew.
"""

from __future__ import annotations

from collections.abc import Sequence

from egs_core.server.runs import Run


def admitted(run: Run, now: float) -> None:
    """The engine is told of it: the first time its turn begins."""
    if run.turn_at is None:
        run.turn_at = now


def again(run: Run, now: float) -> None:
    """It had its GPUs, and waits for others."""
    run.turn_at, run.held_at, run.waited_s = now, now if run.is_paused else None, None


def note_holds(gang: Sequence[Run], now: float) -> None:
    """A run, with its gang, is held back or is not any more: the time meanwhile is none that it waited."""
    is_held = any(run.is_paused for run in gang)
    for run in gang:
        if run.turn_at is None or run.lease is not None:
            continue
        if is_held:
            run.held_at = now if run.held_at is None else run.held_at
        elif run.held_at is not None:
            run.turn_at, run.held_at = run.turn_at + now - run.held_at, None


def waited_s(run: Run, now: float, ready_at: float) -> float:
    """How long it has waited by now. ready_at: since when the engine has it ready, which counts for a run whose turn is
    not known, of an older server."""
    since = ready_at if run.turn_at is None else run.turn_at
    return max(0.0, (now if run.held_at is None else run.held_at) - since)


def wait_of(run: Run, now: float) -> tuple[float, float] | None:
    """Since when it has waited for its GPUs, and how long, in seconds: until it had them, until it ended without, or by
    now. None where its turn has not come, or is not known, of an older server. What it was held is left out, as if its
    turn had begun so much later."""
    if run.waited_s is not None:
        since = run.turn_at
        if since is None and run.started_at is not None:
            since = run.started_at - run.waited_s
        return None if since is None else (since, run.waited_s)
    if run.turn_at is None:
        return None
    until = now if run.ended_at is None else run.ended_at
    return run.turn_at, max(0.0, (until if run.held_at is None else run.held_at) - run.turn_at)
