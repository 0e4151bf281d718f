"""Run logs in a browser: where tasks stand, the graph, and who gets to see it."""

from __future__ import annotations

import http.client
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from egs_core.cli import app
from egs_core.cli.why import waits_in_log
from egs_core.dashboard.log_pages import run_page, seen, workload_page
from egs_core.dashboard.log_serving import POLICY, Logs, answer
from egs_core.engine.order.queue import ONLY_CANDIDATE
from egs_core.report.graph_picture import MOST, Box, critical, grouped, picture
from egs_core.report.page import render_page
from egs_core.runlog import labels
from egs_core.runlog.io import Run, write_run
from egs_core.runlog.records import (
    Capacity,
    Ended,
    Granted,
    Header,
    Held,
    PreloadEnded,
    PreloadStarted,
    Ready,
    Record,
    Started,
    TaskAdded,
    WorkloadEnded,
    WorkloadSubmitted,
)
from egs_core.runlog.standing import standing
from tests.unit.report.axe import grave
from tests.unit.report.chromium import Page, find_chromium
from tests.unit.report.made_runs import made_run
from tests.unit.report.test_page import Elements, evil_run

OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
ONE_GPU = (("gpu", 1.0, 1.0, 0),)


def going_on() -> list[Record]:
    """a has ended, b runs, c waits for the GPU, d for c; e has a second phase to come; f is loaded ahead."""
    added = [("a", ()), ("b", ("a",)), ("c", ("a",)), ("d", ("c",)), ("f", ("d",))]
    return [
        Capacity(0.0, "n", 4.0, 1),
        WorkloadSubmitted(0.0, "w", "train", queue="images"),
        *(TaskAdded(0.0, "w", task, f"do-{task}", parents, ONE_GPU) for task, parents in added),
        TaskAdded(0.0, "w", "e", "do-e", (), (("cpu", 1.0, 0.0, 0), *ONE_GPU)),
        Ready(0.0, "w", "a"),
        Started(2.0, "w", "a", node="n", devices=(0,), cpus=1.0, gpus=1.0),
        Ended(5.0, "w", "a"),
        Ready(0.0, "w", "e"),
        Started(1.0, "w", "e", node="n", cpus=1.0),
        Ended(4.0, "w", "e"),
        Ready(5.0, "w", "b"),
        Started(6.0, "w", "b", node="n", devices=(0,), cpus=1.0, gpus=1.0),
        Ready(5.0, "w", "c"),
        Held(5.0, "w", "c", 0, "capacity", "needs 1 GPU: n has 0 of 1 free", ("b",)),
        PreloadStarted(6.0, "w", "f", "n", 1.0, 100),
        PreloadEnded(8.0, "w", "f", "warm"),
        Ready(10.0, "w", "e", 1),
    ]


def test_where_tasks_stand() -> None:
    """States, times and reasons of a run that goes on, by hand; what is loaded ahead, and that it is warm."""
    stand = standing(going_on())
    tasks = stand.tasks["w"]
    states = {name: task.state for name, task in tasks.items()}
    assert states == {
        "a": "succeeded", "b": "running", "c": "waiting", "d": "pending", "e": "waiting", "f": "pending",
    }  # fmt: skip
    assert (stand.now_s, tasks["a"].waited_s, tasks["a"].ran_s, tasks["b"].duration_s(10.0)) == (10.0, 2.0, 3.0, 4.0)
    assert tasks["c"].why == "needs 1 GPU: n has 0 of 1 free; it waits for b"
    assert [(one.task, one.node, one.since_s, one.state) for one in stand.loaded] == [("f", "n", 6.0, "warm")]


def test_an_end_that_is_told_after_its_workloads() -> None:
    """As by a driver that collects what workers saw: the task has run, and succeeded. What is said to be loading when
    its task starts, is loading no more; the GPU of a phase before the last is still told."""
    records: list[Record] = [
        TaskAdded(0.0, "w", "a", "a", (), (*ONE_GPU, ("cpu", 1.0, 0.0, 0))),
        PreloadStarted(0.0, "w", "a", "n"),
        Started(1.0, "w", "a", node="n", devices=(1,), gpus=1.0),
        Ended(2.0, "w", "a"),
        Started(2.0, "w", "a", 1, node="n", cpus=1.0),
        WorkloadEnded(5.0, "w"),
        Ended(5.0, "w", "a", 1),
    ]
    stand = standing(records)
    task = stand.tasks["w"]["a"]
    assert (task.state, task.ran_s, task.devices, stand.loaded[0].state) == ("succeeded", 4.0, (1,), "begun")


def test_pages_of_a_run_that_goes_on() -> None:
    """Each task with its state, why it waits with the rule's numbers, for whom a pending one waits, what is loaded
    where, GPU hours by the queue's team, and the critical path, with how many of it
    take nobody knows how long."""
    one = seen(Run(Header(label="mine"), going_on()), team_of=lambda queue: f"team of {queue}")
    page = Elements(run_page("/x", [one], 0, "v")).text
    for words in ("train", "needs 1 GPU: n has 0 of 1 free; it waits for b", "warm", "team of images", "mine"):
        assert words in page, words
    assert one.workloads[0].critical == ["a", "c", "d", "f"]
    assert one.workloads[0].critical_s == pytest.approx(3.0)
    assert one.workloads[0].unknown == 3
    assert "at least 3\u00a0s" in page
    graph = Elements(workload_page("/x", [one], 0, 0, "v"))
    assert "waits for c" in graph.text
    assert graph.count("rect") == 6
    assert "do-a → do-c → do-d → do-f" in graph.text


def test_a_run_that_is_over_ends_with_its_last_task() -> None:
    """Also where its log tells of nodes after that, as an audit's does: status, chart and axis have one end."""
    records = [
        Capacity(0.0, "n", 4.0, 1),
        TaskAdded(0.0, "w", "a", "do-a", (), ONE_GPU),
        Ready(0.0, "w", "a"),
        Started(0.0, "w", "a", node="n", devices=(0,), cpus=1.0, gpus=1.0),
        Ended(25.0, "w", "a"),
        Capacity(140.0, "n", 4.0, 1),
    ]
    page = run_page("", [seen(Run(Header(), records))], 0, "1")
    assert "over after 25\N{NO-BREAK SPACE}s" in page
    assert "140\N{NO-BREAK SPACE}s" not in page


def test_what_waited_is_put_down_to_what_it_waited_for_longest() -> None:
    """As `egs why` has it: eight seconds of a quota, not the one second of a full node before its start; how a task
    ended is left as it is."""
    quota, full = "no quota", "needs 1 GPU: n has 0 of 1 free"
    holds = [(0.0, "quota", quota), (8.0, "capacity", full)]
    records: list[Record] = [
        WorkloadSubmitted(0.0, "w", "train"),
        *(TaskAdded(0.0, "w", task, task, (), ONE_GPU) for task in "ab"),
        *(Ready(0.0, "w", task) for task in "ab"),
        *(Held(at, "w", task, 0, kind, words, ("x",)) for task in "ab" for at, kind, words in holds),
        *(Started(9.0, "w", task, node="n") for task in "ab"),
        Ended(10.0, "w", "a"),
        Ended(10.0, "w", "b", outcome="failed", reason="out of memory"),
    ]
    (workload,) = seen(Run(Header(), records)).workloads
    assert {name: task.why for name, task in workload.tasks.items()} == {"a": quota, "b": "out of memory"}
    kinds = [one["phases"][0]["reason"]["kind"] for one in waits_in_log(records, ["a", "b"], "log")]
    assert kinds == ["quota", "quota"]


def test_every_phase_that_held_a_gpu_is_in_the_gpus_table() -> None:
    """Also where the log does not say which one, as of tasks that tell nothing of themselves, and a GPU that nothing
    held: the rows add up to the figure above them. The report page has the same rows."""
    records: list[Record] = [
        Capacity(0.0, "n", 4.0, 2),
        Capacity(0.0, "idle", 4.0, 1),
        WorkloadSubmitted(0.0, "w", "train"),
        *(TaskAdded(0.0, "w", task, task, (), ONE_GPU) for task in "ab"),
        Started(0.0, "w", "a", node="n", devices=(0,), cpus=1.0, gpus=1.0),
        Started(0.0, "w", "b", node="n", cpus=1.0, gpus=1.0),
        Ended(6.0, "w", "a"),
        Ended(10.0, "w", "b"),
        WorkloadEnded(10.0, "w"),
    ]
    run = Run(Header(label="mine"), records)
    one = seen(run)
    assert dict(one.cards)["Useful GPU time"] == "53.3\u00a0%"  # 16 of 30 GPU seconds
    assert one.devices == [
        ("idle, GPU 0", "0", "0\u00a0%", "0\u00a0%"),
        ("n, GPU 0", "1", "60.0\u00a0%", "60.0\u00a0%"),
        ("n, which GPU is not told", "1", "50.0\u00a0%", "50.0\u00a0%"),
    ]
    report = Elements(render_page([run])).text
    assert "n, which GPU is not told" in report
    assert "idle, GPU 0" in report


def test_tasks_have_names_where_their_ids_are_numbers() -> None:
    """In every table and reason; and what let a task start is in words, not said twice."""
    first, second = "359ec6ce" + "0" * 40, "7d1fbb02" + "1" * 40
    records: list[Record] = [
        TaskAdded(0.0, "w", first, "train", (), ONE_GPU),
        TaskAdded(0.0, "w", second, "score", (), ONE_GPU),
        Ready(0.0, "w", first),
        Granted(1.0, "w", first, 0, reason="remaining_path"),
        Started(1.0, "w", first, node="n", devices=(0,), gpus=1.0),
        Ended(2.0, "w", first, reason="remaining_path"),
        Ready(1.0, "w", second),
        Held(1.0, "w", second, 0, "capacity", "needs 1 GPU", (first,)),
    ]
    one = seen(Run(Header(), records))
    for page in (run_page("/x", [one], 0, "v"), workload_page("/x", [one], 0, 0, "v")):
        text = Elements(page).text
        assert first not in text
        assert second not in text
        for words in ("train-359ec6ce", "score-7d1fbb02", "it waits for train-359ec6ce"):
            assert words in text, words
        assert text.count("remaining path") == 1
        assert "remaining_path" not in text
    assert labels.ALONE == ONLY_CANDIDATE


def test_the_critical_path_is_the_longest_chain() -> None:
    """By hand; parents that are not there, and circles, which groups of a name may make, do no harm."""
    boxes = [
        Box("a", "a", "succeeded", (), 1.0),
        Box("b", "b", "succeeded", ("a",), 5.0),
        Box("c", "c", "succeeded", ("a", "gone"), 2.0),
        Box("d", "d", "succeeded", ("b", "c"), 1.0),
    ]
    assert critical(boxes) == ["a", "b", "d"]
    drawn = str(picture(boxes, "graph"))
    assert drawn.count('class="edge critical"') == 2
    assert drawn.count('class="edge"') == 2
    circle = [Box("a", "a", "running", ("b",), 1.0), Box("b", "b", "running", ("a",), 1.0)]
    assert set(critical(circle)) == {"a", "b"}
    assert str(picture(circle, "graph")).count("<rect") == 2
    assert (critical([]), str(picture([], "none")).count("<rect")) == ([], 0)


def test_many_tasks_are_grouped_by_name() -> None:
    """Beyond some hundred, with how many are in which state; 10,000 tasks make a page of a few boxes, soon."""
    tasks = 10_000
    records: list[Record] = [TaskAdded(0.0, "w", "load", "load")]
    records += [TaskAdded(0.0, "w", f"t{n}", f"stage-{n % 4}", ("load",), ONE_GPU) for n in range(tasks)]
    records += [TaskAdded(0.0, "w", "end", "end", tuple(f"t{n}" for n in range(tasks)))]
    records += [Ready(0.0, "w", "load"), Started(0.0, "w", "load"), Ended(1.0, "w", "load")]
    began = time.process_time()
    one = seen(Run(Header(label="big"), records))
    page = workload_page("/x", [one], 0, 0, "v")
    assert time.process_time() - began < 10
    assert page.count("<rect") == 6
    assert "stage-0 (2500)" in page
    assert len(page) < 500_000
    assert len(grouped([Box(str(n), "same", "running") for n in range(MOST + 1)])) == 1


def test_texts_from_the_log_stay_texts() -> None:
    """Every name that a log can hold is an attack: no element and no attribute comes of it, in both pages."""
    one = seen(evil_run())
    pages = [run_page("/x", [one], 0, "v"), workload_page("/x", [one], 0, 0, "v")]
    for page in pages:
        found = Elements(page)
        assert found.count("script") == 0  # it is over: nothing follows it
        assert found.count("style") == 0
        assert "<script>alert" in found.text
        assert not any(name.startswith("on") for _, attributes in found.tags for name in attributes)


class Shown:
    """`egs dashboard` as a process of its own. url: what it has printed."""

    def __init__(self, *words: object) -> None:
        command = [sys.executable, "-m", "egs_core.cli.app", "dashboard", *map(str, words)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"http://\S+", line)
        assert found is not None, line
        self.url = found[0]
        self.port, self.home = urlsplit(self.url).port, urlsplit(self.url).path

    def get(self, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, path, headers=headers)
        found = connection.getresponse()
        text = found.read().decode()
        connection.close()
        return found.status, {name.lower(): value for name, value in found.getheaders()}, text

    def close(self) -> int:
        self.process.send_signal(signal.SIGINT)
        with self.process:
            return self.process.wait(60)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "run.jsonl"
    write_run(path, Header(label="mine"), going_on())
    return path


@pytest.fixture
def shown(log: Path) -> Iterator[Shown]:
    one = Shown(log)
    yield one
    assert one.close() == 0


def test_only_who_knows_the_address_sees_it(shown: Shown) -> None:
    """Other users of the host reach the port, and other sites' pages a browser of it: neither has the secret, and a
    name that was bound to 127.0.0.1 elsewhere is refused. Nothing can be changed; what comes has a strict policy."""
    status, headers, page = shown.get(shown.home)
    assert (status, "EGS: mine" in page) == (200, True)
    assert (headers["content-security-policy"], headers["referrer-policy"]) == (POLICY, "no-referrer")
    for path in ("/", "/dashboard", "/dashboard/", "/dashboard/x/run/0", shown.home[:-1], shown.home.upper()):
        status, _, page = shown.get(path)
        assert (status, "mine" in page) == (403, False), path
    for host in ("evil.example", f"evil.example:{shown.port}", ""):
        assert shown.get(shown.home, Host=host)[0] == 421, host
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert shown.get(shown.home, method)[0] == 501
    for path in ("run/1", "run/x", "run/-1", "run/0/workload/9", "run/٣", "../app.py", "app.py", "run/0/workload"):
        assert shown.get(f"{shown.home}/{path}".replace("٣", "%d9%a3"))[0] == 404, path


def test_a_log_that_grows_is_shown_as_far_as_it_has_come(shown: Shown, log: Path) -> None:
    """The version is another one, and the page has what was added. A log that is gone is an answer that says so."""
    before = shown.get(f"{shown.home}/version")[2]
    assert before in shown.get(shown.home)[2]
    write_run(log, Header(label="mine"), [*going_on(), Ended(11.0, "w", "b", outcome="failed")])
    assert shown.get(f"{shown.home}/version")[2] != before
    assert "1 failed" in shown.get(shown.home)[2]
    log.unlink()
    status, _, page = shown.get(shown.home)
    assert (status, "no such file" in page) == (503, True)


def test_wrong_input_is_an_error(tmp_path: Path, log: Path, capsys: pytest.CaptureFixture[str], shown: Shown) -> None:
    """A file that is none, one that is no run log, prices without this node's, a port that is taken: exit code 2."""
    other = tmp_path / "other.txt"
    other.write_text("hello\n")
    prices = tmp_path / "prices.yaml"
    flavors = "flavors: [{name: a, prices: [{since: 2026-01-01, on_demand: 3}]}]"
    prices.write_text(f"currency: EUR\n{flavors}\nnodes: [{{name: m, flavor: a}}]\n")
    for wrong in (["gone.jsonl"], [str(other)], [str(log), "--prices", str(prices)], [str(log), "--port", shown.port]):
        assert app.run(["dashboard", *map(str, wrong)]) == 2, wrong
        assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.browser
@pytest.mark.skipif(find_chromium() is None, reason="no Chromium on this machine to look at the page with")
def test_in_a_browser(tmp_path: Path) -> None:
    """On a phone and a desktop, light and dark: no message, no request to another host, nothing beside the page, and
    nothing grave that axe would find; of pages of a run that goes on, one that is over, graphs, and hostile names."""
    logs = [tmp_path / f"{name}.jsonl" for name in ("live", "over", "evil")]
    write_run(logs[0], Header(label="live"), going_on())
    for log, run in zip(logs[1:], (made_run("egs"), evil_run()), strict=True):
        write_run(log, run.header, run.records)
    shown = Shown(*logs)
    program = find_chromium()
    assert program is not None
    try:
        with Page(program, tmp_path / "profile") as page:
            for width, dark in ((360, False), (1280, False), (1280, True)):
                for path in [f"run/{n}{more}" for n in range(3) for more in ("", "/workload/0")]:
                    page.open(f"{shown.url}/{path}", width, dark=dark)
                    assert page.problems == [], path
                    assert {urlsplit(request).netloc for request in page.requests} == {f"127.0.0.1:{shown.port}"}
                    assert page.evaluate(OVERFLOW) <= 0, path
                    assert grave(page) == [], path
            page.open(f"{shown.url}/run/0", 1280)
            page.evaluate("document.getElementById('follow').click()")
            page.open(f"{shown.url}/run/0", 1280)
            assert page.evaluate("document.getElementById('follow').checked") is False  # it is remembered
    finally:
        assert shown.close() == 0


def test_the_report_is_there(log: Path) -> None:
    """All logs side by side, with that page's own policy."""
    status, kind, policy, text = answer(Logs([log]), "/x", "/x/report")
    assert (status, kind, "script-src 'unsafe-inline'" in policy) == (200, "text/html", True)
    assert "EGS report" in text
