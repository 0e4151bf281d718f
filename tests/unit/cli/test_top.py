"""`egs top`: what it shows of a site, and how it ends."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator

import pytest
from rich.console import Console

from egs_core.cli.app import run
from egs_core.cli.top import shown
from egs_core.client import messages as c
from egs_core.client.overview import Overview
from tests.unit.dashboard.test_snapshot import run as made_run
from tests.unit.dashboard.test_snapshot import site as made_site
from tests.unit.server.real_app import FILE, RealApp


@pytest.fixture(scope="module")
def app() -> Iterator[RealApp]:
    found = RealApp(FILE)
    found.admin.submit("top-key-1", gpus=2, name="train", queue="common")
    found.admin.submit("top-key-2", gpus=2, name="[red]evil[/red]", queue="images")
    yield found
    found.close()


@pytest.fixture
def asked(app: RealApp, monkeypatch: pytest.MonkeyPatch) -> RealApp:
    monkeypatch.setenv("EGS_URL", f"unix://{app.path}")
    return app


def text_of(seen: Overview, width: int = 200, **more: object) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(shown(seen, 1100.0, **more))  # type: ignore[arg-type]  # of one test each
    return str(console.file.getvalue())  # type: ignore[attr-defined]  # it is a StringIO


@pytest.mark.usefixtures("asked")
def test_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Devices, queues, what has a lease and what waits, with why; a name is text and no markup."""
    assert run(["top", "--once"]) == 0
    out = capsys.readouterr().out
    assert "1 of 3 GPUs free; 1 running, 1 waiting" in out
    assert "1 train" in out
    assert "2 [red]evil[/red]" in out
    assert "needs 2 GPUs: host has 1 of 3 GPUs wholly free" in out
    assert "vision" in out


@pytest.mark.usefixtures("asked")
def test_without_a_terminal_it_ends(capsys: pytest.CaptureFixture[str]) -> None:
    """In a pipe it shows it once, as with --once: there is nothing to draw over."""
    assert run(["top"]) == 0
    assert "1 running, 1 waiting" in capsys.readouterr().out


@pytest.mark.usefixtures("asked")
def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["top", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in found["waiting"]] == ["[red]evil[/red]"]
    assert (found["running_count"], found["waiting_count"], len(found["devices"])) == (1, 1, 3)
    assert [one["name"] for one in found["queues"]] == ["common", "images", "sounds"]


def test_no_server(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("EGS_URL", "unix:///nowhere/egs.sock")
    assert run(["top", "--once"]) == 2
    assert "unix:///nowhere/egs.sock" in capsys.readouterr().err


def test_a_small_terminal_says_what_it_leaves_out() -> None:
    waiting = tuple(made_run(number, "waiting", reason="r") for number in range(2, 12))
    text = text_of(made_site(waiting=waiting, waiting_count=10), height=17)
    assert len(text.splitlines()) <= 17
    assert "… and 7 more" in text
    assert "4 job4" in text
    assert "5 job5" not in text


@pytest.mark.parametrize("drivers", [0, 8])
@pytest.mark.parametrize("width", [80, 200])
def test_each_list_has_its_share_of_a_small_terminal(drivers: int, width: int) -> None:
    """At 24 lines all headings are there, and of each list at least one row, of what waits with why."""
    why = "needs 1 GPU: host has 0 of 8 GPUs wholly free; it is first in the queue; GPUs are held by 1 (job1, ann)"
    seen = made_site(
        devices=[{"id": str(n), "state": "held", "free": 0, "run": str(n), "runs": (str(n),)} for n in range(8)],
        queues=[{"name": f"queue{n}"} for n in range(5)],
        running=tuple(made_run(n, "running", started_at=1010.0) for n in range(8)),
        waiting=tuple(made_run(n, "waiting", reason=why) for n in range(10, 18)),
        drivers=tuple(made_run(n, "running", id=f"r{n}", framework="ray") for n in range(drivers)),
        hosts=({"name": "a", "state": "own"}, {"name": "b", "state": "silent"}),
    )
    lines = text_of(seen, width=width, height=24, problem="no answer " * 40).splitlines()
    assert len(lines) <= 24
    heads = ["GPU", "queue", "running", "waiting", *["driver"] * bool(drivers)]
    assert [line.split()[0] for line in lines if line and line.split()[0] in heads] == heads
    row = next(line for line in lines if line.startswith("10 job10"))
    assert "needs 1 GPU" in row
    assert [line for line in lines if line.startswith("0 job0")]


def test_what_bounds_a_queue() -> None:
    """Its quota, and that its budget is used up: then "no bound" would be wrong."""
    queues = [{"name": "a"}, {"name": "b", "is_used_up": True}, {"name": "c", "gpus": 2.0, "is_used_up": True}]
    rows = [line.split() for line in text_of(made_site(queues=queues)).splitlines()]
    assert [" ".join(row[1:-1]) for row in rows if row and row[0] in "abc"] == [
        "no bound",
        "budget used up",
        "2, budget used up",
    ]


def test_ones_own_run_beyond_those_that_are_shown() -> None:
    """It holds its GPU under its number: only of what one does not see it is said that it is another team's."""
    devices = [{"id": "0", "state": "held", "free": 0, "run": "777", "runs": ("777",)}]
    text = text_of(made_site(devices=devices))
    assert "another team's" not in text
    assert "777" in text


def test_what_is_old_is_called_so() -> None:
    """The server does not answer: the last figures stay, and why they are old."""
    assert text_of(made_site(), problem="no answer").splitlines()[1] == "old: no answer"


def test_what_needs_a_look() -> None:
    """Another team's GPU, a silent host, a run that is lost, a driver."""
    lost = made_run(1, "running", lost=True)
    driver = made_run(3, "running", id="r3", framework="ray", tasks=c.DriverTasks(running=2, waiting=5))
    hosts = ({"name": "a", "state": "own"}, {"name": "b", "state": "silent"})
    text = text_of(made_site(running=(lost,), drivers=(driver,), hosts=hosts))
    for words in ("a/1", "another team's", "running, lost", "r3 job3 (ray)", "silent: b"):
        assert words in text, words
