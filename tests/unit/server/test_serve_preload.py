"""`egs run --preload`: a real server, real commands, and interpreters that import while their run waits."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import stat
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from egs_core.client.processes import Snapshot
from tests.unit.server.real_site import EGS, PATIENCE_S, RealSite, wait_for
from tests.unit.server.served import UNTIL, content

GPUS = 4

SLOW = """
import os, time
with open("loaded", "a") as file:
    file.write(f"{os.getpid()} {os.environ.get('CUDA_VISIBLE_DEVICES')!r} {os.environ.get('EGS_LEASE')}\\n")
end = time.process_time() + 0.5
while time.process_time() < end: pass
ready_at = time.process_time()
"""
"""A module that takes half a second of a processor, and notes who has imported it."""

WORK = """
import sys
modules = sorted(sys.modules)
import slow
import json, os, signal, time
used_s = time.process_time() - (slow.ready_at if "slow" in modules else 0.0)
with open("/proc/self/status") as file:
    status = dict(line.split(":", 1) for line in file)
told = {
    "argv": sys.argv, "orig_argv": sys.orig_argv, "flags": list(sys.flags), "path": sys.path,
    "main": {name: repr(value)[:40] for name, value in vars(sys.modules["__main__"]).items() if name[0] == "_"},
    "environment": dict(os.environ), "words": open("/proc/self/cmdline").read(), "folder": os.getcwd(),
    "files": sorted(os.readlink(f"/proc/self/fd/{n}") for n in (0, 1, 2)), "open": len(os.listdir("/proc/self/fd")),
    "group": os.getpgrp() - os.getpid(), "session": os.getsid(0), "parent": os.getppid(),
    "signals": [status[name].strip() for name in ("SigBlk", "SigIgn", "SigCgt")], "umask": status["Umask"].strip(),
    "once": sys.own_sitecustomize, "site": sys.modules["sitecustomize"].__file__,
}
print(json.dumps({"pid": os.getpid(), "ahead": "slow" in modules, "used_s": used_s, **told}), flush=True)
while not os.path.exists("end"): time.sleep(0.05)
raise SystemExit(5)
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealSite]:
    """As many commands are loaded for at a time as it has GPUs."""
    found = RealSite(tmp_path_factory.mktemp("site"), GPUS)
    try:
        found.start()
        yield found
    finally:
        found.close()


@contextlib.contextmanager
def held(site: RealSite, folder: Path) -> Iterator[None]:
    """All GPUs, until the end of the block."""
    has, go = folder / "has", folder / "go"
    hog = site.run("--gpus", str(GPUS), "--name", "hog", "--", sys.executable, "-c", UNTIL, str(has), str(go), "0")
    try:
        wait_for(lambda: content(has), "they are held")
        yield
    finally:
        go.touch()
        assert hog.wait(PATIENCE_S) == 0


def made(folder: Path, **files: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    old = time.time() - 60
    for name in files:
        os.utime(folder / f"{name}.py", (old, old))
    return folder


def line_of(begun: subprocess.Popen[str]) -> dict[str, Any]:
    assert begun.stdout is not None
    line = begun.stdout.readline()
    assert line, begun.communicate()[1]
    found: dict[str, Any] = json.loads(line)
    return found


@pytest.mark.proves("egs run", "preload")
def test_what_is_imported_while_it_waits_is_there_and_all_else_is_as_without(site: RealSite, tmp_path: Path) -> None:
    """One process, which sees no GPU and has no lease before its turn, imports once, and then is the command's: with
    the arguments, paths, environment, streams, group, signals and exit code of the same command without, and the
    lease's mark, by which a server finds it that has looked before. From its turn to the script's first line it uses a
    fraction of the processor time."""
    folder = made(tmp_path / "job", slow=SLOW, work=WORK)
    library = made(
        tmp_path / "library",
        sitecustomize="import sys\nsys.own_sitecustomize = getattr(sys, 'own_sitecustomize', 0) + 1\n",
    )
    path = os.pathsep.join([str(library), *filter(None, [os.environ.get("PYTHONPATH")])])
    words = ("--", sys.executable, "-W", "error::SyntaxWarning", "work.py", "a", "--preload")
    with held(site, tmp_path):
        ahead = site.run(
            "--gpus", "1", "--preload", "slow,json", "--name", "work", *words, folder=folder, PYTHONPATH=path
        )
        told = wait_for(lambda: content(folder / "loaded"), "it is loaded while it waits")
        assert "work" in site.queued()
        before = Snapshot()
    first = line_of(ahead)
    assert (f"{first['pid']} '' None\n", first["ahead"]) == (told, True)
    mark = first["environment"]["EGS_LEASE"]
    assert [one.pid for one in Snapshot(before).living((), mark)] == [first["pid"]]
    plain = site.run("--gpus", "1", *words, folder=folder, PYTHONPATH=path)
    second = line_of(plain)
    (folder / "end").touch()
    assert (ahead.wait(PATIENCE_S), plain.wait(PATIENCE_S)) == (5, 5)
    assert plain.stderr is not None
    assert plain.stderr.read() == ""
    assert [line.split()[0] for line in content(folder / "loaded").splitlines()] == [
        str(first["pid"]),
        str(second["pid"]),
    ]
    print(f"from its turn to its first line: {first['used_s']:.3f} s of a processor; without {second['used_s']:.3f} s")
    assert first["used_s"] < 0.5 * second["used_s"]
    for one in (first, second):
        for name in ("pid", "ahead", "used_s", "parent", "session"):
            del one[name]
        one["files"] = [name for name in one["files"] if not name.startswith("pipe:")]
        for name in ("EGS_LEASE", "EGS_WORK", "CUDA_VISIBLE_DEVICES"):
            assert one["environment"].pop(name)
    assert first == second


def test_where_nothing_can_be_loaded_the_command_starts_at_its_turn_as_ever(site: RealSite, tmp_path: Path) -> None:
    """Each says so in one line: a module that is not there; one that has changed meanwhile, of which the new one runs;
    a program called python that starts another in a way in which nothing can be loaded. None runs before its turn."""
    program = "import os, sys\nprint(os.environ['CUDA_VISIBLE_DEVICES'], os.environ['EGS_TRY'])\n"
    missing = made(tmp_path / "missing", work=program)
    changed = made(tmp_path / "changed", work=program + "import slow; print(slow.VALUE)\n", slow=SLOW + "VALUE = 1\n")
    wrapped = made(tmp_path / "wrapped", work=program)
    wrapper = wrapped / "python3"
    wrapper.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I "$@"\n')
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
    options = ("--gpus", "1", "--retries", "1")
    with held(site, tmp_path):
        begun = [
            site.run(*options, "--preload", "no_such_module", "--", sys.executable, "work.py", folder=missing),
            site.run(*options, "--preload", "slow", "--", sys.executable, "work.py", folder=changed),
            site.run(*options, "--preload", "json", "--", str(wrapper), "work.py", folder=wrapped),
        ]
        errors = [one.stderr for one in begun]
        assert errors[0] is not None
        assert "finds no module no_such_module here now" in errors[0].readline()
        told = [[one.readline(), one.readline()] for one in (errors[0], errors[2]) if one is not None]
        assert "ModuleNotFoundError: No module named 'no_such_module'; its command starts as without" in told[0][1]
        assert "does not run what it finds by PYTHONPATH as sitecustomize" in told[1][1]
        wait_for(lambda: content(changed / "loaded"), "it is loaded")
        (changed / "slow.py").write_text(SLOW + "VALUE = 2\n")  # before all of it has run, or after
    out = [one.communicate(timeout=PATIENCE_S) for one in begun]
    assert [one.returncode for one in begun] == [0, 0, 0]
    assert [text.split()[1:] for text, _ in out] == [["1"], ["1", "2"], ["1"]]
    assert f"nothing is loaded ahead: {changed / 'slow.py'} has changed " in out[1][1]


@pytest.mark.slow
def test_a_mistyped_module_is_said_also_where_the_run_starts_at_once(site: RealSite, tmp_path: Path) -> None:
    """As the command's own Python finds it: by its folder, its variables, its kind. What is there is not said, and what
    a package has only once it is imported is not looked for."""
    made(tmp_path / "job", work="print(5)\n", beside="raise SystemExit\n")
    made(tmp_path / "library", own="raise SystemExit\n")
    names = "json,os.path,beside,own,numpyy,xml.nosuch,torchh.nn"
    more = {"PYTHONPATH": str(tmp_path / "library")}
    done = site.egs("run", "--preload", names, "--", sys.executable, "job/work.py", folder=tmp_path, **more)
    problem = f"egs: --preload: {sys.executable} finds no module numpyy, torchh.nn here now"
    told = f"{problem}: unless there is one by its turn, nothing is loaded ahead\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, "5\n", told)
    done = site.egs("run", "--preload", "beside", "--", sys.executable, "-c", "", folder=tmp_path / "job")
    assert (done.returncode, done.stderr) == (0, "")


def test_what_is_loaded_ends_with_its_run(site: RealSite, tmp_path: Path) -> None:
    """Its user gives the run up, and another `egs run` is killed, while they wait: no process of theirs is left."""
    folders = [made(tmp_path / name, slow=SLOW, work=WORK) for name in ("given-up", "killed")]
    with held(site, tmp_path):
        begun = [
            site.run("--gpus", "1", "--preload", "slow", "--", sys.executable, "work.py", folder=folder)
            for folder in folders
        ]
        wait_for(lambda: all(content(folder / "loaded") for folder in folders), "they are loaded")
        pids = [int(content(folder / "loaded").split()[0]) for folder in folders]
        begun[0].send_signal(signal.SIGTERM)
        begun[1].send_signal(signal.SIGKILL)
        assert begun[0].wait(PATIENCE_S) == 128 + signal.SIGTERM
        begun[1].wait(PATIENCE_S)
        wait_for(lambda: all(map(has_ended, pids)), "they are gone")


def has_ended(pid: int) -> bool:
    """Also where nobody has asked for its code yet."""
    try:
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_only_the_next_ones_hold_memory_for_it(site: RealSite, tmp_path: Path) -> None:
    """Of an array that waits as many have loaded as there are GPUs; the server says how often those have to come free
    before each."""
    program = "import slow"
    folder = made(tmp_path / "array", slow=SLOW, work=program)
    with held(site, tmp_path):
        words = ("--name", "many", "--preload", "slow", "--", sys.executable, "work.py")
        many = site.run("--gpus", "1", "--array", "6", *words, folder=folder)
        wait_for(lambda: len(site.queued()) == 6, "all wait")
        assert [site.client.view(run).rounds for run in site.queued().values()] == [0] * GPUS + [1, 1]
        wait_for(lambda: len(content(folder / "loaded").splitlines()) == GPUS, "the next ones have loaded")
    assert many.wait(PATIENCE_S) == 0
    loaded = [line.split() for line in content(folder / "loaded").splitlines()]
    assert len(loaded) == 6
    assert [one[1] for one in loaded[:GPUS]] == ["''"] * GPUS


@pytest.mark.slow
def test_what_was_evicted_loads_while_it_waits_again(site: RealSite, tmp_path: Path) -> None:
    """Its first try had its turn at once, and imports with its GPUs; the second one has imported before it gets any."""
    program = "import os, slow, time\nwhile not os.path.exists('end'): time.sleep(0.05)\n"
    folder = made(tmp_path / "low", slow=SLOW, work=program)
    words = ("--requeue", "--preload", "slow", "--", sys.executable, "work.py")
    low = site.run("--gpus", str(GPUS), *words, folder=folder)
    wait_for(lambda: content(folder / "loaded"), "it runs")
    has, go = tmp_path / "has", tmp_path / "go"
    high = site.run("--gpus", "1", "--priority", "5", "--", sys.executable, "-c", UNTIL, str(has), str(go), "0")
    wait_for(lambda: content(has), "the other one has a GPU")
    wait_for(lambda: len(content(folder / "loaded").splitlines()) == 2, "it is loaded again while it waits")
    go.touch()
    (folder / "end").touch()
    assert (high.wait(PATIENCE_S), low.wait(PATIENCE_S)) == (0, 0)
    assert [line.split()[1] for line in content(folder / "loaded").splitlines()] == [repr("0,1,2,3"), "''"]


@pytest.mark.slow
def test_in_a_terminal_it_is_of_its_group(site: RealSite, tmp_path: Path) -> None:
    """In the foreground it is there, too, from its turn on: it may read, and a typed Ctrl-C reaches it once."""
    program = (
        "import os, signal, slow, sys, time\n"
        "got = []\n"
        "signal.signal(signal.SIGINT, lambda *_: got.append(1))\n"
        "print(os.getpgrp() == os.getpgid(os.getppid()) == os.tcgetpgrp(0), input(), flush=True)\n"
        "while not got: time.sleep(0.05)\n"
        "print('interrupted', flush=True)\n"
        "while not os.path.exists('end'): time.sleep(0.05)\n"
        "sys.exit(6 + len(got))\n"
    )
    folder = made(tmp_path / "job", slow=SLOW, work=program)
    user, side = os.openpty()
    words = [*EGS, "run", "--gpus", "1", "--preload", "slow", "--", sys.executable, "work.py"]
    told = b""

    def has(text: bytes) -> bool:
        nonlocal told
        while select.select([user], [], [], 0)[0]:
            told += os.read(user, 4096)
        return text in told

    with contextlib.ExitStack() as stack:
        with held(site, tmp_path):
            begun = stack.enter_context(
                subprocess.Popen(
                    words,
                    env=site.environment,
                    cwd=folder,
                    stdin=side,
                    stdout=side,
                    stderr=side,
                    start_new_session=True,
                    preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
                )
            )
            wait_for(lambda: content(folder / "loaded"), "it is loaded while it waits")
        os.write(user, b"hello\r")
        wait_for(lambda: has(b"True hello"), "it reads")
        os.write(user, b"\x03")
        wait_for(lambda: has(b"interrupted"), "it has the signal")
        (folder / "end").touch()
        assert begun.wait(PATIENCE_S) == 7
    assert content(folder / "loaded").count("\n") == 1
    os.close(user)
    os.close(side)
