"""Which node holds what, and what it costs in seconds to start elsewhere.

Known where a node states its bandwidth and a block names files; without either nothing here is asked.

    node m0   |==parent==|....|==child==|     reads what was written here: starts at once
    node m1              |~~~|==child==|      fetches it first: bytes / bandwidth, in its own slot

Two choices weigh these seconds. Of the nodes on which a phase fits it takes the one where it can begin its work first,
before every other wish (`start_delay_s`, in `fit`). Of the phases that could take that node, the one goes first
whose remaining path less what it would have to fetch is longest (`select_reader`): the dynamic level of Sih and Lee,
IEEE TPDS 4(2), 1993. A plan of the look-ahead lives by small differences of rank and knows nothing of files: the second
choice is not made beside one that gains more than all fetching costs (`State.lift`).

Files that no task wrote, or one of an earlier block, count as being everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable

from egs_core.engine.state.state import State

CANDIDATES = 16  # of a class, looked at for one place
TRANSFER_TERM = "transfer"

_Queued = tuple[tuple[float, ...], int]  # key, phase


def fetch_s(state: State, task: int, node: int) -> float:
    """Seconds until what other tasks wrote for this one elsewhere is on the node."""
    bandwidth = state.nodes[node].bandwidth_bytes_s
    if not bandwidth:
        return 0.0
    written_on = state.written_on
    return sum([size for parent, size in state.reads.get(task, ()) if written_on.get(parent) != node]) / bandwidth


def expected_fetch_s(state: State, tasks: Iterable[int], slots: int) -> float:
    """Seconds of each slot that fetching takes when tasks are spread over the nodes without regard to files."""
    bandwidths = [node.bandwidth_bytes_s for node in state.nodes if node.alive]
    slowest = min([bandwidth for bandwidth in bandwidths if bandwidth], default=0.0)
    if not slowest:
        return 0.0
    size = sum([size for task in tasks for _, size in state.reads.get(task, ())])
    return size / slowest * (1 - 1 / len(bandwidths)) / slots


def start_delay_s(state: State, task: int, node: int, is_warm: bool) -> float:
    """Seconds from the start of a task on the node to its own work: files to fetch, a process to load."""
    return fetch_s(state, task, node) + (0.0 if is_warm else state.options_of(task).warmup_s)


def select_reader(state: State, candidates: Iterable[_Queued], node: int, path_term: int) -> _Queued:
    """Of queued phases, the first one in order first, the one that should take this node. path_term: the place in keys
    of a term in seconds, smallest first; the terms before it must be equal."""
    first, *others = candidates
    best, least = first, first[0][path_term] + fetch_s(state, state.task_of[first[1]], node)
    for key, phase in others:
        seconds = key[path_term] + fetch_s(state, state.task_of[phase], node)
        if seconds < least and key[:path_term] == first[0][:path_term]:
            best, least = (key, phase), seconds
    return best
