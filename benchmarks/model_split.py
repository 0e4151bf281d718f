"""How good `egs split-model`'s assignments are, and how long they take.

    small   beside CP-SAT, where OR-tools is installed: how far above its loss, and above what it proves
    peers   beside even layers, the dynamic program over a chain, and `accelerate.infer_auto_device_map` where
            accelerate and torch are installed: each one's loss ÷ ours, where its assignment fits
    large   10,000 operators: seconds on one core

SYNTHETIC graphs (`model_split_instances`). A peer that does not fit is counted, not compared.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.model_split_instances import SHAPES, Case, cases, devices_for
from benchmarks.model_split_peers import loss_of, peers, solve
from egs_core.model import OBJECTIVES, Instance, Objective, Split, split

SMALL, LARGE = [12, 16, 24, 32], 10_000
FIRST_SEED = 100  # of the instances; the search was made on others


def timed(instance: Instance, objective: Objective) -> tuple[Split, float]:
    """Ours, and the seconds of a processor that it took."""
    begun = time.process_time()
    found = split(instance, objective)
    return found, time.process_time() - begun


def small(sizes: list[int], limit_s: float, workers: int, every: int) -> list[dict[str, Any]]:
    """Each instance beside CP-SAT, which begins from the even layers, not from ours."""
    rows = []
    for case in list(cases(sizes, 1, FIRST_SEED))[::every]:
        for objective in OBJECTIVES:
            ours, took_s = timed(case.instance, objective)
            if ours.assignment is None or ours.loss is None:
                continue
            hint = peers()["even layers"](case.instance, objective) or [0] * len(ours.assignment)
            reference = solve(case.instance, objective, hint, limit_s, workers)
            row: dict[str, Any] = {"case": case.name, "objective": objective, "loss": ours.loss.loss, "seconds": took_s}
            row["optimal"] = ours.is_best
            if reference is not None:
                known = loss_of(case.instance, reference.assignment, objective)
                assert known is not None
                row |= {"above": ours.loss.loss / known - 1.0, "proven": reference.is_best}
                row["above_bound"] = ours.loss.loss / reference.bound - 1.0 if reference.bound > 0 else None
            rows.append(row)
            print(row, file=sys.stderr)
    return rows


def beside_peers(sizes: list[int], seeds: int) -> list[dict[str, Any]]:
    """Each instance beside all peers."""
    rows = []
    for case in cases(sizes, seeds, FIRST_SEED):
        for objective in OBJECTIVES:
            ours, took_s = timed(case.instance, objective)
            if ours.loss is None:
                continue
            row: dict[str, Any] = {"case": case.name, "objective": objective, "loss": ours.loss.loss, "seconds": took_s}
            for name, peer in peers().items():
                loss = loss_of(case.instance, peer(case.instance, objective), objective)
                row[name] = None if loss is None else loss / ours.loss.loss
            rows.append(row)
            print(row, file=sys.stderr)
    return rows


def large(count: int) -> list[dict[str, Any]]:
    """Seconds for large graphs of each shape."""
    rows = []
    for shape, draw in SHAPES.items():
        drawing = draw(count, FIRST_SEED)
        case = Case(shape, drawing.over(devices_for(drawing, "small and fast", 1.3, 12_000_000_000)))
        for objective in OBJECTIVES:
            ours, took_s = timed(case.instance, objective)
            assert ours.loss is not None
            row = {"case": shape, "operators": len(drawing.nodes), "objective": objective, "seconds": took_s}
            for name, peer in peers().items():
                loss = loss_of(case.instance, peer(case.instance, objective), objective)
                row[name] = None if loss is None else loss / ours.loss.loss
            rows.append(row)
            print(row, file=sys.stderr)
    return rows


def summarised(parts: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """One row for each part, objective and peer."""
    found = []
    for part, rows in parts.items():
        for objective in OBJECTIVES:
            mine = [row for row in rows if row["objective"] == objective]
            for name in ("above", "above_bound", *peers()):
                if values := [row[name] for row in mine if row.get(name) is not None]:
                    found.append({"part": part, "objective": objective, "what": name, **_spread(values, len(mine))})
            if mine:
                most = max(row["seconds"] for row in mine)
                found.append({"part": part, "objective": objective, "what": "seconds", "n": len(mine), "most": most})
    return found


def _spread(values: list[float], of: int) -> dict[str, float]:
    found = {"n": len(values), "of": of, "mean": statistics.mean(values), "median": statistics.median(values)}
    return {**found, "least": min(values), "most": max(values)}


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    p.add_argument("--seconds", type=float, default=20.0, help="of the solver, an instance and objective (default 20)")
    p.add_argument("--workers", type=int, default=2, help="threads of the solver (default 2)")
    p.add_argument("--every", type=int, default=1, help="take only each n-th of the small instances")
    p.add_argument("--sizes", default="60,300,1000", help="operators of the instances beside peers")
    p.add_argument("--seeds", type=int, default=1, help="of these instances (default 1)")
    p.add_argument("--parts", default="small,peers,large")
    p.add_argument("--json", metavar="FILE", help="the result as JSON; - prints it instead of the table")
    return p


def main() -> int:
    arguments = parser().parse_args()
    wanted = arguments.parts.split(",")
    parts: dict[str, list[dict[str, Any]]] = {}
    if "small" in wanted and find_spec("ortools") is None:  # in no extra: it holds protobuf below what others here need
        print("skipped: no reference without OR-tools: pip install ortools", file=sys.stderr)
    elif "small" in wanted:
        parts["small"] = small(SMALL, arguments.seconds, arguments.workers, arguments.every)
    if "peers" in wanted:
        parts["peers"] = beside_peers([int(size) for size in arguments.sizes.split(",")], arguments.seeds)
    if "large" in wanted:
        parts["large"] = large(LARGE)
    result = {"suite": "model_split", "rows": summarised(parts), "runs": parts}
    if arguments.json and arguments.json != "-":
        Path(arguments.json).write_text(json.dumps(result, indent=1) + "\n")
    if arguments.json == "-":
        print(json.dumps(result))
    else:
        Console().print(result["rows"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
