"""What a site tells of its runs: states, reasons, devices, the order of those that wait. It changes nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from math import ceil
from typing import Any

from egs_core.calendar import Window
from egs_core.client import messages as c
from egs_core.client.outlines import Earlier
from egs_core.client.processes import lease_mark
from egs_core.client.waiting_words import HOW_TO_END, time_words
from egs_core.engine import Engine
from egs_core.engine.rules.fit import lacking
from egs_core.engine.state.nodes import Node
from egs_core.errors import listed
from egs_core.server.forecast import expected_starts
from egs_core.server.gangs import Gangs, come_words
from egs_core.server.hosts import OWN, Hosts
from egs_core.server.keeping import words
from egs_core.server.moments import wall_clock
from egs_core.server.runs import NOT_ADMITTED, WHOLE_DEVICE, Device, GangPlace, HeldLease, Run, SiteFacts
from egs_core.server.spending import Spending
from egs_core.server.stopping import is_late, known_end, takes

BEAT_S = 5.0  # how often a client is to be heard of
MOMENT_S = 5.0  # what should have started so long ago, or longer, starts nobody knows when
SHOWN_STEP_S = 10.0  # in which a text that tells of a time that goes on changes
MOST_EXPLAINED = 100
OTHERS = "(one of another team)"
NUMBERED = re.compile(r"\d+(?= \()")
WORKLOAD = re.compile(r"workload '(\d+)(?:\.\d+)?'")  # as the engine calls a run: see `Run.workload`
Sees = Callable[[Run], bool]


def _all(_run: Run) -> bool:
    return True


class Views:
    """What is told is for whoever `sees` some of the runs: of others not even a name is in it.

    runs: the site's own, by id; by_task: those that the engine knows; open: those that have not ended, which the site
    keeps up; living: processes of lost ones; progress: of those that tell it; clock: the site's, which goes on while
    the engine hears of nothing; used_elsewhere: who holds something in a queue in other pools; spending: of budgets;
    devices, occupied: of the server's own host; hosts: the others; gangs: of runs that start together; kept: runs for
    which what they want is kept for others."""

    def __init__(
        self,
        facts: SiteFacts,
        engine: Engine,
        runs: dict[str, Run],
        by_task: dict[int, Run],
        hosts: Hosts,
        gangs: Gangs,
        kept: Mapping[str, Window],
    ) -> None:
        self._facts, self._engine, self._runs, self._by_task = facts, engine, runs, by_task
        self._gangs, self._kept = gangs, kept
        self.open = {run.id: run for run in runs.values() if run.is_open}
        self.devices: tuple[Device, ...] = ()
        self.occupied: dict[int, tuple[int, ...]] = {}  # devices, and processes that hold no lease of theirs
        self.used_elsewhere: Callable[[str, Sees], str] = lambda _queue, _sees: ""
        self.spending = Spending()
        self.living: dict[str, tuple[int, ...]] = {}
        self.progress: dict[str, c.ProgressView] = {}
        self.clock: Callable[[], float] = lambda: engine.state.now
        self.hosts = hosts

    def open_runs(self) -> list[Run]:
        return list(self.open.values())

    def note_progress(self, run: Run, told: c.Progress) -> None:
        at = self._facts.epoch + self.clock() - told.ago_s
        self.progress[run.id] = c.ProgressView(told_at=at, step=told.step, loss=told.loss, is_nan=told.is_nan)

    def forget(self, run: Run) -> None:
        """What was known of its processes: they are gone."""
        self.living.pop(run.id, None)
        self.progress.pop(run.id, None)

    def devices_of(self, host: str) -> tuple[Device, ...]:
        """Of a host as runs name it, in the order in which leases name them."""
        return self.devices if host == OWN else self.hosts.all[host].devices if host in self.hosts.all else ()

    def node_of(self, host: str) -> Node | None:
        """What the engine knows of it; the server's own is told it first. None for one that has not joined."""
        nodes = self._engine.state.nodes
        if host == OWN:
            return nodes[0] if nodes else None
        return next((node for node in nodes if node.name == host and node.alive), None)

    def name_of(self, host: str) -> str:
        node = self.node_of(OWN) if host == OWN else None
        return node.name if node else host

    def earlier(self, run: Run, sees: Sees) -> tuple[Earlier, ...]:
        """What it had until it was evicted, each time."""
        epoch = self._facts.epoch
        return tuple(
            [
                Earlier(
                    started_at=epoch + one.started_at,
                    ended_at=epoch + one.ended_at,
                    gpus=one.gpus,
                    host=self.name_of(one.host),
                    flavor=one.flavor,
                    waited_s=one.waited_s,
                    why=self.told_text(one.why, sees),
                )
                for one in run.earlier
            ]
        )

    def listed_hosts(self, sees: Sees = _all) -> list[tuple[str, str, tuple[str, ...], tuple[str, ...]]]:
        """Of each host its name, state, devices and open runs: see `client.hosts.HostView`."""
        found = []
        for host in [OWN, *self.hosts.all]:
            known = self.hosts.all.get(host)
            state = "forgotten" if known and known.is_gone else "silent" if self.hosts.is_silent(host) else "joined"
            runs = tuple([run.id for run in self.open_runs() if run.host == host and sees(run)])
            ids = tuple([device.id for device in self.devices_of(host)])
            found.append((self.name_of(host), "own" if host == OWN else state, ids, runs))
        return found

    def listed(
        self, sees: Sees = _all, *, with_ended: bool = False, ended: Sequence[Run] = (), more_ended: int = 0
    ) -> c.Runs:
        """All open runs, oldest first, and who holds which device. with_ended: all runs; ended: these before the open
        ones, of which it is known that they are seen."""
        runs = [*ended, *(run for run in (self._runs if with_ended else self.open).values() if sees(run))]
        views = tuple([self.view(run, sees=sees) for run in runs])
        return c.Runs(runs=views, more_ended=more_ended, devices=self.held_devices(sees))

    def queue(self, sees: Sees = _all) -> c.Runs:
        """The runs that wait, first first; then those that are paused, or wait for others."""
        seen = self.waiting(sees)
        return c.Runs(runs=self.explained(seen, sees), devices=self.held_devices(sees))

    def waiting(self, sees: Sees = _all) -> list[Run]:
        """Those of `queue`, in its order."""
        order = [self._by_task[self._engine.state.task_of[phase]] for phase in self._engine.ready_order()]
        placed = {run.id for run in order}
        rest = [run for run in self.open_runs() if run.lease is None and run.id not in placed]
        return [run for run in [*order, *rest] if sees(run)]

    def explained(self, runs: Sequence[Run], sees: Sees = _all, most: int = MOST_EXPLAINED) -> tuple[c.RunView, ...]:
        """With why they wait, and when they should start: the first so many."""
        starts = self.starts()
        return tuple([self.view(run, n < most, starts, sees) for n, run in enumerate(runs)])

    def starts(self) -> dict[int, float]:
        """As `expected_starts`."""
        return expected_starts(self._engine, self.spending.stopped, self._stops_at)

    def _stops_at(self, task: int) -> float | None:
        run = self._by_task.get(task)
        return None if run is None else known_end(run, self.clock())

    def view(
        self, run: Run, with_reason: bool = False, starts: dict[int, float] | None = None, sees: Sees = _all
    ) -> c.RunView:
        """One run. with_reason: also why it is where it is; starts: when what waits should start, where known."""
        epoch, lease = self._facts.epoch, run.lease
        kind, text = self._reason(run, sees) if run.is_open and with_reason else ("", self.told_text(run.why, sees))
        starts_in_s, rounds = None, None
        awaited = self._runs[run.inside] if run.inside else run
        if with_reason and run.is_open and lease is None and awaited.lease is None and awaited.task != NOT_ADMITTED:
            rounds = self._rounds(awaited) if starts is None else None
            starts = self.starts() if starts is None else starts
            found = starts.get(self._engine.state.cursor[awaited.task])
            if found and kind not in (
                "quota",
                "budget",
            ):  # at once, and it waits: for something that the forecast does not count
                in_s = self._engine.state.now + found - self.clock()
                starts_in_s = None if in_s < -MOMENT_S else max(0.0, in_s)
        if with_reason and (kept := self._kept.get(awaited.id)) is not None and self._needs_some_of(awaited, kept):
            starts_in_s = kept.end - epoch - self.clock()
        return c.RunView(
            id=run.id,
            site=self._facts.id,
            name=run.name,
            user=run.user,
            team=run.team,
            host=self.name_of(run.host),
            state=run.state,
            version=run.version,
            gpus=run.gpus,
            cpus=run.cpus,
            memory_bytes=run.memory_bytes,
            gpu_memory_bytes=run.gpu_memory_bytes,
            queue=run.queue,
            priority=run.priority,
            expected_s=run.expected_s,
            for_s=run.for_s,
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
            stop=self.told_text(run.stop, sees),
            grace_s=run.grace_s,
            beat_s=BEAT_S,
            requeue=run.is_evicted,
            evictions=run.evictions,
            earlier=self.earlier(run, sees),
            is_request=run.is_request,
            inside=run.inside,
            ends_at=epoch + (awaited.time_is_up_at or 0.0) if run.is_warned else None,
            gang=None if awaited.gang is None else self._told_gang(awaited, awaited.gang),
            work=run.work,
            flavors=run.flavors,
            flavor=run.flavor,
            progress=self.progress.get(run.id),
            checkpoint_signal=run.saving.signal if run.saving else "",
            checkpoints=run.checkpoints,
            note=run.note,
            rounds=rounds,
        )

    def _rounds(self, run: Run) -> int | None:
        """See `RunView`. Others of its gang start with it."""
        own, found = {one.task for one in self._gangs.members(run)} | {run.task}, 0
        for phase in self._engine.ready_order():
            task = self._engine.state.task_of[phase]
            if task in own:
                return found // max(1, len(self.devices_of(run.host)))
            found += self._by_task[task].host == run.host
        return None

    def _reason(self, run: Run, sees: Sees) -> tuple[str, str]:
        if run.task == NOT_ADMITTED and run.is_paused and not run.after:
            return "paused", f"is held until `egs resume {run.id}`"
        if run.inside and not run.after:
            return self._reason_inside(run, sees)
        if run.id in self._kept:
            return "reservation", words(self._kept[run.id], self._facts.epoch + self.clock())
        if run.gang is not None and run.task == NOT_ADMITTED and self.is_due(run):
            return "gang", self._reason_in_gang(run, run.gang, sees)
        if run.task == NOT_ADMITTED and not run.after and self.hosts.is_silent(run.host):
            return "suspect", f"waits{self._silence(run.host)}"
        if run.task == NOT_ADMITTED and not run.after:
            return "drained", "waits until the host is no longer drained (`egs undrain`)"
        if run.task == NOT_ADMITTED:
            text = f"waits for {listed([self._called(*one) for one in run.after], 4)}"
            return "dependency", self.told_text(text, sees)
        if run.lease is None and run.gpus and (why := self.spending.why(run.queue)):
            return "budget", why
        short = self._short(run)
        reason = self._engine.explain(short.task, wall_clock(self._facts.epoch))
        text = reason.text
        if reason.kind == "capacity":
            text += self._holders(short.host, sees)
            text = f"starts on its {run.gang.size} hosts together: {text}" if run.is_request and run.gang else text
            text += self._late_ends(short.host, sees) + self._aside(run)
        text += self.used_elsewhere(run.queue, sees) if reason.kind == "quota" else ""
        text += self._evicted_for(run, sees) if run.lease is None else ""
        return reason.kind, self.told_text(text, sees)

    def _aside(self, run: Run) -> str:
        """That it waits for its own GPUs, and for how long; "" where it may have any."""
        if run.aside is None or self._engine.state.options_of(run.task).only_on is None:
            return ""
        until = wall_clock(self._facts.epoch)(run.aside.until)
        text = f"it was put aside on {listed(run.aside.devices, 4)}, and goes on there alone"
        return f"; {text}: from {until} on it may have others, to begin anew there"

    def _evicted_for(self, run: Run, sees: Sees) -> str:
        """Which runs are told to stop for it, or for one of its gang; "" for none."""
        tasks = [one.task for one in self._gangs.members(run) if one.task != NOT_ADMITTED]
        names = tuple([f"preempted for {self._engine.state.task_ids[task]}: " for task in tasks])
        stop = [one for one in self.open_runs() if one.is_evicted and one.stop.startswith(names)]
        if not stop:
            return ""
        within = "" if any(is_late(one, self.clock()) for one in stop) else f", and stopped within {takes(stop)}"
        return f"; evicted for it{within}: {listed([_label(one, sees) for one in stop], 4)}"

    def _needs_some_of(self, run: Run, kept: Window) -> bool:
        """Whether there are too few devices for it, or its gang, beside what is kept, whoever else ends."""
        wanted = sum(ceil(one.gpus) for one in self._gangs.members(run) if one.host == OWN)
        return wanted + kept.of.gpus > len(self.devices)

    def _late_ends(self, host: str, sees: Sees) -> str:
        """Which runs there should have stopped by now, and since when they are to; "" for none."""
        late = [run for run in self.open_runs() if run.lease and run.lease.devices and run.host == host]
        late = [run for run in late if not run.inside and is_late(run, self.clock())]
        told = []
        for run in late:
            since_s = self.clock() - (run.stop_at or 0.0)
            told.append(f"{_label(run, sees)} for {time_words(since_s - since_s % SHOWN_STEP_S)} now")
        return f"; it waits for the end of what was told to stop: {listed(told, 4)}" if told else ""

    def _short(self, run: Run) -> Run:
        """Of a request over several hosts that waits the part whose host has no room for it, where one has none; else
        the run itself."""
        parts = self._gangs.members(run) if run.is_request and run.lease is None else []
        nodes = [(part, node) for part in parts if (node := self.node_of(part.host)) is not None]
        return next((part for part, node in nodes if lacking(node, part.shape)), run)

    def _reason_inside(self, run: Run, sees: Sees) -> tuple[str, str]:
        request = self._runs[run.inside]
        if run.lease is not None:
            return "running", f"runs in request {request.whole} ({request.name})"
        kind, text = self._reason(request, sees)
        return kind, f"request {request.whole} ({request.name}): {text}"

    def _reason_in_gang(self, run: Run, gang: GangPlace, sees: Sees) -> str:
        """Of one that might start, but for others of its gang."""
        members = self._gangs.members(run)
        if not gang.is_whole:
            until = wall_clock(self._facts.epoch)(gang.until)
            text = f"{come_words(gang, members)}; it is given up at {until} unless the others come"
            return f"starts together with gang {gang.name!r}: {text}"
        late = [one for one in members if not self.is_due(one)]
        if not late:
            return f"starts together with gang {gang.name!r}"
        why = self._reason(late[0], sees)[1]
        return f"starts together with gang {gang.name!r}, of which run {late[0].id} ({late[0].name}) {why}"

    def _told_gang(self, run: Run, gang: GangPlace) -> c.GangView:
        runs = tuple([one.id for one in self._gangs.members(run)])
        if gang.rank is None:
            return c.GangView(name=gang.name, size=gang.size, runs=runs)
        hosts = tuple([self.name_of(host) for host in gang.hosts or (run.host,) * gang.size])
        number = int(gang.number)
        return c.GangView(name=gang.name, size=gang.size, runs=runs, number=number, rank=gang.rank, hosts=hosts)

    def _called(self, run_id: str, when: str) -> str:
        return f"run {run_id} ({self._runs[run_id].name}){HOW_TO_END[when]}"

    def _silence(self, host: str) -> str:
        """That a host is silent, and what then; "" where it is not."""
        if not self.hosts.is_silent(host):
            return ""
        return f": nothing is heard of the agent of host {host}, so nothing new starts there until it answers"

    def _holders(self, host: str, sees: Sees) -> str:
        holding = [run for run in self.open_runs() if run.lease and run.lease.devices and not run.inside]
        holding = [run for run in holding if run.host == host]
        held = [f"{run.id} ({run.name}, {run.user})" for run in holding if sees(run)]
        held += [f"{others} of other teams"] if (others := len(holding) - len(held)) else []
        text = f"; GPUs are held by {listed(held, 4)}" if held else ""
        taken = [
            f"{self.devices_of(host)[n].id} by {listed([str(pid) for pid in pids], 3)}"
            for n, pids in self._occupied(host).items()
            if pids
        ]
        text += self._silence(host)
        return text + (f"; occupied by processes that this server did not start: {listed(taken, 4)}" if taken else "")

    def told_text(self, text: str, sees: Sees) -> str:
        """The text without the numbers and names of runs that the asker does not see, and with runs for workloads."""

        def called(match: re.Match[str]) -> str:
            run = self._runs.get(match[1])
            return f"run {match[1]}" if run is None or sees(run) else OTHERS

        text = WORKLOAD.sub(called, text)
        if sees is _all:
            return text
        found, end = "", 0
        for match in NUMBERED.finditer(text):
            run = self._runs.get(match[0])
            label = "" if run is None or sees(run) else f"{run.id} ({run.name})"
            if label and match.start() >= end and text.startswith(label, match.start()):
                found += text[end : match.start()] + OTHERS
                end = match.start() + len(label)
        return found + text[end:]

    def _told(self, run: Run, lease: HeldLease) -> c.Lease:
        of_host = self.devices_of(run.host)
        devices = tuple([of_host[number].id for number in lease.devices])
        mark = lease_mark(run.id, lease.token, self._facts.id)
        return c.Lease(token=lease.token, devices=devices, claimed=lease.claimed_at is not None, mark=mark)

    def held_devices(self, sees: Sees) -> tuple[c.Device, ...]:
        holders: dict[tuple[str, int], list[Run]] = {}
        for run in self.open_runs():
            for number in run.lease.devices if run.lease and not run.inside else ():
                holders.setdefault((run.host, number), []).append(run)
        views = []
        for host in [OWN, *(one.name for one in self.hosts.joined())]:
            if (node := self.node_of(host)) is None:
                continue
            occupied, is_suspect = self._occupied(host), self.hosts.is_silent(host)
            for n, one in enumerate(self.devices_of(host)):
                idle = "suspect" if is_suspect else "drained" if n in node.drained else ""
                idle = idle or ("occupied" if n in occupied else "free")
                more = {"host": node.name, "drained": n in node.drained, "suspect": is_suspect}
                more["processes"] = occupied.get(n, ())
                views.append(_device(one, holders.get((host, n), []), node.devices[n] / WHOLE_DEVICE, idle, sees, more))
        return tuple(views)

    def _occupied(self, host: str) -> dict[int, tuple[int, ...]]:
        return self.occupied if host == OWN else self.hosts.occupied.get(host, {})

    def is_due(self, run: Run) -> bool:
        """Whether nothing but the engine's order, and its gang, keeps it: what needs GPUs that holds back itself."""
        is_shut = not run.gpus and self.is_shut(run.host)
        return not run.after and not run.is_paused and not is_shut and run.id not in self._kept

    def is_shut(self, host: str) -> bool:
        """Whether nothing starts there that needs no device either: it is silent, or drained with all of its own."""
        node, devices = self.node_of(host), self.devices_of(host)
        return self.hosts.is_silent(host) or (node is not None and bool(devices) and len(node.drained) == len(devices))


def _label(run: Run, sees: Sees) -> str:
    return f"{run.id} ({run.name})" if sees(run) else OTHERS


def _device(one: Device, holders: list[Run], free: float, idle: str, sees: Sees, more: Mapping[str, Any]) -> c.Device:
    """idle: its state where nobody holds it; more: fields that follow from its host."""
    runs = tuple([run.id for run in holders if sees(run)])
    return c.Device(
        id=one.id,
        label=one.label,
        flavor=one.kind,
        state="held" if holders else idle,
        run=runs[0] if runs else "",
        runs=runs,
        memory_bytes=one.memory_bytes,
        free=max(0.0, free),
        others=len(runs) < len(holders),
        **more,
    )
