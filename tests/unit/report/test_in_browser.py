"""The page in a real Chromium: no error, no request, no sideways scrolling, and the charts answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from egs_core.report.build import write_report
from egs_core.runlog.io import Run
from egs_core.runlog.records import Capacity, Ended, Header, Record, Started, Used, WorkloadSubmitted
from tests.unit.report.axe import grave
from tests.unit.report.chromium import Page, find_chromium
from tests.unit.report.made_runs import made_run
from tests.unit.report.test_page import evil_run

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(find_chromium() is None, reason="no Chromium on this machine to look at the page with"),
]

OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
TEXT_CUT = """[...document.querySelectorAll('.card *, h1, .was')].filter(e => e.scrollWidth > e.clientWidth + 1
    && getComputedStyle(e).display !== 'inline' && !e.classList.contains('unseen')).map(e => e.outerHTML)"""
INK = """(() => { const c = document.querySelector('canvas[data-timeline]'), x = c.getContext('2d');
    const d = x.getImageData(0, 0, c.width, c.height).data, seen = new Set();
    for (let i = 0; i < d.length; i += 4) seen.add(d[i] + ',' + d[i+1] + ',' + d[i+2]); return seen.size; })()"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    program = find_chromium()
    assert program is not None
    with Page(program, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a page that compares two runs."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    return write_report([made_run("native"), made_run("egs")], path).as_uri()


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [360, 390, 768, 1280])
def test_page_fits_and_is_quiet(page: Page, report: str, width: int, dark: bool) -> None:
    """No console message, no request but the page itself, no overflow, no cut text, and something is drawn."""
    page.open(report, width, dark=dark)
    assert page.problems == []
    assert page.requests == [report]
    assert page.evaluate(OVERFLOW) <= 0
    assert page.evaluate(TEXT_CUT) == []
    assert page.evaluate(INK) > 10


@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_nothing_grave(page: Page, report: str, tmp_path: Path, dark: bool) -> None:
    """Of a page that compares, and of one that does not, which is what `egs audit -o` writes."""
    alone = write_report([made_run("native"), evil_run()], tmp_path / "audit.html", compare=False).as_uri()
    for url in (report, alone):
        page.open(url, 1280, dark=dark)
        assert grave(page) == []


def test_axe_finds_what_is_grave(page: Page, tmp_path: Path) -> None:
    """A field without a name, and text that is hardly there."""
    bad = tmp_path / "bad.html"
    bad.write_text("<!doctype html><html lang=en><title>x</title><main><h1>x</h1><input><p style='color:#ddd'>pale")
    page.open(bad.as_uri(), 1280)
    assert {line.partition(":")[0] for line in grave(page)} == {"label", "color-contrast"}


def test_dark_mode_is_dark(page: Page, report: str) -> None:
    """The browser's wish for dark changes the paper, of the page and of the charts."""
    corner = "[...document.querySelector('canvas').getContext('2d').getImageData(1, 1, 1, 1).data].slice(0, 3)"
    page.open(report, 800, dark=False)
    light = page.evaluate(corner)
    page.open(report, 800, dark=True)
    assert min(light) > 200
    assert max(page.evaluate(corner)) < 60


def test_bars_can_be_read_by_pointer_and_by_keyboard(page: Page, report: str) -> None:
    """Pointing at a bar of GPU 0 and stepping with the arrow keys tell what it is."""
    page.open(report, 1280)
    canvas = "document.querySelector('canvas[data-timeline]')"
    page.evaluate(f"{canvas}.scrollIntoView({{block: 'center'}})")
    box = page.evaluate(f"(({{x, y, width}}) => [x, y, width])({canvas}.getBoundingClientRect())")
    page.mouse("mouseMoved", box[0] + box[2] / 2, box[1] + 14)
    pointed = page.evaluate("document.querySelector('[data-readout]').textContent")
    assert "GPU 0" in pointed
    assert "cold start" in pointed
    page.evaluate(f"{canvas}.focus()")
    page.key("ArrowRight")
    stepped = page.evaluate("document.querySelector('[data-readout]').textContent")
    assert "GPU 0" in stepped
    assert stepped != pointed


def test_zoom_and_colours_answer(page: Page, report: str) -> None:
    """Buttons change the picture; choosing `kind` shows its legend and hides the other."""
    page.open(report, 1280)
    picture = "document.querySelector('canvas[data-timeline]').toDataURL()"
    drawn = "new Promise(r => requestAnimationFrame(() => requestAnimationFrame(() => r(1))))"
    first = page.evaluate(picture)
    page.evaluate("document.querySelector('[data-zoom=in]').click()")
    page.evaluate(drawn)
    zoomed = page.evaluate(picture)
    page.evaluate("document.querySelector('[data-zoom=all]').click()")
    page.evaluate(drawn)
    assert zoomed != first
    assert page.evaluate(picture) == first
    page.evaluate("document.querySelector('input[value=kind]').click()")
    page.evaluate(drawn)
    assert page.evaluate(picture) != first
    assert page.evaluate("[...document.querySelectorAll('[data-colour]')].map(e => e.hidden)") == [True, False]


def test_table_instead_of_the_chart(page: Page, report: str) -> None:
    """Opening the details of a run lists all its phases as text."""
    page.open(report, 390)
    page.evaluate("document.querySelector('[data-phases] details').open = true")
    page.evaluate("new Promise(r => setTimeout(() => r(1), 0))")
    assert page.evaluate("document.querySelectorAll('[data-phases=\"0\"] tbody tr').length") == 54
    assert page.evaluate(OVERFLOW) <= 0


def test_hostile_names_do_not_run(page: Page, tmp_path: Path) -> None:
    """A log full of `<script>` runs nothing, also after its names were written into the page by the page's script."""
    page.open(write_report([evil_run(), evil_run()], tmp_path / "evil.html").as_uri(), 390)
    page.evaluate("document.querySelectorAll('details').forEach(e => { e.open = true; })")
    page.evaluate("new Promise(r => setTimeout(() => r(1), 0))")
    assert page.problems == []
    assert page.evaluate("document.querySelectorAll('script').length") == 2
    assert page.evaluate(OVERFLOW) <= 0


def test_long_names_do_not_widen_a_phone(page: Page, tmp_path: Path) -> None:
    """Names of 200 letters without a break wrap, shorten or scroll inside their box."""
    run = made_run("egs", pipelines=2)
    run.header = Header(label="x" * 200, driver="ray", policy="egs")
    run.records += [WorkloadSubmitted(0, "y" * 200, tenant="z" * 200), Capacity(0, "n" * 200, gpus=1)]
    page.open(write_report([run, made_run("native", pipelines=2)], tmp_path / "long.html").as_uri(), 360)
    assert page.evaluate(OVERFLOW) <= 0


def test_ten_thousand_phases_are_drawn_at_once(page: Page, tmp_path: Path) -> None:
    """Drawing 10,000 phases with patterns takes less than a second, on a machine without a graphics card."""
    records: list[Record] = [Capacity(0, "n", cpus=8, gpus=8), WorkloadSubmitted(0, "w")]
    for n in range(10_000):
        task, t = f"task-{n}", n / 8
        started = Started(t, "w", task, node="n", devices=(n % 8,), cpus=1, gpus=1)
        records += [started, Used(t + 0.2, t + 0.7, "w", task), Ended(t + 0.9, "w", task)]
    page.open(write_report([Run(Header(), records)], tmp_path / "big.html").as_uri(), 1280)
    assert page.problems == []
    seconds = page.evaluate("""new Promise(r => { const began = performance.now();
        document.querySelector('[data-zoom=in]').click();
        requestAnimationFrame(() => { document.querySelector('canvas').getContext('2d').getImageData(0, 0, 1, 1);
            r((performance.now() - began) / 1000); }); })""")
    assert seconds < 1
