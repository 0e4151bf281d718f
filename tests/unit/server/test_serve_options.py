"""What `egs run` may be asked for beside devices: arrays, splits, terminals, retries, limits, changes, detaching."""

from __future__ import annotations

import fcntl
import json
import os
import re
import select
import signal
import stat
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from egs_core.client.supervise import request_of
from tests.unit.server.real_site import EGS, PATIENCE_S, RealSite, wait_for
from tests.unit.server.served import UNTIL, content, shared_site

site = pytest.fixture(scope="module")(shared_site)


def test_what_a_user_mistakes_is_told(site: RealSite, tmp_path: Path) -> None:
    """A command that is not there is told when it is asked for, not only when its turn has come; what runs was not
    resumed; a run is meant by its name, too, also where a file has it; and a file that is not there is said beside a
    run that is not."""
    done = site.egs("run", "--gpus", "1", "--", "no-such-command")
    assert (done.returncode, done.stderr.splitlines()[0]) == (
        127,
        "egs: there is no command 'no-such-command' here now: unless there is one by its turn, the run fails",
    )
    script = tmp_path / "train.py"
    script.write_text("#!/bin/sh\n")
    assert f"{script} is not executable now" in site.egs("run", "--", str(script)).stderr.splitlines()[0]
    absent = site.egs("run", "--", sys.executable, str(tmp_path / "no.py")).stderr.splitlines()[0]
    assert absent.startswith(f"egs: there is no script '{tmp_path / 'no.py'}' here now")
    run = str(site.detached("--name", "rest", "--", "sh", "-c", "echo here; exec sleep 600")["id"])
    try:
        wait_for(lambda: site.told("why", run)["state"] == "running", "it runs")
        assert site.egs("resume", run).stdout.strip() == f"run {run} (rest): runs"
        (tmp_path / "rest").write_text("a script, and no run log")
        assert f"run {run} (rest, " in site.egs("why", "rest", folder=tmp_path).stdout
        wait_for(lambda: site.egs("logs", "rest").stdout == "here\n", "its output is there")
        changed = site.egs("update", "rest", "--for", "500s")
        assert changed.stdout.startswith(f"run {run} (rest): changed"), changed.stderr
        refused = site.egs("abort", "rust")
        assert (refused.returncode, "there is no run 'rust': `egs ps`" in refused.stderr) == (2, True)
        other = str(site.detached("--name", "rest", "--after", "rest:any", "--", "true")["id"])
        refused = site.egs("abort", "rest")
        assert refused.returncode == 2
        assert re.search(rf"'rest' is the name of 2 open runs: say which .*: {run} \(.*\), {other} \(", refused.stderr)
        assert site.egs("abort", other).returncode == 0
        done = site.egs("abort", "rest", "--grace", "0s")
        assert done.stdout.strip() == f"run {run} (rest): is told to end"
        wait_for(lambda: site.told("why", run)["state"] == "ended", "it has ended")
        told = site.egs("why", run).stdout.splitlines()
        assert re.fullmatch(r"it waited \d+ s, started at [-\d]+ [:\d]+ and ran \d+ s, without a GPU", told[1])
        assert site.egs("why", other).stdout.splitlines()[1].endswith(" and was not started")
        assert not re.search(r"\brest\b", site.egs("ps").stdout)
        rows = re.findall(rf"^\W*({run}|{other})\b.*\bended\b", site.egs("ps", "--all").stdout, re.MULTILINE)
        assert sorted(rows, key=int) == [run, other]
        one = site.egs("ps", "--all", "--limit", "1")
        last = json.loads(site.egs("ps", "--all", "--limit", "1", "--json").stdout)["runs"]
        assert [view["state"] for view in last] == ["ended"]
        found = re.search(r"^(\d+) runs? more that ended before: --limit (\d+)$", one.stdout, re.MULTILINE)
        assert found is not None, one.stdout
        every = site.egs("ps", "--all", "--limit", found[2])
        assert (len(re.findall(r"\bended: ", every.stdout)), "more that" in every.stdout) == (int(found[1]) + 1, False)
        again = site.egs("redo", "rest", "--detach", "--json")
        run = json.loads(again.stdout)["id"]
        assert site.egs("redo", "rest").stderr.startswith(f"error: run {run} (rest) has not ended")
        assert site.egs("why", "no-such.jsonl").stderr.rstrip().endswith("; and there is no such file")
    finally:
        site.egs("abort", run)


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
    commands = (sys.executable, "-c", works), ("sh", "-c", told)
    begun = [site.run("--idle-timeout", "3s", "--", *command) for command in commands]
    assert [one.wait(PATIENCE_S) for one in begun] == [0, 0]


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
