"""Run the demo's pipelines in one way after the other, each on an Airflow of its own, and leave a run log of each.

native         as written, in an Airflow without EGS
tuned          split by hand into tasks of CPU and GPU pools, in an Airflow without EGS
egs            with hints, in mode on: split, order, kept slots, modules preloaded
egs-no-hints   as written, in mode on: order and kept slots
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from egs_airflow.demo import times
from egs_airflow.demo.bound import ideal_bound_s
from egs_airflow.demo.work import REPORT
from egs_airflow.replay.runs import DagRuns, carry_out
from egs_core.adapter import DemoOutcome, DemoRequest, Progress, RunOutcome
from egs_core.digits import require_packages
from egs_core.errors import InputError
from egs_core.runlog.figures import figures_of
from egs_core.runlog.io import write_run

DAG_ID = "digits"
DAGS = Path(__file__).with_name("dags")
MODULES = ("pandas", "sklearn.linear_model", "sklearn.metrics", "egs_airflow.demo.model", "egs_airflow.demo.work")
PRELOAD = {"EGS_PRELOAD_MODULES": ", ".join(MODULES)}


class Variant(msgspec.Struct, frozen=True):
    """One way to run the demo. file: of `dags`; tasks: how many Airflow tasks a pipeline has there."""

    file: str
    tasks: int
    with_egs: bool = False
    environment: Mapping[str, str] = {}


WHOLE, SPLIT = times.TRAININGS + 4, 3 * times.TRAININGS + 4
VARIANTS = {
    "native": Variant("native", WHOLE),
    "tuned": Variant("tuned", SPLIT),
    "egs": Variant("hints", SPLIT, with_egs=True, environment=PRELOAD),
    "egs-no-hints": Variant("native", WHOLE, with_egs=True),
}


def demo(request: DemoRequest) -> DemoOutcome:
    """The runs of the variants that are asked for. Raises InputError for an unknown one, or what is not installed."""
    require_packages()
    for name in request.variants:
        if name not in VARIANTS:
            raise InputError("--variant", f"unknown variant {name!r}", f"one of: {', '.join(VARIANTS)}")
    runs = {name: run_variant(name, request.out_dir, request.progress) for name in request.variants}
    title = f"{times.PIPELINES} pipelines, the same code and results"
    return DemoOutcome(ideal_bound_s(), True, runs, title)


def run_variant(name: str, out_dir: Path, progress: Progress | None = None) -> RunOutcome:
    """One variant from start to end."""
    variant = VARIANTS[name]
    with tempfile.TemporaryDirectory(prefix="egs-demo-") as folder:
        confs = [{"folder": f"{folder}/{number}", "pipeline": number} for number in range(times.PIPELINES)]
        runs = DagRuns(
            sources={DAG_ID: (DAGS / f"{variant.file}.py").read_text()},
            dags=[(DAG_ID, number * times.ARRIVAL_S, conf) for number, conf in enumerate(confs)],
            tasks=variant.tasks * times.PIPELINES,
            cpus=times.CPUS,
            gpus=times.GPUS,
            with_egs=variant.with_egs,
            environment={times.VARIABLE: str(times.FACTOR), **variant.environment},
        )
        header, records = carry_out(runs, progress)
        reports = [json.loads(Path(f"{conf['folder']}/{REPORT}").read_text()) for conf in confs]
    policy, mode = ("egs", "on") if variant.with_egs else ("native", "off")
    facts = {"run_id": f"demo-{name}", "policy": policy, "mode": mode, "emulated_gpus": True, "label": name}
    path = out_dir / f"{name}.jsonl"
    write_run(path, msgspec.structs.replace(header, **facts), records)
    return RunOutcome(figures_of(records), path, digest_of(reports))


def digest_of(reports: list[dict[str, object]]) -> str:
    """Equal for runs with equal results: accuracies, and every prediction."""
    return hashlib.sha256(json.dumps(reports, sort_keys=True).encode()).hexdigest()
