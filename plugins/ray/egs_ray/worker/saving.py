"""The worker's side of checkpoints: what stands behind `egs.checkpoint` and `egs.restored` in a task.

    task ── egs.checkpoint(save) ─► a line of its own to the driver: saves ─► (waits) ─► save ─► saved ─► leave

A task of `egs_ray.run` is cancelled then, and submitted anew. One of a script is Ray's to start again: the process is
told to end (`leave`), by itself where its callback takes longer than it may.

Only a task that registers a callback gets that line and the thread behind it. What the callback returns is kept by the
session's board, an actor: it outlives this process, and the driver passes a reference to it to the next try. A GPU step
in a process of its own has a line of its own.
"""

from __future__ import annotations

import base64
import contextlib
import os
import pickle
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

import ray

from egs_core.hints import checkpoint_keeper, save_checkpoint
from egs_core.notices import warn
from egs_ray.link import Message, Peer, dial
from egs_ray.worker import device_memory
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
        self._timer: threading.Timer | None = None  # that ends this process
        self._is_over = False

    def registered(self) -> None:
        if self._peer is None:
            try:
                self._peer = dial(self._spec.address)
                self._peer.send({"m": "saves", "task": self._spec.task, "leaves": True})
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
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        if self._peer is not None:
            self._peer.hang_up()  # the thread that reads it closes it

    def _serve(self, peer: Peer) -> None:
        """Answer the driver when it asks; until the task ends."""
        with contextlib.suppress(*LOST):
            while (asked := peer.receive())["m"] != "leave":
                if limit_s := asked.get("leaves_in"):
                    self._timer = threading.Timer(limit_s, self._leave)
                    self._timer.daemon = True
                    self._timer.start()
                peer.send({"m": "saved", "task": self._spec.task, "error": _kept(asked)})
            self._leave()
        peer.close()

    def _leave(self) -> None:
        """End this process as if it had died, which Ray starts the task again for; unless the task has ended. What the
        task has started ends with it: the next try starts that again, and its GPU goes to another."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        children: set[int] = set()
        with contextlib.suppress(Exception):
            children = device_memory.family(os.getpid()) - {os.getpid()}
        if not self._is_over:
            for pid in children:
                with contextlib.suppress(OSError):  # it has ended, or is another user's
                    os.kill(pid, signal.SIGKILL)
            os._exit(1)


def lent(word: Message) -> Any:
    """The reference to what the try before has kept, as the driver's word to begin tells it; None: nothing is lost but
    that."""
    try:
        board = pickle.loads(base64.b64decode(word["board"]))
        return ray.get(board.wait.remote(word["restored"]))[0]
    except Exception as error:
        warn(f"the checkpoint of the try before is lost: {type(error).__name__}: {error}")
        return None


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
