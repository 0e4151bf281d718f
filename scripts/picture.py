"""Draws the before/after picture of the README: what two GPUs did natively and with EGS in one run of the demo.

    make demo && make picture        # records build/demo, then draws
    python -m scripts.picture        # draws again what docs/images/demo.json has recorded

The record is kept in the repository, so that the picture can be made again and a test can hold it against its record.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "docs" / "images" / "demo.json"
PICTURE = RECORD.with_suffix(".svg")
NAMES = {"native": "Ray alone", "egs": "Ray with EGS"}

WIDTH, LEFT, RIGHT = 880, 70, 20
LANE, GAP, PANEL = 26, 6, 34
USED, HELD, IDLE, TEXT = "#2e7d32", "#ef9a9a", "#eceff1", "#263238"


def record(folder: Path) -> dict[str, Any]:
    """What the run logs of a demo say of each GPU: when it was held, and when it was used."""
    from egs_core.report.lanes import lay_out
    from egs_core.runlog.io import read_run
    from egs_core.runlog.timeline import build_timeline

    runs = {}
    for name in NAMES:
        line = build_timeline(read_run(folder / f"{name}.jsonl").records)
        begin = line.window[0]
        lanes = {}
        for lane in lay_out(line):
            if lane.group == "gpu":
                holds = [bar.hold for bar in lane.bars if bar.hold is not None]
                lanes[lane.name] = [
                    [_span(hold.start_s, hold.end_s, begin), [_span(a, b, begin) for a, b in hold.useful]]
                    for hold in holds
                ]
        runs[name] = {"makespan_s": round(line.window[1] - begin, 1), "lanes": lanes}
    return {"runs": runs}


def _span(start_s: float, end_s: float, begin_s: float) -> list[float]:
    return [round(start_s - begin_s, 2), round(end_s - begin_s, 2)]


def draw(recorded: dict[str, Any]) -> str:
    """The picture as SVG: one panel a run, on one scale of time."""
    runs = recorded["runs"]
    longest = max(run["makespan_s"] for run in runs.values())
    scale = (WIDTH - LEFT - RIGHT) / longest
    parts, y = [], 8.0
    for name, run in runs.items():
        parts.append(
            _text(LEFT, y + 16, f"{NAMES[name]}: all six pipelines done after {run['makespan_s']:.1f} s", "bold")
        )
        y += PANEL - GAP
        for lane, bars in run["lanes"].items():
            parts.append(_text(8, y + LANE * 0.7, lane))
            parts.append(_bar([0.0, run["makespan_s"]], y, scale, IDLE))
            for held, used in bars:
                parts.append(_bar(held, y, scale, HELD))
                parts += [_bar(stretch, y, scale, USED) for stretch in used]
            y += LANE + GAP
        y += GAP
    parts += _axis(longest, scale, y)
    parts += _legend(y + 38)
    height = round(y + 56)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    style = f' font-family="sans-serif" font-size="13" fill="{TEXT}" role="img"'
    title = f"<title>{escape(summary(recorded))}</title>"
    return "\n".join(
        [f"{head}{style}>", title, f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>', *parts, "</svg>\n"]
    )


def summary(recorded: dict[str, Any]) -> str:
    """The picture in one sentence."""
    native, egs = (recorded["runs"][name]["makespan_s"] for name in NAMES)
    return f"The demo on two emulated GPUs: {native:.1f} s on Ray alone, {egs:.1f} s with EGS"


def _bar(span_s: list[float], y: float, scale: float, colour: str) -> str:
    start_s, end_s = span_s
    x, width = LEFT + start_s * scale, max((end_s - start_s) * scale, 0.4)
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{LANE}" fill="{colour}"/>'


def _text(x: float, y: float, text: str, weight: str = "normal") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-weight="{weight}">{escape(text)}</text>'


def _axis(longest_s: float, scale: float, y: float) -> list[str]:
    step = 10
    ticks = range(0, int(longest_s) + 1, step)
    line = f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="{TEXT}"/>'
    labels = [_text(LEFT + tick * scale - 4, y + 16, str(tick) if tick else "0 s") for tick in ticks]
    return [line, *labels]


def _legend(y: float) -> list[str]:
    parts, x = [], float(LEFT)
    for colour, label in ((USED, "GPU used"), (HELD, "held, not used"), (IDLE, "free")):
        parts.append(f'<rect x="{x:.1f}" y="{y - 11:.1f}" width="14" height="14" fill="{colour}" stroke="{TEXT}"/>')
        parts.append(_text(x + 20, y, label))
        x += 150
    return [*parts, _text(x, y, "GPUs emulated, 4 logical CPUs")]


def main(arguments: list[str]) -> int:
    """Record the demo of a folder, where one is named, and draw."""
    if arguments:
        RECORD.parent.mkdir(exist_ok=True)
        RECORD.write_text(json.dumps(record(Path(arguments[0]))) + "\n")
    recorded = json.loads(RECORD.read_text())
    PICTURE.write_text(draw(recorded))
    print(f"{PICTURE.relative_to(ROOT)}: {summary(recorded)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
