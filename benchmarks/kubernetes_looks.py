"""What a look of the controller at all that is listed costs: processor time, by how many pods have changed.

    python -m benchmarks.kubernetes_looks [--pods 10000] [--nodes 1000] [--changes 0,10,500] [--looks 40]
        [--against CHECKOUT]

No API server: the controller's mirrors are given what one would list and watch, and nothing is written, as it does not
lead. Four fifths of the pods run, the rest waits behind gates; of those that change a quarter each ends, is deleted,
gets the node that it was granted, and is new. A look is one step of the controller, until its engine has answered. Each
side is a process of its own, this checkout and the other one, asked by turns; seconds are of all threads of that
process. Its time for objects that have changed to be read is given apart (`read_s`, a look), its first look too.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any

RUNS = 100
GPUS = 8
EVERY_S = 0.25
"""Between two looks, by the clock that the controller is told."""
CONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "none",
    "clusters": [{"name": "none", "cluster": {"server": "http://127.0.0.1:9"}}],
    "users": [{"name": "none", "user": {}}],
    "contexts": [{"name": "none", "context": {"cluster": "none", "user": "none"}}],
}


class World:
    """The controller of the checkout in which this runs, and what it sees."""

    def __init__(self, nodes: int, pods: int, folder: Path) -> None:
        from egs_core.kubernetes.cluster import Cluster
        from egs_core.kubernetes.controller import Controller
        from egs_core.kubernetes.settings import Settings

        (folder / "config").write_text(json.dumps(CONFIG))
        self.controller = Controller(Cluster(folder / "config"), Settings(identity="looks"), print)
        self.now, self.made = 1_700_000_000.0, 0
        self.waiting: dict[str, dict[str, Any]] = {}
        self.running: deque[dict[str, Any]] = deque()
        self.over: deque[dict[str, Any]] = deque()
        at_once = min(pods * 4 // 5, nodes * GPUS)
        for number in range(pods):
            raw = self._made()
            if number < at_once:
                self._bind(raw, f"n{number % nodes}")
                self.running.append(raw)
        self.controller._nodes._take([_node(f"n{number}") for number in range(nodes)])
        self.controller._pods._take([*self.waiting.values(), *self.running])

    def look(self, changes: int) -> dict[str, float]:
        """Seconds of processor time."""
        events = self._changes(changes // 4)
        began = time.process_time()
        for kind, raw in events:
            self.controller._pods._take_event({"type": kind, "object": raw})
        read = time.process_time()
        self.now += EVERY_S
        self.controller.step(self.now)
        session = self.controller._gated
        assert session is not None
        session.site.call(lambda: None, 600.0)
        return {"read_s": read - began, "look_s": time.process_time() - read}

    def _changes(self, each: int) -> list[tuple[str, dict[str, Any]]]:
        granted = self._granted(each) if each else {}
        events: list[tuple[str, dict[str, Any]]] = []
        for uid, node in granted.items():
            raw = self.waiting[uid]
            self._bind(raw, node)
            self.running.append(raw)
            events.append(("MODIFIED", raw))
        for _ in range(min(each, len(self.over))):
            events.append(("DELETED", self.over.popleft()))
        for _ in range(each):
            raw = self.running.popleft()
            raw["status"] = raw["status"] | {"phase": "Succeeded"}
            self.over.append(raw)
            events += [("MODIFIED", self._again(raw)), ("ADDED", self._made())]
        return events

    def _granted(self, most: int) -> dict[str, str]:
        session = self.controller._gated
        assert session is not None
        found: dict[str, str] = {}
        for uid in session.granted():
            if uid in self.waiting and len(found) < most:
                grant = session._grant_of(session._known[uid].task)
                assert grant is not None
                found[uid] = grant.node
        return found

    def _made(self) -> dict[str, Any]:
        self.made += 1
        name, run = f"p{self.made}", f"r{self.made % RUNS}"
        labels = {"egs.io/workload": "w", "egs.io/run": run, "egs.io/task": f"t{self.made % 7}"}
        labels |= {"egs.io/rank": str(100 + self.made % 900), "egs.io/predicted-s": str(30 + self.made % 60)}
        limits = {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1"}
        created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.now))
        raw = {
            "metadata": {
                "name": name,
                "namespace": "team",
                "uid": name,
                "labels": labels,
                "creationTimestamp": created,
            },
            "spec": {
                "containers": [{"name": "main", "image": "image:1", "resources": {"limits": limits}}],
                "nodeSelector": {"pool": "a"},
                "schedulingGates": [{"name": "egs.io/order"}],
            },
            "status": {"phase": "Pending"},
        }
        self.waiting[name] = self._again(raw)
        return raw

    def _bind(self, raw: dict[str, Any], node: str) -> None:
        del self.waiting[raw["metadata"]["uid"]]
        raw["spec"] = {**raw["spec"], "nodeName": node, "schedulingGates": []}
        raw["status"] = {"phase": "Running"}
        self._again(raw)

    def _again(self, raw: dict[str, Any]) -> dict[str, Any]:
        """As another version."""
        raw["metadata"]["resourceVersion"] = str(int(raw["metadata"].get("resourceVersion", "0")) + 1)
        return raw


def _node(name: str) -> dict[str, Any]:
    labels = {"kubernetes.io/hostname": name, "pool": "a", "zone": f"z{len(name)}"}
    status = {
        "allocatable": {"cpu": "64", "memory": "512Gi", "nvidia.com/gpu": str(GPUS)},
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    return {"metadata": {"name": name, "uid": name, "labels": labels}, "spec": {}, "status": status}


class Side:
    """A process that looks with the code of one checkout."""

    def __init__(self, checkout: Path, options: argparse.Namespace) -> None:
        asked = [f"--{name}={getattr(options, name)}" for name in ("nodes", "pods")]
        code = f"import runpy; runpy.run_path({str(Path(__file__).resolve())!r}, run_name='side')"
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, *asked],
            cwd=checkout,
            env={**os.environ, "PYTHONPATH": str(checkout)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def look(self, changes: int) -> dict[str, float]:
        """Wait for one look after so many changes."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{changes}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a side has ended: its error is above")
        found: dict[str, float] = json.loads(line)
        return found

    def close(self) -> None:
        """Wait until it has ended."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def serve() -> None:
    """A side: one look for each line, until there is none."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int)
    parser.add_argument("--pods", type=int)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        world = World(options.nodes, options.pods, Path(folder))
        for line in sys.stdin:
            print(json.dumps(world.look(int(line))), flush=True)


def summarised(looks: list[dict[str, float]]) -> dict[str, float]:
    """Milliseconds."""
    found = sorted(1000 * one["look_s"] for one in looks)
    return {
        "least_ms": round(found[0], 2),
        "median_ms": round(statistics.median(found), 2),
        "mean_ms": round(statistics.fmean(found), 2),
        "read_ms": round(1000 * statistics.median(one["read_s"] for one in looks), 2),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=10_000)
    parser.add_argument(
        "--changes", default="0,10,500", help="so many pods have changed before a look, one after another"
    )
    parser.add_argument("--looks", type=int, default=40, help="of each side, for each number of changes")
    parser.add_argument("--against", type=Path, help="a checkout of another version")
    options = parser.parse_args()
    here = Path(__file__).resolve().parents[1]
    sides = {"here": here} | ({"against": options.against.resolve()} if options.against else {})
    running = {name: Side(checkout, options) for name, checkout in sides.items()}
    found: dict[str, Any] = {"pods": options.pods, "nodes": options.nodes, "load": os.getloadavg()[0]}
    try:
        found["first_s"] = {name: round(side.look(0)["look_s"], 2) for name, side in running.items()}
        for changes in map(int, options.changes.split(",")):
            looks: dict[str, list[dict[str, float]]] = {name: [] for name in running}
            for number in range(options.looks + 2):
                for name, side in running.items():
                    one = side.look(changes)
                    if number >= 2:  # the first ones have nothing to end and nothing that is granted
                        looks[name].append(one)
            found[f"{changes} changes"] = {name: summarised(of) for name, of in looks.items()}
            if options.against:
                pairs = zip(looks["here"], looks["against"], strict=True)
                shares = [mine["look_s"] / its["look_s"] for mine, its in pairs]
                found[f"{changes} changes"]["of_the_other"] = round(statistics.median(shares), 3)
    finally:
        for side in running.values():
            side.close()
    print(json.dumps(found, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
elif __name__ == "side":
    serve()
