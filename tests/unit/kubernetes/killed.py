"""A controller that is killed, and books of what it has opened: no device may be given twice.

For tests on an emulated API server and on a real one: both are told by what their watches tell.
"""

from __future__ import annotations

import multiprocessing
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from egs_core.kubernetes.cluster import Cluster
from egs_core.kubernetes.controller import Controller
from egs_core.kubernetes.gates import ORDER, STUCK_S
from egs_core.kubernetes.pods import Pod, pod_of
from egs_core.kubernetes.settings import Settings

LIVES_S = (0.05, 0.8)
Process = multiprocessing.process.BaseProcess


class Books:
    """What is open and has not ended. most: GPUs of these when the worst gate was opened; opened: how often each gate
    was, and for what it was opened."""

    def __init__(self) -> None:
        self._gated: set[str] = set()
        self._open: dict[str, Pod] = {}
        self.most = 0
        self.opened: dict[str, list[str]] = {}

    def take(self, kind: str, raw: dict[str, Any]) -> None:
        """An event of a watch, in the order in which they happened."""
        pod = pod_of(raw)
        if pod.is_gated and kind != "DELETED":
            self._gated.add(pod.uid)
        elif pod.uid in self._gated:
            self._gated.discard(pod.uid)
            self.opened.setdefault(pod.name, []).append(pod.opened_for)
        if kind == "DELETED" or pod.is_over:
            self._open.pop(pod.uid, None)
        elif pod.is_ours and not pod.is_gated:
            is_new = pod.uid not in self._open
            self._open[pod.uid] = pod
            if is_new:
                counted = (one.shape.gpu_milli for one in self._open.values() if _counts(one, pod.opened_at))
                self.most = max(self.most, sum(counted) // 1000)

    @property
    def is_settled(self) -> bool:
        """Nothing is gated, or open and not ended."""
        return not (self._gated or self._open)

    def check(self, gpus: int, pods: int) -> None:
        """No device was given twice, each gate was opened once and for its turn, and no pod was forgotten."""
        assert len(self.opened) == pods
        assert {name: why for name, why in self.opened.items() if why != [ORDER]} == {}
        assert self.is_settled
        assert self.most <= gpus


def _counts(pod: Pod, now: float) -> bool:
    """Whether it has room, or is about to get it. What was opened longer ago and has no node does not count for a next
    controller (`gates.STUCK_S`): while the API server restarts the scheduler is away, sometimes for half a minute."""
    return bool(pod.node) or now - pod.opened_at < STUCK_S


def control(kubeconfig: Path, namespaces: tuple[str, ...], lease_namespace: str, name: str = "killed") -> None:
    """In a process of its own, until it is killed. What it says is put into a file beside the kubeconfig."""
    settings = Settings(namespaces, lease_namespace=lease_namespace, identity=name, longest_s=1e6)

    def say(line: str) -> None:
        with said_in(kubeconfig).open("a") as file:
            file.write(f"{name}: {line}\n")

    Controller(Cluster(kubeconfig), settings, say, watch_s=5).run()


def said_in(kubeconfig: Path) -> Path:
    return kubeconfig.with_name("said")


def started(kubeconfig: Path, name: str = "killed", **where: Any) -> Process:
    """A controller in a process of its own. where: as `control` has it."""
    forked = multiprocessing.get_context("forkserver")
    forked.set_forkserver_preload([__name__])
    given = (kubeconfig, where.get("namespaces", ()), where.get("lease_namespace", "egs-system"), name)
    process = forked.Process(target=control, args=given, daemon=True)
    process.start()
    return process


def kill_often(times: int, rng: random.Random, kubeconfig: Path, trouble: Callable[[], None], **where: Any) -> Process:
    """Start a controller and kill it so many times, each at a random moment of its life; the last one lives. trouble:
    called while each does. where: as `control` has it."""
    for _ in range(times):
        process = started(kubeconfig, **where)
        time.sleep(rng.uniform(*LIVES_S))  # a random moment is what is tested
        trouble()
        process.kill()
        process.join()
    return started(kubeconfig, **where)
