"""The dashboard in a real Chromium, at a real `egs serve`: it fits, is quiet, answers to keys, and names are text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from egs_core.client.messages import Control, DriverRequest, Leave, Poll
from egs_core.engine import messages as m
from egs_core.graph.columns import GPU, Graph, Shape
from egs_core.site import wire
from tests.unit.report.axe import grave
from tests.unit.report.chromium import Page, find_chromium
from tests.unit.server.real_site import PATIENCE_S, RealSite, wait_for

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(find_chromium() is None, reason="no Chromium on this machine to look at the page with"),
]

EVIL = "<img src=x onerror='document.title=1'><script>document.title=2</script>"
LONG = "n" * 180
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
UNNAMED = """[...document.querySelectorAll('button, input:not([type=hidden]), a, table, dialog, [role=region]')]
    .filter(e => !(e.textContent.trim() && e.matches('button, a')) && !e.getAttribute('aria-label')
    && !e.getAttribute('aria-labelledby') && !e.labels?.length && !e.caption).map(e => e.outerHTML)"""
HEADERS = """[...document.querySelectorAll('table')].every(t => [...t.tHead.rows[0].cells].every(c => c.scope === 'col')
    && [...t.tBodies[0].rows].every(r => r.cells[0].scope === 'row'))"""
IDS = """(() => { const ids = [...document.querySelectorAll('[id]')].map(e => e.id);
    return ids.length - new Set(ids).size; })()"""
CONTRAST = """(() => { const style = getComputedStyle(document.body);
    const [ink, paper] = [style.color, style.backgroundColor].map(c => c.match(/\\d+/g).slice(0, 3)
    .map(v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, n) => sum + v * [.2126, .7152, .0722][n], 0));
    return (Math.max(ink, paper) + .05) / (Math.min(ink, paper) + .05); })()"""


class Seen:
    """A site with a run that has the only GPU, and one that waits, both with hostile names; and a browser."""

    def __init__(self, site: RealSite, page: Page) -> None:
        self.site, self.page = site, page
        self.url = f"{site.ready['url']}/dashboard"
        site.run("--gpus", "1", "--name", EVIL, "--", "sleep", "600")
        wait_for(lambda: site.devices()["0"], "the first one has the GPU")
        site.run("--gpus", "1", "--name", LONG, "--", "sleep", "600")
        wait_for(lambda: LONG in site.queued(), "the second one waits")

    def log_in(self) -> None:
        self.page.open(self.url, 1280)
        token = Path(self.site.ready["token"]).read_text().strip()
        self.page.evaluate(f"document.getElementById('token').value = {token!r}")
        self.page.evaluate("document.querySelector('form').requestSubmit()")
        self.until("document.title === 'EGS: dashboard'", "the page is there")

    def open_page(self, path: str, part: str, width: int = 1280, dark: bool = False) -> None:
        """One that is made of parts, once this one is there."""
        self.page.open(self.url + path, width, dark=dark)
        self.until(f"document.querySelector('#part-{part} *') !== null", f"{part} of {path} is there")

    def until(self, script: str, words: str) -> Any:
        return wait_for(lambda: self._asked(script), words)

    def open(self, width: int, dark: bool = False) -> None:
        self.page.open(self.url, width, dark=dark)
        self.until("document.querySelectorAll('#waiting tbody tr').length", "its rows are there")

    def _asked(self, script: str) -> Any:
        try:
            return self.page.evaluate(script)
        except (AssertionError, RuntimeError):  # the page is being left
            return None


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    program = find_chromium()
    assert program is not None
    site = RealSite(tmp_path_factory.mktemp("s") / "s", gpus=1)
    prices = site.folder / "prices.yaml"
    prices.write_text("currency: EUR\nflavors: [{name: a, prices: [{since: 2020-01-01, on_demand: 3.2}]}]")
    site.start("--prices", str(prices))
    try:
        with Page(program, tmp_path_factory.mktemp("profile")) as page:
            found = Seen(site, page)
            found.log_in()
            yield found
    finally:
        site.close()


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [360, 1280])
def test_it_fits_and_is_quiet(seen: Seen, width: int, dark: bool) -> None:
    """No console message, no request to another host, no sideways scrolling, on a phone too; each control and table has
    a name, each cell its headers, and ink and paper differ enough."""
    seen.open(width, dark)
    page = seen.page
    assert page.problems == []
    assert len(page.requests) >= 4
    assert {request.split("/dashboard")[0] for request in page.requests} == {seen.site.ready["url"]}
    assert page.evaluate(OVERFLOW) <= 0
    assert page.evaluate(UNNAMED) == []
    assert page.evaluate(HEADERS)
    assert page.evaluate(IDS) == 0
    assert page.evaluate(CONTRAST) > 7
    assert (page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 22, 26)") == dark


@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_nothing_grave(seen: Seen, dark: bool) -> None:
    """Of the login page, of the dashboard, and of the question before a change."""
    seen.page.open(f"{seen.url}/login", 1280, dark=dark)
    assert grave(seen.page) == []
    seen.open(1280, dark)
    assert grave(seen.page) == []
    seen.page.evaluate("document.querySelector('#running button[data-verb=abort]').click()")
    assert seen.page.evaluate("document.querySelector('dialog').open")
    assert grave(seen.page) == []
    seen.page.press("Escape")


def test_hostile_names_are_text(seen: Seen) -> None:
    """The name is there to be read, and nothing in it was run or loaded."""
    seen.open(1280)
    shown = seen.page.evaluate("document.querySelector('#running tbody th').textContent")
    assert shown.endswith(EVIL)
    assert seen.page.evaluate("document.querySelectorAll('main img, main script').length") == 0
    assert seen.page.evaluate("document.title") == "EGS: dashboard"
    assert seen.page.problems == []
    refused = "(() => { try { document.body.innerHTML = '<b>x</b>'; } catch (error) { return error.name; } })()"
    assert seen.page.evaluate(refused) == "TypeError"


def test_by_keys_alone(seen: Seen) -> None:
    """Tab to a button, Enter, a reason, Enter: the run is paused, by the server's word, and the row says so by itself;
    while rows change the button keeps the focus. Escape leaves a question without an answer."""
    seen.open(1280)
    run = seen.site.queued()[LONG]
    focused = "document.activeElement"
    seen.page.evaluate("document.querySelector('#running button[data-verb=abort]').focus()")
    third = seen.site.run("--gpus", "1", "--name", "third", "--", "sleep", "600")
    seen.until("document.querySelectorAll('#waiting tbody tr').length === 2", "the third one is shown")
    assert seen.page.evaluate(f"{focused}.getAttribute('aria-label')").startswith("Abort")
    seen.page.evaluate("document.querySelector('#waiting button[data-verb=pause]').focus()")
    seen.page.press("Enter")
    assert seen.page.evaluate("document.querySelector('dialog').open")
    seen.page.press("Escape")
    assert not seen.page.evaluate("document.querySelector('dialog').open")
    assert {one.id: one.state for one in seen.site.client.runs().runs}[run] == "waiting"
    assert seen.page.evaluate(f"{focused}.dataset.verb") == "pause"
    seen.page.press("Enter")
    assert seen.page.evaluate(f"{focused}.id") == "reason"
    seen.page.press("Enter")
    seen.until("document.querySelectorAll('#waiting button[data-verb=resume]').length === 1", "it is shown as paused")
    assert seen.page.evaluate(f"{focused}.dataset.verb") == "resume"
    assert {one.id: one.state for one in seen.site.client.runs().runs}[run] == "paused"
    assert not seen.page.evaluate("document.querySelector('dialog').open")
    seen.site.client.control(seen.site.queued()["third"], "abort", Control(grace_s=0))
    third.wait(PATIENCE_S)


def test_a_priority_by_keys_alone(seen: Seen) -> None:
    """The question has the priority of now, takes a number, and the row then has it; axe finds nothing grave. The row
    has moved up then, and its button still has the focus."""
    urgent = seen.site.run("--gpus", "1", "--name", "more-urgent", "--", "sleep", "600")
    seen.open(1280)
    row = "[...document.querySelectorAll('#waiting tbody tr')].find(tr => tr.textContent.includes('more-urgent'))"
    seen.until(row + "?.textContent", "it is shown")
    seen.page.evaluate(f"{row}.querySelector('button[data-verb=priority]').focus()")
    seen.page.press("Enter")
    assert seen.page.evaluate("[document.activeElement.id, document.activeElement.value]") == ["number", "0"]
    assert grave(seen.page) == []
    seen.page.evaluate("document.activeElement.value = '12'")
    seen.page.press("Enter")
    seen.until(f"[...{row}.cells].some(cell => cell.textContent === '12')", "the row has it")
    assert seen.page.evaluate("document.activeElement.dataset.verb") == "priority"
    assert next(one.priority for one in seen.site.client.runs().runs if one.name == "more-urgent") == 12
    seen.site.client.control(seen.site.queued()["more-urgent"], "abort", Control(grace_s=0))
    urgent.wait(PATIENCE_S)


@pytest.fixture(scope="module")
def chained(seen: Seen) -> Iterator[str]:
    """A run that comes after the one that waits."""
    if {one.name: one.state for one in seen.site.client.runs().runs}[LONG] == "paused":  # by a test before
        seen.site.client.control(seen.site.queued()[LONG], "resume", Control())
    begun = seen.site.run("--name", EVIL + "after", "--after", seen.site.queued()[LONG], "--", "sleep", "600")
    run = wait_for(lambda: seen.site.queued().get(EVIL + "after"), "it waits for the other")
    yield run
    seen.site.client.control(run, "abort", Control(grace_s=0))
    begun.wait(PATIENCE_S)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [360, 1280])
def test_pages_of_parts_fit_and_are_quiet(seen: Seen, chained: str, width: int, dark: bool) -> None:
    """Usage, the list, and a graph: no message, nothing from elsewhere, nothing beside the page, nothing grave for axe;
    names are texts, also those in the picture, and nothing of them has run."""
    for path, part in (("/usage", "time"), ("/workloads", "list"), (f"/workloads/{chained}", "graph")):
        seen.open_page(path, part, width, dark)
        page = seen.page
        assert page.problems == [], path
        assert {request.split("/dashboard")[0] for request in page.requests} == {seen.site.ready["url"]}
        assert page.evaluate(OVERFLOW) <= 0, path
        assert page.evaluate(UNNAMED) == []
        assert page.evaluate(HEADERS)
        assert page.evaluate(IDS) == 0
        assert grave(page) == [], path
        assert page.evaluate("document.querySelectorAll('main img, main script').length") == 0
        shown = page.evaluate("document.querySelector('main').textContent")
        assert (EVIL in shown, " EUR" in shown) == ((False, True) if part == "time" else (True, False))
        assert page.evaluate("document.title").startswith("EGS: usage" if part == "time" else "EGS: workload")
    boxes = "[...document.querySelectorAll('svg.graph g')].map(g => [g.getAttribute('class'), g.namespaceURI])"
    svg = "http://www.w3.org/2000/svg"
    assert seen.page.evaluate(boxes) == [["waiting critical", svg], ["pending critical", svg]]
    assert seen.page.evaluate("document.querySelectorAll('path.edge.critical').length") == 1


class Drives:
    """A driver of a framework, as its adapter speaks to the server: one task of two runs, the other comes after it."""

    def __init__(self, seen: Seen) -> None:
        self._client = seen.site.client
        ask = DriverRequest(key="driver-of-a-test", framework="ray", pool="a cluster", name=EVIL)
        self._driver = self._client.join(ask)
        graph = Graph()
        graph.add_task("a" * 40, (), ((GPU, Shape(0, 1000), 9.0),), name=EVIL)
        graph.add_task("b" * 40, (0,), ((GPU, Shape(0, 1000), 9.0),), name="after")
        node, workload = m.NodeAdded("node", cpus=1.0, gpus=1), m.WorkloadSubmitted("w", "w", submission="job")
        items = (wire.Reported(node), wire.Reported(workload), wire.Growing("w", 0, graph))
        body = msgspec.json.encode(wire.Batch(self._driver.epoch, 1, items))
        self._client.send("POST", f"/v1/drivers/{self.id}/batch", body)

    @property
    def id(self) -> str:
        return self._driver.id

    def lives(self) -> None:
        self._client.send(
            "POST", f"/v1/drivers/{self.id}/poll", Poll(epoch=self._driver.epoch).model_dump_json().encode()
        )

    def leave(self) -> None:
        self._client.leave(self.id, Leave(epoch=self._driver.epoch))


def test_pages_of_a_driver_and_of_the_plan(seen: Seen) -> None:
    """From the table of drivers to its tasks by Enter; both pages, and the usage with what its task holds, fit and are
    quiet, and axe finds nothing grave."""
    driver = Drives(seen)
    try:
        seen.open(1280)
        link = f"#drivers tr[data-key='{driver.id}'] th a"
        seen.until(f'document.querySelector("{link}") !== null', "it is shown")
        seen.page.evaluate(f'document.querySelector("{link}").focus()')
        seen.page.press("Enter")
        seen.until(f"document.title === 'EGS: driver {driver.id}'", "its page is there")
        for width, dark in ((360, True), (1280, False)):
            for path, part in ((f"/workloads/{driver.id}", "graph"), ("/plan", "starts"), ("/usage", "time")):
                driver.lives()
                seen.open_page(path, part, width, dark)
                assert seen.page.problems == [], path
                assert seen.page.evaluate(OVERFLOW) <= 0, path
                assert seen.page.evaluate(UNNAMED) == []
                assert grave(seen.page) == [], path
                assert seen.page.evaluate("document.querySelectorAll('main img, main script').length") == 0
        assert "Held by drivers' tasks1" in seen.page.evaluate("document.querySelector('main').textContent")
        driver.lives()
        seen.open_page(f"/workloads/{driver.id}", "graph")
        states = "[...document.querySelectorAll('svg.graph g')].map(g => g.getAttribute('class'))"
        assert seen.page.evaluate(states) == ["running critical", "pending critical"]
    finally:
        driver.leave()


def test_a_workload_by_keys_alone_and_as_it_changes(seen: Seen, chained: str) -> None:
    """Enter on a run of a table leads to its workload; there the picture changes by itself, and what has the focus
    keeps it."""
    seen.open(1280)
    link = f"#waiting tr[data-key='{chained}'] th a"
    seen.until(f'document.querySelector("{link}") !== null', "it is shown")
    seen.page.evaluate(f'document.querySelector("{link}").focus()')
    seen.page.press("Enter")
    seen.until(f"document.title === 'EGS: workload of {chained}'", "its page is there")
    seen.until("document.querySelector('svg.graph') !== null", "its picture is there")
    seen.page.evaluate("document.querySelector('#part-graph .scroll').focus()")
    seen.site.client.control(seen.site.queued()[LONG], "pause", Control())
    seen.until("document.querySelector('svg.graph g.paused') !== null", "it is shown as paused")
    assert seen.page.evaluate("document.activeElement.className") == "scroll"
    seen.site.client.control(seen.site.queued()[LONG], "resume", Control())
    seen.until("document.querySelector('svg.graph g.paused') === null", "it waits again")
    assert seen.page.problems == []


def test_the_secret_is_in_this_origins_storage_alone(seen: Seen) -> None:
    """Not in the page, and no cookie that a script could read; without it the page has the browser log in again."""
    seen.open(1280)
    secret = seen.page.evaluate("localStorage.getItem('egs-dashboard')")
    assert len(secret) > 20
    asked = "fetch('/dashboard').then(answer => answer.text())"
    assert (secret in seen.page.evaluate(asked), seen.page.evaluate("document.cookie")) == (False, "")
    seen.page.evaluate("localStorage.clear()")
    seen.page.open(seen.url, 1280)
    seen.until("document.title === 'EGS: log in'", "the login page is there")
    seen.log_in()
    assert seen.page.evaluate("localStorage.getItem('egs-dashboard')") != secret


def test_it_says_that_the_connection_is_gone_and_goes_on_by_itself(seen: Seen) -> None:
    """The dashboard's process is killed: the page says so, and then asks for the token again, as it knows nobody."""
    seen.open(1280)
    assert seen.site.server is not None
    for one in psutil.Process(seen.site.server.pid).children():
        if "egs_core.dashboard" in one.cmdline():
            one.kill()
    seen.until("document.title === 'EGS: log in'", "the login page is there")
