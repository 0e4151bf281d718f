"""`egs simulate FILE…`: run workloads on a simulated cluster in virtual time, under the shipped engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from egs_core.cli import simulated as shared
from egs_core.cli.beliefs import estimator_of
from egs_core.cli.reading import read_workload
from egs_core.engine import POLICIES
from egs_core.engine.rules.flavor_choice import OBJECTIVES
from egs_core.engine.rules.flavors import cost_of
from egs_core.engine.specs import REFERENCE, FlavorSpec
from egs_core.errors import InputError
from egs_core.graph.columns import Shape
from egs_core.graph.load import LoadedWorkload
from egs_core.queues import load_queues
from egs_core.runlog.io import write_run
from egs_core.runlog.metrics import RunMetrics, summarise
from egs_core.runlog.records import Ended, Header, Started
from egs_core.sim import Durations, SimConfig, SimResult
from egs_core.sim import simulate as run_simulation
from egs_core.sim.simulator import Estimator
from egs_core.units import shown_s

ALL = "all"


def simulate(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="One or more workload files.")],
    slots: Annotated[int | None, typer.Option(help=shared.SLOTS_HELP)] = None,
    cpus: Annotated[float | None, typer.Option(help=shared.CPUS_HELP)] = None,
    gpus: Annotated[int | None, typer.Option(help=shared.GPUS_HELP)] = None,
    nodes: Annotated[int | None, typer.Option(help=shared.NODES_HELP)] = None,
    policy: Annotated[str, typer.Option(help=f"One of {', '.join(POLICIES)}, or {ALL} to compare them.")] = "egs",
    durations: Annotated[str, typer.Option(help=f"What the engine is told: {shared.DURATIONS}.")] = "exact",
    history: Annotated[
        list[str] | None,
        typer.Option(help="With predicted durations: database URL, SQLite file, run log or workload file; repeatable."),
    ] = None,
    no_preload: Annotated[
        bool, typer.Option("--no-preload", help="Start a process only when its task starts.")
    ] = False,
    no_split: Annotated[
        bool, typer.Option("--no-split", help="Tasks hold all their resources from start to end.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the random policy and of failures.")] = 0,
    bandwidth: Annotated[
        float | None, typer.Option(help="Bandwidth between nodes in bytes per second; default: unlimited.")
    ] = None,
    failure_rate: Annotated[float, typer.Option(help="Probability that a phase fails, 0 to 1.")] = 0.0,
    max_wait: Annotated[
        float | None, typer.Option(help="Seconds after which a waiting task moves to the front.")
    ] = None,
    cluster: Annotated[
        Path | None, typer.Option(help="YAML file of nodes and flavors; replaces --slots and --cpus.")
    ] = None,
    objective: Annotated[
        str, typer.Option(help=f"Objective by which a flavor is chosen: {', '.join(OBJECTIVES)}.")
    ] = "finish",
    queues: Annotated[Path | None, typer.Option(help="YAML file of queues and their quotas.")] = None,
    gpu_price: Annotated[float, typer.Option(help="Price per GPU-hour, for cost limits.")] = 0.0,
    cpu_price: Annotated[float, typer.Option(help="Price per CPU-hour, for cost limits.")] = 0.0,
    runlog: Annotated[Path | None, typer.Option(help="Write the run log to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run workloads on a simulated cluster in virtual time. Durations come from the workload files."""
    config = msgspec.structs.replace(
        shared.cluster_config(slots, cpus, gpus, nodes, cluster),
        durations=shared.known_durations(durations),
        preload=not no_preload,
        split=not no_split,
        seed=seed,
        bandwidth_bytes_per_s=_positive("--bandwidth", bandwidth),
        failure_rate=_share("--failure-rate", failure_rate),
        default_max_wait_s=_positive("--max-wait", max_wait, zero=True),
        objective=_objective(objective),
    )
    if gpu_price or cpu_price:
        config = msgspec.structs.replace(config, flavors=_priced(gpu_price, cpu_price, cluster))
    shared.known_policy(policy, (ALL,))
    if policy == ALL and runlog is not None:
        raise InputError("--runlog", "takes the log of one run", "name one policy")
    predicted = config.durations is Durations.PREDICTED
    if predicted and not history:
        estimator_of((), ())
    priced = any(flavor.gpu_hour or flavor.cpu_hour for flavor in config.flavors)
    if queues:
        config = msgspec.structs.replace(config, queues=load_queues(queues, has_prices=priced))
    workloads = [shared.with_applied_limits(read_workload(path)[0], has_prices=priced) for path in files]
    estimator = estimator_of(history or (), [w.name for w in workloads]) if predicted else None
    policies = list(POLICIES) if policy == ALL else [policy]
    runs = [_run(workloads, msgspec.structs.replace(config, policy=name), estimator, runlog) for name in policies]
    if as_json:
        typer.echo(json.dumps({"runs": runs} if policy == ALL else runs[0]))
    else:
        Console().print(_table(runs))


def _run(
    workloads: list[LoadedWorkload], config: SimConfig, estimator: Estimator | None, runlog: Path | None
) -> dict[str, Any]:
    result = run_simulation(workloads, config, estimator)
    if runlog is not None:
        header = result.records[0]
        assert isinstance(header, Header)
        label = f"simulated: {config.policy}, {config.durations} durations"
        write_run(runlog, msgspec.structs.replace(header, run_id=runlog.stem, label=label), result.records[1:])
    return _figures(workloads, config, result, summarise(result.records))


def _figures(
    workloads: list[LoadedWorkload], config: SimConfig, result: SimResult, metrics: RunMetrics
) -> dict[str, Any]:
    bound = shared.lower_bound_s(workloads, config)
    return {
        "policy": config.policy,
        "durations": str(config.durations),
        "workloads": len(workloads),
        "tasks": sum(w.graph.n_tasks for w in workloads),
        "makespan_s": result.makespan_s,
        "lower_bound_s": bound,
        "over_bound": result.makespan_s / bound if bound else None,
        "mean_jct_s": float(np.mean(result.jct_s)),
        "p95_jct_s": float(np.percentile(result.jct_s, 95)),
        "phases": result.phases,
        "phases_per_s": result.phases_per_s,
        "wastage_kind": metrics.wastage_kind,
        "wastage_effective": metrics.wastage_effective,
        "wastage_nominal": metrics.wastage_nominal,
        "gpu_held_s": metrics.gpu_held_s,
        "gpu_used_s": metrics.gpu_used_s,
        "cold_starts": metrics.cold_starts,
        "preloads": metrics.preload.preloads,
        "preloads_unused": metrics.preload.unused,
        "preload_cpu_s": metrics.preload.cpu_s,
        "cost": _cost(result, config) if config.flavors else None,
        "failed": result.failed,
        "over_limit": result.over_limit,
        "late_s": result.late_s,
        "orders": result.orders,
    }


def _cost(result: SimResult, config: SimConfig) -> float:
    """What all that was held costs by the prices of the flavors."""
    prices = {spec.name: spec for spec in config.flavors}
    flavor_of = {node.name: node.flavor for node in config.nodes}
    started: dict[tuple[str, str, int, int], Started] = {}
    cost = 0.0
    for record in result.records:
        if isinstance(record, Started):
            started[record.workload, record.task, record.phase, record.attempt] = record
        elif isinstance(record, Ended) and (record.workload, record.task, record.phase, record.attempt) in started:
            held = started[record.workload, record.task, record.phase, record.attempt]
            shape = Shape(round(held.cpus * 1000), round(held.gpus * 1000))
            cost += cost_of(prices.get(flavor_of[held.node], REFERENCE), shape, record.t - held.t)
    return cost


def _table(runs: list[dict[str, Any]]) -> Table:
    table = Table("policy", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    columns = {"cost": "cost"} if runs[0]["cost"] is not None else {}
    columns |= {
        "makespan_s": "makespan s",
        "lower_bound_s": "at best s",
        "mean_jct_s": "mean JCT s",
        "p95_jct_s": "p95 JCT s",
        "wastage_effective": f"{runs[0]['wastage_kind']} waste",
        "cold_starts": "cold",
        "phases_per_s": "phases/s",
    }
    for name in columns.values():
        table.add_column(name, justify="right")
    for run in runs:
        table.add_row(run["policy"], *(_shown(key, run[key]) for key in columns))
    failed = sorted({name for run in runs for name in run["failed"]})
    first = runs[0]
    counts = ", ".join(f"{key} {first[key]:,}" for key in ("workloads", "tasks", "phases"))
    table.title = f"{counts}, durations {first['durations']}"
    stopped = sorted({f"{name} {why}" for run in runs for name, why in run["over_limit"].items()})
    late = [f"{name} {shown_s(by_s)} s under {run['policy']}" for run in runs for name, by_s in run["late_s"].items()]
    learned = [f"{queue} {order} under {run['policy']}" for run in runs for queue, order in run["orders"].items()]
    found = {"failed": failed, "stopped": stopped, "late": late, "order learned, at the end": learned}
    notes = [f"{what}: {', '.join(names[:10])}" for what, names in found.items() if names]
    table.caption = "\n".join(notes) or None
    return table


def _shown(key: str, value: Any) -> str:
    if value is None:
        return "-"
    if key == "cost":
        return f"{value:,.2f}"
    if key == "wastage_effective":
        return f"{value:.1%}"
    return shown_s(value) if key.endswith("_s") and key != "phases_per_s" else f"{value:,.0f}"


def _priced(gpu_hour: float, cpu_hour: float, cluster: Path | None) -> tuple[FlavorSpec, ...]:
    for option, price in (("--gpu-price", gpu_hour), ("--cpu-price", cpu_hour)):
        if cluster is not None and price:
            raise InputError(option, "cannot be combined with --cluster", "state the prices of its flavors in the file")
        _positive(option, price, zero=True)
    return (FlavorSpec("", gpu_hour, cpu_hour),)


def _objective(name: str) -> str:
    if name not in OBJECTIVES:
        raise InputError("--objective", f"unknown {name!r}", f"one of {', '.join(OBJECTIVES)}")
    return name


def _positive(option: str, value: float | None, *, zero: bool = False) -> float | None:
    if value is not None and not (0 < value < float("inf") or (zero and value == 0)):
        raise InputError(option, f"must be a number {'of 0 or more' if zero else 'above 0'}, not {value:g}")
    return value


def _share(option: str, value: float) -> float:
    if not 0 <= value <= 1:
        raise InputError(option, f"must be between 0 and 1, not {value:g}")
    return value
