"""What a run log tells an audit of its framework: as the adapter has said it, whatever the framework is called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from egs_core.audit.observed import header_of, observed_in
from egs_core.runlog.io import Run, read_run, write_run
from egs_core.runlog.records import Header, Record, TaskAdded
from tests.unit.audit.contended import ran

SAID: list[dict[str, Any]] = [
    {"edges_known": True, "cpu_name": "slot", "pinned": True, "may_split": False},
    {"edges_known": False, "cpu_name": "CPU", "pinned": False, "may_split": True},
]


@pytest.mark.parametrize("said", SAID)
@pytest.mark.parametrize("driver", ["ray", "airflow", "kubeflow", "unheard of"])
def test_a_run_log_keeps_what_was_said(tmp_path: Path, driver: str, said: dict[str, Any]) -> None:
    """Through a file and back an audit knows the same."""
    made = msgspec.structs.replace(ran(), **said)
    observed = msgspec.structs.replace(made, header=msgspec.structs.replace(made.header, driver=driver))
    write_run(tmp_path / "log.jsonl", header_of(observed), observed.records)
    read = observed_in(read_run(tmp_path / "log.jsonl"))
    assert {name: getattr(read, name) for name in said} == said
    assert read.records == observed.records


def test_a_log_that_does_not_say_is_judged_by_what_it_has(tmp_path: Path) -> None:
    """A run of EGS has all edges. Without EGS: a log with tasks of several parents has them, one with none has not."""
    old = tmp_path / "old.jsonl"
    old.write_bytes(b'{"r":"header","format":"egs-runlog","version":1,"mode":"off"}\n')
    header = read_run(old).header
    assert observed_in(Run(header, [])).edges_known is False
    assert observed_in(Run(msgspec.structs.replace(header, mode="observe"), [])).edges_known is True
    children: list[list[Record]] = [[TaskAdded(0.0, "w", "a", parents=parents)] for parents in (("x",), ("x", "y"))]
    assert [observed_in(Run(header, records)).edges_known for records in children] == [False, True]
    assert observed_in(Run(Header(edges_known=True), [])).edges_known is True


def test_what_has_no_label_is_called_by_its_file() -> None:
    """A log without a label has its path for one, and one that was cut off says so."""
    observed = observed_in(Run(Header(), [], path="cut.jsonl", truncated=True))
    assert (observed.header.label, *observed.notes) == ("cut.jsonl", "cut.jsonl was cut off: its last line is left out")
