"""How many bytecodes and Python calls the engine takes for a phase, beside another checkout.

The counts are the same at every run, also on a machine that is busy with other work, where CPU time is not.

    python -m benchmarks.bytecodes --against ../other
    python -m benchmarks.bytecodes --files          of this checkout alone, by file

The worlds are those of `rate_pairs`: `rate` as a whole, with the simulator's loop, and of `large` the engine's part of
each twentieth event, apart for when room is kept for somebody and when not. What happens inside of built-in functions,
such as comparing keys in a heap, is not in the counts, nor is how long memory takes. Counting takes about half a minute
a checkout.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COUNTER = """
import json, sys
from collections import Counter
from pathlib import PurePath
codes, calls, phases, world = Counter(), Counter(), Counter(), ["rate"]
def step(frame, event, argument):
    if event == "opcode":
        codes[world[0], frame.f_code] += 1
    return step
def enter(frame, event, argument):
    frame.f_trace_opcodes, frame.f_trace_lines = True, False
    calls[world[0], frame.f_code] += 1
    return step
"""
RATE = """
from benchmarks.rate import random_graph, run_engine
graph = random_graph(5000)
run_engine(graph, 32, records=False)
phases["rate"] = 5000
sys.settrace(enter)
run_engine(graph, 32, records=False)
sys.settrace(None)
"""
LARGE = """
from benchmarks.throughput_cluster import cluster, drive, mixed_graphs
from egs_core.engine import Engine, EngineConfig
from egs_core.engine import messages as m
handle, seen = Engine.handle, [0]
def counted(self, event, now):
    seen[0] += type(event) in (m.PhaseStarted, m.PhaseEnded)
    if not seen[0] or seen[0] % 20:
        return handle(self, event, now)
    world[0] = "large, room kept" if self.state.reservations else "large"
    phases[world[0]] += type(event) is m.PhaseEnded
    sys.settrace(enter)
    try:
        return handle(self, event, now)
    finally:
        sys.settrace(None)
Engine.handle = counted
drive(cluster(125), mixed_graphs(200, 100_000, 1), EngineConfig(search_placements=0), most=20_000)
"""
REPORT = """
print(json.dumps([
    [name, PurePath(code.co_filename).name, codes[name, code] / phases[name], calls[name, code] / phases[name]]
    for name, code in calls
]))
"""
Row = tuple[str, str, float, float]  # world, file, bytecodes and calls a phase


def count(checkout: Path) -> list[Row]:
    """Run in the checkout, with its `.venv` where it has one."""
    own = checkout / ".venv" / "bin" / "python"
    python = str(own) if own.exists() else sys.executable
    found: list[Row] = []
    for script in (RATE, LARGE):
        command = [python, "-c", COUNTER + script + REPORT]
        done = subprocess.run(command, cwd=checkout, check=True, stdout=subprocess.PIPE, text=True)
        of: dict[tuple[str, str], tuple[float, float]] = {}
        for name, file, codes, calls in json.loads(done.stdout):
            before = of.get((name, file), (0.0, 0.0))
            of[name, file] = before[0] + codes, before[1] + calls
        found += [(name, file, codes, calls) for (name, file), (codes, calls) in of.items()]
    return found


def totals(rows: list[Row]) -> dict[str, tuple[float, float]]:
    """Of each world."""
    return {
        name: (sum(row[2] for row in rows if row[0] == name), sum(row[3] for row in rows if row[0] == name))
        for name in sorted({row[0] for row in rows})
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bytecodes", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--against", type=Path, metavar="CHECKOUT")
    parser.add_argument("--files", action="store_true", help="by file")
    arguments = parser.parse_args()
    ours = count(ROOT)
    theirs = totals(count(arguments.against.resolve())) if arguments.against is not None else {}
    for name, (codes, calls) in totals(ours).items():
        other = f"; the other {theirs[name][0]:,.0f}, {theirs[name][1]:.1f}" if name in theirs else ""
        print(f"{name}: {codes:,.0f} bytecodes and {calls:.1f} calls a phase{other}")
        for _, file, of_file, by_file in sorted([row for row in ours if row[0] == name], key=lambda row: -row[2]):
            if arguments.files and of_file >= codes / 100:
                print(f"    {file:24} {of_file:7,.0f} {by_file:6.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
