"""Takes the pictures of `egs dashboard` that the documentation shows, of the demo's runs, in a Chromium.

make demo && make screenshots    # docs/images/dashboard-run.png and dashboard-graph.png
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

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
WIDTH = 1080
VIEWS = {"dashboard-run": ("", 760), "dashboard-graph": ("/run/0/workload/0", 560)}  # address, and height in pixels


def main() -> int:
    """The folder of the demo is the argument, build/demo without one."""
    program = find_chromium()
    if program is None:
        print("error: no Chromium here: `apt-get install chromium`", file=sys.stderr)
        return 2
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
                shot = page.call("Page.captureScreenshot", format="png", optimizeForSpeed=False)
                (IMAGES / f"{name}.png").write_bytes(base64.b64decode(shot["data"]))
                print(IMAGES / f"{name}.png")
        shown.send_signal(signal.SIGINT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
