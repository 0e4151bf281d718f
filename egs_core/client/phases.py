"""`with egs.gpu():` in a command of `egs run --split`: its GPUs are asked for where the block begins, given back at its
end. Each stretch is a run of its own at the server, whose supervisor is the process that is in the block.

    with egs.gpu():      submit ─► wait ─► claim ─► CUDA_VISIBLE_DEVICES = …      one thread beside: heartbeats
        fit()
    decode()             end ─► CUDA_VISIBLE_DEVICES = ""      not while this process or one below it is on a device

A process that has used CUDA keeps a context, and memory, on its device until it ends. Then the lease is kept, and the
next block has it at once: what is not free is given to nobody. Without its server a block waits.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from egs_core.client import messages as c
from egs_core.client.http import Refused, SiteClient, Unreachable, trusted_owners
from egs_core.client.places import find_address
from egs_core.client.processes import LEASE_VARIABLE, descendants, process
from egs_core.described import describe
from egs_core.errors import EgsError

REQUEST = "EGS_GPU_REQUEST"
CUDA_VISIBLE = "CUDA_VISIBLE_DEVICES"
WAIT_S, AGAIN_S = 5.0, 0.5
DEVICES = "/dev/nvidia"


class Wish(msgspec.Struct, frozen=True):
    """What each block asks for. run: the number of the run that it is in; fields: of `RunRequest`."""

    run: str
    fields: dict[str, Any]


describe(Wish)


class SiteGpus:
    """A `GpuProvider`, see the module; its caller sees to it that one block at a time is in it."""

    def __init__(self, wish: Wish) -> None:
        self._wish = wish
        self._pid, self._lock = os.getpid(), threading.Lock()
        self._held: c.RunView | None = None  # claimed, and not ended yet
        self._is_in = False
        self._has_told = False
        self._outside = {name: os.environ.get(name, "") for name in (CUDA_VISIBLE, LEASE_VARIABLE)}

    def acquire(self, cpus: float | None = None) -> tuple[str, ...]:
        """Raises EgsError for what the server refuses; waits for a server that does not answer."""
        if self._pid != os.getpid():  # forked: what the other process has is not this one's
            self._pid, self._lock, self._held = os.getpid(), threading.Lock(), None
        with self._lock:
            self._is_in = True
            view = self._held
        if view is None:
            view = self._held = self._claimed(cpus)
            threading.Thread(target=self._follow, args=(view,), name="egs-gpu", daemon=True).start()
        assert view.lease is not None
        os.environ[CUDA_VISIBLE] = ",".join(view.lease.devices)
        os.environ[LEASE_VARIABLE] = view.lease.mark  # of processes that are started from here on
        return view.lease.devices

    def release(self) -> None:
        os.environ.update(self._outside)
        if self._pid != os.getpid():
            return  # forked inside of the block
        with self._lock:
            self._is_in = False
            view = self._held
            if view is not None and not on_devices() and self._has_ended(self._client(), view):
                self._held = None

    # --- one lease ---

    def _claimed(self, cpus: float | None) -> c.RunView:
        own = process(os.getpid())
        assert own is not None, "this process is there"
        fields = {**self._wish.fields, **({} if cpus is None else {"cpus": cpus})}
        request = c.RunRequest.model_validate({**fields, "key": secrets.token_hex(16), "supervisor": own.model_dump()})
        client = self._client()
        view, has_told = None, False
        try:
            while True:
                try:
                    view = client.submit(request) if view is None else client.beat(view.id, _beat(view))
                    if view.state == "ended":
                        raise EgsError(f"egs.gpu(): run {view.id} has ended before it began: {view.reason}")
                    if view.lease is not None and not view.stop:
                        return client.claim(view.id, c.Claim(token=view.lease.token))
                    if not has_told:
                        has_told = True
                        _say(f"run {view.id}, for `with egs.gpu():` in run {self._wish.run}, waits: {view.reason}")
                except Refused as error:
                    if error.status != 409 or view is None:
                        raise
                except Unreachable as error:
                    if not self._has_told:
                        self._has_told = True
                        _say(f"the server does not answer; `with egs.gpu():` waits for it ({error})")
                    time.sleep(AGAIN_S)
        except BaseException:
            if view is not None:
                with contextlib.suppress(EgsError):
                    client.control(view.id, "abort", c.Control(reason="its block was left"))
            raise

    def _follow(self, view: c.RunView) -> None:
        """Tells that it is there; gives back what could not be given back at once; obeys an abort."""
        client, kill_at = self._client(), None
        while self._held is not None and self._held.id == view.id:
            with contextlib.suppress(EgsError):
                using = on_devices()
                with self._lock:
                    if not self._is_in and not using and self._has_ended(client, view):
                        self._held = None
                        return
                heard = client.beat(view.id, c.Beat(token=_token(view), processes=tuple(using)))
                if heard.stop and kill_at is None:
                    _say(f"run {view.id} has to end: {heard.stop}")
                    os.kill(os.getpid(), signal.SIGTERM)
                    kill_at = time.monotonic() + heard.grace_s
            if kill_at is not None and time.monotonic() > kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(AGAIN_S)

    def _has_ended(self, client: SiteClient, view: c.RunView) -> bool:
        """Whether the server has taken the devices back; not while a process of the lease is left."""
        try:
            client.end(view.id, c.End(token=_token(view), outcome="succeeded", exit_code=0))
        except (Refused, Unreachable) as error:
            return isinstance(error, Refused) and error.status != 409
        return True

    def _client(self) -> SiteClient:
        """A new one: each is for one thread."""
        address = find_address()
        if address is None:
            raise EgsError("egs.gpu(): no EGS server here any more: set EGS_URL")
        return SiteClient(address, trusted_owners())


def site_gpus() -> SiteGpus | None:
    """The provider that `egs run --split` asks for; None elsewhere."""
    text = os.environ.get(REQUEST)
    return SiteGpus(msgspec.json.decode(text, type=Wish)) if text else None


def on_devices() -> list[c.Process]:
    """Of this process and those below it the ones that have a device open: they have a context there, and memory."""
    own = process(os.getpid())
    return [one for one in [own, *descendants(os.getpid())] if one is not None and _has_device(one.pid)]


def _has_device(pid: int) -> bool:
    with contextlib.suppress(OSError):
        for one in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if str(one.readlink()).startswith(DEVICES):
                    return True
    return False


def _token(view: c.RunView) -> int:
    return view.lease.token if view.lease is not None else 0


def _beat(view: c.RunView) -> c.Beat:
    return c.Beat(seen=view.version, wait_s=WAIT_S)


def _say(line: str) -> None:
    print(f"egs: {line}", file=sys.stderr, flush=True)
