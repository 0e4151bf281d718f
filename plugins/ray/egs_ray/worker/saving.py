"""The worker's side of checkpoints: what stands behind `egs.checkpoint` and `egs.restored` in a task of `egs_ray.run`.

    task ── egs.checkpoint(save) ─► a line of its own to the driver: saves ─► (waits) ─► save ─► saved

Only a task that registers a callback gets that line and the thread behind it. What the callback returns is kept by the
session's board, an actor: it outlives this process, and the driver passes a reference to it to the next try. A GPU step
in a process of its own has a line of its own.
"""

from __future__ import annotations

import base64
import contextlib
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import ray

from egs_core.hints import checkpoint_keeper, save_checkpoint
from egs_core.notices import warn
from egs_ray.link import Message, Peer, dial
from egs_ray.worker.spec import Spec

LOST = (OSError, EOFError, ValueError)


@contextlib.contextmanager
def saving(spec: Spec) -> Iterator[None]:
    """Let the task, or step of one, that runs inside keep checkpoints."""
    keeper = _Keeper(spec)
    with checkpoint_keeper(keeper):
        try:
            yield
        finally:
            keeper.close()


class _Keeper:
    """The `CheckpointKeeper` of one try of a task."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._peer: Peer | None = None

    def registered(self) -> None:
        if self._peer is None:
            try:
                self._peer = dial(self._spec.address)
                self._peer.send({"m": "saves", "task": self._spec.task})
            except LOST:
                return  # no driver: nobody will ask
            threading.Thread(target=self._serve, args=(self._peer,), name="egs-save", daemon=True).start()

    def restored(self) -> tuple[Any, ...]:
        if self._spec.restored is None:
            return ()
        try:
            return (pickle.loads(ray.get(self._spec.restored)),)
        except Exception as error:  # lost, or of a class that this process does not know: begin again
            warn(f"the checkpoint of the try before is lost: {type(error).__name__}: {error}")
            return ()

    def close(self) -> None:
        if self._peer is not None:
            self._peer.hang_up()  # the thread that reads it closes it

    def _serve(self, peer: Peer) -> None:
        """Answer the driver when it asks; until the task ends."""
        with contextlib.suppress(*LOST):
            while True:
                peer.send({"m": "saved", "task": self._spec.task, "error": _kept(peer.receive())})
        peer.close()


def _kept(asked: Message) -> str:
    """Call the task's callback and keep what it returns; what went wrong, if something did."""
    try:
        for value in save_checkpoint():
            board = pickle.loads(base64.b64decode(asked["board"]))
            ray.get(board.keep.remote({asked["key"]: ray.cloudpickle.dumps(value)}))
            return ""
        return "it has no callback any more"
    except BaseException as error:  # the user's code: whatever it raises costs the checkpoint and no more
        return f"{type(error).__name__}: {error}"[:300]
