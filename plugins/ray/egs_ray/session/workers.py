"""What worker processes say (hello, warm, late, here, began, waits, goes, want, free, left, stays, again, worked,
lacks, progress, end) and that they are gone."""

from __future__ import annotations

from collections.abc import Callable

from egs_core.engine import messages as m
from egs_core.runlog import records as r
from egs_core.site import PreloadOver, Where
from egs_ray.link import Message, Peer, tell
from egs_ray.session.endings import Endings
from egs_ray.session.phases import Phases
from egs_ray.session.shared import Shared
from egs_ray.session.stops import Stops
from egs_ray.session.submissions import Submissions
from egs_ray.session.tasks import Job, Way


class Workers:
    """The worker processes of a session."""

    def __init__(
        self,
        shared: Shared,
        phases: Phases,
        submissions: Submissions,
        endings: Endings,
        stops: Stops,
        look_at_nodes: Callable[[], None],
    ) -> None:
        self._shared, self._phases, self._submissions, self._endings = shared, phases, submissions, endings
        self._stops, self._look_at_nodes = stops, look_at_nodes

    def take_message(self, peer: Peer, message: Message) -> None:
        if message.get("m") == "lease":
            job = self._shared.leases.started(peer, message)
            if job is not None:
                self._phases.lease_started(job)
            return
        if message.get("m") == "named":
            job = self._shared.leases.named(message)
            if job is not None:
                self._phases.lease_named(job)
            return
        job = self._shared.submitted.get(message.get("task", 0))
        if message["m"] in ("saves", "saved"):
            self._stops.said(job, peer, message)
            return
        if job is None:
            ended, _ = self._shared.unheard.get(message.get("task", 0), (None, 0.0))
            if message.get("m") == "hello":  # it has ended, and Ray makes again a value that was lost with a node
                left = message["task"] in self._shared.left
                word = {"m": "drop"} if left else {"m": "go", "open": True}
                tell(peer, {**word, "task": message["task"], "life": message["life"]})
            elif ended is not None and (ended.way is not Way.SHELL or _is_of_this_try(ended, peer, message)):
                self._last_words(ended, peer, message)
            return
        if job.way is Way.SHELL and message["m"] != "hello" and not _is_of_this_try(job, peer, message):
            return
        said: dict[str, Callable[[Job, Peer, Message], None]] = {
            "hello": self._hello,
            "warm": self._warm,
            "late": self._late,
            "here": self._here,
            "began": self._began,
            "want": self._want,
            "free": self._free,
            "left": self._left_gpu,
            "stays": self._stays,
            "again": self._again,
            "end": self._end,
            "waits": self._waits,
            "goes": self._goes,
            "worked": self._worked,
            "lacks": self._lacks,
            "progress": self._progress,
        }
        if (take := said.get(message["m"])) is not None:  # a worker's EGS may be newer
            take(job, peer, message)

    def _last_words(self, job: Job, peer: Peer, message: Message) -> None:
        """Of a process whose task's result came first."""
        if message["m"] == "worked":
            self._worked(job, peer, message)
        elif message["m"] == "end":
            del self._shared.unheard[message["task"]]

    def worker_gone(self, peer: Peer) -> None:
        """A worker process died, with a holder, a shell or an observed task in it. Ray may start the task again."""
        for submission in [number for number, (job, _) in self._shared.unheard.items() if job.peer is peer]:
            del self._shared.unheard[submission]
        self._submissions.gone(peer)
        lease = self._shared.leases.of(peer)
        if lease is not None:
            self._phases.lease_over(lease)
        for job in self._shared.submitted.values():
            if job.saver is peer:
                job.saver = None  # a step in a process of its own is over: nobody is left to ask
        for job in [job for job in self._shared.submitted.values() if job.peer is peer and not job.succeeded]:
            job.stays = job.stays or self._shared.real_gpus  # its memory goes with the process, just after its line
            if job.requeues:
                self._endings.requeued(job)
            else:
                self._endings.lost_attempt(job, "aborted" if job.aborted else "preempted")

    def _waits(self, job: Job, _peer: Peer, _message: Message) -> None:
        self._phases.lending.begin(job)
        if self._shared.tickets is not None:
            self._shared.tickets.code_waits(job.framework_id)

    def _goes(self, job: Job, _peer: Peer, _message: Message) -> None:
        self._phases.lending.end(job)
        if self._shared.tickets is not None:
            self._shared.tickets.loans.goes(job.framework_id)

    def _worked(self, job: Job, _peer: Peer, message: Message) -> None:
        run, task = job.run, job.run.converted.graph.ids[job.index]
        attempt = job.attempt if job.grant is None else job.grant.attempt
        self._shared.site.note(r.Work(self._shared.site.now(), run.workload, task, attempt, message["amounts"]))

    def _progress(self, job: Job, _peer: Peer, message: Message) -> None:
        self._shared.site.progressed(Where(job.number, *message["told"]))

    def _hello(self, job: Job, peer: Peer, message: Message) -> None:
        if job.life and not job.succeeded:
            self._endings.lost_attempt(job, "preempted")  # Ray tries again; the end of the last try may be heard later
        if message.get("moves"):
            there = "" if job.succeeded else self._submissions.moves.elsewhere(job, message["node"])
            word = {"m": "elsewhere", "node": there} if there else {"m": "here"}
            tell(peer, {**word, "task": job.submission, "life": message["life"]})
            if there:
                job.node = there
                return
        job.peer, job.pid, job.framework_id = peer, message["pid"], message["id"]
        job.node, job.was_warm, job.life = message["node"], message["warm"], message["life"]
        job.stays = job.outside = False
        job.is_gentle = message.get("gentle", False)
        self._shared.real_gpus = self._shared.real_gpus or message.get("real", False)
        job.met_cuda = job.met_cuda or (message.get("cuda", False) and not job.own)
        if job.succeeded or self._shared.broken:
            pass
        elif self._is_moved(job):
            return
        elif not self._submissions.suits(job):
            self._endings.submit_again(job, job.node)  # nobody knew of its machine's devices, or what its process did
            return
        if job.succeeded or self._shared.broken:
            self._phases.on_its_own(job)  # Ray lost the result, or EGS its site
        elif job.grant is not None and job.lease is None and not self._phases.gets_warm_first(job, job.grant):
            self._phases.take_lease(job, job.grant)
        self._submissions.hasten(job)
        self._phases.let_go(job)

    def _is_moved(self, job: Job) -> bool:
        """Whether the process, which Ray has put elsewhere than asked, is replaced by one where the task was granted
        its resources. Where that node is gone, the grant is: the process waits for another."""
        if self._submissions.is_misplaced(job):
            self._look_at_nodes()
        if not self._submissions.is_misplaced(job):
            job.moves = 0
        elif self._endings.move(job):
            return True
        else:
            self._phases.on_its_own(job)
        return False

    def _lacks(self, job: Job, _peer: Peer, message: Message) -> None:
        """Its code has ended for lack of a GPU's memory. A word to it says whether it ends so, or starts again."""
        is_again = self._submissions.moves.start_again(job, message["why"])
        self._shared.send(job, {"m": "again" if is_again else "ends"})

    def _late(self, job: Job, _peer: Peer, _message: Message) -> None:
        """Its arguments have to come from afar, or be made again, for which Ray may need what it holds."""
        if not self._phases.gangs.is_member(job):
            self._phases.give_back(job)
            job.went_at = 0.0

    def _here(self, job: Job, _peer: Peer, _message: Message) -> None:
        """Its arguments are there: it waits for its resources again."""
        if self._shared.broken:
            self._phases.on_its_own(job)
        elif job.grant is not None and job.lease is None:
            self._phases.take_lease(job, job.grant)
        job.went_at = 0.0
        self._phases.let_go(job)

    def _warm(self, job: Job, _peer: Peer, message: Message) -> None:
        job.is_warm = True
        self._submissions.loaded(job.submission)
        for problem in message["errors"]:
            self._shared.warn_once(f"preload for {job.run.converted.graph.names[job.index]}: {problem}")
        self._submissions.took_to_load(job, message["seconds"])
        if not job.was_warm:
            converted, took_s = job.run.converted, self._shared.site.now() - job.submitted_at
            self._shared.learning.warmed_up(converted.name, converted.graph.names[job.index], took_s)
        if job.parked_since is not None:
            self._shared.site.note(PreloadOver(job.number, "warm"))
        if self._shared.broken:
            return
        if job.grant is not None and job.lease is None and not job.is_open:
            self._phases.take_lease(job, job.grant)
        self._shared.site.report(m.PreloadReady(job.number))

    def _began(self, job: Job, _peer: Peer, message: Message) -> None:
        job.began = job.ran = True
        self._submissions.loaded(job.submission)
        if job.way is Way.OBSERVED and job.grant is not None:
            job.pid, job.framework_id, job.node = message["pid"], message["id"], message["node"]
            self._phases.started(job, job.grant)

    def _want(self, job: Job, _peer: Peer, _message: Message) -> None:
        self._phases.over(job)
        if self._shared.broken:
            self._shared.send(job, {"m": "go", "open": True})

    def _free(self, job: Job, _peer: Peer, _message: Message) -> None:
        self._phases.over(job)
        if self._shared.broken:
            self._shared.send(job, {"m": "go", "open": True})

    def _left_gpu(self, job: Job, _peer: Peer, _message: Message) -> None:
        """A task whose last phase is on the GPU has left it; what remains of the task holds nothing."""
        if job.grant is not None:
            self._phases.used(job, job.grant, self._shared.site.now())
            job.went_at = 0.0
        self._phases.give_back(job)

    def _stays(self, job: Job, _peer: Peer, message: Message) -> None:
        """It has left its GPU block, and something of it has not left the device: nobody else can have that."""
        if job.grant is not None:
            self._phases.used(job, job.grant, self._shared.site.now())
        job.stays = job.outside = True
        left = "memory" if message["bytes"] is None else f"{message['bytes'] / 2**20:,.0f} MiB"
        self._shared.warn_once(
            f"{job.run.converted.graph.names[job.index]} leaves {left} on its GPU after `with egs.gpu():`, so the GPU "
            f"stays held until the task ends: egs.phases(…, egs.on_gpu(…), …) runs GPU steps in processes of their own"
        )

    def _again(self, job: Job, _peer: Peer, _message: Message) -> None:
        """It is back in its GPU block, on the device that it still holds."""
        job.outside, job.went_at = False, self._shared.site.now()

    def _end(self, job: Job, _peer: Peer, message: Message) -> None:
        job.ended = True
        job.stays = bool(message.get("stays"))
        if job.way is Way.SHELL and message["ok"] and not job.once:
            self._submissions.stands(job)
            self._submissions.about_to_leave(job)
        if message["ok"]:
            self._endings.succeeded(job)
        else:
            self._phases.give_back(job)  # whether it is tried again is Ray's decision; see `Endings.on_result`


def _is_of_this_try(job: Job, peer: Peer, message: Message) -> bool:
    """Not from a try before this one. A step in a process of its own has a line of its own, too: for its waits, and for
    how far it is."""
    return bool(message["life"] == job.life) and (peer is job.peer or message["m"] in ("waits", "goes", "progress"))
