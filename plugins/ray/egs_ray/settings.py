"""What the environment of a driver asks of the hook: `EGS_MODE`, `EGS_GATE`, `EGS_PRIORITY`, `EGS_SPLIT`,
`EGS_RETRY_OUT_OF_MEMORY`, and for an order with others' work `EGS_URL`, `EGS_QUEUE`, `EGS_QUEUES`.

Standard library only.
"""

from __future__ import annotations

import os

GATES = ("local", "cluster")
"""With whose GPU tasks a driver's are ordered where no server is named: its own, or those of all drivers of the Ray."""


def chosen_gate() -> tuple[str, str]:
    """Whose gate EGS_GATE asks for, one of GATES, and what is wrong with it: then the gate is local."""
    said = os.environ.get("EGS_GATE", "")
    gate = said.strip().lower() or "local"
    return (gate, "") if gate in GATES else ("local", f"EGS_GATE={said!r} is none of {', '.join(GATES)}: local")


def chosen_priority() -> tuple[int, str]:
    """What EGS_PRIORITY says of all that a driver submits, where no hint says another; and what is wrong with it."""
    said = os.environ.get("EGS_PRIORITY", "").strip() or "0"
    try:
        return int(said), ""
    except ValueError:
        return 0, f"EGS_PRIORITY={said!r} is no whole number: 0"


SPLITS = ("hints", "auto")
"""Which tasks of a script are split: those whose functions have hints, or all that say `with egs.gpu():`."""


def chosen_split() -> tuple[str, str]:
    """What EGS_SPLIT asks for, one of SPLITS, and what is wrong with it."""
    said = os.environ.get("EGS_SPLIT", "")
    split = said.strip().lower() or "hints"
    return (split, "") if split in SPLITS else ("hints", f"EGS_SPLIT={said!r} is none of {', '.join(SPLITS)}: hints")


SWITCH = ("off", "on")


def chosen_retry() -> tuple[bool, str]:
    """Whether EGS_RETRY_OUT_OF_MEMORY asks that a task for which a GPU's memory was not enough is tried on another
    flavor; and what is wrong with it."""
    said = os.environ.get("EGS_RETRY_OUT_OF_MEMORY", "")
    switch = said.strip().lower() or "off"
    if switch in SWITCH:
        return switch == "on", ""
    return False, f"EGS_RETRY_OUT_OF_MEMORY={said!r} is none of {', '.join(SWITCH)}: off"


QUEUE, QUEUES = "EGS_QUEUE", "EGS_QUEUES"
"""The queue of all that a driver runs, and the file with the queues of an order without a server."""


def unread_queues() -> str:
    """Which of these is set where a driver has no use for it, and what to do; "" where there is none."""
    is_served = bool(os.environ.get("EGS_URL", "").strip())
    read = {QUEUE} if is_served else {QUEUE, QUEUES} if chosen_gate()[0] == "cluster" else set[str]()
    unread = [name for name in (QUEUE, QUEUES) if name not in read and os.environ.get(name, "").strip()]
    if not unread:
        return ""
    said = f"{' and '.join(unread)} {'is' if len(unread) == 1 else 'are'} not read"
    if is_served:
        return f"{said}: the queues are those of the server that EGS_URL names"
    return (
        f"{said}: this driver orders its own work only. For an order with queues set EGS_GATE=cluster (all drivers of "
        "this Ray) or EGS_URL (those of an `egs serve`)"
    )
