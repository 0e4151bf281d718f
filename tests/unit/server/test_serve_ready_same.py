"""`egs run --keep-ready`: what a command has in a process that stood ready, beside what the same run gives it without.
Between the run that has left the process and the next one something is another: that one either is not in the process,
or nothing that its command can tell differs. A real server, a real keeper; `egs run` is forked (`forked.py`)."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import pytest

from egs_core.client.ready import shown
from egs_core.client.surroundings import surroundings
from tests.unit.server.forked import FIRST, Forked, python_words
from tests.unit.server.ready_probe import CODE, PROBE
from tests.unit.server.real_site import PATIENCE_S, RealSite, wait_for
from tests.unit.server.test_serve_preload import has_ended, made

pytestmark = [
    pytest.mark.long,  # each run waits for the next process to stand ready: where much else runs, minutes
    pytest.mark.skipif(
        "/session-" in Path("/proc/self/cgroup").read_text(encoding="utf-8"),
        reason="in a login session of systemd nothing is loaded after a first run",
    ),
]

BASE = os.path.realpath(sys.executable)
"""A Python that is of no virtual environment, and has the user's own packages."""
SESSION = "os.setsid()\n"
PRCTL = "import ctypes\nassert ctypes.CDLL(None).prctl({}) == 0\n"
OTHERWISE = "ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN\n"
OTHERWISE += "signal.signal(signal.SIGHUP, signal.SIG_DFL if ignored else signal.SIG_IGN)"
OWN = ("pid", "used_s")
PER_RUN = ("EGS_LEASE", "EGS_WORK", "CUDA_VISIBLE_DEVICES")


class Told(NamedTuple):
    """Of a run: what its command has told and printed; what `egs run` has said."""

    pid: int
    told: dict[str, Any]
    out: str
    err: str
    said: str


class Runs:
    """Of one folder with `work.py`. All of a module's have keepers in common: one of each kind of surroundings."""

    def __init__(self, site: RealSite, folder: Path, python: str = sys.executable) -> None:
        self.folder, self.python, self.number, self._base = folder, python, 0, 0
        made(folder, slow="", work=PROBE)
        kept = {name: value for name, value in site.environment.items() if not name.startswith("PYTHON")}
        self.environment = kept | python_words() | {"XDG_RUNTIME_DIR": os.environ["XDG_RUNTIME_DIR"], "GONE": "1"}

    def told(
        self,
        first: str = "",
        environment: dict[str, str] | None = None,
        gone: str = "",
        keep: bool = True,
        options: tuple[str, ...] = (),
        streams: Callable[[Path], dict[str, IO[str]]] = lambda _: {},
    ) -> Told:
        """One run to its end. first: what it does before all else; environment, gone: its variables, but for these."""
        self.number += 1
        told = self.folder / f"told-{self.number}"
        more = ("--preload", "slow,json", "--keep-ready", "1") if keep else ()
        whole = {**self.environment, **(environment or {}), FIRST: SESSION + first}
        whole.pop(gone, None)
        given = streams(self.folder)
        pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        words = ["run", "--gpus", "1", *options, *more, "--", self.python, "work.py", str(told)]
        begun = Forked(words, env=whole, cwd=self.folder, text=True, **pipes | given)
        out, err = begun.communicate(timeout=PATIENCE_S)
        for one in set(given.values()):
            one.seek(0)
            written = one.read() if one.writable() else ""
            out, err = out or written, err or written
            one.close()
        assert begun.returncode == CODE, err
        found = json.loads(told.read_text())
        said = "".join(line for line in err.splitlines(True) if line.startswith("egs: "))
        return Told(found["pid"], found, out or "", err.replace(said, "", 1), said)

    def standing(self) -> set[int]:
        """The processes that stand ready for runs in this folder, and have loaded."""
        every = [one.pid for answer in shown() for one in answer.standing if one.loaded_s is not None]
        return {one for one in every if self._is_ours(one)}

    def base(self) -> int:
        """The process that stands ready after a run of which nothing is special. Where the last one stands no more,
        such runs have another variable from now on: for the first run of its kind one stands, for a later one it may
        be worth nothing."""
        if self._base not in self.standing():
            self.environment["GONE"] = f"{self.number}"
            before = self.standing()
            self.told()
            self._base = min(wait_for(lambda: self.standing() - before, "one stands ready"))
        return self._base

    def warm(self, **more: Any) -> Told:
        """A run that is in a process that stood ready, after as many as it takes, of which each has what this has."""
        until = time.monotonic() + PATIENCE_S
        while True:
            before = self.standing()
            found = self.told(**more)
            if found.pid in before:
                assert found.said == ""
                return found
            assert time.monotonic() < until, "no run is in a process that stood ready"

    def _is_ours(self, pid: int) -> bool:
        try:
            return os.readlink(f"/proc/{pid}/cwd") == str(self.folder)
        except OSError:
            return False


def different(one: Told, other: Told) -> dict[str, tuple[Any, Any]]:
    """What two commands can tell from each other, but for what is every run's own."""
    mine, yours = _comparable(one), _comparable(other)
    assert mine.keys() == yours.keys()
    return {name: (mine[name], yours[name]) for name in mine if mine[name] != yours[name]}


def _comparable(one: Told) -> dict[str, Any]:
    told = {name: value for name, value in one.told.items() if name not in OWN}
    told |= {f"${name}": value for name, value in told.pop("environment").items()}
    assert all(told.pop(f"${name}") is not None for name in PER_RUN)
    found: dict[str, Any] = json.loads(
        re.sub(r"0x[0-9a-f]+|told-\d+|egs-activity-\w+|egs-[0-9a-f]+\.\d+\.\d+", "", json.dumps(told))
    )
    return found | {"stdout": one.out, "stderr": one.err}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealSite]:
    """Its keepers end with it."""
    found = RealSite(tmp_path_factory.mktemp("site"), 2)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", folder)
        try:
            found.start()
            yield found
        finally:
            found.close()
            keepers = shown()
            for one in keepers:
                os.kill(one.keeper, signal.SIGTERM)
            pids = [stands.pid for one in keepers for stands in one.standing] + [one.keeper for one in keepers]
            wait_for(lambda: all(map(has_ended, pids)), "keepers end")


@pytest.fixture(scope="module")
def runs(site: RealSite, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(site, tmp_path_factory.mktemp("folder") / "job")


def at_an_offset(folder: Path) -> dict[str, IO[str]]:
    (folder / "input").write_text("one\ntwo\n")
    file = (folder / "input").open()
    os.lseek(file.fileno(), 4, os.SEEK_SET)
    return {"stdin": file}


def in_one_file(folder: Path) -> dict[str, IO[str]]:
    (folder / "output").unlink(missing_ok=True)
    file = (folder / "output").open("a+")
    file.write("before\n")
    file.flush()
    return {"stdout": file, "stderr": file}


USED = {
    "another trace": {"environment": {"TRACEPARENT": "1", "OLDPWD": "/", "AIRFLOW_CTX_TRY_NUMBER": "2"}},
    "tries": {"options": ("--retries", "1", "--retry-on", "9")},
    "may be evicted": {"options": ("--requeue",)},
    "idle": {"options": ("--idle-timeout", "1h")},
    "detail": {"options": ("--name", "x", "--priority", "3", "--for", "1h", "--checkpoint-signal", "USR1")},
}
"""What a run in the process may have that the one before had not."""


@pytest.mark.parametrize("more", USED.values(), ids=USED)
def test_it_is_in_the_process_and_can_tell_no_difference(runs: Runs, more: dict[str, Any]) -> None:
    runs.base()
    warm, cold = runs.warm(**more), runs.told(**more, keep=False)
    assert different(warm, cold) == {}
    assert warm.told["orig_argv"][-1] == warm.told["argv"][-1]


APART: dict[str, dict[str, Any]] = {
    "variable": {"environment": {"OMP_NUM_THREADS": "2"}},
    "no variable": {"gone": "GONE"},
    "home": {"environment": {"HOME": "/nowhere"}},
    "temporary folder": {"environment": {"TMPDIR": "/var/tmp"}},
    "time zone": {"environment": {"TZ": "Asia/Tokyo"}},
    "locale": {"environment": {"LC_ALL": "C"}},
    "umask": {"first": "os.umask(0o027)"},
    "limit": {"first": "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (512, 512))"},
    "schedule": {"first": "os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))"},
    "processors": {"first": "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})"},
    "memory killer": {"first": "open('/proc/self/oom_score_adj', 'w').write('777')"},
    "timer slack": {"first": PRCTL.format("29, 60000, 0, 0, 0")},
    "no new rights": {"first": PRCTL.format("38, 1, 0, 0, 0")},
    "personality": {"first": "import ctypes\nctypes.CDLL(None).personality(0x0040000)"},
    "SIGINT ignored": {"first": "signal.signal(signal.SIGINT, signal.SIG_IGN)"},
    "SIGHUP": {"first": OTHERWISE},
    "SIGALRM ignored": {"first": "signal.signal(signal.SIGALRM, signal.SIG_IGN)"},
    "signal blocked": {"first": "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})"},
    "closed input": {"first": "os.close(0)"},
    "open file": {"first": "os.set_inheritable(os.open('/', os.O_RDONLY), True)"},
    "input at an offset": {"streams": at_an_offset},
    "one file for both outputs": {"streams": in_one_file},
}
"""What differs between the run that has left the process, and the next."""
if platform.machine() == "x86_64":
    APART["priority of disks"] = {"first": "import ctypes\nassert ctypes.CDLL(None).syscall(251, 1, 0, 3 << 13) == 0"}
if os.getuid() == 0:
    APART["groups"] = {"first": "os.setgroups([*os.getgroups(), 12345])"}


@pytest.mark.parametrize("more", APART.values(), ids=APART)
def test_it_is_not_in_a_process_of_other_surroundings(runs: Runs, more: dict[str, Any]) -> None:
    """But in the next one of its own, where there may be one: that, too, is as without. The other one is not touched:
    it was neither taken nor, once taken, found to be another's; the keeper may end it when it is worth nothing."""
    runs.base()
    before, cold, first = runs.standing(), runs.told(**more, keep=False), runs.told(**more)
    assert different(first, cold) == {}
    if first.said:
        assert "starts as without --keep-ready" in first.said
        assert "of what stands ready is another" not in first.said
        assert first.pid not in before
    else:
        warm = runs.warm(**more)
        assert different(warm, cold) == {}
        assert not {first.pid, warm.pid} & before


THREAD = "import sys, threading, random, socket\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
THREAD += "sys.path.append('/appended')\n"
AHEAD = "import sys\nsys.path.insert(0, 'vendor')\n"
AGAIN = """
import os, sys
if not os.environ.get("AGAIN"):
    os.environ["AGAIN"] = "1"
    os.execv(sys.executable, [sys.executable, *sys.argv])
"""
IMPORTS = {
    "a thread": (THREAD, ""),
    "a copy of its output": ("import os\nTOLD = os.dup(1)\n", "has kept standard streams"),
    "its output elsewhere": (
        "import os\nlog = os.open('log', os.O_CREAT | os.O_WRONLY)\nos.dup2(log, 2)\nos.close(log)\n",
        "streams elsewhere",
    ),
    "a process": ("import subprocess\nsubprocess.Popen(['cat'], stdin=subprocess.PIPE)\n", "has started what has them"),
    "a folder ahead": (AHEAD, "puts vendor before"),
    "its umask": ("import os\nos.umask(0o007)\n", "Umask of what stands ready"),
    "another folder": ("import os\nos.chdir('vendor')\n", "cwd of what stands ready"),
    "itself anew": (AGAIN, "has another program in its process"),
}
"""What a module does when it is imported, and why then no process stands ready for a run, or is not used."""


@pytest.mark.parametrize(("text", "why"), IMPORTS.values(), ids=IMPORTS)
def test_what_a_module_does_when_it_is_imported_is_as_without(
    site: RealSite, tmp_path: Path, text: str, why: str
) -> None:
    """In the process; or the command begins without, once, which is said."""
    runs = Runs(site, tmp_path / "job")
    made(runs.folder / "vendor", extra="")
    made(runs.folder, slow=text, extra="")
    cold, first = runs.told(keep=False), runs.told()
    warm = runs.warm() if not why else refused(runs, why)
    assert different(first, cold) == different(warm, cold) == {}
    assert sum(len(ran.read_text()) for ran in runs.folder.rglob("ran")) == runs.number


def refused(runs: Runs, why: str) -> Told:
    """A run that is told that no process is used for it, after as many as it takes."""
    until = time.monotonic() + PATIENCE_S
    while why not in (found := runs.told()).said:
        assert time.monotonic() < until, f"no run is told: {why}; the last one: {found.said}"
    return found


def newer_script(folder: Path) -> None:
    (folder / "work.py").write_text(PROBE + "# newer\n")


def newer_module(folder: Path) -> None:
    """With the time and the size of the one before, as packers make them."""
    told = (folder / "slow.py").stat()
    (folder / "newer").write_text("TOLD = 2\n")
    os.utime(folder / "newer", ns=(told.st_atime_ns, told.st_mtime_ns))
    (folder / "newer").rename(folder / "slow.py")
    shutil.rmtree(folder / "__pycache__", ignore_errors=True)  # by which Python would not notice either


def namesake(folder: Path) -> None:
    """Of a module of a library, which is found first."""
    (folder / "slow.py").write_text("TOLD = 2\n")


def newer_archive(folder: Path) -> None:
    with zipfile.ZipFile(folder / "library.zip", "w") as archive:
        archive.writestr("slow.py", "TOLD = 'of an archive, newer'\n")


def moved(folder: Path) -> None:
    folder.rename(folder.with_name("before"))
    shutil.copytree(folder.with_name("before"), folder)


def users_own(folder: Path) -> None:
    """What the user has Python run first, where there was none."""
    place = folder / f"user/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    place.mkdir(parents=True)
    (place / "usercustomize.py").write_text("import sys\nsys.user = 'slow' in sys.modules\n")


CHANGES = {
    "script": (newer_script, ""),
    "module": (newer_module, "slow.py has changed"),
    "namesake": (namesake, "job has changed"),
    "archive": (newer_archive, "library.zip has changed"),
    "folder": (moved, "cwd of what stands ready"),
    "user's own": (users_own, "site-packages has changed"),
}
"""What is changed on the disk between two runs, and why then the process is not used."""


@pytest.mark.parametrize(("change", "why"), CHANGES.values(), ids=CHANGES)
def test_what_has_changed_on_the_disk_is_as_without(
    site: RealSite, tmp_path: Path, change: Callable[[Path], None], why: str
) -> None:
    runs = Runs(site, tmp_path / "job", BASE)
    made(runs.folder, slow="TOLD = 1\n")
    made(runs.folder / "library", slow="TOLD = 'of a library'\n")
    if change is newer_archive:
        newer_archive(runs.folder)
    if change in (newer_archive, namesake):
        (runs.folder / "slow.py").unlink()
    path = os.pathsep.join(str(runs.folder / name) for name in ("library.zip", "library"))
    runs.environment |= {"PYTHONPATH": path, "PYTHONUSERBASE": str(runs.folder / "user")}
    base = runs.base()
    change(runs.folder)
    changed = runs.told()
    assert (changed.pid == base) == (not why)
    assert why in changed.said
    cold = runs.told(keep=False)
    assert different(changed, cold) == different(runs.warm(), cold) == {}


def test_a_python_by_its_name_is_that_of_the_runs_own_path(site: RealSite, tmp_path: Path) -> None:
    """Not of the run that has begun the keeper; and a program of this name that executes another Python, which it may
    choose by what nobody looks at, has no process that stands ready."""
    runs = Runs(site, tmp_path / "job", "python3")
    for name, program in (("base", BASE), ("venv", sys.executable)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "python3").symlink_to(program)
    wrapper = made(tmp_path / "wrapped") / "python3"
    wrapper.write_text(f'#!/bin/sh\nexec {BASE} "$@"\n')
    wrapper.chmod(0o755)
    found = []
    for name in ("base", "venv", "wrapped"):
        runs.environment["PATH"] = f"{tmp_path / name}:{os.environ['PATH']}"
        cold = runs.told(keep=False)
        warm = runs.warm() if name != "wrapped" else refused(runs, "or has executed that")
        assert different(warm, cold) == {}
        found.append(warm.told["python"][0])
    assert found == [str(tmp_path / "base/python3"), str(tmp_path / "venv/python3"), BASE]


def test_where_no_socket_can_be_made_it_is_said_and_the_run_is_as_without(site: RealSite, tmp_path: Path) -> None:
    runs = Runs(site, tmp_path / "job")
    with tempfile.TemporaryDirectory() as folder:  # its path is short, as a socket's has to be
        (Path(folder) / f"egs-ready-{os.getuid()}").touch()
        there = {"XDG_RUNTIME_DIR": folder}
        first, cold = runs.told(environment=there), runs.told(environment=there, keep=False)
    assert "not this user's alone" in first.said
    assert different(first, cold) == {}


@pytest.mark.skipif(platform.machine() != "x86_64" or not surroundings()["keyring"], reason="keyrings are not known")
def test_with_a_session_keyring_of_its_own_it_is_in_no_process_of_another_one(runs: Runs) -> None:
    runs.base()
    before = runs.standing()
    joined = runs.told("import ctypes\nassert ctypes.CDLL(None).syscall(250, 1, 0) > 0")
    assert (joined.pid in before, joined.said) == (False, "")
