"""Usage limits on real Ray: a task past its limit is cancelled, and whoever waits for it reads why."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
import ray

import egs_ray
from egs_core.runlog.io import read_run
from egs_core.runlog.records import Ended
from tests.conformance.ray import run_tasks as t

QUEUES = "queues: [{name: box, limits: {max_runtime: 20m, on_limit: end}}]\n"


@pytest.mark.usefixtures("ray_address")
def test_tasks_past_max_runtime_are_cancelled(tmp_path: Path) -> None:
    """The process ends, the GPU is free, there is no retry, the child never starts, and the error names the limit. So
    it is in a time box (`on_limit: end`), too: it has no value. The run log says what `why` says, failed here and
    succeeded there."""
    (tmp_path / "queues.yaml").write_text(QUEUES)
    with t.session(tmp_path, queues=str(tmp_path / "queues.yaml")) as session:
        made = {}
        for queue in ("", "box"):
            folder = tmp_path / f"in {queue}"
            folder.mkdir()
            node = t.endless.bind(str(folder), "after", t.endless.bind(str(folder), "first"))
            made[folder] = egs_ray.run(node, session=session, queue=queue, name=queue or "plain")
        notes = [folder / "first.pid" for folder in made]
        t.until(lambda: all(path.exists() and path.read_text() for path in notes))
        processes = [psutil.Process(int(path.read_text())) for path in notes]
        over = f"over its limit of {t.ENDLESS_S} s"
        for run in made.values():
            with pytest.raises(ray.exceptions.TaskCancelledError, match=f"endless-0 {over}"):
                run.get(t.LIMIT_S)
        said = [run.why("endless-0").text for run in made.values()]
        assert said == [f"ended: {how}: {over}" for how in ("failed", "succeeded")]
        t.until(lambda: all(t.is_gone(process) for process in processes))
        t.until(t.is_idle)
        assert not any((folder / "after.pid").exists() for folder in made)
    ends = [r for r in read_run(tmp_path / "run.jsonl").records if isinstance(r, Ended) and r.task == "endless-0"]
    assert {r.workload.partition("#")[0]: r.outcome for r in ends} == {"plain": "failed", "box": "succeeded"}
    assert len(ends) == 2
