"""Drivers of frameworks that share a pool at the server: whose work they may see, change and use queues of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

import msgspec

from egs_core.client import messages as c
from egs_core.client.ahead import Ahead, DriverTasksView, Planned, TaskOutline
from egs_core.client.driver_use import DriverUse
from egs_core.engine import messages as m
from egs_core.engine.specs import QueueSpec
from egs_core.engine.state.lifecycle import RUNNING, SUCCEEDED
from egs_core.server import ahead
from egs_core.server.driver_use import DriverUses
from egs_core.server.moments import wall_clock
from egs_core.server.principals import SUBMITTING, Principal, queue_for, queues_of
from egs_core.server.spending import Spending
from egs_core.server.steps import Steps, at_once
from egs_core.server.watching.tasks import GpuTask, Place, TaskTimes, WatchedTask
from egs_core.site import messages as s
from egs_core.site import wire
from egs_core.site.held import Held
from egs_core.site.pooled import GONE, TTL_S, About, Driver, Pool, SharedPools, batch_of
from egs_core.site.refusal import Refusal
from egs_core.site.spanning import Spanning

MOST_EXPLAINED, MOST_TASKS = 3, 500  # of a driver's tasks: with why they wait; in one step
MOST_TOLD = 3  # of those that tell how far they are, beside their driver


class DriverCount(msgspec.Struct, frozen=True):
    """How much of one driver runs and waits: tasks with GPUs. gpus: that they hold."""

    framework: str
    queue: str
    team: str
    running: int
    waiting: int
    gpus: float


class Pools(SharedPools):
    """See the module. started_at: second since 1970 at which its clock is 0. team_of_queue: whose the queues are."""

    def __init__(
        self,
        queues: tuple[QueueSpec, ...],
        epoch: str,
        started_at: float,
        team_of_queue: Mapping[str, str] | None = None,
        spanning: Spanning | None = None,
        spending: Spending | None = None,
        gather_s: float | None = None,
    ) -> None:
        super().__init__(queues, epoch, spanning, gather_s)
        self._spending = spending or Spending()
        self._team_of_queue = team_of_queue or {}
        self._started_at = started_at
        self._uses = DriverUses(started_at)

    def has_held(self, part: Held) -> None:
        self._uses.over(part)

    def counted_until(self, part: Held) -> float:
        return self._uses.counted_until(part)

    # --- what drivers ask ---

    def join(self, who: Principal, ask: c.DriverRequest) -> c.Driver:
        """A seat in its pool. Raises Refusal for a queue that there is not, or not for this principal."""
        who.need(SUBMITTING, "to share a pool")
        driver = self._known(ask.key, who.name)
        if driver is None:
            queue = queue_for(who, ask.queue, self._names, self._team_of_queue, "EGS_QUEUE")
            team = self._team_of_queue.get(queue, "") or who.team
            driver = self._joined(About(ask.key, ask.framework, ask.pool, ask.name, queue, who.name, team, ask.back))
        notice = self._spending.why(driver.queue) or self._spending.notice(driver.queue)
        return c.Driver(
            id=driver.id,
            epoch=self._epoch,
            ttl_s=TTL_S,
            now=self._now,
            queue=driver.queue,
            notice=notice,
            wants_progress=True,
            takes_flavors=True,
        )

    def batch(self, who: Principal, driver_id: str, body: bytes) -> bytes:
        """See `take`."""
        return self.take(who, driver_id, batch_of(body))

    def take(self, who: Principal, driver_id: str, batch: wire.Batch) -> bytes:
        """What a driver tells and asks: encoded `Answers`. A repeated batch is answered as before. Raises Refusal."""
        driver = self._heard_from(who, driver_id, batch.epoch)
        return self._answers(driver, batch, queues_of(who, self._names, self._team_of_queue))

    def poll(self, who: Principal, driver_id: str, ask: c.Poll) -> tuple[wire.Message, ...]:
        """What the driver has not got yet; a sign of life. Raises Refusal."""
        return self._heard_from(who, driver_id, ask.epoch).fetch(ask.ack)

    def leave(self, who: Principal, driver_id: str, ask: c.Leave) -> c.Left:
        """The driver needs the site no more. Raises Refusal."""
        self._drop(self._heard_from(who, driver_id, ask.epoch))
        return c.Left(id=driver_id)

    def _heard_from(self, who: Principal, driver_id: str, epoch: str) -> Driver:
        driver = self._drivers.get(driver_id)
        if driver is not None and not who.may_hold(driver):
            raise Refusal(410, GONE)
        return self._heard(driver_id, epoch)

    # --- what people ask ---

    def listed(self, who: Principal) -> tuple[c.RunView, ...]:
        """All drivers that the asker sees, those that joined first first."""
        return at_once(self.listed_steps(who))

    def listed_steps(self, who: Principal) -> Steps[tuple[c.RunView, ...]]:
        """The same in steps, a pool each, between which others may be answered."""
        found: dict[str, c.RunView] = {}
        for pool in list(self._pools.values()):
            heads = self._heads_of(pool)
            found |= {one.id: self._view(who, one, heads) for one in pool.drivers.values() if who.sees(one)}
            yield
        return tuple([found[one] for one in self._drivers if one in found])

    def queue(self, who: Principal) -> tuple[c.RunView, ...]:
        """Those with tasks that wait, in the order of their first ones; pools one after the other."""
        heads = self._heads()
        drivers = [self._drivers[driver] for driver in heads]
        return tuple([self._view(who, one, heads) for one in drivers if who.sees(one)])

    def view(self, who: Principal, driver_id: str) -> c.RunView:
        """One driver, and why its first task waits. Raises Refusal."""
        who.need_to_see()
        return self._view(who, self._visible(who, driver_id), self._heads())

    def called(self, who: Principal, name: str) -> list[Driver]:
        """Those of that name that the asker sees."""
        return [one for one in self._drivers.values() if one.name == name and who.sees(one)]

    def tasks_steps(self, who: Principal, driver_id: str) -> Steps[DriverTasksView]:
        """A driver's tasks, some at a time. Raises Refusal, also where it has left meanwhile."""
        who.need_to_see()
        driver = self._visible(who, driver_id)
        pool, state = driver.pool, driver.pool.engine.state
        moment, tell = wall_clock(self._started_at), self._teller(who, driver.pool)
        explained = [state.task_of[phase] for phase in self._heads_of(pool).get(driver.id, [])[:MOST_EXPLAINED]]
        reasons = {task: tell(driver.seat.why(task, moment)) for task in explained}
        numbers = [n for one in driver.seat.workloads for n in state.workloads[state.workload_number(one)].numbers]
        found: list[TaskOutline] = []
        for begin in range(0, len(numbers), MOST_TASKS):
            yield
            part = numbers[begin : begin + MOST_TASKS]
            found += ahead.task_outlines(self._visible(who, driver_id), part, reasons, self._started_at)
        now, name = self._started_at + self._now, driver.name
        return DriverTasksView(now, driver.id, name, driver.framework, driver.user, driver.queue, tuple(found))

    def ahead_steps(self, who: Principal) -> Steps[Ahead]:
        """What is planned for the tasks of all drivers that the asker sees, a pool at a time."""
        who.need_to_see()
        found: tuple[list[Planned], list[Planned], list[Planned]] = [], [], []
        for pool in list(self._pools.values()):
            for kind, of_pool in zip(found, (ahead.loaded, ahead.kept, ahead.starts), strict=True):
                kind += of_pool(pool, self._started_at, who.sees)
            yield
        loaded, kept, starts = found
        kept.sort(key=_when)
        starts.sort(key=_when)
        most = ahead.MOST_PLANNED
        return Ahead(self._started_at + self._now, tuple(loaded[:most]), tuple(kept[:most]), tuple(starts[:most]))

    def use_steps(self, who: Principal, over_s: float) -> Steps[DriverUse]:
        """What tasks of its teams' drivers held in the last so many seconds, those included that have left."""
        who.need_to_see()
        running = [one for pool in self._pools.values() if pool.held is not None for one in pool.held.open()]
        return self._uses.told_steps(over_s, running, self._now, who.is_of)

    def _teller(self, who: Principal, pool: Pool) -> Callable[[m.Reason], str]:
        """What of a reason is told: of a pool with other teams' drivers no names of others' tasks."""
        return _whole if all(who.sees(one) for one in pool.drivers.values()) else _without_names

    def counts(self) -> tuple[list[DriverCount], Counter[str]]:
        """Of each driver, of whichever team; and thousandths of GPUs that count against each queue's quota."""
        waiting, held = self._heads(), {driver: [0, 0] for driver in self._drivers}
        used: Counter[str] = Counter()
        for pool in self._pools.values():
            state, seats = pool.engine.state, {id(one.seat): one.id for one in pool.drivers.values()}
            for phase, lease in state.leases.items():
                if lease.gpu_milli and (driver := seats.get(id(pool.shared.owner(state.task_of[phase])))):
                    held[driver][0] += 1
                    held[driver][1] += lease.gpu_milli * len(lease.devices)
            used.update({queue.spec.name: queue.used[1] for queue in state.queues})
        found = [
            DriverCount(
                one.framework,
                one.queue,
                one.team,
                held[one.id][0],
                len(waiting.get(one.id, ())),
                held[one.id][1] / 1000,
            )
            for one in self._drivers.values()
        ]
        return found, used

    def watched(self, times: TaskTimes) -> list[WatchedTask]:
        """The tasks with GPUs that run, for rules; `times` learns of those that have ended since the last call."""
        running, succeeded = list[GpuTask](), list[Place]()
        for pool in self._pools.values():
            state, drivers = pool.engine.state, {id(one.seat): one for one in pool.drivers.values()}
            for phase, lease in state.leases.items():
                driver = drivers.get(id(pool.shared.owner(state.task_of[phase])))
                if lease.gpu_milli and driver is not None and state.status[phase] == RUNNING:
                    running.append(_gpu_task(pool, driver, phase))
        for name, phase, attempt in times.seen:
            if (known := self._pools.get(name)) is not None and phase < len(known.engine.state.status):
                state = known.engine.state
                if state.status[phase] == SUCCEEDED and state.attempt[state.task_of[phase]] == attempt:
                    succeeded.append((name, phase, attempt))
        return times.look(running, succeeded)

    def control(self, who: Principal, driver_id: str, verb: str, ask: c.Control) -> c.RunView:
        """abort, pause or resume: the driver is asked to. Raises Refusal."""
        driver = self._visible(who, driver_id)
        if not who.may_change(driver):
            raise Refusal(403, f"driver {driver_id} is of {driver.user}: only that user and operators may change it")
        driver.ask(s.Asked(verb, who.name, ask.reason, ask.grace_s))
        view = self.view(who, driver_id)
        return view.model_copy(update={"state": "stopping"}) if verb == "abort" else view

    def _visible(self, who: Principal, driver_id: str) -> Driver:
        """Raises Refusal (404), the same for a driver of another team and for none."""
        driver = self._drivers.get(driver_id)
        if driver is None or not who.sees(driver):
            raise Refusal(404, f"there is no driver {driver_id!r}: `egs ps` lists those that are there")
        return driver

    def _heads(self) -> dict[str, list[int]]:
        """By driver, in the order of their first ones: its phases with GPUs that are ready and wait."""
        found: dict[str, list[int]] = {}
        for pool in self._pools.values():
            found |= self._heads_of(pool)
        return found

    def _heads_of(self, pool: Pool) -> dict[str, list[int]]:
        """Of one pool: an order of ten thousands is gone through once, so by workload and shape."""
        state, found = pool.engine.state, dict[str, list[int]]()
        by_seat = {id(one.seat): one.id for one in pool.drivers.values()}
        driver_of = [by_seat.get(id(seat)) for seat in pool.shared.owners]
        has_gpu = [shape.gpu_milli > 0 for shape in state.shapes]
        task_of, workload_of, shape_of = state.task_of, state.task_workload, state.shape
        for phase in pool.engine.ready_order():
            driver = driver_of[workload_of[task_of[phase]]]
            if driver is not None and has_gpu[shape_of[phase]]:
                found.setdefault(driver, []).append(phase)
        return found

    def _view(self, who: Principal, driver: Driver, heads: dict[str, list[int]]) -> c.RunView:
        pool, waiting = driver.pool, heads.get(driver.id, [])
        state = pool.engine.state
        leases = [
            lease
            for phase, lease in state.leases.items()
            if lease.gpu_milli and pool.shared.owner(state.task_of[phase]) is driver.seat
        ]
        paused = any(f"workload:{workload}" in state.pauses for workload in driver.seat.workloads)
        moment = wall_clock(self._started_at)
        reason = driver.seat.why(state.task_of[waiting[0]], moment) if waiting else None
        first = state.workloads[state.task_workload[state.task_of[waiting[0]]]].queue if waiting else ""
        where = self._spanning.holders(pool.member, first, who.sees) if reason and reason.kind == "quota" else ""
        tell = self._teller(who, pool)
        held = sum(lease.gpu_milli * len(lease.devices) for lease in leases) / 1000
        stopped = self._spending.why(first)
        return c.RunView(
            id=driver.id,
            name=driver.name,
            user=driver.user,
            state="paused" if paused else "running" if leases else "waiting" if waiting else "idle",
            version=0,
            gpus=held,
            cpus=0.0,
            memory_bytes=0,
            queue=driver.queue,
            team=driver.team,
            priority=0,
            submitted_at=self._started_at + driver.joined_at,
            kind="budget" if stopped else reason.kind if reason is not None else "",
            reason=f"{reason.task}: {stopped or tell(reason) + where}" if reason is not None else "",
            beat_s=TTL_S,
            framework=driver.framework,
            tasks=c.DriverTasks(running=len(leases), waiting=len(waiting), told=tuple(self._told(driver))),
        )

    def _told(self, driver: Driver) -> Iterator[c.TaskProgress]:
        state = driver.pool.engine.state
        for task, told in driver.whereabouts.latest(MOST_TOLD):
            if not told.where.words:
                continue
            called, at = ahead.called_task(state, task), self._started_at + told.at
            where = {"step": told.where.step, "loss": told.where.loss, "is_nan": told.where.is_nan}
            yield c.TaskProgress(task=_plain(called), told_at=at, **where)


def _gpu_task(pool: Pool, driver: Driver, phase: int) -> GpuTask:
    """Of a phase that runs. What a driver calls its own may have any letters, and goes to terminals and into logs."""
    state = pool.engine.state
    task, lease = state.task_of[phase], state.leases[phase]
    workload = state.workloads[state.task_workload[task]]
    told = driver.whereabouts.of(task)
    return GpuTask(
        place=(pool.name, phase, state.attempt[task]),
        driver=driver.id,
        framework=driver.framework,
        user=driver.user,
        team=driver.team,
        queue=workload.queue,
        workload=_plain(workload.name),
        task=_plain(state.task_ids[task]),
        name=_plain(state.task_names[task]),
        gpus=lease.gpu_milli * len(lease.devices) / 1000,
        took_s=pool.now - state.started_at[phase],
        key=f"{driver.id}/{task}/{state.attempt[task]}",
        devices=driver.whereabouts.devices_of(task),
        told=None if told is None else msgspec.structs.replace(told.where, ago_s=max(0.0, pool.now - told.at)),
    )


def _plain(name: str) -> str:
    return "".join(one if one.isprintable() else "?" for one in name)[:200]


def is_driver(run: str) -> bool:
    """Whether this is an id of a driver, rather than of a run."""
    return run.startswith("r") and run[1:].isdecimal()


def _when(one: Planned) -> float:
    return one.at or 0.0


def _whole(reason: m.Reason) -> str:
    return reason.text


def _without_names(reason: m.Reason) -> str:
    """The same where tasks of another team may be ahead: of those not even a name is told."""
    if reason.kind == "reservation":
        return "room is there, but kept for others"
    return reason.text.removesuffix(reason.own) + "; others are ahead of it" if reason.waiting_for else reason.text
