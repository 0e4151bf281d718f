"""Whatever dies, on a real API server with its scheduler (`test_real_cluster`): no device is given twice, each gate is
opened once, for its turn, and no pod is forgotten.

`tests/unit/kubernetes/test_faults.py` does the same on an emulated one.
"""

from __future__ import annotations

import os
import random
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from egs_core.kubernetes import names
from egs_core.kubernetes.cluster import LEASES, PODS, ApiError, Cluster
from egs_core.kubernetes.pods import Pod, pod_of
from tests.cluster.real import FILE, LIMIT_S, Site, until
from tests.cluster.test_real_cluster import pytestmark
from tests.unit.kubernetes.killed import Books, kill_often, said_in, started

__all__ = ["pytestmark"]

GPUS, LASTS_S = 3, 0.5
KILLS = int(os.environ.get("EGS_TEST_KILLS", "20"))
SEED = int(os.environ.get("EGS_TEST_SEED", "1"))
RESTART = os.environ.get("EGS_TEST_RESTART", "")
CHANGES_OF_LEADER, RESTARTS = 3, 2
LONG = pytest.mark.timeout(300 + 15 * KILLS)
"""A kill takes a few seconds where much else runs: two hundred take longer than a test usually has."""


class Way:
    """Between the controllers and the API server: it may be cut, with all watches and answers that are under way."""

    def __init__(self, server: str) -> None:
        parts = urlsplit(server)
        self._to = parts.hostname or "", parts.port or 443
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        self.is_closed = False
        self.cuts = 0
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self.cuts += 1
        with self._lock:
            found, self._sockets = self._sockets, []
        for one in found:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def stop(self) -> None:
        self._server.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                here = self._server.accept()[0]
                there = socket.create_connection(self._to, timeout=LIMIT_S) if not self.is_closed else None
            except OSError:
                if self._server.fileno() < 0:
                    return
                there = None
            if there is None:
                here.close()
                continue
            with self._lock:
                self._sockets += [here, there]
            for one, other in ((here, there), (there, here)):
                threading.Thread(target=_pass_on, args=(one, other), daemon=True).start()


def _pass_on(one: socket.socket, other: socket.socket) -> None:
    with suppress(OSError):
        while data := one.recv(65536):
            other.sendall(data)
    with suppress(OSError):
        other.shutdown(socket.SHUT_RDWR)


class Scene:
    """A site whose pods end a moment after they were placed, with books of all that happens to them by a watch of its
    own, and what adds pods. way: of the controllers alone, whose kubeconfig is `file`."""

    def __init__(self, site: Site, seed: int) -> None:
        self.site, self.rng, self.books, self.made = site, random.Random(seed), Books(), 0
        site.account(names.CONTROLLER)
        self.file = site.folder / f"{names.CONTROLLER}.yaml"
        config = yaml.safe_load(self.file.read_text())
        cluster = config["clusters"][0]["cluster"]
        self.way = Way(cluster["server"])
        cluster |= {"tls-server-name": urlsplit(cluster["server"]).hostname}
        cluster["server"] = f"https://127.0.0.1:{self.way.port}"
        self.file.write_text(yaml.safe_dump(config))
        self.breaks = 0
        self._over = threading.Event()
        self._threads = [threading.Thread(target=act, daemon=True) for act in (self._follow, self._end)]
        for thread in self._threads:
            thread.start()

    def add(self, many: int) -> None:
        for _ in range(many):
            name = f"p{self.made}"
            self.site.add(name, gpus=self.rng.choice((1, 1, 2)), rank=self.rng.randrange(99), run=f"r{self.made % 7}")
            self.made += 1

    @property
    def where(self) -> dict[str, object]:
        return {"namespaces": (self.site.name,), "lease_namespace": self.site.of.namespace}

    def trouble(self) -> None:
        """More pods, and perhaps a way that is cut, or closed for a moment."""
        self.add(self.rng.randrange(3))
        match self.rng.randrange(4):
            case 0:
                self.way.cut()
            case 1:
                self.way.is_closed = True
                self.way.cut()
                time.sleep(self.rng.uniform(0.0, 0.3))
                self.way.is_closed = False

    def settle(self) -> None:
        """Until all have ended."""
        until(lambda: all(one.is_over for one in self.pods()))
        until(lambda: self.books.is_settled)

    def check(self, what: str) -> None:
        said = said_in(self.file)
        print(f"{what}; {self.made} pods, at most {self.books.most} of {GPUS} GPUs, {self.way.cuts} cuts")
        print(said.read_text() if said.exists() else "", end="")
        assert {one.phase for one in self.pods()} == {"Succeeded"}
        self.books.check(GPUS, self.made)

    def pods(self) -> list[Pod]:
        return _asked(lambda: list(self.site.pods().values()))

    def close(self) -> None:
        self._over.set()
        self.way.stop()
        self._threads[1].join(LIMIT_S)

    def _follow(self) -> None:
        cluster, known = Cluster(Path(FILE)), dict[str, dict[str, object]]()
        while not self._over.is_set():
            try:
                found, version = cluster.list(PODS, self.site.name)
                there = {raw["metadata"]["uid"]: raw for raw in found}
                for uid in known.keys() - there.keys():
                    self.books.take("DELETED", known[uid])
                for raw in sorted(found, key=_in_order):
                    self.books.take("MODIFIED", raw)
                known = there
                for event in cluster.watch(PODS, version, self.site.name, timeout_s=1800):
                    if event["type"] != "BOOKMARK":
                        self.books.take(event["type"], event["object"])
                        known[event["object"]["metadata"]["uid"]] = event["object"]
                    if self._over.is_set():
                        return
            except ApiError:
                self._over.wait(0.2)
            self.breaks += 1

    def _end(self) -> None:
        due: dict[str, float] = {}
        while not self._over.wait(0.1):
            with suppress(ApiError):
                for one in self.site.pods().values():
                    if one.node and not one.is_over:
                        at = due.setdefault(one.uid, time.monotonic() + self.rng.uniform(0.0, LASTS_S))
                        if time.monotonic() >= at:
                            self.site.end(one.name)


def _in_order(raw: dict[str, Any]) -> tuple[bool, float]:
    """As it happened: what has ended gave its room back before the next gate was opened."""
    pod = pod_of(raw)
    return not pod.is_over, pod.opened_at


def _asked(what: Callable[[], list[Pod]]) -> list[Pod]:
    """What the API server says, when it is there."""
    end = time.monotonic() + LIMIT_S
    while True:
        try:
            return what()
        except ApiError:
            assert time.monotonic() < end, "the API server is away"
            time.sleep(0.2)


@contextmanager
def staged(folder: Path, seed: int) -> Iterator[Scene]:
    site = Site(folder, GPUS)
    try:
        site.apply()
        scene = Scene(site, seed)
        try:
            yield scene
        finally:
            scene.close()
    finally:
        site.close()


@LONG
def test_no_device_is_given_twice_whenever_the_controller_is_killed(tmp_path: Path) -> None:
    """By SIGKILL at random moments of its life, `EGS_TEST_KILLS` times, while its watches and requests are cut off, or
    the API server cannot be reached for a moment."""
    with staged(tmp_path, SEED) as scene:
        scene.add(8)
        last = kill_often(KILLS, scene.rng, scene.file, scene.trouble, **scene.where)
        try:
            scene.add(3)
            scene.settle()
        finally:
            last.kill()
            last.join()
        assert not scene.breaks
        scene.check(f"{KILLS} kills")


def test_another_leads_when_the_leader_is_killed(tmp_path: Path) -> None:
    """Two controllers, of which one leads; it is killed, the other one takes the Lease when that has run out, and the
    first one comes back as the second. Meanwhile pods come."""
    with staged(tmp_path, SEED) as scene:
        scene.add(6)
        running = {name: started(scene.file, name, **scene.where) for name in ("one", "other")}

        def leader() -> str:
            try:
                lease = scene.site.admin.get(LEASES, names.CONTROLLER, scene.site.of.namespace)
            except ApiError:
                return ""
            return str(lease["spec"].get("holderIdentity"))

        try:
            until(lambda: leader() in running)
            for _ in range(CHANGES_OF_LEADER):
                first = leader()
                scene.add(4)
                time.sleep(scene.rng.uniform(0.0, 1.0))  # a random moment is what is tested
                running[first].kill()
                running[first].join()
                scene.add(4)
                until(lambda was=first: leader() != was)  # type: ignore[misc]  # one each
                running[first] = started(scene.file, first, **scene.where)
            scene.settle()
        finally:
            for process in running.values():
                process.kill()
                process.join()
        assert not scene.breaks
        scene.check(f"{CHANGES_OF_LEADER} changes of the leader")


@pytest.mark.skipif(not RESTART, reason="EGS_TEST_RESTART names no command that restarts the cluster's API server")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a client's socket, cut by the restart
def test_the_api_server_is_restarted(tmp_path: Path) -> None:
    """While a controller opens gates, and another time while it is killed."""
    with staged(tmp_path, SEED) as scene:
        scene.add(8)
        running = started(scene.file, "killed", **scene.where)
        try:
            for number in range(RESTARTS):
                until(lambda: scene.books.opened)
                restart = subprocess.Popen(RESTART, shell=True)
                if number % 2:
                    running.kill()
                    running.join()
                    running = started(scene.file, "killed", **scene.where)
                assert restart.wait(LIMIT_S) == 0
                _asked(lambda: list(scene.site.pods().values()))
                scene.add(5)
            scene.settle()
        finally:
            running.kill()
            running.join()
        scene.check(f"{RESTARTS} restarts of the API server, the watch of the books broke {scene.breaks} times")
