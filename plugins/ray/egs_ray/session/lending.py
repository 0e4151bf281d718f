"""CPUs that tasks lend while their code waits in Ray, in Ray's books and in the site's.

    shell ── waits ─► driver ── lend ─► holder: waits for a promise, so Ray gives out its CPUs (no GPU, no memory)
                        └─────────────► site: the node has so many CPUs more, and a process slot
    shell ── goes ──► driver ── keeps the promise ─► holder goes on: Ray counts its CPUs again, also where others have
                        └─────────────► site: the node is as before                             them by now

The holder is a Ray task like any other, so what Ray does with a worker that waits is what happens here, no more. The
site starts nothing on a node that has less than nothing left.
"""

from __future__ import annotations

import base64
import itertools
from collections.abc import Callable

import msgspec

from egs_core.engine import messages as m
from egs_core.engine.specs import PROCESS_BYTES, usual_process_slots
from egs_ray.link import tell
from egs_ray.session.shared import Shared
from egs_ray.session.tasks import Job

MOST_SLOTS = 64  # of a node whose memory nobody knows


class Loan(msgspec.Struct, frozen=True):
    """What a task lends. key: of the promise that its holder waits for; "": it holds its CPUs itself."""

    node: str
    cpu_milli: int
    has_slot: bool
    key: str


class Lending:
    """The loans of a session's tasks. Used on the holder's thread. offer: describes a node to the site again."""

    def __init__(self, shared: Shared, offer: Callable[[str], None]) -> None:
        self._shared, self._offer = shared, offer
        self._loans: dict[int, Loan] = {}  # by the task's number
        self._keys = itertools.count(1)
        self._board = ""

    def begin(self, job: Job) -> None:
        """The task's code waits."""
        grant = job.grant
        if grant is None or not job.began or job.number in self._loans:
            return
        key, lease = "", job.lease
        if lease is not None and lease.ref is not None and lease.peer is not None and job.shape(grant).cpu_milli:
            key = f"lend-{next(self._keys)}"
            tell(lease.peer, {"m": "lend", "lease": lease.id, "key": key, "board": self._pickled_board()})
        has_slot = bool(job.warm_key) or job.n_phases > 1
        self._loans[job.number] = Loan(grant.node, job.shape(grant).cpu_milli, has_slot, key)
        self._offer_anew(grant.node)

    def end(self, job: Job) -> None:
        """It goes on, or holds nothing any more."""
        loan = self._loans.pop(job.number, None)
        if loan is None:
            return
        if loan.key:
            self._shared.promises.keep(loan.key, None)
        self._offer_anew(loan.node)

    @property
    def nodes(self) -> set[str]:
        """Those on which something is lent."""
        return {loan.node for loan in self._loans.values()}

    def offered(self, node: m.NodeAdded) -> m.NodeAdded:
        """The node with what is lent there. A slot for each task that waits, as long as the node has memory for its
        process, by the same rule as for the slots that it has itself."""
        loans = [loan for loan in self._loans.values() if loan.node == node.node]
        if not loans:
            return node
        slots = node.process_slots
        if slots is None:
            slots = usual_process_slots(node.cpus, node.gpus, node.memory_bytes)
        cpus = node.cpus + sum(loan.cpu_milli for loan in loans) / 1000
        most = MOST_SLOTS if node.memory_bytes is None else node.memory_bytes // PROCESS_BYTES
        more = min(sum(loan.has_slot for loan in loans), max(0, most - slots))
        return msgspec.structs.replace(node, cpus=cpus, process_slots=slots + more)

    def _offer_anew(self, node: str) -> None:
        if not self._shared.broken:
            self._offer(node)

    def _pickled_board(self) -> str:
        if not self._board:
            self._board = base64.b64encode(self._shared.promises.board()).decode()
        return self._board
