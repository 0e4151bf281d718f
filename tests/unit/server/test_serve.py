"""`egs serve` and `egs run` as a user has them: real processes, a Unix socket and a port, signals, `kill -9`."""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import socket
import stat
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from egs_core.client import messages as c
from egs_core.client.supervise import request_of
from egs_core.server.access import user_name
from tests.unit.server.real_site import EGS, PATIENCE_S, RealSite, wait_for

HOLDS = "import os, sys, time\nopen(sys.argv[1], 'w').write(os.environ['CUDA_VISIBLE_DEVICES'])\n"
UNTIL = HOLDS + "while not os.path.exists(sys.argv[2]): time.sleep(0.05)\nsys.exit(int(sys.argv[3]))\n"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealSite]:
    found = RealSite(tmp_path_factory.mktemp("site"))
    try:
        found.start()
        yield found
    finally:
        found.close()


def content(path: Path) -> str:
    """Of a file that somebody writes, "" before it is there."""
    return path.read_text() if path.exists() else ""


def test_a_command_gets_its_devices_and_its_exit_code_is_returned(site: RealSite) -> None:
    """Output and errors pass through; the command has the lease's mark and never the token; nothing is held after."""
    program = "import os, sys; print(dict(os.environ)); print('oops', file=sys.stderr); sys.exit(7)"
    done = site.egs("run", "--gpus", "2", "--", sys.executable, "-c", program, EGS_TOKEN="secret-token")
    assert done.returncode == 7, done.stderr
    assert "'CUDA_VISIBLE_DEVICES': '0,1'" in done.stdout
    assert "'EGS_LEASE': " in done.stdout
    assert ("EGS_TOKEN" in done.stdout, "secret-token" in done.stdout) == (False, False)
    assert done.stderr == "oops\n"
    assert site.devices() == {"0": "", "1": ""}


def test_what_follows_the_command_is_its_own(site: RealSite) -> None:
    """Also where `--` was forgotten: an option that both know is the command's."""
    program = "import sys; print(sys.argv[1:])"
    for dashes in ((), ("--",)):
        done = site.egs("run", "--gpus", "1", *dashes, sys.executable, "-c", program, "--name", "x", "--new")
        assert (done.returncode, done.stdout) == (0, "['--name', 'x', '--new']\n"), done.stderr


@pytest.mark.proves("egs run", "order")
def test_two_take_turns_and_the_second_is_told_why(site: RealSite, tmp_path: Path) -> None:
    """One line says who holds what it needs and when it should start. It starts when the first has ended, not before;
    over TCP with the token from the user's own file."""
    go, first_has, second_has = tmp_path / "go", tmp_path / "first", tmp_path / "second"
    first = site.run("--gpus", "2", "--expect", "1h", "--", sys.executable, "-c", UNTIL, str(first_has), str(go), "3")
    wait_for(lambda: content(first_has), "the first runs")
    arguments = ("--gpus", "1", "--name", "later", "--", sys.executable, "-c", HOLDS, str(second_has))
    second = site.run(*arguments, EGS_URL=site.ready["url"])
    assert second.stderr is not None
    line = second.stderr.readline()
    assert "has 0 of 2 GPUs wholly free" in line
    assert "GPUs are held by" in line
    assert "it should start in" in line
    (waiting,) = site.told("queue")["runs"]
    assert (waiting["name"], site.told("why", waiting["id"])["kind"]) == ("later", "capacity")
    assert "later" in site.egs("ps").stdout
    assert not second_has.exists()
    go.touch()
    assert (first.wait(PATIENCE_S), second.wait(PATIENCE_S)) == (3, 0)
    assert (content(first_has), content(second_has)) == ("0,1", "0")


def test_commands_share_a_gpu_by_memory(site: RealSite, tmp_path: Path) -> None:
    """Two of 30 GiB have one card of 80 at the same time, and `{gpus}` among a command's arguments is its id; a third
    has the other card."""
    go, begun = tmp_path / "go", []
    files = [tmp_path / name for name in ("one", "two", "three")]
    for file in files:
        program = "import sys, os, time\nopen(sys.argv[1], 'w').write(sys.argv[2])\n"
        program += "while not os.path.exists(sys.argv[3]): time.sleep(0.05)\n"
        words = (sys.executable, "-c", program, str(file), "device={gpus}", str(go))
        begun.append(site.run("--gpu-memory", "30GiB", "--name", file.name, "--", *words))
        wait_for(file.exists, "it runs")
    assert wait_for(lambda: sorted(map(content, files))[0] and list(map(content, files)), "all have theirs") == [
        "device=0",
        "device=0",
        "device=1",
    ]
    assert "parts: 0.25 of 0, 0.625 of 1" in site.egs("ps").stdout
    go.touch()
    assert [one.wait(PATIENCE_S) for one in begun] == [0, 0, 0]


@pytest.mark.slow
def test_a_signal_reaches_the_command(site: RealSite, tmp_path: Path) -> None:
    """Its own answer to SIGTERM is what `egs run` returns; a command that a signal ends gives 128 and its number."""
    ready = tmp_path / "ready"
    program = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))\n" + UNTIL
    polite = site.run("--", sys.executable, "-c", program, str(ready), "never", "0")
    wait_for(ready.exists, "the command runs")
    polite.send_signal(signal.SIGTERM)
    assert polite.wait(PATIENCE_S) == 9
    killed = site.egs("run", "--", sys.executable, "-c", "import os; os.kill(os.getpid(), 9)")
    assert killed.returncode == 128 + signal.SIGKILL


@pytest.mark.slow
@pytest.mark.proves("egs run", "abort")
def test_what_waits_can_be_given_up_and_aborted(site: RealSite, tmp_path: Path) -> None:
    """SIGTERM while it waits: its command never starts, and nothing waits any more. `egs abort` does the same from
    outside; of what runs it ends the whole tree, also a process that ignores SIGTERM, and what was forked away."""
    ready, never = tmp_path / "ready", tmp_path / "never"
    stubborn = (
        "import os, signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if os.fork() == 0: os.setsid()\n" + UNTIL
    )
    first = site.run("--gpus", "2", "--name", "hog", "--", sys.executable, "-c", stubborn, str(ready), str(never), "0")
    wait_for(ready.exists, "the first runs")
    waiting = [site.run("--gpus", "1", "--name", name, "--", "touch", str(never)) for name in ("one", "two")]
    ids = wait_for(lambda: found if len(found := site.queued()) == 2 else None, "both wait")
    waiting[0].send_signal(signal.SIGTERM)
    assert waiting[0].wait(PATIENCE_S) == 128 + signal.SIGTERM
    assert site.told("abort", ids["two"], "--reason", "not today")["outcome"] == "aborted"
    assert waiting[1].wait(PATIENCE_S) == 143
    assert waiting[1].stderr is not None
    assert "aborted by" in waiting[1].stderr.read()
    assert site.queued() == {}
    site.told("abort", site.open()["hog"], "--grace", "0s")
    assert first.wait(PATIENCE_S) == 128 + signal.SIGKILL
    assert site.devices() == {"0": "", "1": ""}
    assert not never.exists()


@pytest.mark.slow
def test_devices_are_held_until_the_last_process_is_gone(site: RealSite, tmp_path: Path) -> None:
    """Of a command that ends and leaves a process: `egs run` stays, says so, and then returns the command's code."""
    pid_file, go = tmp_path / "pid", tmp_path / "go"
    leaves = "import os, sys\nif os.fork(): os._exit(5)\nos.setsid(); open(sys.argv[1], 'w').write(str(os.getpid()))\n"
    wait = "import time\nwhile not os.path.exists(sys.argv[2]): time.sleep(0.05)\n"
    begun = site.run("--gpus", "2", "--", sys.executable, "-c", leaves + wait, str(pid_file), str(go))
    pid = wait_for(lambda: content(pid_file), "the process is there")
    assert begun.stderr is not None
    assert f"processes that it has left hold its devices: {pid}" in begun.stderr.readline()
    assert set(site.devices().values()) != {""}
    go.touch()
    assert begun.wait(PATIENCE_S) == 5
    assert set(site.devices().values()) == {""}


@pytest.mark.slow
def test_a_dead_supervisors_process_keeps_its_devices(site: RealSite, tmp_path: Path) -> None:
    """`kill -9` of `egs run`: its command goes on, so its devices are given to nobody, and `egs why` names the process.
    When that is gone the next one starts."""
    pid_file, next_has = tmp_path / "pid", tmp_path / "next"
    program = "import os, sys, time\nopen(sys.argv[1], 'w').write(str(os.getpid()))\ntime.sleep(3600)\n"
    begun = site.run("--gpus", "2", "--name", "orphan", "--", sys.executable, "-c", program, str(pid_file))
    pid = int(wait_for(lambda: content(pid_file), "it runs"))
    try:
        begun.kill()
        begun.wait(PATIENCE_S)
        run = site.open()["orphan"]
        waits = site.run("--gpus", "1", "--", sys.executable, "-c", HOLDS, str(next_has))
        lost = wait_for(lambda: (view := site.client.view(run)).lost and view, "it is seen to be lost")
        assert lost.processes == (pid,)
        # a beat that its supervisor had sent may arrive only now, and for a moment it is not lost
        wait_for(lambda: f"end these processes: {pid}" in site.egs("why", run).stdout, "its processes are named")
        assert not next_has.exists()
    finally:
        os.kill(pid, signal.SIGKILL)
    assert waits.wait(PATIENCE_S) == 0
    assert site.client.view(run).outcome == "lost"


@pytest.mark.slow
def test_a_paused_run_starts_when_it_is_resumed(site: RealSite, tmp_path: Path) -> None:
    """Though devices are free. Of what has started nothing is held, and that is said."""
    go, ready, later = tmp_path / "go", tmp_path / "ready", tmp_path / "later"
    first = site.run("--gpus", "2", "--", sys.executable, "-c", UNTIL, str(ready), str(go), "0")
    wait_for(ready.exists, "the first runs")
    second = site.run("--gpus", "1", "--", sys.executable, "-c", HOLDS, str(later))
    (waits,) = wait_for(site.queued, "the second waits").values()
    assert site.told("pause", waits)["state"] == "paused"
    (runs,) = [one.id for one in site.client.runs().runs if one.state == "running"]
    assert "has started and goes on: a pause holds only what waits" in site.egs("pause", runs).stdout
    go.touch()
    assert first.wait(PATIENCE_S) == 0
    assert (site.client.view(waits).kind, later.exists()) == ("paused", False)
    site.told("resume", waits)
    assert second.wait(PATIENCE_S) == 0


def test_an_array_is_many_runs_and_its_code_is_the_worst(site: RealSite) -> None:
    """Each has a device, its index and a number of its own; what the site refuses is refused once."""
    program = (  # one write a line: all of an array write to the same pipe
        "import os, sys; i, of = (int(os.environ['EGS_ARRAY_' + name]) for name in ('INDEX', 'SIZE'))\n"
        "os.write(1, f'{i} {of}\\n'.encode()); sys.exit(i)"
    )
    done = site.egs("run", "--gpus", "1", "--array", "3", "--name", "many", "--", sys.executable, "-c", program)
    assert (done.returncode, sorted(done.stdout.splitlines())) == (2, ["0 3", "1 3", "2 3"])
    refused = site.egs("run", "--gpus", "3", "--array", "3", "--", "true")
    assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1)
    detached = site.detached("--array", "2", "--name", "off", "--", "true")
    names = [site.told("why", run)["name"] for run in detached["ids"]]
    assert names == ["off[0]", "off[1]"]


SPLIT = """
import os, sys, time
import egs_core as egs
def seen(where): print(where, os.environ['CUDA_VISIBLE_DEVICES'] or '-', flush=True)
def meet(name):
    open(name + '.here', 'w').close()
    while not os.path.exists(name + '.go'): time.sleep(0.05)
seen('before')
with egs.gpu() as devices:
    seen('inside ' + ','.join(map(str, devices)))
    meet('gpu')
seen('after')
meet('cpu')
with egs.gpu():
    seen('again')
"""


TELLS = """
import os, sys, egs_core as egs
egs.work(images=int(sys.argv[1]))
if os.fork() == 0:
    egs.work(images=1)
    os._exit(0)
os.wait()
sys.exit(int(os.environ["EGS_TRY"] == "1"))
"""


def test_a_command_tells_of_its_work(site: RealSite) -> None:
    """All processes of a command, and all its tries, end up in the server's run, and in the rating of `egs cost`; a
    command with a folder of its own from outside does not tell there."""
    done = site.egs("run", "--gpus", "1", "--name", "rated", "--retries", "1", "--", sys.executable, "-c", TELLS, "9")
    assert done.returncode == 0, done.stderr
    (row,) = [row for row in site.told("cost")["per_unit"] if row["task"] == "rated"]
    assert (row["unit"], row["amount"], row["tasks"]) == ("images", 20.0, 1)
    assert row["gpu_min"]["value"] > 0


@pytest.mark.proves("egs run", "split")
def test_a_split_command_has_gpus_only_in_its_block(site: RealSite, tmp_path: Path) -> None:
    """`--split`: none before, between and after; another run gets them then, and `with egs.gpu():` waits for it. The
    GPU phases are runs of their own, with the name of theirs."""
    begun = site.run("--split", "--gpus", "2", "--name", "cut", "--", sys.executable, "-c", SPLIT, folder=tmp_path)
    wait_for((tmp_path / "gpu.here").exists, "it is in its block")
    run = site.open()["cut"]
    assert site.devices() == dict.fromkeys("01", site.open()[f"cut (GPU, of run {run})"])
    (tmp_path / "gpu.go").touch()
    wait_for((tmp_path / "cpu.here").exists, "it has left its block")
    go, has = tmp_path / "go", tmp_path / "has"
    other = site.run("--gpus", "2", "--name", "other", "--", sys.executable, "-c", UNTIL, str(has), str(go), "0")
    wait_for(lambda: content(has), "the other one has them")
    (tmp_path / "cpu.go").touch()
    wait_for(lambda: f"cut (GPU, of run {run})" in site.queued(), "the block waits")
    go.touch()
    out, errors = begun.communicate(timeout=PATIENCE_S)
    assert (begun.returncode, other.wait(PATIENCE_S)) == (0, 0), errors
    assert out.splitlines() == ["before -", "inside 0,1 0,1", "after -", "again 0,1"]
    assert f"for `with egs.gpu():` in run {run}, waits: needs 2 GPUs" in errors
    assert site.devices() == {"0": "", "1": ""}


@pytest.mark.slow
def test_a_block_does_nothing_in_a_command_that_is_not_split(site: RealSite) -> None:
    """It holds its GPUs from start to end."""
    program = "import os, egs_core as egs\nwith egs.gpu() as d: print(d, os.environ['CUDA_VISIBLE_DEVICES'])"
    done = site.egs("run", "--gpus", "1", "--", sys.executable, "-c", program)
    assert (done.stdout, done.stderr) == ("() 0\n", "")
    assert "there is nothing to split" in site.egs("run", "--split", "--", "true").stderr


@pytest.mark.slow
def test_a_split_command_that_dies_in_its_block_frees_its_gpus(site: RealSite) -> None:
    program = "import os, egs_core as egs\nwith egs.gpu(): os.kill(os.getpid(), 9)"
    assert site.egs("run", "--split", "--gpus", "2", "--", sys.executable, "-c", program).returncode == 137
    wait_for(lambda: site.devices() == {"0": "", "1": ""}, "the server sees that it is gone")


def test_a_command_may_have_a_terminal(site: RealSite) -> None:
    """`--pty`: its input and output are one, which is its session's; what is typed reaches it, also Ctrl-C as a signal;
    the user's own terminal is as before; its exit code is returned."""
    user, side = os.openpty()
    before = termios.tcgetattr(side)
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 77, 0, 0))
    program = "import os, sys; print('is', os.isatty(0), os.isatty(1), *os.get_terminal_size(), flush=True)\n"
    program += "print('got', input(), flush=True)\ntry: input()\nexcept KeyboardInterrupt: sys.exit(9)"
    words = [*EGS, "run", "--gpus", "1", "--pty", "--", sys.executable, "-c", program]
    with subprocess.Popen(words, env=site.environment, stdin=side, stdout=side, stderr=subprocess.PIPE) as begun:
        told = b""

        def has(text: bytes) -> bool:
            nonlocal told
            while select.select([user], [], [], 0)[0]:
                told += os.read(user, 4096)
            return text in told

        wait_for(lambda: has(b"is True True 77 33\r\n"), "it has a terminal")
        os.write(user, b"hello\r")
        wait_for(lambda: has(b"got hello\r\n"), "it has what was typed")
        os.write(user, b"\x03")
        assert begun.wait(PATIENCE_S) == 9
    assert termios.tcgetattr(side) == before
    os.close(user)
    os.close(side)


@pytest.mark.slow
def test_a_detached_command_may_have_a_terminal(site: RealSite) -> None:
    """Its output is in the log; its input is at an end."""
    program = "import os, sys; print(os.isatty(1), repr(sys.stdin.read()))"
    run = site.detached("--pty", "--", sys.executable, "-c", program)["id"]
    done = site.egs("attach", run)
    assert (done.returncode, "True ''" in done.stdout) == (0, True), done.stdout
    assert "no-such-program" in site.egs("run", "--pty", "--", "no-such-program").stderr


@pytest.mark.slow
@pytest.mark.proves("egs run", "limits")
def test_an_idle_command_is_ended(site: RealSite) -> None:
    """It sleeps, so it is ended, and has succeeded; one that computes, or tells of activity, goes on."""
    done = site.egs("run", "--gpus", "1", "--idle-timeout", "2s", "--name", "lazy", "--", "sleep", "3600")
    assert (done.returncode, "idle for 2 s: no work measured, none told" in done.stderr) == (143, True)
    ended = {run.name: run.outcome for run in site.client.runs(with_ended=True).runs}
    assert ended["lazy"] == "succeeded"
    works = "import time; until = time.monotonic() + 6\nwhile time.monotonic() < until: pass"
    told = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do touch $EGS_ACTIVITY; sleep 0.5; done"
    for command in ((sys.executable, "-c", works), ("sh", "-c", told)):
        assert site.egs("run", "--idle-timeout", "3s", "--", *command).returncode == 0


@pytest.mark.slow
def test_a_drained_gpu_is_given_to_nothing_new(site: RealSite) -> None:
    assert "1 of 2 GPUs drained: 0" in site.egs("drain", "0").stdout
    assert "1 drained, nothing new starts there: 0" in site.egs("ps").stdout
    done = site.egs("run", "--gpus", "1", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    assert done.stdout == "1\n"
    assert "there is no host and no device '7'" in site.egs("drain", "7").stderr
    assert "0 of 2 GPUs drained" in site.egs("undrain", "0").stdout
    assert site.egs("run", "--gpus", "2", "--", "true").returncode == 0


@pytest.mark.slow
def test_a_signal_ends_a_whole_array(site: RealSite) -> None:
    begun = site.run("--array", "2", "--name", "pair", "--", "sleep", "3600")
    running = wait_for(lambda: found if len(found := site.open()) == 2 else None, "both are there")
    wait_for(lambda: {run.state for run in site.client.runs().runs} == {"running"}, "both run")
    begun.send_signal(signal.SIGTERM)
    assert begun.wait(PATIENCE_S) == 128 + signal.SIGTERM
    assert {site.told("why", run)["state"] for run in running.values()} == {"ended"}


@pytest.mark.slow
def test_a_command_that_fails_is_tried_again(site: RealSite, tmp_path: Path) -> None:
    """As often as was said, with its lease; not after another code than named, nor after what its user ended."""
    program = "import os, sys; n = int(os.environ['EGS_TRY']); print(n); sys.exit(0 if n == 3 else 7)"
    words = ("--name", "again", "--", sys.executable, "-c", program)
    done = site.egs("run", "--gpus", "1", "--retries", "2", *words)
    assert (done.returncode, done.stdout) == (0, "1\n2\n3\n")
    assert done.stderr.count("it is started again") == 2
    assert site.egs("run", "--retries", "1", *words).returncode == 7
    assert site.egs("run", "--retries", "5", "--retry-on", "75", *words).stdout == "1\n"
    assert "started again" not in site.egs("run", "--retries", "3", "--", "no-such-program").stderr
    ready = tmp_path / "ready"
    begun = site.run("--retries", "3", "--name", "long", "--", sys.executable, "-c", UNTIL, str(ready), "never", "0")
    wait_for(lambda: content(ready) or ready.exists(), "it runs")
    site.told("abort", site.open()["long"])
    assert begun.wait(PATIENCE_S) == 128 + signal.SIGTERM
    assert begun.stderr is not None
    assert "started again" not in begun.stderr.read()


@pytest.mark.slow
def test_what_has_failed_is_done_again_with_what_waited_for_it(site: RealSite, tmp_path: Path) -> None:
    """`egs redo` asks for the same once more, in the folder of then; with --cascade also for what waited for it and was
    never started, in order. The file with the command is its user's alone, and another user has none."""
    good, told = tmp_path / "good", tmp_path / "told"
    script = "test -e good && echo one >> told"
    begun = site.egs("run", "--detach", "--json", "--hold", "--", "sh", "-c", script, folder=tmp_path)
    run = json.loads(begun.stdout)["id"]
    second = site.detached("--after", run, "--", "sh", "-c", f"echo two >> {told}")["id"]
    third = site.detached("--after", second, "--", "sh", "-c", f"echo three >> {told}")["id"]
    assert "has not ended" in site.egs("redo", run).stderr
    site.told("resume", run)
    wait_for(lambda: site.told("why", third)["state"] == "ended", "all have ended")
    assert site.egs("attach", run).returncode == 1
    assert not told.exists()
    good.touch()
    done = site.told("redo", run, "--cascade")
    assert list(done["runs"]) == [run, second, third]
    assert site.egs("attach", done["runs"][third]).returncode == 0
    assert content(told) == "one\ntwo\nthree\n"
    (file,) = (site.folder / "home" / "egs" / "jobs").glob(f"*-{run}.json")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    other = site.egs("redo", run, XDG_DATA_HOME=str(tmp_path / "other"))
    assert (other.returncode, "has no file here with its command" in other.stderr) == (2, True)


@pytest.mark.slow
def test_what_was_asked_for_can_be_changed(site: RealSite, tmp_path: Path) -> None:
    """A held run of three GPUs' worth of wishes: changed and resumed it runs; then its time box is made shorter, and it
    ends, with exit code 0 for those that wait for it."""
    has = tmp_path / "has"
    words = ("--gpus", "2", "--hold", "--name", "held", "--for", "1h", "--", sys.executable, "-c", UNTIL)
    begun = site.run(*words, str(has), str(tmp_path / "never"), "0")
    assert begun.stderr is not None
    assert "is held until `egs resume" in begun.stderr.readline()
    run = site.open()["held"]
    assert "--gpus: must be a whole number" in site.egs("update", run, "--gpus", "1.5").stderr
    assert "held" in site.egs("update", run, "--gpus", "1", "--priority", "3").stdout
    site.told("resume", run)
    wait_for(lambda: content(has), "it runs")
    assert (content(has), site.told("why", run)["priority"]) == ("0", 3)
    assert "its --gpus cannot change, --for and --expect can" in site.egs("update", run, "--gpus", "2").stderr
    assert site.told("update", run, "--for", "1s")["for_s"] == 1
    assert begun.wait(PATIENCE_S) == 128 + signal.SIGTERM
    assert site.told("why", run)["outcome"] == "succeeded"


@pytest.mark.slow
def test_a_detached_run_has_a_log_and_others_may_wait_for_it(site: RealSite, tmp_path: Path) -> None:
    """Its number is said at once, and it goes on without whoever started it, in a session of its own. Its log is its
    user's alone. What waits for it starts when it has failed, as asked; `--check` says when a run would start."""
    go, ready, later = tmp_path / "go", tmp_path / "ready", tmp_path / "later"
    program = "import os; print('session', os.getsid(0) == os.getppid(), flush=True)\n" + UNTIL
    command = ("--gpus", "2", "--expect", "1h", "--detach", "--json", "--", sys.executable, "-c", program)
    number = json.loads(site.egs("run", *command, str(ready), str(go), "3").stdout)["id"]
    wait_for(ready.exists, "it runs")
    assert "it should start in" in site.egs("run", "--gpus", "1", "--check", "--", "true").stdout
    assert site.egs("run", "--check", "--", "true").stdout == "it would start now\n"
    follows = site.run("--name", "follows", "--after", f"{number}:failed", "--", "touch", str(later))
    never = site.run("--name", "never", "--after", number, "--", "touch", str(tmp_path / "never"))
    wait_for(lambda: len(site.queued()) == 2, "both wait")
    assert site.egs("logs", number).stdout == "session True\n"
    file = Path(json.loads(site.egs("logs", number, "--json").stdout)["file"])
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    go.touch()
    assert (follows.wait(PATIENCE_S), never.wait(PATIENCE_S), later.exists()) == (0, 143, True)
    assert site.egs("logs", "--follow", number).stdout == "session True\n"
    assert (site.client.view(number).exit_code, (tmp_path / "never").exists()) == (3, False)
    refused = site.egs("run", "--gpus", "9", "--detach", "--", "true")
    assert (refused.returncode, "fits nowhere" in refused.stderr) == (2, True)
    assert "has no log of this user" in site.egs("logs", site.client.submit(request_of({"name": "plain"})).id).stderr


@pytest.mark.slow
@pytest.mark.proves("egs run", "limits")
def test_a_time_box_ends_a_command(site: RealSite) -> None:
    """`--for`: it is told to end, and counts as succeeded."""
    done = site.egs("run", "--name", "boxed", "--for", "0.5s", "--", "sleep", "3600")
    assert done.returncode == 128 + signal.SIGTERM
    assert "over its limit of 0.5 s" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "told", "code"),
    [
        (["run", "--gpus", "3", "--", "true"], "needs 3 GPUs; no node has more than 2 GPUs", 2),
        (["run", "--gpus", "-1", "--", "true"], "error: --gpus: must be 0 or more", 2),
        (["run", "--", "no-such-program"], "egs: no-such-program: No such file", 127),
        (["run", "--", "/proc/self/status"], "egs: /proc/self/status: Permission denied", 126),
        (["why", "4711"], "there is no run '4711'", 2),
        (["abort", "4711"], "there is no run '4711'", 2),
        (["abort", "1", "--stage", "x"], "--stage: the site server knows runs and drivers only", 2),
        (["preempt", "1"], "a plain command cannot be started again", 2),
    ],
)
def test_an_error_is_one_line_and_a_code(site: RealSite, arguments: list[str], told: str, code: int) -> None:
    done = site.egs(*arguments)
    assert (done.returncode, len(done.stderr.splitlines())) == (code, 1), done.stderr
    assert told in done.stderr


@pytest.mark.slow
def test_the_token_is_the_users_alone(site: RealSite) -> None:
    """Mode 600; a file that others may read is refused; the database has no token, and no argument of a command."""
    path = Path(site.ready["token"])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert site.egs("run", "--", sys.executable, "-c", "pass", "--password=hunter2").returncode == 0
    kept = b"".join(one.read_bytes() for one in (site.folder / "data").glob("site.db*"))
    assert path.read_text().strip().encode() not in kept
    assert b"hunter2" not in kept
    path.chmod(0o644)
    try:
        refused = site.egs("ps", EGS_URL=site.ready["url"])
    finally:
        path.chmod(0o600)
    assert (refused.returncode, "must be yours alone" in refused.stderr) == (2, True)
    assert site.egs("ps", EGS_URL=site.ready["url"]).returncode == 0
    unknown = site.egs("ps", EGS_URL=site.ready["url"], EGS_TOKEN="guessed")
    assert (unknown.returncode, "the token in EGS_TOKEN is not known there" in unknown.stderr) == (2, True)


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_another_user_of_the_host_needs_no_token_and_has_no_rights(site: RealSite) -> None:
    """The kernel says who is at the socket: that user's run has its name, and it may not end the run of root."""
    other = 65534
    program = (
        "import os, sys\nfrom pathlib import Path\nfrom egs_core.client import messages as c\n"
        "from egs_core.client.http import Refused, SiteClient\nfrom egs_core.client.places import Address\n"
        "from egs_core.client.supervise import request_of\n"
        f"os.chdir(sys.argv[1]); os.setgroups([]); os.setgid({other}); os.setuid({other})\n"
        "client = SiteClient(Address('unix://egs.sock', Path('egs.sock')), frozenset({0}))\n"
        "own = client.submit(request_of({'name': 'theirs'}))\n"
        "print(own.user, own.state, client.control(own.id, 'abort', c.Control()).outcome)\n"
        "try: client.control(sys.argv[2], 'abort', c.Control())\nexcept Refused as error: print(error.status)\n"
    )
    run = site.client.submit(request_of({"name": "of root"})).id
    folder = str(Path(site.ready["socket"]).parent)
    command = [sys.executable, "-c", program, folder, run]
    done = subprocess.run(
        command, env=site.environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.stdout.splitlines() == [f"{user_name(other)} granted aborted", "403"], done.stderr
    assert site.client.control(run, "abort", c.Control()).outcome == "aborted"


@pytest.mark.slow
def test_one_server_a_folder_and_loopback_only(site: RealSite, tmp_path: Path) -> None:
    """Each refusal is one line."""
    port = site.ready["url"].rpartition(":")[2]
    for arguments, told in (
        (["--data", str(site.folder / "data"), "--port", "0"], "another server uses it"),
        (["--data", str(tmp_path / "a"), "--port", port], "cannot be used: Address already in use"),
        (["--data", str(tmp_path / "b"), "--port", "0", "--host", "0.0.0.0"], "and there is no TLS"),
        (["--data", str(tmp_path / "c"), "--port", "0", "--queues", str(tmp_path / "none.yaml")], "none.yaml"),
    ):
        done = site.egs("serve", "--emulated-gpus", "1", *arguments)
        assert (done.returncode, told in done.stderr, len(done.stderr.splitlines())) == (2, True, 1), done.stderr


@pytest.mark.slow
def test_without_its_extra_it_names_what_to_install(site: RealSite, tmp_path: Path) -> None:
    """Clients need none."""
    (tmp_path / "fastapi.py").write_text("raise ModuleNotFoundError(\"No module named 'fastapi'\", name='fastapi')")
    done = site.egs("serve", PYTHONPATH=str(tmp_path))
    assert (done.returncode, "pip install 'egs-core[server]'" in done.stderr) == (2, True), done.stderr
    assert site.egs("ps", PYTHONPATH=str(tmp_path)).returncode == 0


@pytest.mark.slow
def test_where_there_is_no_server_nothing_runs(site: RealSite, tmp_path: Path) -> None:
    """No socket and no address, or a socket that a killed server left: an error, not a command without a lease."""
    command = ("run", "--", "touch", str(tmp_path / "ran"))
    done = site.egs(*command, EGS_RUNTIME_DIR=str(tmp_path))
    assert (done.returncode, "start `egs serve`" in done.stderr) == (2, True)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "egs.sock"))
    done = site.egs(*command, EGS_RUNTIME_DIR=str(tmp_path))
    assert (done.returncode, "was left by one that has ended: start `egs serve`" in done.stderr) == (2, True)
    assert not (tmp_path / "ran").exists()


def test_a_killed_server_goes_on_where_it_was(tmp_path: Path) -> None:
    """A client that comes before its server waits for it. `kill -9` while one runs and one waits: the command goes on;
    the server that follows has its lease and who waits, and gives nothing twice; what ended meanwhile is told."""
    site = RealSite(tmp_path / "site", gpus=1)
    try:
        go, first_has, second_has = tmp_path / "go", tmp_path / "first", tmp_path / "second"
        url = f"unix://{site.folder}/run/egs.sock"
        command = ("--gpus", "1", "--", sys.executable, "-c", UNTIL)
        first = site.run(*command, str(first_has), str(go), "4", EGS_URL=url)
        told = first.stderr
        assert told is not None
        assert "the server does not answer; waiting for it" in told.readline()
        assert not first_has.exists()
        site.start()
        wait_for(lambda: content(first_has), "the first runs")
        second = site.run(*command, str(second_has), str(go), "0")
        wait_for(site.queued, "the second waits")
        before = site.client.runs()
        for _ in range(2):
            site.kill()
            site.start()
            after = site.client.runs()
            assert after.devices == before.devices
            assert [(run.id, run.lease) for run in after.runs] == [(run.id, run.lease) for run in before.runs]
        assert not second_has.exists()
        site.kill()
        go.touch()
        wait_for(lambda: "the command goes on" in told.readline(), "it is told that the server is away")
        assert not second_has.exists()
        site.start()
        assert (first.wait(PATIENCE_S), second.wait(PATIENCE_S)) == (4, 0)
        assert (content(first_has), content(second_has)) == ("0", "0")
        assert site.client.view("1").exit_code == 4
        assert site.server is not None
        site.server.terminate()
        assert site.server.wait(PATIENCE_S) == 0
        assert not Path(site.ready["socket"]).exists()
    finally:
        site.close()


def test_its_log_may_be_json(tmp_path: Path) -> None:
    """`--log-format json`: what somebody changed is a line on stderr once it is durable, with who and what; every line
    is JSON. Another word is one line and code 2."""
    site = RealSite(tmp_path)
    try:
        done = site.egs("serve", "--log-format", "xml", "--emulated-gpus", "1", "--data", str(tmp_path / "other"))
        assert (done.returncode, "'xml' is unknown" in done.stderr) == (2, True)
        site.start("--log-format", "json")
        assert site.egs("run", "--gpus", "1", "--name", "told", "--", "true").returncode == 0
        server = site.server
        assert server is not None
        server.send_signal(signal.SIGTERM)
        errors = server.communicate(timeout=PATIENCE_S)[1]
        told = [json.loads(line) for line in errors.splitlines()]
        events = [one for one in told if one["logger"] == "egs.events"]
        assert {one["run"] for one in events} == {"1"}
        assert [one["event"] for one in events][-2:] == ["start", "end"]
        assert events[-1].keys() == {
            *("time", "level", "logger", "message"),
            *("event", "run", "user", "role", "team", "detail", "at"),
        }
        assert events[-1]["detail"] == "succeeded, exit code 0"
    finally:
        site.close()
