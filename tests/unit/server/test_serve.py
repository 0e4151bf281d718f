"""`egs serve` and `egs run` as a user has them: real processes, a Unix socket and a port, signals, `kill -9`."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from egs_core.client import messages as c
from egs_core.client.supervise import request_of
from egs_core.server.access import user_name
from tests.unit.server.real_site import PATIENCE_S, RealSite, wait_for

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
        assert f"end these processes: {pid}" in site.egs("why", run).stdout
        assert not next_has.exists()
    finally:
        os.kill(pid, signal.SIGKILL)
    assert waits.wait(PATIENCE_S) == 0
    assert site.client.view(run).outcome == "lost"


@pytest.mark.slow
def test_a_paused_run_starts_when_it_is_resumed(site: RealSite, tmp_path: Path) -> None:
    """Though devices are free."""
    go, ready, later = tmp_path / "go", tmp_path / "ready", tmp_path / "later"
    first = site.run("--gpus", "2", "--", sys.executable, "-c", UNTIL, str(ready), str(go), "0")
    wait_for(ready.exists, "the first runs")
    second = site.run("--gpus", "1", "--", sys.executable, "-c", HOLDS, str(later))
    (waits,) = wait_for(site.queued, "the second waits").values()
    assert site.told("pause", waits)["state"] == "paused"
    go.touch()
    assert first.wait(PATIENCE_S) == 0
    assert (site.client.view(waits).kind, later.exists()) == ("paused", False)
    site.told("resume", waits)
    assert second.wait(PATIENCE_S) == 0


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
        (["run", "--gpus", "-1", "--", "true"], "error: --gpus: Input should be greater", 2),
        (["run", "--", "no-such-program"], "egs: no-such-program: No such file", 127),
        (["run", "--", "/proc/self/status"], "egs: /proc/self/status: Permission denied", 126),
        (["why", "4711"], "there is no run '4711'", 2),
        (["abort", "4711"], "there is no run '4711'", 2),
        (["abort", "1", "--stage", "x"], "--stage: a run of the site server has none", 2),
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
    assert (unknown.returncode, "does not know who asks" in unknown.stderr) == (2, True)


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
        (["--data", str(tmp_path / "b"), "--port", "0", "--host", "0.0.0.0"], "there is no TLS yet"),
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
    """No socket and no address: an error, not a command without a lease."""
    done = site.egs("run", "--", "touch", str(tmp_path / "ran"), EGS_RUNTIME_DIR=str(tmp_path))
    assert (done.returncode, "start `egs serve`" in done.stderr) == (2, True)
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
