"""Two hosts as users have them, on this machine: an `egs serve`, and one that has joined it by another name, with a
Unix socket, a user's files and emulated GPUs of its own. All is real but the GPUs, and that both are one machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from egs_core.client import messages as c
from egs_core.client.http import SiteClient, trusted_owners
from egs_core.client.places import Address
from egs_core.client.processes import process
from tests.unit.server.real_site import EGS, PATIENCE_S, RealSite, wait_for
from tests.unit.server.served import UNTIL, content
from tests.unit.server.test_doors import certificate


class FarHost:
    """The second host, `far`: its agent and the commands of its users."""

    def __init__(self, site: RealSite, folder: Path) -> None:
        self.site = site
        made = site.told("token", "create", "--role", "agent", "--host", "far")
        self.environment = {
            **{name: value for name, value in site.environment.items() if name != "XDG_DATA_HOME"},
            "EGS_RUNTIME_DIR": str(folder / "run"),
            "XDG_DATA_HOME": str(folder / "home"),
            "EGS_HOST": "far",
        }
        (folder / "run").mkdir(parents=True)
        self.token = made["token"]
        self.ready: dict[str, Any] = {}
        self.agent: subprocess.Popen[str] | None = None

    def start(self, *gpus: str) -> None:
        """gpus: options that say which it offers."""
        token = {**self.environment, "EGS_TOKEN": self.token}
        arguments = ("serve", "--join", self.site.ready["url"], *(gpus or ("--emulated-gpus", "2")), "--json")
        self.agent = self.site._begin([*EGS, *arguments], token)
        assert self.agent.stdout is not None
        line = self.agent.stdout.readline()
        assert line, self.agent.communicate()[1]
        self.ready = json.loads(line)

    def kill(self) -> None:
        assert self.agent is not None
        self.agent.kill()
        self.agent.wait(PATIENCE_S)

    def run(self, *arguments: str) -> subprocess.Popen[str]:
        return self.site._begin([*EGS, "run", *arguments], self.environment)

    def egs(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        return self.site.egs(*arguments, folder=None, **self.environment | more)

    @property
    def client(self) -> SiteClient:
        path = Path(self.ready["socket"])
        return SiteClient(Address(f"unix://{path}", path), trusted_owners())


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarHost]:
    site = RealSite(tmp_path_factory.mktemp("site"), gpus=1)
    try:
        site.start()
        found = FarHost(site, tmp_path_factory.mktemp("far"))
        try:
            found.start()
            yield found
        finally:
            if found.agent is None or found.agent.poll() is not None:
                found.start()  # runs there hear of their end over it
    finally:
        site.close()


def states(far: FarHost) -> dict[str, str]:
    return {f"{one.host}/{one.id}": one.state for one in far.site.client.runs().devices if one.host == "far"}


def joined(far: FarHost) -> str:
    return next(one.state for one in far.site.client.hosts().hosts if one.name == "far")


FREE = {"far/0": "free", "far/1": "free"}


def test_a_command_gets_devices_of_the_host_that_it_is_started_on(far: FarHost, tmp_path: Path) -> None:
    """Two GPUs at once, which only the second host has; asked for at the first one that is refused. Both hosts' users
    see it with its host; only there it is spoken for, and it ends with its own exit code."""
    wait_for(lambda: states(far) == FREE, "it has joined")
    assert "needs 2 GPUs" in far.site.egs("run", "--gpus", "2", "--", "true").stderr
    wrote, stop = tmp_path / "wrote", tmp_path / "stop"
    begun = far.run("--gpus", "2", "--", sys.executable, "-c", UNTIL, str(wrote), str(stop), "5")
    wait_for(lambda: content(wrote), "it has started")
    assert content(wrote) == "0,1"
    (run,) = far.site.client.runs().runs
    assert (run.host, run.state, states(far)) == ("far", "running", {"far/0": "held", "far/1": "held"})
    assert far.client.runs().runs[0].host == "far"
    assert "far" in far.egs("ps").stdout
    waits = far.client.check(c.RunRequest(key="check-key", supervisor=_own(), gpus=1))
    assert "far has 0 of 2 GPUs wholly free" in waits.reason
    stop.touch()
    assert begun.wait(PATIENCE_S) == 5
    wait_for(lambda: states(far) == FREE, "it is given back")


def test_what_the_server_refuses_is_named_by_its_option(far: FarHost) -> None:
    """The server knows the fields of its protocol, who reads has written options."""
    for words, told in (
        ("request --gpus 1 --on nowhere --for 1h", "error: --on: there is no host 'nowhere'; there are "),
        ("request --gpus 9 --hosts 3 --for 1h", "error: --hosts: 0 hosts of the site can have 3 GPUs"),
        ("request --gpus 3 --hosts 2 --for 1h", "error: --gpus: 3 cannot be as many whole ones on each of 2 hosts"),
        ("request --gpus 1 --for 8d", "error: --for: a GPU request lasts 7 days at most"),
        ("run --after 999 -- true", "error: --after: there is no run '999'"),
        ("token create --role agent --host far --team a", "error: --host: the token of a host's agent"),
    ):
        done = far.site.egs(*words.split())
        assert (done.returncode, told in done.stderr) == (2, True), done.stderr


def test_gpus_are_named_with_their_hosts(far: FarHost) -> None:
    """A number alone names none, where two hosts have a GPU 0: in what is drained, and of GPU requests."""
    wait_for(lambda: states(far) == FREE, "it has joined")
    number = json.loads(far.egs("request", "--gpus", "1", "--for", "1h", "--json").stdout)["id"]
    try:
        wait_for(lambda: "held" in states(far).values(), "it has a GPU")
        (device,) = [name for name, state in states(far).items() if state == "held"]
        assert device in far.site.egs("request", "list").stdout
        assert f"GPUs {device}" in far.egs("request", "show", number).stdout
        told = far.site.egs("drain", "far").stdout
        assert told == f"2 of 3 GPUs drained: far/0, far/1; still in use: {device} (run {number})\n"
        assert "2 of 3 GPUs drained: far/0, far/1" in far.egs("queue").stdout
    finally:
        far.site.egs("undrain", "far")
        far.egs("request", "release", number)
    wait_for(lambda: states(far) == FREE, "it is given back")


@pytest.mark.slow
def test_a_request_over_both_hosts(far: FarHost, tmp_path: Path) -> None:
    """A GPU on each, together: while the far ones are in use neither is held, and what is in the way is said with its
    host. Then a command on each host has that host's GPU, its rank and the addresses for PyTorch; over a `kill -9` of
    the server they run on, and one release ends both. A user there cannot end what others have a part of."""
    wait_for(lambda: states(far) == FREE, "it has joined")
    own = far.site.ready["host"] if "host" in far.site.ready else far.site.client.runs().devices[0].host
    busy, stop = tmp_path / "busy", tmp_path / "stop"
    hog = far.run("--gpus", "2", "--name", "hog", "--", sys.executable, "-c", UNTIL, str(busy), str(stop), "0")
    wait_for(lambda: content(busy), "the far host is in use")
    made = far.site.told("request", "--gpus", "2", "--hosts", "2", "--for", "1h", "--name", "lab")
    number = made["id"]
    try:
        assert (made["state"], [part["host"] for part in made["parts"]]) == ("queued", [own, "far"])
        because = far.site.told("why", number)["reason"]
        assert because.startswith("starts on its 2 hosts together: needs 1 GPU: far has 0 of 2 GPUs wholly free")
        assert {one.state for one in far.site.client.runs().devices if one.host == own} == {"free"}
        environment = "os.environ['CUDA_VISIBLE_DEVICES'], os.environ['EGS_GANG_HOSTS'], os.environ['RANK'], "
        program = (
            "import os, pathlib, sys, time\n"
            f"print({environment}os.environ['WORLD_SIZE'], os.environ['MASTER_ADDR'], flush=True)\n"
            "pathlib.Path(sys.argv[1]).touch()\n"
            "time.sleep(600)\n"
        )
        words = ("--in", number, "--torch-env", "--", sys.executable, "-c", program)
        begun = [far.site.run(*words, str(tmp_path / "here")), far.run(*words, str(tmp_path / "there"))]

        def wait_in_it() -> bool:
            assert [one.poll() for one in begun] == [None, None]
            return len(far.site.client.gpu_request(number).commands) == 2

        wait_for(wait_in_it, "both wait in it")
        stop.touch()
        assert hog.wait(PATIENCE_S) == 0
        wait_for(lambda: (tmp_path / "here").exists() and (tmp_path / "there").exists(), "both run")
        far.site.kill()
        far.site.start()
        wait_for(lambda: joined(far) == "joined", "the agent is heard of")
        shown = far.site.egs("request", "show", number).stdout
        assert f"in use: GPUs {own}/0, far/0; runs in it: " in shown
        assert f"part of request {number}" in far.egs("ps").stdout
        refused = far.egs("request", "release", number)
        assert (refused.returncode, refused.stderr) == (
            2,
            f"error: request {number} is over several hosts: change it on host {own}\n",
        )
        assert "stopping" in far.site.egs("request", "release", number).stdout
        assert [one.wait(PATIENCE_S) for one in begun] == [143, 143]
        printed = [one.stdout.read() for one in begun if one.stdout is not None]
        assert printed == [f"0 {own},far {rank} 2 {own}\n" for rank in (0, 1)]
        wait_for(lambda: far.site.client.gpu_request(number).state == "ended", "it ends")
    finally:
        stop.touch()
        far.site.egs("request", "release", number)
    wait_for(lambda: states(far) == FREE, "all is given back")


@pytest.mark.slow
def test_the_agent_is_killed_and_comes_back(far: FarHost, tmp_path: Path) -> None:
    """`kill -9` of the agent while a command runs: it runs on, and its devices are suspect when the server has heard
    nothing for a while; what is started meanwhile waits. The agent comes back: the command is as it was, and what
    ended in the meantime has ended."""
    wrote, stop = tmp_path / "wrote", tmp_path / "stop"
    begun = far.run("--gpus", "1", "--", sys.executable, "-c", UNTIL, str(wrote), str(stop), "0")
    dies = far.run("--gpus", "1", "--", sys.executable, "-c", UNTIL, str(tmp_path / "other"), str(stop), "0")
    wait_for(lambda: content(wrote) and content(tmp_path / "other"), "both have started")
    far.kill()
    dies.kill()
    command = next(int(one) for one in os.listdir("/proc") if one.isdecimal() and _has(one, str(tmp_path / "other")))
    os.kill(command, signal.SIGKILL)
    wait_for(lambda: joined(far) == "silent", "the host is suspect")
    assert [run.state for run in far.site.client.runs().runs] == ["running", "running"]
    assert "host far is silent" in far.site.egs("ps").stdout
    assert begun.poll() is None
    far.start()
    wait_for(lambda: sorted(states(far).values()) == ["free", "held"], "what is gone has ended")
    (left,) = far.site.client.runs().runs
    assert left.state == "running"
    stop.touch()
    assert begun.wait(PATIENCE_S) == 0
    wait_for(lambda: states(far) == FREE, "it is given back")


@pytest.mark.slow
def test_the_server_is_killed_and_comes_back(far: FarHost, tmp_path: Path) -> None:
    """`kill -9` of the server while a command runs on the other host and one waits there: neither notices."""
    wrote, stop = tmp_path / "wrote", tmp_path / "stop"
    begun = far.run("--gpus", "2", "--", sys.executable, "-c", UNTIL, str(wrote), str(stop), "0")
    wait_for(lambda: content(wrote), "it has started")
    waits = far.run("--gpus", "1", "--", sys.executable, "-c", UNTIL, str(tmp_path / "next"), str(stop), "3")
    wait_for(lambda: len(far.site.client.queue().runs) == 1, "one waits")
    far.site.kill()
    far.site.start()
    wait_for(lambda: joined(far) == "joined", "the agent is heard of")
    assert states(far) == {"far/0": "held", "far/1": "held"}
    assert (begun.poll(), waits.poll()) == (None, None)
    stop.touch()
    assert (begun.wait(PATIENCE_S), waits.wait(PATIENCE_S)) == (0, 3)
    wait_for(lambda: states(far) == FREE, "all is given back")


@pytest.mark.slow
def test_what_ends_an_agent_is_one_line(far: FarHost) -> None:
    """An option of the server's own, no token, one that is not good, one of another host, a host that has an agent."""
    url = far.site.ready["url"]

    def said(*arguments: str, **more: str) -> str:
        done = far.egs("serve", "--join", url, "--emulated-gpus", "2", *arguments, **more)
        assert (done.returncode, done.stderr.count("\n"), "Traceback" in done.stderr) == (2, 1, False), done.stderr
        return done.stderr

    for option, value in (("--data", "/tmp"), ("--queues", "x.yaml"), ("--port", "1")):
        assert f"{option}: cannot be combined with --join" in said(option, value)
    assert "needs a token of role agent in EGS_TOKEN" in said()
    assert "not known there" in said(EGS_TOKEN="egs_wrong")
    assert "this token is for host far, not for near" in said(EGS_TOKEN=far.token, EGS_HOST="near")
    assert "is submitter" in said(EGS_TOKEN=far.site.told("token", "create", "--role", "submitter")["token"])
    assert "answers already" in said(EGS_TOKEN=far.token)


@pytest.mark.slow
def test_over_tls(tmp_path: Path) -> None:
    """An agent whose user does not trust the server's certificate ends with one line; one that does joins over it."""
    cert, key = certificate(tmp_path)
    site = RealSite(tmp_path / "site", gpus=1)
    try:
        site.start("--tls-cert", str(cert), "--tls-key", str(key))
        far = FarHost(site, tmp_path / "far")
        done = far.egs("serve", "--join", site.ready["url"], "--emulated-gpus", "2", EGS_TOKEN=far.token)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert "certificate" in done.stderr
        assert "EGS_CA" in done.stderr
        far.environment["EGS_CA"] = str(cert)
        far.start()
        wait_for(lambda: states(far) == FREE, "it has joined")
        assert far.egs("run", "--gpus", "1", "--", "true").returncode == 0
    finally:
        site.close()


def _own() -> c.Process:
    own = process(os.getpid())
    assert own is not None
    return own


def _has(pid: str, argument: str) -> bool:
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return False
    return arguments[1:2] == ["-c"] and argument in arguments
