"""The page's text: the right figures, nothing fetched, and nothing in a log can break out of its place."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from egs_core.errors import InputError
from egs_core.report import units
from egs_core.report.build import write_report
from egs_core.report.chart_data import COLD, UNUSED, run_chart
from egs_core.report.compare import Card, cards, compared, headline, shown_runs
from egs_core.report.html import Markup, json_script, tag
from egs_core.report.lanes import lay_out
from egs_core.report.page import render_page
from egs_core.runlog.io import Run, write_run
from egs_core.runlog.records import (
    Capacity,
    ColdStart,
    Ended,
    Header,
    Record,
    Started,
    TaskAdded,
    Used,
    WorkloadSubmitted,
)
from egs_core.runlog.timeline import build_timeline
from tests.unit.report.made_runs import made_run

EVIL = "<script>alert('x')</script>\"&</style>"


class Elements(HTMLParser):
    """Every start tag with its attributes, and the text outside scripts and styles."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._inside = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_data(self, data: str) -> None:
        if self._inside not in ("script", "style"):
            self.text += data

    def count(self, name: str) -> int:
        return sum(tag == name for tag, _ in self.tags)


def evil_run() -> Run:
    """A run in which every text that a log can hold is an attack."""
    records: list[Record] = [
        Capacity(0, EVIL, cpus=1, gpus=1),
        WorkloadSubmitted(0, EVIL, name=EVIL, tenant=EVIL, queue=EVIL),
        TaskAdded(0, EVIL, EVIL, EVIL, phases=(("gpu", 1, 1, 0),)),
        Started(0, EVIL, EVIL, node=EVIL, devices=(0,), cpus=1, gpus=1),
        Ended(1, EVIL, EVIL, outcome=EVIL),
    ]
    return Run(Header(label=EVIL, policy=EVIL, driver=EVIL, mode=EVIL), records)


def test_texts_from_the_log_stay_texts() -> None:
    """A workload, task, node, tenant and label named `<script>` add no element to the page."""
    plain, evil = Elements(render_page([made_run("egs")])), Elements(render_page([evil_run(), evil_run()]))
    assert evil.count("script") == plain.count("script") == 2
    assert evil.count("style") == 1
    assert "<script>alert" in evil.text
    assert not any(name.startswith("on") for _, attributes in evil.tags for name in attributes)


def test_data_of_the_page_is_what_the_log_says() -> None:
    """The data element holds valid JSON with the attacked name unchanged."""
    html = render_page([evil_run()])
    found = re.search(r'<script type="application/json" id="egs-data">(.*?)</script>', html)
    assert found is not None
    (run,) = json.loads(found.group(1))["runs"]
    assert run["names"][0] == EVIL
    assert run["lanes"][0]["bars"][0][:2] == [0, 1]


def test_page_is_self_contained() -> None:
    """Nothing in the page names another file or address."""
    html = render_page([made_run("native"), made_run("egs")])
    attributes = [(name, value) for _, found in Elements(html).tags for name, value in found.items()]
    assert [value for name, value in attributes if name in ("src", "href", "action", "data")] == ["data:,"]
    assert "http://" not in html
    assert "https://" not in html
    assert not re.search(r"@import|url\(", html)


def test_emulated_gpus_are_labelled() -> None:
    """The label is on every run that has emulated GPUs, and only there."""
    emulated, real = made_run("egs"), made_run("egs")
    real.header = Header(policy="egs")
    assert Elements(render_page([emulated])).text.count("emulated GPUs") >= 3
    assert "emulated GPUs" not in Elements(render_page([real])).text


def test_native_is_before_wherever_it_stands() -> None:
    """The log under policy native is before; without one it is the first; after is the one under policy egs."""
    egs, native, other = made_run("egs"), made_run("native"), made_run("egs")
    other.header = Header(policy="fifo")
    for runs, names in (([egs, other, native], ("native", "egs")), ([other, egs], ("fifo", "egs"))):
        comparison = compared(shown_runs(runs))
        assert comparison is not None
        assert comparison.names == names
    assert compared(shown_runs([native])) is None


def test_runs_of_one_name_can_be_told_apart() -> None:
    """Two logs with one label get numbers."""
    assert [s.title for s in shown_runs([made_run("egs"), made_run("egs")])] == ["egs #1", "egs #2"]


def two_runs(before_s: float, after_s: float) -> tuple[Run, Run]:
    """One GPU task each: before, half of it is a cold start with nothing else; after, it is warm."""

    def run(policy: str, seconds: float, cold_s: float) -> Run:
        records: list[Record] = [
            Capacity(0, "n", cpus=1, gpus=1),
            WorkloadSubmitted(0, "w"),
            Started(0, "w", "t", node="n", devices=(0,), cpus=1, gpus=1),
            *([ColdStart(0, cold_s, "w", "t")] if cold_s else []),
            Ended(seconds, "w", "t"),
        ]
        return Run(Header(policy=policy), records)

    return run("native", before_s, before_s / 2), run("egs", after_s, 0)


def page_of(runs: list[Run]) -> tuple[str, dict[str, Card]]:
    """The headline and the cards of a comparison."""
    shown = shown_runs(runs)
    comparison = compared(shown)
    return headline(comparison, shown[0]), {card.name: card for card in cards(comparison, shown[0])}


def test_cards_say_how_it_changed() -> None:
    """10 s half wasted against 5 s with no waste: every card has both figures, and better is better."""
    said, made = page_of(list(two_runs(10, 5)))
    minus, space = "\N{MINUS SIGN}", units.NBSP
    assert made["Makespan"] == Card("Makespan", f"5{space}s", f"10{space}s", f"{minus}50{space}%", True)
    wasted = made["Wasted GPU time"]
    assert (wasted.before, wasted.change, wasted.better) == (f"50.0{space}%", f"{minus}50.0{space}points", True)
    assert made["Useful GPU time"].change == f"+50.0{space}points"
    assert (made["Cold starts"].change, made["Cold starts"].better) == (f"{minus}1", True)
    times = "egs ended 2.0\N{MULTIPLICATION SIGN} sooner in one pair of runs"
    assert said == f"{times}: 5{space}s instead of 10{space}s."


def test_cards_do_not_hide_a_loss() -> None:
    """When EGS is slower the page says so."""
    said, made = page_of(list(two_runs(5, 10)))
    assert (made["Makespan"].change, made["Makespan"].better) == (f"+100{units.NBSP}%", False)
    assert "later" in said


def test_one_pair_within_the_noise_is_no_headline() -> None:
    """8.4 s and 9.0 s, once each: neither sooner nor later, neither better nor worse."""
    for before_s, after_s in ((9.0, 8.4), (8.4, 9.0), (5.0, 5.0)):
        said, made = page_of(list(two_runs(before_s, after_s)))
        assert said.startswith("One pair of runs, no claim")
        assert made["Makespan"].better is made["Mean job time"].better is None
        assert not re.search("sooner|later", said)


def test_several_pairs_are_a_headline_where_they_agree() -> None:
    """Medians, their interval, and how many; where the pairs do not agree it is said that there is no claim."""
    agreeing = [run for pair in ((10.4, 9.4), (10.5, 9.5), (10.6, 9.4)) for run in two_runs(*pair)]
    said, made = page_of(agreeing)
    assert "the median of 3 pairs of runs" in said
    assert "sooner" in said
    assert made["Makespan"].before == f"10.5{units.NBSP}s"
    assert made["Makespan"].better is True
    scattered = [run for pair in ((10.0, 8.0), (8.0, 10.0), (9.0, 8.5)) for run in two_runs(*pair)]
    said, made = page_of(scattered)
    assert said.startswith("No claim from 3 pairs of runs")
    assert made["Makespan"].better is None


def test_a_simulation_has_no_noise() -> None:
    """Two simulated runs that differ by 5 % do differ."""
    runs = list(two_runs(1.05, 1.0))
    for run in runs:
        run.header = msgspec.structs.replace(run.header, driver="sim")
    assert "sooner" in page_of(runs)[0]


def test_runs_of_other_tasks_are_not_compared(tmp_path: Path) -> None:
    """The error names what differs; no page is written. Where nothing is compared each run is shown for itself."""
    runs = [made_run("native", trainings=3), made_run("egs", trainings=5)]
    page = tmp_path / "report.html"
    with pytest.raises(InputError, match=r"42 tasks in .*, 54 in .*; only in .*: 6 x train-3, 6 x train-4"):
        write_report(runs, page)
    assert not page.exists()
    assert "2 runs, not compared" in write_report(runs, page, compare=False).read_text(encoding="utf-8")
    assert "sooner" in write_report(runs, page, same_work=True).read_text(encoding="utf-8")


def test_held_but_unused_and_cold_parts_reach_the_chart() -> None:
    """a holds a GPU from 2 to 10, cold to 4, used 5 to 8: unused are 4-5 and 8-10, less the submission at 1."""
    records: list[Record] = [
        Capacity(0, "n", cpus=1, gpus=2),
        WorkloadSubmitted(1, "w"),
        Started(2, "w", "a", node="n", devices=(1,), cpus=1, gpus=1),
        ColdStart(2, 4, "w", "a"),
        Used(5, 8, "w", "a"),
        Ended(10, "w", "a"),
    ]
    chart = run_chart(build_timeline(records), "t")
    idle, busy = chart["lanes"]
    assert (idle["name"], idle["bars"], busy["name"]) == ("GPU 0", [], "GPU 1")
    start, end, *_, parts = busy["bars"][0]
    assert (start, end) == (1, 9)
    assert sorted(parts) == [[UNUSED, 3, 4], [UNUSED, 7, 9], [COLD, 1, 3]]
    assert sum(chart["flows"]["gpu"]["useful"]) / len(chart["flows"]["gpu"]["useful"]) == pytest.approx(3 / 9, abs=1e-3)


def test_ids_that_are_only_numbers_have_names() -> None:
    """A bar of a task whose id a framework has drawn is called by the task's name and how the id begins."""
    task = "57d80a5a4ac40d46" + "f" * 24
    records: list[Record] = [
        Capacity(0, "n", cpus=1, gpus=1),
        WorkloadSubmitted(0, "w"),
        TaskAdded(0, "w", task, name="train"),
        Started(1, "w", task, node="n", devices=(0,), cpus=1, gpus=1),
        Ended(2, "w", task),
    ]
    (name,) = [one for one in run_chart(build_timeline(records), "t")["names"] if "train" in one]
    assert task not in name
    assert "57d8" in name


def test_lanes_never_overlap_and_lose_nothing() -> None:
    """Every phase is in a lane once per device, and bars of one lane follow each other."""
    line = build_timeline(made_run("native").records)
    lanes = lay_out(line)
    assert sum(len(lane.bars) for lane in lanes) == len(line.holds)
    for lane in lanes:
        ends = [bar.end_s for bar in lane.bars]
        starts = [bar.start_s for bar in lane.bars]
        assert all(start >= end - 1e-9 for start, end in zip(starts[1:], ends[:-1], strict=True))
    assert [lane.name for lane in lanes if lane.group == "gpu"] == ["GPU 0", "GPU 1"]


def test_shares_of_one_gpu_stand_below_each_other() -> None:
    """Two halves of one device at once: two rows, of which the first has the name."""
    records: list[Record] = [Capacity(0, "n", cpus=2, gpus=1), WorkloadSubmitted(0, "w")]
    for task in ("a", "b"):
        records += [Started(0, "w", task, node="n", devices=(0,), gpus=0.5), Ended(1, "w", task)]
    assert [lane.name for lane in lay_out(build_timeline(records))] == ["GPU 0", ""]


def test_gpus_that_nobody_named_have_rows_of_their_node() -> None:
    """As the table of GPUs has it: what is held is not idle beside that, and a node's other rows are what is left."""
    records: list[Record] = [
        Capacity(0, "m", cpus=2, gpus=2),
        Capacity(0, "n", cpus=4, gpus=4),
        WorkloadSubmitted(0, "w"),
        Started(0, "w", "a", node="n", gpus=1),
        Started(0, "w", "b", node="n", gpus=2),
        Ended(1, "w", "a"),
        Ended(1, "w", "b"),
    ]
    found = [(lane.name, len(lane.bars)) for lane in lay_out(build_timeline(records))]
    untold = [("n, which GPU is not told", 1), ("", 1), ("", 1), ("", 0)]
    assert found == [("m GPU 0", 0), ("m GPU 1", 0), *untold]


@pytest.mark.parametrize(
    "records",
    [
        [],
        [WorkloadSubmitted(0, "w")],
        [Capacity(0, "n", cpus=1, gpus=1)],
        [Started(0, "w", "a", gpus=1), Ended(0, "w", "a")],
        [Started(5, "w", "a", devices=(0, 1), gpus=2)],
    ],
)
def test_poor_logs_give_a_page(records: list[Record]) -> None:
    """Empty, without capacity, of no length, broken off: there is a page, and no figure is invented."""
    assert "</html>" in render_page([Run(Header(), records)])
    assert "</html>" in render_page([Run(Header(started_at=1e300), records), made_run("egs")])


def test_ten_thousand_phases_stay_small() -> None:
    """A page with 10,000 phases is below 2 MB: it opens on a phone."""
    records: list[Record] = [Capacity(0, "n", cpus=8, gpus=8), WorkloadSubmitted(0, "w")]
    for n in range(10_000):
        started = Started(n / 8, "w", f"task-{n}", node="n", devices=(n % 8,), cpus=1, gpus=1)
        records += [started, ColdStart(n / 8, n / 8 + 0.3, "w", f"task-{n}"), Ended(n / 8 + 0.9, "w", f"task-{n}")]
    assert len(render_page([Run(Header(), records)]).encode()) < 2_000_000


def test_output_problems_are_named(tmp_path: Path) -> None:
    """A folder, a missing folder, one of the logs themselves, no log at all: an InputError, and the log is unharmed."""
    log = tmp_path / "log.jsonl"
    run = made_run("egs")
    write_run(log, run.header, run.records)
    run.path = str(log)
    before = log.read_bytes()
    with pytest.raises(InputError, match="is a folder"):
        write_report([run], tmp_path)
    with pytest.raises(InputError, match="cannot be written"):
        write_report([run], tmp_path / "none" / "report.html")
    with pytest.raises(InputError, match="is one of the run logs"):
        write_report([run], log)
    with pytest.raises(InputError, match="no run logs"):
        write_report([], tmp_path / "report.html")
    assert log.read_bytes() == before
    assert list(tmp_path.iterdir()) == [log]


def test_html_builder() -> None:
    """Texts and attributes are escaped, markup is not; None and False attributes are left out."""
    assert tag("p", "a<b", Markup("<i>"), None, class_='x"y', hidden=True, id=None) == (
        '<p class="x&quot;y" hidden>a&lt;b<i></p>'
    )
    assert tag("input", name="n", checked=False) == '<input name="n">'
    assert "</script><" not in json_script("d", "</script><b>")[:-9]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "\N{EN DASH}"),
        (0, "0 s"),
        (0.254, "0.25 s"),
        (36.1, "36.1 s"),
        (245, "245 s"),
        (605, "10 min 05 s"),
        (9000, "2 h 30 min"),
    ],
)
def test_seconds_are_readable(value: float | None, text: str) -> None:
    """Three digits, then minutes, then hours."""
    assert units.seconds(value).replace(units.NBSP, " ") == text


def test_long_names_keep_both_ends() -> None:
    """A name that is too long loses its middle, and one that fits loses nothing."""
    assert units.short("a" * 40) == "a" * 40
    assert units.short("start" + "x" * 200 + "-end!", 11) == "start…-end!"
