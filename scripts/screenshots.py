"""Takes the pictures that the documentation shows, in a Chromium: of `egs dashboard` with the demo's runs, and of a
site server's dashboard with some runs of its own.

make demo && make screenshots    # docs/images/dashboard-run.png, dashboard-graph.png and site-workload.png
"""

from __future__ import annotations

import base64
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.unit.report.chromium import Page, find_chromium
from tests.unit.server.real_site import RealSite, wait_for

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
WIDTH, SITE_HEIGHT = 1080, 930
VIEWS = {"dashboard-run": ("", 760), "dashboard-graph": ("/run/0/workload/0", 560)}  # address, and height in pixels


def main() -> int:
    """The folder of the demo is the argument, build/demo without one."""
    program = find_chromium()
    if program is None:
        print("error: no Chromium here: `apt-get install chromium`", file=sys.stderr)
        return 2
    return _of_logs(program) or _of_site(program)


def _of_logs(program: str) -> int:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "demo")
    logs = [str(folder / f"{name}.jsonl") for name in ("egs", "native")]
    command = [sys.executable, "-m", "egs_core.cli.app", "dashboard", *logs]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as shown,
        tempfile.TemporaryDirectory() as profile,
    ):
        assert shown.stdout is not None
        found = re.search(r"http://\S+", shown.stdout.readline())
        if found is None:
            return 2
        with Page(program, Path(profile)) as page:
            for name, (path, height) in VIEWS.items():
                page.open(found[0] + path, WIDTH, height)
                _take(page, name)
        shown.send_signal(signal.SIGINT)
    return 0


def _of_site(program: str) -> int:
    """A pipeline of runs, of which two run, one waits for GPUs, and one for those."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as profile:
        site = RealSite(Path(folder) / "site", gpus=2)
        site.start()
        try:
            last = _pipeline(site)
            with Page(program, Path(profile)) as page:
                page.open(f"{site.ready['url']}/dashboard/login", WIDTH, SITE_HEIGHT)
                token = Path(site.ready["token"]).read_text().strip()
                page.evaluate(f"document.getElementById('token').value = {token!r}")
                page.evaluate("document.querySelector('form').requestSubmit()")
                wait_for(lambda: _is_there(page, "#running tbody tr"), "the dashboard is there")
                page.open(f"{site.ready['url']}/dashboard/workloads/{last}", WIDTH, SITE_HEIGHT)
                wait_for(lambda: _is_there(page, "svg.graph .running"), "the graph is there")
                _take(page, "site-workload")
        finally:
            site.close()
    return 0


def _pipeline(site: RealSite) -> str:
    """The last of its runs."""

    def run(name: str, seconds: int, *options: str) -> str:
        return str(site.detached("--name", name, *options, "--", "sleep", str(seconds))["id"])

    clean = run("clean", 1, "--gpus", "1", "--after", run("load", 1))
    fits = [run(f"fit-{one}", 600, "--gpus", "1", "--expect", "10m", "--after", clean) for one in "abc"]
    after = [word for fit in fits for word in ("--after", fit)]
    last = run("report", 5, "--gpus", "1", "--expect", "30s", *after)
    wait_for(lambda: all(site.devices().values()), "both GPUs are held")
    return last


def _is_there(page: Page, what: str) -> bool:
    try:
        return bool(page.evaluate(f"document.querySelector({what!r}) !== null"))
    except (AssertionError, RuntimeError):  # the page is being left
        return False


def _take(page: Page, name: str) -> None:
    shot = page.call("Page.captureScreenshot", format="png", optimizeForSpeed=False)
    (IMAGES / f"{name}.png").write_bytes(base64.b64decode(shot["data"]))
    print(IMAGES / f"{name}.png")


if __name__ == "__main__":
    sys.exit(main())
