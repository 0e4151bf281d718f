"""Rules as an operator meets them: a real server, real commands, a real webhook, and faults of GPUs that NVML plays."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.unit.server.real_site import EGS, RealSite, wait_for
from tests.unit.server.served import UNTIL, content
from tests.unit.server.test_joined import FarHost

PLAYED = Path(__file__).parent / "played_nvml"
FILE = """
dry_run: DRY
alerts: {webhook: "URL"}
rules:
  - {name: hot, when: {temperature_above: 88}, for: 1s, do: [alert, drain]}
  - {name: fallen, when: {xid: [79]}, do: [alert, drain, requeue]}
  - {name: idle, when: {idle_for: 3s}, do: [stop], queues: [idlers]}
  - {name: stuck, when: {no_progress_for: 3s}, do: [stop]}
  - {name: gone, when: {silent_for: 5s}, do: [alert, drain_host]}
"""
TELLS = "import egs_core as egs, sys, time\negs.work(images=1)\nopen(sys.argv[1], 'w').write('x')\ntime.sleep(600)\n"


class Gpus:
    """What NVML says of three GPUs."""

    def __init__(self, path: Path) -> None:
        self._path = path
        well = {"temperature": 40, "memory": 0.1, "busy": 50, "ecc": 0, "throttle": 0, "power": 300}
        self._told: dict[str, Any] = {f"GPU-{name}": dict(well) for name in "abc"} | {"events": []}
        self._write()

    def set(self, gpu: str = "", **more: Any) -> None:
        (self._told[f"GPU-{gpu}"] if gpu else self._told).update(more)
        self._write()

    def xid(self, gpu: str, number: int) -> None:
        self._told["events"].append([f"GPU-{gpu}", number])
        self._write()

    def _write(self) -> None:
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(self._told))
        new.replace(self._path)


class Webhook(ThreadingHTTPServer):
    """Keeps what is posted; the first post of each text is refused, as by a receiver that starts."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Post)
        self.got: list[dict[str, Any]] = []
        self.refused: set[str] = set()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/hooks/secret"

    def alerts(self, rule: str) -> list[dict[str, Any]]:
        return [one for one in self.got if one["egs"]["rule"] == rule]


class Post(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        told = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert isinstance(self.server, Webhook)
        is_first = told["text"] not in self.server.refused
        self.server.refused.add(told["text"])
        if not is_first:
            self.server.got.append(told)
        self.send_response(503 if is_first else 204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Not to the test's output."""


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    found = Webhook()
    yield found
    found.shutdown()
    found.server_close()


def begin(tmp_path: Path, url: str, dry: str) -> tuple[RealSite, Gpus]:
    gpus = Gpus(tmp_path / "gpus.json")
    (tmp_path / "watch.yaml").write_text(FILE.replace("URL", url).replace("DRY", dry))
    (tmp_path / "queues.yaml").write_text("queues: [{name: all}, {name: idlers}]")
    site = RealSite(tmp_path / "site", gpus=None)
    site.environment |= played(tmp_path)
    return site, gpus


def words(tmp_path: Path, name: str, queue: str = "all") -> tuple[str, ...]:
    where = str(tmp_path / name), str(tmp_path / "go"), "0"
    return ("--gpus", "1", "--queue", queue, "--name", name, "--", sys.executable, "-c", UNTIL, *where)


def played(tmp_path: Path) -> dict[str, str]:
    """For a process whose NVML is played."""
    return {"PYTHONPATH": str(PLAYED), "EGS_PLAYED_NVML": str(tmp_path / "gpus.json")}


def drained(site: RealSite) -> set[str]:
    return {one.id for one in site.client.runs().devices if one.drained}


@pytest.mark.slow
def test_faults_are_found_told_and_acted_on(tmp_path: Path, webhook: Webhook) -> None:
    """An XID error: the GPU is drained and its run starts again on another one. A GPU too hot is drained. A run whose
    GPU does nothing, and one that tells of no more work, are stopped. A driver that hangs drains the host. Each is in
    the server's log under its rule, alerts are posted until they are taken, and operators undo it as ever."""
    site, gpus = begin(tmp_path, webhook.url, "false")
    try:
        site.start("--rules", str(tmp_path / "watch.yaml"), "--queues", str(tmp_path / "queues.yaml"))
        site.run("--requeue", *words(tmp_path, "first"))
        wait_for(lambda: content(tmp_path / "first") == "GPU-a", "it runs")
        gpus.xid("a", 31)
        gpus.xid("a", 79)
        wait_for(lambda: content(tmp_path / "first") == "GPU-b", "it runs elsewhere")
        assert drained(site) == {"GPU-a"}
        gpus.set("c", temperature=95)
        wait_for(lambda: drained(site) == {"GPU-a", "GPU-c"}, "the hot one is drained")
        wait_for(lambda: webhook.alerts("hot"), "the alert has come")
        (alert,) = webhook.alerts("hot")
        assert alert["body"].endswith("/GPU-c has 95 °C, above 88, for 1s")
        assert alert["text"].startswith("EGS at ")
        gpus.set("c", temperature=40)
        assert site.egs("undrain", "GPU-c").returncode == 0
        idle = site.run(*words(tmp_path, "idle", "idlers"))
        wait_for(lambda: content(tmp_path / "idle") == "GPU-c", "it runs")
        gpus.set("c", busy=0)
        assert idle.wait(240) == 143
        assert idle.stderr is not None
        assert "has to end: aborted by rule idle: run " in idle.stderr.read()
        gpus.set("c", busy=50)
        stuck = site.run("--gpus", "1", "--queue", "all", "--", sys.executable, "-c", TELLS, str(tmp_path / "told"))
        assert stuck.wait(240) == 143
        assert stuck.stderr is not None
        assert "aborted by rule stuck: " in stuck.stderr.read()
        entries = site.told("server", "log")["entries"]
        acted = {(one["who"], one["verb"]) for one in entries if one["who"].startswith("rule ")}
        assert acted == {
            ("rule fallen", "alert"),
            ("rule fallen", "drain"),
            ("rule fallen", "requeue"),
            ("rule hot", "alert"),
            ("rule hot", "drain"),
            ("rule idle", "abort"),
            ("rule stuck", "abort"),
        }
        gpus.set(hangs=True)
        wait_for(lambda: drained(site) == {"GPU-a", "GPU-b", "GPU-c"}, "none answers")
        gpus.set(hangs=False)
        told = site.told("watch")
        assert {one["outcome"] for one in told["done"]} <= {"done", "left"}
        shown = " ".join(site.egs("watch").stdout.split())
        assert "hot temperature_above 88, for 1s alert, drain acts 3 " in shown
        assert "done: requeue 1: GPU " in shown
        (tmp_path / "go").touch()
    finally:
        site.close()


DIVERGES = """
import sys, time, egs_core as egs
for step in range(1, 6):
    egs.progress(step=step, loss=1 / step)
open('told', 'w').close()
while not __import__('os').path.exists('go'): time.sleep(0.05)
egs.progress(step=6, loss=float('nan'))
time.sleep(600)
"""


@pytest.mark.slow
def test_a_loss_that_is_none_stops_a_run(tmp_path: Path) -> None:
    """What a command says by `egs.progress` is in `egs why` and `egs ps` while it runs; once it tells NaN the rule
    stops it. A server without rules hears of it, too."""
    (tmp_path / "watch.yaml").write_text(
        "dry_run: false\nrules:\n  - {name: none, when: {loss: nan}, for: 0, do: [stop]}\n"
    )
    site = RealSite(tmp_path / "site")
    try:
        site.start()
        run = site.run("--gpus", "1", "--name", "fit", "--", sys.executable, "-c", DIVERGES, folder=tmp_path)
        told = wait_for(lambda: "fit" in site.open() and site.client.view("1").progress, "it is heard")
        assert (told.step, told.loss, told.is_nan) == (5.0, 0.2, False)
        site.kill()
        site.start("--rules", str(tmp_path / "watch.yaml"))
        wait_for(lambda: site.client.view("1").progress, "it is heard again")
        shown = site.egs("why", "1").stdout
        assert "\nprogress: step 5, loss 0.2, told " in shown
        assert " running: step 5, loss 0.2 " in site.egs("ps").stdout
        (tmp_path / "go").touch()
        assert run.wait(240) == 143
        assert run.stderr is not None
        assert "aborted by rule none: run 1 (fit) tells a loss that is NaN" in run.stderr.read()
    finally:
        site.close()


SAVES = """
import os, signal, sys, time, egs_core as egs
def save(*_):
    open('saved', 'a').write('x')
signal.signal(signal.SIGUSR1, save)
if os.fork() == 0:  # a process that would die of the signal
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    open('child', 'w').write(str(os.getpid()))
    time.sleep(600)
    os._exit(0)
egs.progress(step=1, loss=float('nan'))
while not os.path.exists('go'): time.sleep(0.05)
egs.progress(step=2, loss=1.0)
while not os.path.exists('end'): time.sleep(0.05)
os.kill(int(open('child').read()), signal.SIGTERM)
"""


@pytest.mark.slow
def test_a_run_is_asked_for_a_checkpoint_and_a_user_has_a_hook(tmp_path: Path) -> None:
    """`checkpoint`: those processes of the run that handle its signal get it, once, and none dies of it. `hook`: `egs
    watch follow` starts a command of its user's, once, with what fired; the server starts nothing."""
    (tmp_path / "watch.yaml").write_text(
        "dry_run: false\nrules:\n  - {name: none, when: {loss: nan}, for: 0, do: [checkpoint, hook]}\n"
    )
    site = RealSite(tmp_path / "site")
    try:
        site.start("--rules", str(tmp_path / "watch.yaml"))
        wrong = site.egs("watch", "follow", "--rule", "some", "--", "true")
        assert (wrong.returncode, "has no rule 'some'" in wrong.stderr) == (2, True)
        absent = site.egs("watch", "follow", "--", "./not-there")
        assert (absent.returncode, absent.stderr.count("\n"), "no such command" in absent.stderr) == (2, 1, True)
        hook = "echo $EGS_WATCH_RULE $EGS_WATCH_SUBJECT $EGS_WATCH_TEXT >> hooked; exit 3"
        follower = site._begin([*EGS, "watch", "follow", "--", "sh", "-c", hook], folder=tmp_path)
        run = site.run(
            *("--gpus", "1", "--name", "fit", "--checkpoint-signal", "USR1", "--", sys.executable, "-c", SAVES),
            folder=tmp_path,
        )
        wait_for(lambda: content(tmp_path / "saved"), "it has saved its work")
        wait_for(lambda: content(tmp_path / "hooked"), "the hook was called")
        (tmp_path / "go").touch()
        wait_for(lambda: (told := site.client.view("1").progress) and told.step == 2, "it goes on")
        (tmp_path / "end").touch()
        assert run.wait(240) == 0
        assert (content(tmp_path / "saved"), site.client.view("1").checkpoints) == ("x", 1)
        assert content(tmp_path / "hooked") == "none 1 run 1 (fit) tells a loss that is NaN\n"
        assert follower.poll() is None
        follower.terminate()
        assert follower.stderr is not None
        told = follower.stderr.read()
        assert told.startswith("egs: sh is started whenever none fires, until Ctrl-C\n")
        assert "egs: sh has ended with exit code 3\n" in told
        verbs = [(one["who"], one["verb"]) for one in site.told("server", "log")["entries"]]
        assert [one for one in verbs if one[0] == "rule none"] == [("rule none", "checkpoint"), ("rule none", "hook")]
    finally:
        site.close()


@pytest.mark.slow
def test_a_dry_run_changes_nothing(tmp_path: Path, webhook: Webhook) -> None:
    """The same faults: all is said, the run goes on where it is, nothing is drained, posted or in the log. A server
    without rules says so."""
    site, gpus = begin(tmp_path, webhook.url, "true")
    try:
        site.start("--rules", str(tmp_path / "watch.yaml"), "--queues", str(tmp_path / "queues.yaml"))
        run = site.run("--requeue", *words(tmp_path, "first", "idlers"))
        wait_for(partial(content, tmp_path / "first"), "it runs")
        gpus.xid("a", 79)
        gpus.set("a", busy=0)
        gpus.set("c", temperature=95)
        wanted = {"hot": {"alert", "drain"}, "fallen": {"alert", "drain", "requeue"}, "idle": {"stop"}}

        def said() -> dict[str, set[str]]:
            found: dict[str, set[str]] = {}
            for one in site.client.watching().done:
                assert one.outcome == "would"
                found.setdefault(one.rule, set()).add(one.action)
            return found

        wait_for(lambda: said() == wanted, "all is said")
        assert (drained(site), webhook.got, webhook.refused) == (set(), [], set())
        assert [one for one in site.told("server", "log")["entries"] if one["who"].startswith("rule ")] == []
        assert site.client.view("1").state == "running"
        (tmp_path / "go").touch()
        assert run.wait(240) == 0
        site.kill()
        site.start("--queues", str(tmp_path / "queues.yaml"))
        assert site.told("watch")["is_on"] is False
        assert site.egs("watch").stdout == "the server has no rules: `egs serve --rules FILE`\n"
        bad = site.egs("serve", "--rules", str(tmp_path / "queues.yaml"), "--data", str(tmp_path / "other"))
        assert (bad.returncode, "queues.yaml line 1: " in bad.stderr) == (2, True)
    finally:
        site.close()


@pytest.mark.slow
def test_gpus_of_a_joined_host_are_watched(tmp_path: Path) -> None:
    """Its agent reads them, since the server wants to know; an agent that is killed is silent, and its host comes back
    drained."""
    gpus = Gpus(tmp_path / "gpus.json")
    (tmp_path / "watch.yaml").write_text(
        "dry_run: false\nrules:\n  - {name: hot, when: {temperature_above: 88}, for: 1s, do: [drain]}\n"
        "  - {name: gone, when: {silent_for: 20s}, do: [drain_host]}\n"
    )
    site = RealSite(tmp_path / "site", gpus=1)
    try:
        site.start("--rules", str(tmp_path / "watch.yaml"))
        far = FarHost(site, tmp_path / "far")
        far.environment |= played(tmp_path)
        far.start("--devices", "GPU-a,GPU-b")
        gpus.set("b", temperature=93)
        wait_for(lambda: drained(site) == {"GPU-b"}, "the hot one is drained")
        told = site.client.watching()
        assert told.done[-1].subject == "far/GPU-b"
        assert [(rule.looked_at, rule.unknown) for rule in told.rules] == [(3, 1), (3, 1)]  # one is emulated
        far.kill()
        wait_for(lambda: drained(site) == {"GPU-a", "GPU-b"}, "it is silent for too long")
        assert site.client.watching().done[-1].action == "drain_host"
        far.start("--devices", "GPU-a,GPU-b")
        wait_for(lambda: not any(one.suspect for one in site.client.runs().devices), "it is back")
        assert drained(site) == {"GPU-a", "GPU-b"}
    finally:
        site.close()
