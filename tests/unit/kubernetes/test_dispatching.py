"""How much a step of a manager's controller writes, and how often a site server that does not answer is asked."""

from __future__ import annotations

import itertools
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytest.importorskip("kubernetes", reason="the client of Kubernetes is not installed")

from egs_core.client.outlooks import Outlook
from egs_core.kubernetes import dispatching
from egs_core.kubernetes.bookings import booked_of
from egs_core.kubernetes.cluster import Cluster
from egs_core.kubernetes.clusters import MANAGER
from egs_core.kubernetes.dispatching import LOOK_S, Elsewhere, MultiKueue
from egs_core.kubernetes.kueue import Queues
from tests.unit.kubernetes.emulated_api import EmulatedApi
from tests.unit.kubernetes.made_clusters import BEGAN_S, cluster_queue, local_queue, multikueue, workload
from tests.unit.server.real_site import wait_for

NAMES = [f"w{number}" for number in range(8)]


class Steps:
    """A manager's part without a site server, step by step: each write takes write_s by its clock."""

    def __init__(self, folder: Path, write_s: float) -> None:
        api = self.api = EmulatedApi(folder)
        api.add("clusterqueues", cluster_queue(9))
        api.add("localqueues", local_queue())
        for kind, found in multikueue("blue", "green").items():
            for one in found:
                api.add(kind, one)
        for name in NAMES:
            api.add("workloads", workload(name, check="Pending"))
        self.at = 0.0
        self.woken: list[float] = []
        self.noted: list[str] = []
        cluster = Cluster(api.kubeconfig)
        self.queues = Queues(cluster, lambda: None, self._note, 5, self._clock, booked_of)

        def say(_line: str) -> None:
            self.at += write_s

        self.part = MultiKueue(
            cluster, MANAGER, "m", "", lambda: self.woken.append(self.at), self._note, say, 5, self._clock
        )
        for mirror in (*self.queues.mirrors, *self.part.mirrors):
            mirror.start()
        wait_for(lambda: all(one.is_listed for one in (*self.queues.mirrors, *self.part.mirrors)), "all are listed")
        self.woken.clear()

    def close(self) -> None:
        for one in (*self.queues.mirrors, *self.part.mirrors):
            one.stop()
        self.api.close()

    def _clock(self) -> float:
        return self.at

    def _note(self, _what: str, line: str) -> None:
        self.noted.append(line)

    def look(self) -> int:
        """One step; how many have clusters then."""
        self.part.look(self.queues, {}, BEGAN_S + 9.0, lambda: True)
        return sum(bool(one["status"].get("nominatedClusterNames")) for one in self.api.all("workloads").values())


def test_a_step_writes_for_half_a_second(tmp_path: Path) -> None:
    """Then the thread goes back to gates; the rest comes in the steps after, of which the first is due at once."""
    steps = Steps(tmp_path, write_s=0.2)
    try:
        assert steps.look() == 3
        assert steps.woken
        assert [steps.look(), steps.look(), steps.look()] == [6, 8, 8]
        assert steps.noted == []
    finally:
        steps.close()


def test_a_step_ends_with_what_cannot_be_written(tmp_path: Path) -> None:
    """An API server that refuses one is not asked for all others in the same step. In the next one the others come
    first: one that can never be written holds up none."""
    steps = Steps(tmp_path, write_s=0.0)
    try:
        steps.api.forbidden = {"workloads"}  # of which the watch goes on
        assert steps.look() == 0
        assert [line.partition(":")[0] for line in steps.noted] == ["team/w0"]
        steps.api.forbidden = set()
        steps.at += LOOK_S
        assert steps.look() == len(NAMES)
        assert [name for name, _ in steps.api.patches] == [*NAMES[1:], "w0"]
    finally:
        steps.close()


def test_a_server_that_does_not_answer_is_asked_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pause is twice as long, up to the longest; once it answers nothing is wrong."""
    monkeypatch.setattr(dispatching, "AGAIN_S", 0.05)
    monkeypatch.setattr(dispatching, "MOST_AGAIN_S", 0.4)
    asked: list[float] = []
    answers = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            asked.append(time.monotonic())
            self.send_response(200 if answers.is_set() else 429)
            if not answers.is_set():
                self.send_header("Retry-After", "1")
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    elsewhere = Elsewhere(f"http://127.0.0.1:{server.server_address[1]}", lambda: None)
    try:
        elsewhere.tell(Outlook("blue"))
        wait_for(lambda: len(asked) >= 6, "it is asked again")
        pauses = [later - before for before, later in itertools.pairwise(asked)]
        assert [pause >= least for pause, least in zip(pauses, (0.05, 0.1, 0.2, 0.4, 0.4), strict=False)] == [True] * 5
        assert "429" in elsewhere.problem
        answers.set()
        wait_for(lambda: not elsewhere.problem, "it is answered")
    finally:
        elsewhere.close()
        server.shutdown()
        server.server_close()
