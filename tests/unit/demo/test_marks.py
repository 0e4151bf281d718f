"""What a task notes about itself."""

from __future__ import annotations

import json
import multiprocessing
import time
from pathlib import Path

import pytest

from egs_core.runlog.marks import Marking, append, process_start

LINES = 200


def _append_lines(path: str, writer: int) -> None:
    for _ in range(LINES):
        append(Path(path), {"writer": writer, "padding": "x" * 1000})


def test_lines_of_several_processes_never_mix(tmp_path: Path) -> None:
    """Every line is whole although three processes write at the same time."""
    path = tmp_path / "marks.jsonl"
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_append_lines, args=(str(path), number)) for number in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    found = [json.loads(line)["writer"] for line in path.read_text().splitlines()]
    assert sorted(found) == sorted([0, 1, 2] * LINES)


def test_phase_lasts_its_length_and_not_less() -> None:
    """The wait makes up for what the computation left; what takes longer than its phase is not cut."""
    marking = Marking()
    with marking.cpu(0.05):
        pass
    with marking.gpu(0.0):
        time.sleep(0.02)
    lengths = {kind: end - start for kind, start, end in marking.stretches}
    assert lengths["cpu"] >= 0.05
    assert lengths["gpu"] >= 0.02


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only where the system says when a process began")
def test_process_start_is_between_launch_and_first_line() -> None:
    """A process knows when it was created, to two ticks of 10 ms."""
    context = multiprocessing.get_context("spawn")
    before = time.time()
    with context.Pool(1) as pool:
        launched = time.time()
        created = pool.apply(process_start)
    assert created is not None
    assert before - 0.02 <= created <= launched + 0.02
