"""`egs run --keep-ready`: a real server, real commands, and processes that stand ready between runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from egs_core.client import messages as c
from egs_core.client.ready import Shown, shown
from tests.unit.server.real_site import EGS, PATIENCE_S, RealSite, wait_for
from tests.unit.server.test_serve_preload import SLOW, WORK, has_ended, held, made
from tests.unit.server.test_store_away import fill_up, small_disk

pytestmark = pytest.mark.skipif(
    "/session-" in Path("/proc/self/cgroup").read_text(encoding="utf-8"),
    reason="in a login session of systemd nothing is loaded after a first run",
)

GPUS = 4
OPTIONS = ("--gpus", "1", "--preload", "slow,json", "--keep-ready", "1")
COMMAND = ("--", sys.executable, "-W", "error::SyntaxWarning", "work.py")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealSite]:
    found = RealSite(tmp_path_factory.mktemp("site"), GPUS)
    try:
        found.start()
        yield found
    finally:
        found.close()


def wait_for_end(*pids: int) -> None:
    wait_for(lambda: all(map(has_ended, pids)), f"{pids} end")


@pytest.fixture(autouse=True)
def keepers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Of each test its own, which end with it."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield
        for one in shown():
            os.kill(one.keeper, signal.SIGTERM)
            wait_for_end(one.keeper, *[stands.pid for stands in one.standing])
        assert not list(Path(folder).glob("egs-ready-*/*")), "they leave no file"


class Runs:
    """`egs run` as a program in a session of its own, without a terminal and without other files, as from cron."""

    def __init__(self, site: RealSite, folder: Path) -> None:
        own = "import sys\nsys.own_sitecustomize = getattr(sys, 'own_sitecustomize', 0) + 1\n"
        library = str(made(folder.parent / "library", sitecustomize=own))
        path = os.pathsep.join([library, *filter(None, [os.environ.get("PYTHONPATH")])])
        more = {"XDG_RUNTIME_DIR": os.environ["XDG_RUNTIME_DIR"], "PYTHONPATH": path}
        self.environment, self.folder = site.environment | more, folder
        self._begun: list[subprocess.Popen[str]] = []

    def begin(
        self,
        *words: str,
        before: tuple[str, ...] = (),
        handles: tuple[int, ...] = (),
        more: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[str]:
        begun = subprocess.Popen(
            [*before, *EGS, "run", *words],
            env=self.environment | dict(more or {}),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=handles,
            start_new_session=True,
        )
        self._begun.append(begun)
        return begun

    def close(self) -> None:
        (self.folder / "end").touch()
        for one in self._begun:
            one.kill()
            one.wait(PATIENCE_S)
            for pipe in (one.stdout, one.stderr):
                if pipe is not None:
                    pipe.close()

    def line(self, *words: str, **environment: str) -> tuple[subprocess.Popen[str], dict[str, Any], float]:
        """A run of work.py, what it has told, and after how many seconds."""
        began_s = time.perf_counter()
        begun = self.begin(*words, more=environment)
        assert begun.stdout is not None
        line = begun.stdout.readline()
        assert line, begun.communicate()[1]
        return begun, json.loads(line), time.perf_counter() - began_s

    def end(self, *begun: subprocess.Popen[str]) -> list[int]:
        (self.folder / "end").touch()
        codes = [one.wait(PATIENCE_S) for one in begun]
        (self.folder / "end").unlink()
        return codes


@pytest.fixture
def runs(site: RealSite, tmp_path: Path) -> Iterator[Runs]:
    found = Runs(site, made(tmp_path / "job", slow=SLOW, work=WORK))
    yield found
    found.close()


def stands() -> Shown:
    """The one that stands ready and has loaded."""

    def found() -> Shown | None:
        return next((one for answer in shown() for one in answer.standing if one.loaded_s), None)

    one: Shown = wait_for(found, "one stands ready")
    return one


def error_of(begun: subprocess.Popen[str]) -> str:
    assert begun.stderr is not None
    return begun.stderr.read()


@pytest.mark.proves("egs run", "preload")
def test_a_run_that_does_not_wait_finds_all_imported_and_all_else_as_without(site: RealSite, runs: Runs) -> None:
    """The first run leaves a process that has imported; the next one, with other arguments and a stream elsewhere, is
    that process: with its own arguments, environment, streams, signals and exit code, as the same command without."""
    first, _, cold_s = runs.line(*OPTIONS, *COMMAND, "a")
    ready = stands()
    assert Path(f"/proc/{ready.pid}/cmdline").read_text().split("\0")[-2].startswith("(stands ready")
    assert runs.end(first) == [5]
    second, warm, warm_s = runs.line(*OPTIONS, *COMMAND, "b", "--preload", TRACEPARENT="1")
    assert (warm["pid"], warm["ahead"]) == (ready.pid, True)
    mark = warm["environment"]["EGS_LEASE"]
    plain, without, plain_s = runs.line("--gpus", "1", *COMMAND, "b", "--preload", TRACEPARENT="1")
    assert site.devices()[warm["environment"]["CUDA_VISIBLE_DEVICES"]] == mark.split(".")[1]
    assert runs.end(second, plain) == [5, 5]
    assert [error_of(one) for one in (first, second, plain)] == ["", "", ""]
    print(f"from egs run to the script's first line: {warm_s:.3f} s; without {plain_s:.3f} s, the first {cold_s:.3f} s")
    print(f"of a processor, from its turn: {warm['used_s']:.3f} s; without {without['used_s']:.3f} s")
    assert warm["used_s"] < 0.5 * without["used_s"]
    for one in (warm, without):
        for name in ("pid", "ahead", "used_s", "parent", "session"):
            del one[name]
        one["words"] = one["words"].rstrip("\0")
        one["files"] = [name for name in one["files"] if not name.startswith("pipe:")]
        for name in ("EGS_LEASE", "EGS_WORK", "CUDA_VISIBLE_DEVICES"):
            assert one["environment"].pop(name)
    assert warm == without


@pytest.mark.slow
def test_signals_and_the_servers_abort_reach_it_and_its_exit_code_is_told(site: RealSite, runs: Runs) -> None:
    """SIGTERM of its user is the command's to handle; the abort ends what it has left in another session, too, for
    which `egs run` has waited."""
    program = """
import os, signal, slow, subprocess, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
child = subprocess.Popen(["sleep", "600"], start_new_session=True).pid if sys.argv[1:] else 0
print(os.getpid(), child, os.environ["EGS_LEASE"], flush=True)
if child: sys.exit(3)
while True: time.sleep(1)
"""
    made(runs.folder, work=program)
    first = runs.begin(*OPTIONS, *COMMAND)
    for words, code in ((), 7), (("leaves",), 3):
        ready = stands()
        begun = runs.begin(*OPTIONS, *COMMAND, *words)
        assert begun.stdout is not None
        pid, child, mark = begun.stdout.readline().split()
        assert pid == str(ready.pid)
        if words:
            wait_for_end(int(pid))
            assert begun.poll() is None
            site.client.control(mark.split(".")[1], "abort", c.Control(grace_s=0))
        else:
            begun.send_signal(signal.SIGTERM)
        assert begun.wait(PATIENCE_S) == code
        assert not words or has_ended(int(child))
    first.send_signal(signal.SIGTERM)
    assert first.wait(PATIENCE_S) == 7


@pytest.mark.slow
def test_what_is_killed_leaves_nothing_behind_and_the_run_begins_as_without(site: RealSite, runs: Runs) -> None:
    """The keeper: what stands ready ends with it, and the next run starts its own. What holds a command's process: all
    of the command ends, and its run has failed. `egs run`: the command goes on, as without, and its GPU is held."""
    first, _, _ = runs.line(*OPTIONS, *COMMAND)
    ready = stands()
    (keeper,) = shown()
    os.kill(keeper.keeper, signal.SIGKILL)
    wait_for_end(ready.pid)
    second, told, _ = runs.line(*OPTIONS, *COMMAND)
    assert (told["ahead"], told["parent"]) == (False, second.pid)

    ready = stands()
    third, told, _ = runs.line(*OPTIONS, *COMMAND)
    assert told["pid"] == ready.pid
    os.kill(told["parent"], signal.SIGKILL)
    assert third.wait(PATIENCE_S) == 128 + signal.SIGKILL
    assert has_ended(ready.pid)

    ready = stands()
    fourth, told, _ = runs.line(*OPTIONS, *COMMAND)
    assert told["pid"] == ready.pid
    fourth.kill()
    fourth.wait(PATIENCE_S)
    wait_for_end(told["parent"])
    device, run = told["environment"]["CUDA_VISIBLE_DEVICES"], told["environment"]["EGS_LEASE"].split(".")[1]
    assert not has_ended(ready.pid)
    assert site.devices()[device] == run
    assert runs.end(first, second) == [5, 5]
    (runs.folder / "end").touch()
    wait_for_end(ready.pid)
    wait_for(lambda: site.devices()[device] != run, "its GPU is free")


@pytest.mark.slow
def test_what_is_not_as_at_its_start_is_not_used_and_said(runs: Runs) -> None:
    """A module that has changed on the disk; another variable, which an import might have read; another limit, under
    another run's lease, an open file that the command is to have: each begins as without, once."""
    first, _, _ = runs.line(*OPTIONS, *COMMAND)
    ready = stands()
    (runs.folder / "slow.py").write_text(SLOW + "#\n")
    second, told, _ = runs.line(*OPTIONS, *COMMAND)
    assert (told["ahead"], told["pid"] != ready.pid) == (False, True)
    assert runs.end(first, second) == [5, 5]
    assert f"nothing is loaded ahead: {runs.folder / 'slow.py'} has changed" in error_of(second)
    ready = stands()
    for more in ({"OMP_NUM_THREADS": "2"}, {"EGS_LEASE": "site.1.1"}):
        other, told, _ = runs.line(*OPTIONS, *COMMAND, **more)
        assert (told["ahead"], told["pid"] != ready.pid) == (False, True)
        runs.end(other)
        assert ("under another run's lease" in error_of(other)) == ("EGS_LEASE" in more)
    reading, writing = os.pipe()
    for before, handles in ((), (reading,)), (("sh", "-c", 'umask 077; exec "$@"', "sh"), ()):
        other = runs.begin(*OPTIONS, *COMMAND, before=before, handles=handles)
        assert other.stdout is not None
        assert json.loads(other.stdout.readline())["ahead"] is False
        runs.end(other)
        inherits = f"its command would inherit file descriptor {reading} (a pipe): close it (egs run … {reading}>&-)"
        assert (inherits in error_of(other)) == bool(handles)
    os.close(reading)
    os.close(writing)


def test_what_imports_write_comes_first_in_the_runs_own_output(runs: Runs) -> None:
    loud = "import sys\nprint('from the import')\nprint('an error', file=sys.stderr)\n"
    made(runs.folder, slow=loud + SLOW, work="import os, slow\nprint(os.getpid())\n")
    assert runs.begin(*OPTIONS, *COMMAND).wait(PATIENCE_S) == 0
    ready = stands()
    out, err = runs.begin(*OPTIONS, *COMMAND).communicate(timeout=PATIENCE_S)
    assert (out.splitlines(), err) == (["from the import", str(ready.pid)], "an error\n")


@pytest.mark.slow
def test_what_stood_ready_and_is_evicted_starts_again_and_is_supervised(runs: Runs) -> None:
    """Its second turn finds nothing loaded, since the import fails by then: what stood ready for the first is over, and
    the exit code is the second's."""
    work = "import os, time\nprint(os.getpid(), flush=True)\nwhile not os.path.exists('end'): time.sleep(0.05)\n"
    made(runs.folder, work=work + "raise SystemExit(5)\n")
    first = runs.begin(*OPTIONS, *COMMAND)
    ready = stands()
    assert runs.end(first) == [5]
    low = runs.begin("--gpus", str(GPUS), "--requeue", *OPTIONS[2:], *COMMAND)
    assert low.stdout is not None
    assert low.stderr is not None
    assert low.stdout.readline() == f"{ready.pid}\n"
    made(runs.folder, slow="raise ValueError\n")
    until = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.05)\n"
    high = runs.begin("--gpus", "1", "--priority", "5", "--", sys.executable, "-c", until)
    while "nothing is loaded ahead: slow: ValueError" not in (line := low.stderr.readline()):
        assert line
    assert has_ended(ready.pid)
    (runs.folder / "go").touch()
    assert high.wait(PATIENCE_S) == 0
    assert int(low.stdout.readline()) != ready.pid
    assert runs.end(low) == [5]


def test_what_ends_while_it_is_loaded_is_not_loaded_again_at_once(runs: Runs) -> None:
    """As by a lack of memory, without a word: it is tried once, and the next run is told."""
    ends = "import os\nif not os.environ.get('CUDA_VISIBLE_DEVICES'):\n"
    ends += "    open('tried', 'a').write('.')\n    os._exit(3)\n"
    made(runs.folder, slow=ends, work="import slow\n")
    assert runs.begin(*OPTIONS, *COMMAND).wait(PATIENCE_S) == 0
    tried = runs.folder / "tried"
    wait_for(tried.exists, "it is loaded")
    for _ in range(2):
        second = runs.begin(*OPTIONS, *COMMAND)
        assert second.wait(PATIENCE_S) == 0
        assert "nothing stands ready for it: its process has ended" in error_of(second)
    assert tried.read_text() == "."


@pytest.mark.slow
def test_a_mistyped_module_is_said_by_the_first_run_and_by_the_next(runs: Runs) -> None:
    """All start at once: one with an open file, for which nothing can stand ready, looks for it, so does the first that
    can be served, and the next is told by the keeper."""
    made(runs.folder, work="")

    def told(*handles: int) -> str:
        begun = runs.begin("--preload", "json,no_such_module", "--keep-ready", "1", *COMMAND, handles=handles)
        assert begun.wait(PATIENCE_S) == 0
        return error_of(begun)

    absent = (
        f"egs: --preload: {sys.executable} finds no module no_such_module here now: "
        "unless there is one by its turn, nothing is loaded ahead\n"
    )
    reading, writing = os.pipe()
    inherits = told(reading)
    os.close(reading)
    os.close(writing)
    assert "its command would inherit file descriptor" in inherits
    assert inherits.endswith(absent)
    assert told() == absent
    why = "nothing stands ready for it: no_such_module: ModuleNotFoundError: No module named 'no_such_module'; "
    wait_for(lambda: why in told(), "the keeper tells")


@pytest.mark.slow
def test_what_stands_for_one_release_is_not_anothers(runs: Runs) -> None:
    """`current` leads to another folder since: the run has that one's modules."""
    for name in ("old", "new"):
        made(runs.folder / name, slow=SLOW, work=WORK)
    current = runs.folder / "current"
    current.symlink_to("old")
    command = (*COMMAND[:-1], "current/work.py")
    first, _, _ = runs.line(*OPTIONS, *command)
    ready = stands()
    current.unlink()
    current.symlink_to("new")
    second, told, _ = runs.line(*OPTIONS, *command)
    assert (told["pid"] != ready.pid, Path(told["path"][0]).name) == (True, "new")
    assert runs.end(first, second) == [5, 5]


@pytest.mark.slow
def test_a_retry_begins_as_without_and_what_is_idle_ends(runs: Runs) -> None:
    """Both of a command whose first start is in a process that stood ready; each start knows which one it is."""
    work = "import os, sys, time\nprint(os.getpid(), os.environ.get('EGS_TRY'), flush=True)\n"
    work += "if sys.argv[1:]: time.sleep(600)\nsys.exit(3 if os.environ.get('EGS_TRY') == '1' else 5)\n"
    made(runs.folder, work=work)
    assert runs.begin(*OPTIONS, *COMMAND).wait(PATIENCE_S) == 5
    ready = stands()
    tried = runs.begin(*OPTIONS, "--retries", "1", *COMMAND)
    out, err = tried.communicate(timeout=PATIENCE_S)
    (first, number), (second, next_number) = (line.split() for line in out.splitlines())
    assert (int(first), number, next_number, tried.returncode) == (ready.pid, "1", "2", 5)
    assert second != first
    assert "exit code 3; it is started again, 1 of 1" in err
    ready = stands()
    idle = runs.begin(*OPTIONS, "--idle-timeout", "1s", *COMMAND, "sleeps")
    assert idle.stdout is not None
    assert idle.stdout.readline().split()[0] == str(ready.pid)
    assert idle.wait(PATIENCE_S) == 128 + signal.SIGTERM
    assert has_ended(ready.pid)
    assert "idle for 1 s" in error_of(idle)


@pytest.mark.slow
def test_a_server_that_is_restarted_still_has_the_run_in_its_process(site: RealSite, runs: Runs) -> None:
    """The command goes on with its GPU, which nobody else gets; what stands ready by then serves the next run."""
    first, _, _ = runs.line(*OPTIONS, *COMMAND)
    ready = stands()
    assert runs.end(first) == [5]
    second, told, _ = runs.line(*OPTIONS, *COMMAND)
    assert told["pid"] == ready.pid
    device, run = told["environment"]["CUDA_VISIBLE_DEVICES"], told["environment"]["EGS_LEASE"].split(".")[1]
    site.kill()
    site.start()
    wait_for(lambda: site.open(), "the server knows its run")
    ready = stands()
    third, told, _ = runs.line(*OPTIONS, *COMMAND)
    assert told["pid"] == ready.pid
    assert told["environment"]["CUDA_VISIBLE_DEVICES"] != device
    assert (site.devices()[device], second.poll()) == (run, None)
    assert runs.end(second, third) == [5, 5]
    wait_for(lambda: not any(site.devices().values()), "its GPU is free")


@pytest.mark.slow
def test_a_run_that_is_paused_while_it_waits_keeps_its_process(site: RealSite, runs: Runs, tmp_path: Path) -> None:
    """Which has loaded, and which no other run gets; when it is resumed it begins there."""
    first, _, _ = runs.line(*OPTIONS, *COMMAND)
    ready = stands()
    assert runs.end(first) == [5]
    with held(site, tmp_path):
        paused = runs.begin(*OPTIONS, "--name", "paused", *COMMAND)
        wait_for(lambda: all(ready.pid != one.pid for answer in shown() for one in answer.standing), "it is taken")
        site.client.control(site.open()["paused"], "pause", c.Control())
    other, told, _ = runs.line(*OPTIONS, *COMMAND)
    assert told["pid"] != ready.pid
    assert (paused.poll(), has_ended(ready.pid)) == (None, False)
    site.client.control(site.open()["paused"], "resume", c.Control())
    assert paused.stdout is not None
    told = json.loads(paused.stdout.readline())
    assert (told["pid"], told["ahead"]) == (ready.pid, True)
    assert runs.end(paused, other) == [5, 5]


@pytest.mark.slow
def test_where_the_disk_has_no_room_for_a_socket_it_is_said(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run begins as without, once. A disk of which only all bytes are taken has room: a socket has none."""
    with small_disk(Path(os.environ["XDG_RUNTIME_DIR"]) / "small", "size=64k,nr_inodes=4") as disk:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(disk))
        runs.environment["XDG_RUNTIME_DIR"] = str(disk)
        (disk / f"egs-ready-{os.getuid()}").mkdir(mode=0o700)
        fill_up(disk)
        last = disk / "last"
        last.touch()
        for _ in range(2):
            without, told, _ = runs.line(*OPTIONS, *COMMAND)
            assert (told["ahead"], runs.end(without)) == (False, [5])
            assert "nothing can stand ready: [Errno 28] No space left on device" in error_of(without)
        last.unlink()
        first, _, _ = runs.line(*OPTIONS, *COMMAND)
        ready = stands()
        (keeper,) = shown()
        assert (runs.end(first), error_of(first)) == ([5], "")
        os.kill(keeper.keeper, signal.SIGTERM)
        wait_for_end(keeper.keeper, ready.pid)
