"""See and steer the local runs of this user from another process, by their doors: see `door`."""

from __future__ import annotations

from pathlib import Path

import msgspec

from egs_core.adapter import ControlOutcome, ControlRequest, RunningWorkload, unknown_workload, who
from egs_core.errors import InputError
from egs_kubeflow.run.door import Answer, Asked, folder_of_doors, knocked, read_line, remove_stale

ANSWER_S = 20.0
NO_ANSWER = "its process does not answer"


def running(address: str = "") -> list[RunningWorkload]:
    """The runs that answer, the oldest first. Raises InputError for an address, which no local run has."""
    _check(address)
    return [found for found, _ in _runs()]


def control(request: ControlRequest) -> ControlOutcome:
    """Have the run do it. Raises InputError that names what there is, for an unknown target."""
    _check(request.address)
    runs = _runs()
    meant = [(run, door) for run, door in runs if _is(run, request.workload) and request.driver in ("", run.driver)]
    if not meant:
        there = [f"{run.workload} (driver {run.driver})" for run, _ in runs]
        raise unknown_workload(request, there)
    if len(meant) > 1:
        names = ", ".join(run.workload for run, _ in meant)
        raise InputError(request.workload, f"{len(meant)} runs are called so: {names}", "give one's whole name")
    run, door = meant[0]
    actor = request.actor or who()
    answer = _asked(door, Asked(msgspec.structs.replace(request, actor=actor, workload=run.workload)))
    if answer is None:
        raise InputError(request.workload, NO_ANSWER, f"it is process {run.pid}")
    if answer.outcome is None:
        raise InputError(answer.place or request.workload, answer.problem, answer.hint)
    return answer.outcome


def _check(address: str) -> None:
    if address:
        raise InputError("--address", "a local run has none", "egs ps lists what runs on this machine")


def _is(run: RunningWorkload, name: str) -> bool:
    """Whether it is called so: by the run's own name, or by the pipeline's, which that begins with."""
    return run.workload == name or run.workload.rsplit("-", 4)[0] == name


def _runs() -> list[tuple[RunningWorkload, Path]]:
    parent = folder_of_doors()
    remove_stale(parent)
    doors = sorted(parent.glob("*-*"))
    answers = [(answer.running, door) for door in doors if (answer := _asked(door, Asked())) is not None]
    found = [(run, door) for run, door in answers if run is not None]
    return sorted(found, key=lambda one: one[0].running[0].since if one[0].running else 0.0)


def _asked(door: Path, asked: Asked) -> Answer | None:
    """What a run answers; None where it does not."""
    try:
        with knocked(door, ANSWER_S) as connection:
            connection.sendall(msgspec.json.encode(asked) + b"\n")
            line = read_line(connection)
            return msgspec.json.decode(line, type=Answer) if line else None
    except (OSError, msgspec.MsgspecError):
        return None
