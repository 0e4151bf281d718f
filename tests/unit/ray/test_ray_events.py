"""Which of Ray's task events are taken apart: by the first bytes of real messages, without Ray."""

from __future__ import annotations

import pytest
from ray.core.generated.gcs_pb2 import TaskEvents

from egs_ray.events import _may_be_new

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
