"""What a site tells of its runs: states, reasons, devices, the order of those that wait. It changes nothing."""

from __future__ import annotations

from collections.abc import Iterable

from egs_core.client import messages as c
from egs_core.client.processes import lease_mark
from egs_core.engine import Engine
from egs_core.errors import listed
from egs_core.server.forecast import expected_starts
from egs_core.server.runs import NOT_ADMITTED, Device, HeldLease, Run, SiteFacts

BEAT_S = 5.0  # how often a client is to be heard of
MOST_EXPLAINED = 100
LABELS = {"ok": "", "any": " (however it ends)", "failed": " to fail"}


class Views:
    """runs: the site's own, by id; by_task: those that the engine knows; living: processes of lost ones."""

    def __init__(self, facts: SiteFacts, engine: Engine, runs: dict[str, Run], by_task: dict[int, Run]) -> None:
        self._facts, self._engine, self._runs, self._by_task = facts, engine, runs, by_task
        self.devices: tuple[Device, ...] = ()
        self.living: dict[str, tuple[int, ...]] = {}

    def open_runs(self) -> list[Run]:
        return [run for run in self._runs.values() if run.is_open]

    def listed(self, *, with_ended: bool = False) -> c.Runs:
        """All open runs, oldest first, and who holds which device."""
        runs = [run for run in self._runs.values() if with_ended or run.is_open]
        return c.Runs(runs=tuple([self.view(run) for run in runs]), devices=self._held_devices())

    def queue(self) -> c.Runs:
        """The runs that wait, first first; then those that are paused, or wait for others."""
        order = [self._by_task[self._engine.state.task_of[phase]] for phase in self._engine.ready_order()]
        placed = {run.id for run in order}
        rest = [run for run in self.open_runs() if run.lease is None and run.id not in placed]
        starts = expected_starts(self._engine)
        views = [self.view(run, n < MOST_EXPLAINED, starts) for n, run in enumerate([*order, *rest])]
        return c.Runs(runs=tuple(views), devices=self._held_devices())

    def view(self, run: Run, with_reason: bool = False, starts: dict[int, float] | None = None) -> c.RunView:
        """One run. with_reason: also why it is where it is; starts: when what waits should start, where known."""
        epoch, lease = self._facts.epoch, run.lease
        kind, text = self._reason(run) if run.is_open and with_reason else ("", run.why)
        starts_in_s = None
        if with_reason and run.is_open and lease is None and run.task != NOT_ADMITTED:
            starts = expected_starts(self._engine) if starts is None else starts
            starts_in_s = starts.get(self._engine.state.cursor[run.task])
        return c.RunView(
            id=run.id,
            site=self._facts.id,
            name=run.name,
            user=run.user,
            state=run.state,
            version=run.version,
            gpus=run.gpus,
            cpus=run.cpus,
            memory_bytes=run.memory_bytes,
            queue=run.queue,
            priority=run.priority,
            submitted_at=epoch + run.submitted_at,
            started_at=None if run.started_at is None else epoch + run.started_at,
            ended_at=None if run.ended_at is None else epoch + run.ended_at,
            outcome=run.outcome,
            exit_code=run.exit_code,
            lease=None if lease is None else self._told(run, lease),
            kind=kind,
            reason=text,
            starts_in_s=starts_in_s,
            lost=run.is_lost,
            processes=self.living.get(run.id, ()) if run.is_lost else (),
            stop=run.stop,
            grace_s=run.grace_s,
            beat_s=BEAT_S,
        )

    def _reason(self, run: Run) -> tuple[str, str]:
        if run.task == NOT_ADMITTED:
            return "dependency", f"waits for {listed([self._called(*one) for one in run.after], 4)}"
        reason = self._engine.explain(run.task)
        return reason.kind, reason.text + (self._holders() if reason.kind == "capacity" else "")

    def _called(self, run_id: str, when: str) -> str:
        return f"run {run_id} ({self._runs[run_id].name}){LABELS[when]}"

    def _holders(self) -> str:
        held = [f"{run.id} ({run.name}, {run.user})" for run in self.open_runs() if run.lease and run.lease.devices]
        return f"; GPUs are held by {listed(held, 4)}" if held else ""

    def _told(self, run: Run, lease: HeldLease) -> c.Lease:
        devices = tuple([self.devices[number].id for number in lease.devices])
        mark = lease_mark(run.id, lease.token, self._facts.id)
        return c.Lease(token=lease.token, devices=devices, claimed=lease.claimed_at is not None, mark=mark)

    def _held_devices(self) -> tuple[c.Device, ...]:
        holders = {number: run.id for run in self.open_runs() if run.lease for number in run.lease.devices}
        return tuple(_devices(self.devices, holders))


def _devices(devices: Iterable[Device], holders: dict[int, str]) -> list[c.Device]:
    return [c.Device(id=one.id, label=one.label, run=holders.get(n, "")) for n, one in enumerate(devices)]
