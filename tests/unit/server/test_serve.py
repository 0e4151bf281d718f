"""`egs serve` and `egs run` as a user has them: programs, a Unix socket and a port, signals, `kill -9`."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from egs_core import __version__
from egs_core.cli.server_check import server_check
from egs_core.client import messages as c
from egs_core.client.supervise import request_of
from egs_core.server.access import user_name
from tests.unit.server.real_site import PATIENCE_S, RealSite, wait_for
from tests.unit.server.served import HOLDS, UNTIL, content, shared_site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealSite]:
    """All that it starts is started as a shell does."""
    yield from shared_site(tmp_path_factory, as_programs=True)


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
    """Before it, at the start, the warning that there is no such command yet, or that it may not be executed."""
    done = site.egs(*arguments)
    *before, error = done.stderr.splitlines()
    assert (done.returncode, len(before)) == (code, code in (126, 127)), done.stderr
    assert told in error
    assert all("there is no command" in line or "is not executable now" in line for line in before)


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
        (
            ["--data", str(tmp_path / "a"), "--port", port],
            f"in use (by another EGS server? Then `EGS_URL={site.ready['url']} egs ps` asks it; else choose another",
        ),
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


@pytest.mark.slow
def test_doctor_says_whether_the_server_answers_and_knows_who_asks(
    site: RealSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by its socket, named by its URL with this user's own token, and with a token that it does not know."""
    for name in ("EGS_RUNTIME_DIR", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, site.environment[name])
    version = f"EGS {__version__} answers, as here"
    here = server_check()
    told = f"unix://{site.ready['socket']}: {version}; it knows who asks by the socket; 2 GPUs, "
    assert (here.ok, here.detail.startswith(told)) == (True, True), here.detail
    monkeypatch.setenv("EGS_URL", site.ready["url"])
    named = server_check()
    told = f"{site.ready['url']}, which EGS_URL names: {version}; it knows the token in {site.ready['token']}; "
    assert (named.ok, named.detail.startswith(told)) == (True, True), named.detail
    monkeypatch.setenv("EGS_TOKEN", "unknown")
    refused = server_check()
    assert (refused.ok, "the token in EGS_TOKEN is not known there" in refused.detail) == (False, True)


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


@pytest.mark.slow
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
