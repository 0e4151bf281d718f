"""Which of Ray's task events are taken apart, by the first bytes of real messages, and what is read of one."""

from __future__ import annotations

import pytest
from ray.core.generated.gcs_pb2 import TaskEvents

from egs_ray.events import _from_message, _may_be_new

JOB = "02000000"
TASK = "ab" * 20 + JOB


@pytest.mark.parametrize("attempt", [0, 1, 7, 127, 128, 300])
def test_only_messages_that_may_be_new_are_taken_apart(attempt: int) -> None:
    """Those of another job and those that are known are left; what the first bytes do not tell is taken apart."""
    message = TaskEvents(task_id=bytes.fromhex(TASK), attempt_number=attempt, job_id=bytes.fromhex(JOB))
    data = message.SerializeToString()
    assert _may_be_new(data, JOB, ())
    assert _may_be_new(data, JOB, {(TASK, attempt + 2)})
    is_told = attempt < 128  # in one byte
    assert _may_be_new(data, "03000000", ()) is not is_told
    assert _may_be_new(data, JOB, {(TASK, attempt + 1)}) is not is_told


def test_a_message_that_begins_otherwise_is_taken_apart() -> None:
    """Without a task's id, or with one of another length, nothing can be said."""
    for message in (TaskEvents(), TaskEvents(attempt_number=1), TaskEvents(task_id=b"short", job_id=b"1234")):
        assert _may_be_new(message.SerializeToString(), JOB, ())


def test_a_task_in_a_bundle_asks_for_what_it_gets_there() -> None:
    """Ray names a bundle's resources after their group, once with the bundle's number and once without."""
    message = TaskEvents(task_id=bytes.fromhex(TASK), job_id=bytes.fromhex(JOB))
    bundled = {"GPU_group_ab12": 1.0, "GPU_group_0_ab12": 1.0, "CPU_group_0_ab12": 0.5, "bundle_group_ab12": 0.001}
    message.task_info.required_resources.update(bundled)
    event = _from_message(message, TASK, 1)
    assert (event.gpus, event.cpus, event.memory_bytes) == (1.0, 0.5, 0)
