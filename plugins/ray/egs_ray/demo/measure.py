"""Run one variant on a Ray of its own and say what it took."""

from __future__ import annotations

import atexit
import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable

import msgspec

from egs_core.runlog.marks import watched
from egs_core.runlog.records import Header, Record
from egs_ray.demo import pipelines as demo
from egs_ray.demo.log import demo_records, header_of
from egs_ray.demo.variants import DemoRun, Variant, find_variant
from egs_ray.local import local_ray

TASKS = demo.PIPELINES * (demo.TRAININGS + 4)


class Measured(msgspec.Struct, frozen=True):
    """A variant's reports, and its run log. folder: what the run left, until this process ends."""

    folder: str
    variant: str
    run: DemoRun
    header: Header
    records: list[Record]

    @property
    def digest(self) -> str:
        """Equal for runs with equal results: accuracies, and every prediction."""
        return hashlib.sha256(json.dumps(self.run.reports, sort_keys=True).encode()).hexdigest()


def measure_variant(name: str, progress: Callable[[int, int], None] | None = None) -> Measured:
    """Run a variant from start to end; what it leaves is gone when this process ends.

    progress: told now and then how many tasks have ended, and of how many.
    """
    variant = find_variant(name)
    folder = tempfile.mkdtemp(prefix="egs-demo-")
    # Registered before the hook's own last act, so that it comes after it: that one still writes its run log.
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with local_ray(demo.CPUS, demo.GPUS, _environment(variant, folder)), watched(folder, TASKS, progress):
        run = variant.run(folder)
    records = demo_records(folder, run.submitted, split=variant.split)
    return Measured(folder, name, run, header_of(variant, run.submitted), records)


def _environment(variant: Variant, folder: str) -> dict[str, str]:
    """The variant's own variables; a hook learns from nothing, and leaves nothing in the user's folders."""
    if not variant.environment:
        return {}
    own = {"EGS_RUNLOG": f"{folder}/hook.jsonl", "EGS_HISTORY": f"sqlite:///{folder}/hook.sqlite"}
    return {**variant.environment, **own, "XDG_DATA_HOME": folder}
