"""A site under load of real clients, of which anything may be killed at any moment; and what is left of it then.

The site has one server, whose database is SQLite in its folder, or two with one PostgreSQL. A seed says what happens;
when it happens is the machine's affair.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import sqlalchemy as sa

from egs_core.client.http import Refused, SiteClient, Unreachable, trusted_owners
from egs_core.client.places import parse_url
from egs_core.server.database import parse_database
from tests.unit.server import gpu_user
from tests.unit.server.aftermath import Client, Note, Quota, check_journal, problems, read_notes, read_site
from tests.unit.server.real_site import EGS, PATIENCE_S, RealSite, wait_for

GPUS = 3
RUNS, HTTP_CLIENTS = 4, 2  # that are there at one time
CODES = (0, 0, 7)  # and not 1, which is Python's own for an error
QUEUES = """
queues:
  - {name: fixed, cohort: site, nominal: {gpus: 1}, borrowing_limit: {gpus: 0}}
  - {name: common, cohort: site, nominal: {gpus: 2}}
  - {name: lone, nominal: {gpus: 1}}
"""
QUOTAS = {"fixed": Quota(1, "site", 3), "common": Quota(3, "site", 3), "lone": Quota(1)}
KINDS = (  # of runs: words for `egs run`
    ("--queue", "common", "--gpus", "1"),
    ("--queue", "common", "--gpus", "2"),
    ("--queue", "common", "--gpus", "2", "--requeue"),
    ("--queue", "common", "--gpus", "1", "--requeue"),
    ("--queue", "common", "--gpus", "2", "--priority", "5"),
    ("--queue", "fixed", "--gpus", "1"),
    ("--queue", "fixed", "--gpus", "0.5"),
    ("--queue", "lone", "--gpus", "0.5"),
)
KILLED = 128 + signal.SIGKILL


class Run(msgspec.Struct):
    """An `egs run`."""

    client: Client
    process: subprocess.Popen[str]


class Figures(msgspec.Struct):
    """What a run of it came to. recoveries_s: from each kill that left no active server until one answered."""

    kills: int
    recoveries_s: list[float]
    clients_killed: int
    commands_killed: int
    runs: int
    requeued: int
    entries: int

    def words(self) -> str:
        times = f"{median(self.recoveries_s):.2f} s in the median, {max(self.recoveries_s):.2f} s at most"
        killed = f"{self.clients_killed} clients and {self.commands_killed} commands killed"
        runs = f"{self.runs} runs ({self.requeued} requeued), {self.entries} entries"
        return f"{self.kills} kills of servers, {killed}; {runs}; recovery {times}"


class Servers(RealSite):
    """One server with SQLite, or several with one PostgreSQL, each with a port that stays its own.

    database: the URL of PostgreSQL, "" for SQLite; ways: names of the servers, and the URL by which each has the
    database; data: of SQLite, in the site's folder if none is said."""

    def __init__(
        self, folder: Path, database: str = "", ways: Mapping[str, str] | None = None, data: Path | None = None
    ) -> None:
        super().__init__(folder, GPUS)
        self.database, self.data = database, data or folder / "data"
        self.ways = ways or ({"one": database, "two": database} if database else {"one": ""})
        self.names = names = tuple(self.ways)
        self.ports = dict.fromkeys(names, "0")
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.queues = folder / "queues.yaml"
        self.queues.write_text(QUEUES)
        self.urls: list[str] = []
        self.places: dict[str, str] = {}  # the socket of each
        for name in names:
            self.begin_one(name)
            self.wait_until_ready(name)
        self.environment["EGS_URL"] = ",".join(self.sockets())
        self.own = parse_url(self.environment["EGS_URL"])

    @property
    def where(self) -> Path | sa.URL:
        """Its database."""
        return parse_database(self.database) if self.database else self.data

    def sockets(self) -> list[str]:
        """Each place at which one of its servers may have one."""
        names = ["egs.sock", *(f"egs-{port}.sock" for port in self.ports.values())]
        return [f"unix://{self.folder}/run/{name}" for name in (names if self.database else names[:1])]

    def begin_one(self, name: str) -> None:
        """Without waiting for it."""
        folder = self.folder / name if self.database else self.data
        words = ["--emulated-gpus", str(self.gpus), "--port", self.ports[name], "--queues", str(self.queues)]
        words += ["--database", self.ways[name]] if self.database else []
        self.processes[name] = self._begin([*EGS, "serve", "--json", "--data", str(folder), *words])

    def wait_until_ready(self, name: str) -> None:
        begun = self.processes[name]
        assert begun.stdout is not None
        line = begun.stdout.readline()
        assert line, begun.communicate()[1]
        found = json.loads(line)
        self.places[name], url = f"unix://{found['socket']}", found["url"]
        if url not in self.urls:
            self.urls.append(url)
            self.ports[name] = url.rpartition(":")[2]

    def kill_one(self, name: str) -> str:
        """What it had written to stderr."""
        self.processes[name].kill()
        return self.finished(self.processes[name])

    @property
    def client(self) -> SiteClient:
        return SiteClient(self.own, trusted_owners())

    def answers(self, name: str = "") -> bool:
        """Whether any server answers for the site, or that one."""
        address = parse_url(self.places[name]) if name else self.own
        with contextlib.closing(SiteClient(address, trusted_owners())) as client:
            try:
                client.queue()
            except (Unreachable, Refused):
                return False
        return True

    def stop(self) -> None:
        """All of them, by a signal that they heed; each has to end as one that was not disturbed."""
        for name, begun in self.processes.items():
            begun.terminate()
            errors = self.finished(begun)
            assert begun.returncode == 0, f"{name}: {errors}"

    def finished(self, begun: subprocess.Popen[str]) -> str:
        """What it has written to stderr; its pipes are closed."""
        errors = begun.communicate(timeout=PATIENCE_S)[1]
        self._begun.remove(begun)
        return errors

    def begin_client(self, *words: str) -> subprocess.Popen[str]:
        return self._begin([sys.executable, gpu_user.__file__, *words], {"EGS_URL": ",".join(self.urls)})


class Havoc:
    """A site, its users, and what kills them."""

    def __init__(self, folder: Path, seed: int, site: Servers) -> None:
        self.random, self.site = random.Random(seed), site
        self.notes = folder / "notes"
        self.notes.mkdir()
        self.runs: list[Run] = []
        self.http: dict[str, subprocess.Popen[str]] = {}
        self.clients: list[Client] = []
        self.killed_http: set[str] = set()
        self.kills = self.commands_killed = self.http_begun = 0
        self.recoveries_s: list[float] = []

    def lines(self) -> list[Note]:
        return read_notes(self.notes / "log")

    # --- load ---

    def fill(self) -> None:
        """As many clients as there are to be."""
        self.harvest()
        while len(self.runs) < RUNS:
            name, code = f"job{len(self.clients)}", self.random.choice(CODES)
            kind = self.random.choice(KINDS)
            longest = 6.0 if "--requeue" in kind else 1.5  # what may be evicted should be there when others come
            gpus, length = kind[kind.index("--gpus") + 1], f"{self.random.uniform(0.1, longest):.2f}"
            words = (sys.executable, "-I", "-S", gpu_user.__file__, "command", str(self.notes), name, gpus)
            begun = self.site.run(*kind, "--name", name, "--", *words, length, str(code))
            self.runs.append(Run(Client(name, (code,)), begun))
            self.clients.append(self.runs[-1].client)
        while len(self.http) < HTTP_CLIENTS:
            name = f"http{self.http_begun}"
            self.http_begun += 1
            seed = str(self.random.randrange(1000))
            self.http[name] = self.site.begin_client("client", str(self.notes), name, seed)

    def harvest(self, *, wait: bool = False) -> None:
        """Those that have ended. wait: for all."""
        for one in list(self.runs):
            if wait or one.process.poll() is not None:
                one.client.text = self.site.finished(one.process)
                one.client.returned = one.process.returncode
                self.runs.remove(one)

    def is_still(self) -> bool:
        """Whether nobody uses a device."""
        return not _using(self.lines())

    def wait_for_work(self, lines: int = 1) -> None:
        """Until so much has happened besides, with as many clients as there are to be."""
        wanted = len(self.lines()) + lines
        self.until(lambda: len(self.lines()) >= wanted, "a command begins or ends")

    def until(self, what: Callable[[], Any], text: str) -> Any:
        """As `wait_for`, under load all the time."""

        def look() -> Any:
            self.fill()
            return what()

        return wait_for(look, text)

    # --- faults ---

    def kill_servers(self, times: int) -> None:
        """So often, at any moment: of its start, of a request, of the work; now and then users, too."""
        while self.kills < times:
            self.fill()
            if self.random.random() < 0.75:
                self.wait_for_work()
            time.sleep(self.random.uniform(0, 0.5))  # the moment of the fault
            self.kill_somebody()
            self._kill_servers()
            self.kill_somebody()

    def _kill_servers(self) -> None:
        names = self.site.names
        victims = list(names) if self.random.random() < 0.3 else [self.random.choice(names)]
        was_active = any(self.site.answers(name) for name in victims)
        since = time.monotonic()
        for name in victims:
            self._kill(name)
        self.fill()
        for name in victims:
            self.site.begin_one(name)
        while self.random.random() < 0.15:  # before it serves
            time.sleep(self.random.uniform(0, 2.0))
            self._kill(victims[0])
            self.site.begin_one(victims[0])
        wait_for(self.site.answers, "a server answers again")
        if was_active:
            self.recoveries_s.append(time.monotonic() - since)
        for name in victims:
            self.site.wait_until_ready(name)

    def _kill(self, name: str) -> None:
        self.site.kill_one(name)
        self.kills += 1

    def kill_somebody(self) -> None:
        """Or nobody: an `egs run`, whose command goes on; a command; a client that holds its GPUs itself."""
        what = self.random.choice(("run", "command", "http", "", ""))
        if what == "run" and self.runs:
            victim = self.random.choice(self.runs)
            victim.client.is_killed = True
            victim.process.kill()
        elif what == "http" and self.http:
            name = self.random.choice(sorted(self.http))
            process = self.http.pop(name)
            self._kill_user(process.pid)
            self.site.finished(process)
            self.killed_http.add(name)
        elif what == "command":
            using = [note for note in _using(self.lines()) if note.name.startswith("job")]
            if using:
                victim_note = self.random.choice(using)
                client = next(one for one in self.clients if one.name == victim_note.name)
                if self._kill_user(victim_note.pid):
                    client.codes = (*client.codes, KILLED)
                    self.commands_killed += 1

    def _kill_user(self, pid: int) -> bool:
        """A process that uses devices: it stands still first, so that what it has written last is known, and what it
        used is its no more from then on."""
        if not _is_user(pid, self.notes):
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            wait_for(lambda: _state(pid) in "TZ", "it stands still")
            for note in _using(self.lines()):
                if note.pid == pid:
                    mark, part = f"-.{note.run}.{note.token}", f"{note.part:g}"
                    gpu_user.note(self.notes, "dying", note.name, mark, ",".join(note.devices), part)
            os.kill(pid, signal.SIGKILL)
            return True
        return False

    # --- what is left ---

    def end(self) -> Figures:
        """Let everything come to its end, look at what is left of it, and fail where anything is wrong with it."""
        (self.notes / "stop").touch()
        self.harvest(wait=True)
        for process in self.http.values():
            errors = self.site.finished(process)
            assert process.returncode == 0, errors
        wait_for(self._is_over, "all runs end")
        self.site.stop()
        left = read_site(self.site.where, QUOTAS)
        clients = [*self.clients, *self._http_clients()]
        found = problems(left, self.lines(), clients)
        assert not found, "\n".join(found)
        check_journal(left)
        killed = sum(one.is_killed for one in self.clients) + len(self.killed_http)
        counts = len(left.kept.runs), left.requeues.total(), len(left.kept.entries)
        return Figures(self.kills, self.recoveries_s, killed, self.commands_killed, *counts)

    def _is_over(self) -> bool:
        with contextlib.suppress(Unreachable):
            return not self.site.open()
        return False

    def _http_clients(self) -> list[Client]:
        """Each run of a client that speaks to the server itself, by what that has written."""
        found: dict[str, Client] = {}
        for file in sorted(self.notes.glob("*.told")):
            for name, what, more in map(str.split, file.read_text().splitlines()):
                one = found.setdefault(name, Client(name, is_killed=file.stem in self.killed_http))
                if what == "has":
                    one.run = more
                elif what == "done":
                    one.returned = 0
                elif what == "over":
                    one.text = more
        for one in found.values():
            one.is_killed = one.is_killed and one.returned is None
        return list(found.values())


def _using(notes: list[Note]) -> list[Note]:
    """The begins of those that use devices now."""
    found: dict[str, Note] = {}
    for note in notes:
        if note.what == "begin":
            found[note.name] = note
        elif note.what in ("end", "dying"):
            found.pop(note.name, None)
    return list(found.values())


def _is_user(pid: int, folder: Path) -> bool:
    """Whether that is the number of a process of this folder's still."""
    try:
        return str(folder).encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


def _state(pid: int) -> str:
    """As `/proc` has it; Z also for none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"
