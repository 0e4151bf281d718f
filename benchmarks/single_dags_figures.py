"""What `single_dags` makes of its runs: geometric means, the suite's targets, the worst instances, table and plot."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.plots import drawn, figure_of
from benchmarks.single_dags_peers import PEERS
from egs_core.engine.order.policy import POLICIES
from egs_core.sim import Durations

NETWORKS: dict[str, float | None] = {"instant": None, "125MB/s": 125e6}
OWN = {"egs": "egs", "egs-plain": "egs", **{policy: policy for policy in POLICIES if policy != "egs"}}
GAP_TARGET, WORST_TARGET, PREDICTED_TARGET = 0.30, 0.01, 0.02
EPSILON = 1e-9
SHOWN_WORST = 5


class Run(msgspec.Struct):
    """One instance under one side. ratio: makespan over the bound; lb2_ratio: over LB2 alone."""

    instance: str
    network: str
    durations: str
    slots: int
    side: str
    makespan_s: float
    ratio: float
    lb2_ratio: float
    wall_s: float


def geometric_mean(values: Sequence[float]) -> float | None:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def summarise(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """One row a network, kind of knowledge and number of slots: geometric means over the bound, and the claims."""
    rows = []
    for network, durations, slots in sorted({(r.network, r.durations, r.slots) for r in runs}, key=_row_order):
        group = [r for r in runs if (r.network, r.durations, r.slots) == (network, durations, slots)]
        by_side: dict[str, dict[str, Run]] = {}
        for run in group:
            by_side.setdefault(run.side, {})[run.instance] = run
        means = {side: geometric_mean([r.ratio for r in found.values()]) or 1.0 for side, found in by_side.items()}
        row: dict[str, Any] = {"network": network, "durations": durations, "slots": slots}
        row |= {side: means.get(side) for side in (*OWN, *PEERS)}
        row["b-level/LB2"] = geometric_mean([r.lb2_ratio for r in by_side.get("b-level", {}).values()])
        rows.append(row | _claims(by_side, means))
    return rows


def _row_order(key: tuple[str, str, int]) -> tuple[int, int, int]:
    return list(NETWORKS).index(key[0]), list(Durations).index(Durations(key[1])), key[2]


def _claims(by_side: dict[str, dict[str, Run]], means: dict[str, float]) -> dict[str, Any]:
    """gap_closed: share of b-level's gap to the bound; worst: egs over the best heuristic peer, largest."""
    plain, egs = means.get("b-level", means["heft"]) - 1, means["egs"] - 1
    peers = [by_side[peer] for peer in PEERS if peer in by_side]
    over = [
        (run.makespan_s / min(p[name].makespan_s for p in peers if name in p) - 1, name)
        for name, run in by_side["egs"].items()
        if run.makespan_s and any(name in p for p in peers)
    ]
    worst, where = max(over, default=(None, None))
    return {"gap_closed": 1 - egs / plain if plain > EPSILON else None, "worst": worst, "worst_instance": where}


def claims_of(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The suite's targets by slots on an instant network, and whether they are reached."""
    at = {(r["durations"], r["slots"]): r for r in rows if r["network"] == "instant"}
    claims: dict[str, Any] = {}
    for (durations, slots), row in at.items():
        if durations != "exact":
            continue
        closed, worst = row["gap_closed"], row["worst"]
        claim = {"gap_closed": closed, "gap_reached": closed is None or closed >= GAP_TARGET}
        claim |= {"worst": worst, "worst_reached": worst is None or worst <= WORST_TARGET}
        if predicted := at.get(("predicted", slots)):
            over = predicted["egs"] / row["egs"]
            claim |= {"predicted_over_exact": over, "predicted_reached": over <= 1 + PREDICTED_TARGET}
        if blind := at.get(("blind", slots)):
            over = blind["egs"] / blind["fifo"]
            claim |= {"blind_over_fifo": over, "blind_reached": over <= 1 + EPSILON}
        claims[str(slots)] = claim
    return claims


def worst_of(runs: Sequence[Run]) -> dict[str, list[dict[str, Any]]]:
    """By slots, the instances on which egs stays farthest from the bound, exact on an instant network."""
    worst: dict[str, list[dict[str, Any]]] = {}
    exact = [r for r in runs if (r.network, r.durations) == ("instant", "exact")]
    for slots in sorted({r.slots for r in exact}):
        ratio = {(r.instance, r.side): r.ratio for r in exact if r.slots == slots}
        names = sorted({name for name, _ in ratio}, key=lambda name: (-ratio[name, "egs"], name))[:SHOWN_WORST]
        sides = ("egs", "egs-plain", *PEERS)
        worst[str(slots)] = [
            {"instance": name, **{side: ratio[name, side] for side in sides if (name, side) in ratio}} for name in names
        ]
    return worst


# --- showing ---


def show(result: dict[str, Any], console: Console) -> None:
    """The rows as a table, then what is reached, then the worst instances."""
    table = Table(*[name for name in result["rows"][0] if name != "worst_instance"])
    for row in result["rows"]:
        table.add_row(*[_shown(value) for name, value in row.items() if name != "worst_instance"])
    console.print(table)
    console.print(f"{len(result['instances'])} instances; geometric means of makespan over the bound", highlight=False)
    if others := result["not_as_named"]:
        console.print(f"not the named list: {', '.join(others)}", highlight=False, markup=False)
    for peer, why in result["missing"].items():
        console.print(f"missing: {peer}: {why}", highlight=False, markup=False)
    for slots, claim in result["claims"].items():
        shown = ", ".join(f"{name} {_shown(value)}" for name, value in claim.items())
        console.print(f"{slots} slots: {shown}", highlight=False)
    for slots, found in result["worst"].items():
        for row in found:
            shown = ", ".join(f"{name} {_shown(value)}" for name, value in row.items())
            console.print(f"{slots} slots, farthest from the bound: {shown}", highlight=False)


def _shown(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else "" if value is None else str(value)


def plot(result: dict[str, Any], path: Path) -> None:
    """Geometric mean over the bound against slots: a row of panels a network, a column a kind of knowledge."""
    rows = result["rows"]
    networks = [network for network in NETWORKS if any(r["network"] == network for r in rows)]
    durations = [d.value for d in Durations if any(r["durations"] == d for r in rows)]
    figure = figure_of(2.6 + 4 * len(durations), 0.6 + 3.6 * len(networks))
    panels = figure.subplots(len(networks), len(durations), squeeze=False, sharex=True, sharey=True)
    for at, (network, known) in enumerate(itertools.product(networks, durations)):
        axes = panels[at // len(durations)][at % len(durations)]
        _draw(axes, [r for r in rows if (r["network"], r["durations"]) == (network, known)])
        axes.set_title(f"{network}, {known}")
    panels[0][0].set_ylim(bottom=0)  # of all, once everything is drawn
    for line in panels:
        line[0].set_ylabel("makespan over the bound, %")
    for axes in panels[-1]:
        axes.set_xlabel("slots")
    lines = {line.get_label(): line for axes in panels.flat for line in axes.get_lines()}
    figure.legend(lines.values(), lines.keys(), loc="outside right center")
    drawn(figure, path)


def _draw(axes: Any, rows: Sequence[dict[str, Any]]) -> None:
    """One panel: ours as lines, peers dashed, egs on top of them all."""
    for number, side in enumerate((*OWN, *PEERS)):
        points = [(r["slots"], 100 * (r[side] - 1)) for r in rows if r[side] is not None]
        if points:
            style: dict[str, Any] = {
                "color": "black" if number == 10 else f"C{number}",
                "linestyle": "--" if side in PEERS else "-",
            }
            style |= {"linewidth": 3, "zorder": 3} if side == "egs" else {"linewidth": 1.2, "marker": "o"}
            axes.plot(*zip(*points, strict=True), label=side, markersize=3, **style)
    axes.set_xscale("log", base=2)
    slots = [r["slots"] for r in rows]
    axes.set_xticks(slots, [str(s) for s in slots])
    axes.grid(alpha=0.3)
