"""Run the demo's pipeline in one way after the other, each with nothing that another has left, and a run log of each.

native   as written, on kfp's own local runner
fifo     as written, on EGS's runner, first ready first served
tuned    split by hand, on EGS's runner, first ready first served
egs      with hints, on EGS's runner: split, and in EGS's order
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path

import msgspec

from egs_core.adapter import DemoOutcome, DemoRequest, Progress, RunOutcome
from egs_core.digits import require_packages
from egs_core.errors import EgsError, InputError
from egs_core.runlog.figures import figures_of
from egs_core.runlog.io import read_run, write_run
from egs_core.runlog.marks import watched
from egs_core.runlog.records import Capacity, Header, Record, Started, TaskAdded, WorkloadSubmitted, in_order
from egs_kubeflow.demo import times
from egs_kubeflow.demo.alone import run_alone
from egs_kubeflow.demo.bound import ideal_bound_s
from egs_kubeflow.replay.notes import inside, read_notes, zero_of
from egs_kubeflow.replay.run import require_kfp

TITLE = "nine trainings in one pipeline, the same code and results"
RUNLOG = "run.jsonl"
NOTES = 3 * times.STEPS + 4 * times.CANDIDATES + 4
"""How many the tasks leave: a training three, all others one."""


class Variant(msgspec.Struct, frozen=True):
    """One way to run the demo. file: of `pipelines`; policy: of EGS's runner, "" for kfp's."""

    file: str
    policy: str
    title: str


VARIANTS = {
    "native": Variant("native", "", "kfp's own runner"),
    "fifo": Variant("native", "fifo", "EGS's runner, fifo"),
    "tuned": Variant("tuned", "fifo", "tuned by hand"),
    "egs": Variant("hints", "egs", "with EGS"),
}


def demo(request: DemoRequest) -> DemoOutcome:
    """The runs of the variants that are asked for. Raises InputError for an unknown one, or what is not installed;
    EgsError where a run has failed."""
    require_kfp()
    require_packages()
    for name in request.variants:
        if name not in VARIANTS:
            raise InputError("--variant", f"unknown variant {name!r}", f"one of: {', '.join(VARIANTS)}")
    runs = {name: run_variant(name, request.out_dir, request.progress) for name in request.variants}
    return DemoOutcome(ideal_bound_s(), True, runs, TITLE)


def run_variant(name: str, out_dir: Path, progress: Progress | None = None, factor: float = 1.0) -> RunOutcome:
    """One variant from start to end. factor: of all phases' lengths."""
    variant = VARIANTS[name]
    with tempfile.TemporaryDirectory(prefix="egs-demo-") as folder, watched(folder, NOTES, progress):
        run = _with_egs(variant, Path(folder), factor) if variant.policy else run_alone(Path(folder), factor)
    output, header, records = run
    facts = {"run_id": f"demo-{name}", "emulated_gpus": True, "label": variant.title}
    path = out_dir / f"{name}.jsonl"
    write_run(path, msgspec.structs.replace(header, **facts), records)
    return RunOutcome(figures_of(records), path, hashlib.sha256(output.encode()).hexdigest())


def _with_egs(variant: Variant, root: Path, factor: float) -> tuple[str, Header, list[Record]]:
    """The pipeline's result, and the run log, on EGS's runner. Raises EgsError where a task has failed."""
    from egs_kubeflow.run import PipelineFailed, run

    pipeline = import_module(f"egs_kubeflow.demo.pipelines.{variant.file}").digits
    own = {"root": root, "runlog": str(root / RUNLOG), "history": f"sqlite:///{root}/history.sqlite"}
    slots = {"cpus": times.CPUS, "gpus": times.GPUS, "emulate_gpus": True}
    began = time.time()  # where `alone` begins to count, too: kfp traces the pipeline, the runner begins
    try:
        result = run(pipeline, {"factor": factor}, policy=variant.policy, **slots, **own)  # type: ignore[arg-type]  # see VARIANTS
    except PipelineFailed as error:
        raise EgsError(str(error)) from error
    logged, notes = read_run(result.runlog), read_notes(root)
    starts = {record.task: record for record in logged.records if isinstance(record, Started)}
    zero = zero_of(notes, starts)
    noted = [*logged.records, *inside(notes, starts, zero)]
    records = in_order(counted_from(noted, zero - began))
    mode = "on" if variant.policy == "egs" else "off"
    header = msgspec.structs.replace(logged.header, mode=mode, started_at=began)
    return str(result.outputs["Output"]), header, records


def counted_from(records: Iterable[Record], before_s: float) -> Iterator[Record]:
    """Records whose clock begins that much earlier, when the pipeline was called: all tasks were submitted then."""
    for record in records:
        times_of = {name: getattr(record, name) + before_s for name in ("t", "end_t") if hasattr(record, name)}
        if isinstance(record, (Capacity, WorkloadSubmitted, TaskAdded)):
            times_of["t"] = 0.0
        yield msgspec.structs.replace(record, **times_of)
