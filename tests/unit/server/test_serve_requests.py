"""`egs request` and `egs run --in` as a user has them: a real server, real commands, `kill -9`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from egs_core.cli import app
from egs_core.client import requests as q
from tests.unit.server.real_site import PATIENCE_S, RealSite, wait_for
from tests.unit.server.served import UNTIL, content, shared_site

site = pytest.fixture(scope="module")(shared_site)


def test_commands_run_in_a_request_to_its_end(site: RealSite, tmp_path: Path) -> None:
    """Two at once have its devices, whether they call it by its number or its name; `kill -9` of the server changes
    nothing; at its end they are told to stop, the one that does not listen is killed, and then what waited has the
    devices."""
    made = site.told("request", "--gpus", "2", "--for", "1h", "--name", "lab")
    assert (made["state"], made["devices"]) == ("ready", ["0", "1"])
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + UNTIL
    files = [tmp_path / "polite", tmp_path / "stubborn"]
    begun = []
    for file, program, called in zip(files, (UNTIL, stubborn), (made["id"], "lab"), strict=True):
        words = (sys.executable, "-c", program, str(file), "never", "0")
        begun.append(site.run("--in", called, "--name", file.name, "--", *words))
        wait_for(file.exists, "it runs")
    wait_for(lambda: list(map(content, files)) == ["0,1", "0,1"], "each has both devices")
    waiting = site.run("--gpus", "2", "--name", "after", "--", "true")
    wait_for(site.queued, "another waits")
    site.kill()
    site.start()
    view = site.told("request", "show", made["id"])
    assert (view["state"], view["devices"], len(view["commands"])) == ("in use", ["0", "1"], 2)
    assert [one["id"] for one in site.told("request", "list")["requests"]] == [made["id"]]
    assert site.told("request", "extend", "lab", "--for", "1h")["for_s"] == 7200
    assert waiting.poll() is None
    assert "egs: run" not in site.egs("request", "release", "lab", "--grace", "1s").stderr
    assert [one.wait(PATIENCE_S) for one in begun] == [143, 137]
    assert begun[0].stderr is not None
    assert f"has to end: request {made['id']} (lab) ends: released by" in begun[0].stderr.read()
    assert waiting.wait(PATIENCE_S) == 0
    assert site.client.gpu_request(made["id"]).outcome == "succeeded"
    late = site.egs("run", "--in", made["id"], "--", "true")
    assert (late.returncode, late.stderr) == (2, f"error: request {made['id']} has ended\n")
    none = site.egs("run", "--in", "lap", "--", "true")
    assert (none.returncode, none.stderr.startswith("error: --in: there is no GPU request 'lap'")) == (2, True)


@pytest.mark.slow
@pytest.mark.proves("egs run", "gang")
def test_a_gang_starts_whole_or_not_at_all(site: RealSite, tmp_path: Path) -> None:
    """Two started apart need two GPUs, of which one is in use: neither starts, both say why, also over `kill -9` of the
    server. Then both run at once; one fails, and the other is told to end. What stays in part ends, and says so."""
    go, busy, files = tmp_path / "go", tmp_path / "busy", [tmp_path / "one", tmp_path / "two"]
    first = site.run("--gpus", "1", "--name", "busy", "--", sys.executable, "-c", UNTIL, str(busy), str(go), "0")
    wait_for(busy.exists, "one GPU is in use")
    alone = site.egs("run", "--gpus", "1", "--gang", "few:2", "--gang-wait", "1s", "--", "true")
    assert alone.returncode == 143
    assert "gang 'few' was not whole in time: 1 of 2 have come" in alone.stderr
    begun = []
    for file, end in zip(files, (tmp_path / "fail", tmp_path / "never"), strict=True):
        words = (sys.executable, "-c", UNTIL, str(file), str(end), "7")
        begun.append(site.run("--gpus", "1", "--gang", "pair:2", "--name", file.name, "--", *words))
        wait_for(lambda: len(site.queued()) == len(begun), "it has come")
    site.kill()
    site.start()
    for number in site.queued().values():
        told = site.told("why", number)
        assert "its gang pair 2 GPUs at once" in told["reason"]
        assert (told["gang"]["name"], told["gang"]["size"], len(told["gang"]["runs"])) == ("pair", 2, 2)
    assert "gang pair" in site.egs("ps").stdout
    check = site.egs("run", "--check", "--gpus", "1", "--gang", "more:2", "--", "true")
    assert check.stdout.startswith("it waits: needs 1 GPU"), check.stderr
    assert len(site.open()) == 3, "nothing was asked for"
    assert not any(file.exists() for file in files)
    go.touch()
    assert first.wait(PATIENCE_S) == 0
    wait_for(lambda: sorted(map(content, files)) == ["0", "1"], "both run, on a GPU each")
    (tmp_path / "fail").touch()
    assert [one.wait(PATIENCE_S) for one in begun] == [7, 143]
    assert begun[1].stderr is not None
    assert "(one) ended with exit code 7" in begun[1].stderr.read()
    array = site.egs("run", "--gpus", "1", "--array", "2", "--gang", "both", "--", "true")
    assert array.returncode == 0, array.stderr


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--gang", "train"), "'train' does not say how many start together"),
        (("--gang", "train:2", "--array", "3"), "the 3 runs of --array are more than a gang of 2"),
        (("--gang", "train:1"), "must be 2 or more"),
        (("--gang", "train:2", "--split", "--gpus", "1"), "does nothing with --split: no GPUs are held at the start"),
        (("--gang", "train:2", "--in", "7"), "what runs in a request has the request's"),
    ],
)
def test_a_gang_that_cannot_be_meant_is_one_error(
    options: tuple[str, ...],
    problem: str,
    capsys: pytest.CaptureFixture[str],
    site: RealSite,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It names the option, and nothing is asked for."""
    monkeypatch.setenv("EGS_URL", f"unix://{site.ready['socket']}")
    assert app.run(["run", *options, "--", "true"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: --gang")
    assert problem in error


@pytest.mark.slow
def test_an_evicted_request_begins_again(site: RealSite, tmp_path: Path) -> None:
    """What goes first comes: both commands in it get SIGTERM; the one that said `--requeue` waits, and is started again
    in the request when that has its GPUs again, the other has ended. The server is killed while they stop."""
    made = site.told("request", "--gpus", "2", "--for", "1h", "--requeue", "--name", "lab")
    tries, go = tmp_path / "tries", tmp_path / "go"
    program = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1), sys.exit(0)))\n"
        "open(sys.argv[1], 'a').write(os.environ['CUDA_VISIBLE_DEVICES'] + ';')\n"
        "while not os.path.exists(sys.argv[2]): time.sleep(0.05)\n"
        "sys.exit(7)\n"
    )
    again = site.run("--in", made["id"], "--requeue", "--", sys.executable, "-c", program, str(tries), str(go))
    once = site.run("--in", made["id"], "--", sys.executable, "-c", UNTIL, str(tmp_path / "once"), "never", "0")
    wait_for(lambda: content(tries) == "0,1;" and (tmp_path / "once").exists(), "both run")
    high = site.run("--gpus", "1", "--priority", "5", "--", "touch", str(tmp_path / "high"))
    wait_for(lambda: site.client.gpu_request(made["id"]).state != "in use", "it is to stop")
    site.kill()
    site.start()
    assert high.wait(PATIENCE_S) == 0
    assert once.wait(PATIENCE_S) == 143
    wait_for(lambda: content(tries) == "0,1;0,1;", "it begins again")
    shown = site.told("request", "show", made["id"])
    assert (shown["state"], shown["evictions"], len(shown["commands"])) == ("in use", 1, 1)
    go.touch()
    assert again.wait(PATIENCE_S) == 7
    assert again.stderr is not None
    told = again.stderr.read()
    assert f"request {made['id']} (lab) is evicted: preempted for" in told
    assert "it starts again when its turn comes" in told
    site.egs("request", "release", made["id"])
    wait_for(lambda: site.client.gpu_request(made["id"]).state == "ended", "it ends")


@pytest.mark.slow
def test_an_end_is_announced(site: RealSite, tmp_path: Path) -> None:
    """By itself: a command is told that the time is nearly over, then that it has to end, and so does the request."""
    made = site.told("request", "--gpus", "1", "--for", "20s", "--idle-timeout", "1h")
    ready = tmp_path / "ready"
    command = site.run("--in", made["id"], "--", sys.executable, "-c", UNTIL, str(ready), "never", "0")
    assert command.wait(PATIENCE_S) == 143
    assert command.stderr is not None
    told = command.stderr.read()
    assert f"request {made['id']} ends in" in told
    assert f"`egs request extend {made['id']} --for 1h`" in told
    assert "over its limit of 20 s" in told

    def ended() -> q.RequestView | None:
        found = site.client.gpu_request(made["id"])
        return found if found.state == "ended" else None

    assert wait_for(ended, "the request ends").outcome == "succeeded"


@pytest.mark.slow
def test_an_idle_request_is_given_on(site: RealSite) -> None:
    """Nothing ran in it for so long: its GPUs go to who waits."""
    made = site.told("request", "--gpus", "2", "--for", "1h", "--idle-timeout", "2s")
    assert site.run("--gpus", "2", "--", "true").wait(PATIENCE_S) == 0
    shown = site.egs("request", "show", made["id"]).stdout
    assert "ended: succeeded: idle for 2 s" in shown


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("request",), "--gpus: how many is not said"),
        (("request", "--gpus", "1"), "--for: how long is not said"),
        (("request", "--gpus", "1.5", "--for", "1h"), "--gpus: must be a whole number"),
        (("request", "--gpus", "9", "--for", "1h"), "it fits nowhere"),
        (("request", "--gpus", "1", "--for", "9d"), "7 days at most"),
        (("request", "--gpus", "1", "--for", "soon"), "--for"),
        (("request", "show", "77"), "there is no GPU request '77'"),
        (("request", "extend", "77", "--for", "1h"), "there is no GPU request '77'"),
        (("run", "--in", "77", "--", "true"), "error: --in: there is no GPU request '77': `egs request list`"),
        (
            ("run", "--in", "77", "--gpus", "1", "--", "true"),
            "--gpus: does nothing with --in: what runs in a request has the request's",
        ),
        (("run", "--in", "77", "--split", "--gpus", "1", "--", "true"), "what runs in a request"),
    ],
)
def test_an_error_is_one_line(
    site: RealSite,
    arguments: tuple[str, ...],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("EGS_URL", f"unix://{site.ready['socket']}")
    assert app.run(list(arguments)) == 2
    error = capsys.readouterr().err
    assert (error.count("\n"), told in error) == (1, True), error


@pytest.mark.slow
@pytest.mark.proves("egs run", "preempt")
def test_an_evicted_command_starts_again(site: RealSite, tmp_path: Path) -> None:
    """One of higher priority comes: SIGTERM for the one that said `--requeue`, which waits and is started again after,
    as its second try; its exit code is that of the last. The server is killed while it is to stop."""
    tries, go = tmp_path / "tries", tmp_path / "go"
    program = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1), sys.exit(0)))\n"
        "open(sys.argv[1], 'a').write(os.environ['EGS_TRY'] + ' ' + os.environ['CUDA_VISIBLE_DEVICES'] + ';')\n"
        "while not os.path.exists(sys.argv[2]): time.sleep(0.05)\n"
        "sys.exit(7)\n"
    )
    words = ("--", sys.executable, "-c", program, str(tries), str(go))
    low = site.run("--gpus", "2", "--requeue", "--name", "low", *words)
    wait_for(lambda: content(tries) == "1 0,1;", "the first try runs")
    high = site.run("--gpus", "1", "--priority", "5", "--", "touch", str(tmp_path / "high"))
    wait_for(
        lambda: [run.state for run in site.client.runs().runs if run.name == "low"] != ["running"], "it is to stop"
    )
    site.kill()
    site.start()
    assert high.wait(PATIENCE_S) == 0
    wait_for(lambda: content(tries) == "1 0,1;2 0,1;", "the second try runs")
    (again,) = [run for run in site.client.runs().runs if run.name == "low"]
    told = site.egs("why", again.id).stdout
    assert re.search(r"\nevicted once: [0-9: -]+ after \d+ s, for \d+ \(touch\): priority\n", told), told
    go.touch()
    assert low.wait(PATIENCE_S) == 7
    assert low.stderr is not None
    assert "has to end: preempted for" in low.stderr.read()
