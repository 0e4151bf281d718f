"""`egs demo`: what it makes of the runs of an adapter. The demo itself runs in `make demo` and in the benchmarks."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from egs_core import adapter as adapters
from egs_core.adapter import DemoOutcome, DemoRequest, RunOutcome
from egs_core.cli import app
from egs_core.cli.demo import conclusions, difference
from egs_core.runlog.figures import figures_of
from egs_core.runlog.io import write_run
from egs_core.runlog.records import Capacity, Ended, Header, Ready, Record, Started, Used, WorkloadSubmitted
from tests.unit.test_surfaces import TwoWays

RESULTS = {"native": "same", "egs": "same"}


class Framework(TwoWays):
    """An adapter whose pipelines are one task: 4 s with the GPU held throughout, or only for the 1 s it is used."""

    name = "framework"

    def __init__(self, digests: dict[str, str]) -> None:
        self.digests = digests

    def demo(self, request: DemoRequest) -> DemoOutcome:
        runs = {name: self._run(name, request.out_dir) for name in request.variants}
        return DemoOutcome(1.25, True, runs)

    def _run(self, name: str, folder: Path) -> RunOutcome:
        held_s = {"native": 4.0, "tuned": 2.5, "egs": 1.0, "egs-no-hints": 2.5}[name]
        records: list[Record] = [
            Capacity(0.0, "n", 4.0, 1),
            WorkloadSubmitted(0.0, "w"),
            Ready(0.0, "w", "t"),
            Started(0.0, "w", "t", node="n", devices=(0,), cpus=1.0, gpus=1.0, warm=name == "egs"),
            Used(held_s - 1.0, held_s, "w", "t"),
            Ended(held_s, "w", "t"),
        ]
        path = folder / f"{name}.jsonl"
        write_run(path, Header(driver="framework", policy=name, label=name), records)
        return RunOutcome(figures_of(records), path, self.digests[name])


class FourWays(Framework):
    """One that has more variants, and says so."""

    demo_variants = ("native", "tuned", "egs", "egs-no-hints")


WORKS = Framework(RESULTS)
FOUR = FourWays(dict.fromkeys(FourWays.demo_variants, "same"))
DIFFERS = Framework({"native": "one", "egs": "other"})
SILENT = Framework({"native": "same", "egs": ""})


def run_demo(monkeypatch: pytest.MonkeyPatch, framework: str, *args: object) -> int:
    """`egs demo` with the object `framework` of this file as the only installed adapter."""
    entry = EntryPoint("framework", f"{__name__}:{framework}", adapters.GROUP)
    monkeypatch.setattr(adapters, "entry_points", lambda group: [entry] if group == adapters.GROUP else [])
    return app.run(["demo", *map(str, args)])


def test_json_has_the_fixed_shape(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Exactly the fixed keys, on stdout alone; the run logs and the page are in the folder, which is made."""
    out = tmp_path / "new" / "demo"
    assert run_demo(monkeypatch, "WORKS", "--on", "framework", "--out", out, "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "ideal_bound_s": 1.25,
        "emulated_gpus": True,
        "runs": {
            "native": {
                "makespan_s": 4.0,
                "wastage_effective": 0.0,
                "gpu_held_s": 4.0,
                "gpu_used_s": 1.0,
                "cold_starts": 1,
            },
            "egs": {
                "makespan_s": 1.0,
                "wastage_effective": 0.0,
                "gpu_held_s": 1.0,
                "gpu_used_s": 1.0,
                "cold_starts": 0,
            },
        },
    }
    assert sorted(path.name for path in out.iterdir()) == ["egs.jsonl", "native.jsonl", "report.html"]


def test_table_stands_beside_the_ideal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Four times as fast, less than the ideal bound's share above it, and emulation is labelled."""
    assert run_demo(monkeypatch, "WORKS", "--on", "framework", "--out", tmp_path) == 0
    shown = capsys.readouterr().out
    assert "4.0 times as fast with EGS" in shown
    assert "1.2 s" in shown
    assert "The GPUs are emulated" in shown
    assert str(tmp_path / "report.html") in shown.replace("\n", "")


@pytest.mark.parametrize(
    ("framework", "problem"),
    [("DIFFERS", "the results of native and egs differ"), ("SILENT", "no results from egs")],
)
def test_different_results_are_a_failed_check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, framework: str, problem: str
) -> None:
    """Exit code 1 and one line; figures of runs that did different things are not shown."""
    assert run_demo(monkeypatch, framework, "--on", "framework", "--out", tmp_path, "--json") == 1
    out, err = capsys.readouterr()
    assert not out
    assert f"error: {problem}" in err


def test_a_missing_variant_is_a_difference() -> None:
    """Both sides are needed for a comparison."""
    assert difference({"native": RunOutcome({}, Path(), "same")}) == "no results from egs"


def test_out_that_is_a_file_and_unknown_framework(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Found before anything runs, exit code 2, one line."""
    (tmp_path / "file").write_text("")
    assert run_demo(monkeypatch, "WORKS", "--on", "framework", "--out", tmp_path / "file") == 2
    assert run_demo(monkeypatch, "WORKS", "--on", "slurm", "--out", tmp_path) == 2
    err = capsys.readouterr().err.splitlines()
    assert "is a file" in err[0]
    assert "--on: unknown 'slurm' (one of framework)" in err[1]


def test_what_four_variants_say() -> None:
    """Gains are quoted against the pipelines as written and as tuned by hand, and without hints apart."""
    makespans = {"native": 60.0, "tuned": 48.0, "egs": 40.0, "egs-no-hints": 50.0}
    assert conclusions(32.0, makespans) == [
        "1.5 times as fast with EGS, 25% above what no scheduler can beat.",
        "1.2 times as fast as tuned by hand.",
        "1.20 times as fast with EGS on pipelines as they are, no hints.",
    ]
    assert len(conclusions(32.0, {"native": 60.0, "egs": 40.0})) == 1
    parallel = "1.3 times as fast as the same tasks in parallel, first ready first served."
    assert conclusions(32.0, {"native": 60.0, "fifo": 52.0, "egs": 40.0})[1:] == [parallel]


def test_a_difference_within_the_noise_of_one_pair_is_no_claim() -> None:
    """Less than a tenth, less than a second, or less than what the runs themselves show of the machine's noise."""
    assert conclusions(32.0, {"native": 43.0, "egs": 40.0}) == [
        "No claim against the pipelines alone: 43.0 s and 40.0 s are within the noise of one pair of runs."
    ]
    assert conclusions(1.0, {"native": 2.0, "egs": 1.5})[0].startswith("No claim")
    assert conclusions(32.0, {"native": 60.0, "egs": 40.0}, {"native": 0.6})[0].startswith("No claim")


def test_all_variants_of_an_adapter_are_run_and_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A column for each, in the adapter's order, and a line for each comparison."""
    monkeypatch.setenv("COLUMNS", "140")
    assert run_demo(monkeypatch, "FOUR", "--on", "framework", "--out", tmp_path) == 0
    shown = capsys.readouterr().out
    headings = next(line for line in shown.splitlines() if "alone" in line)
    places = [headings.index(heading) for heading in ("alone", "tuned by hand", "with EGS", "EGS, no hints", "ideal")]
    assert places == sorted(places)
    assert "2.5 times as fast as tuned by hand" in shown
    assert "1.60 times as fast with EGS on pipelines as they are" in shown
    assert len(list(tmp_path.glob("*.jsonl"))) == 4


def test_one_variant_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Its figures, the digest of its results and its run log; nothing is compared, and there is no page."""
    assert run_demo(monkeypatch, "FOUR", "--on", "framework", "--out", tmp_path, "--variant", "tuned", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert {name: found[name] for name in ("variant", "ideal_bound_s", "makespan_s", "digest")} == {
        "variant": "tuned",
        "ideal_bound_s": 1.25,
        "makespan_s": 2.5,
        "digest": "same",
    }
    assert [str(path) for path in tmp_path.iterdir()] == [found["runlog"]]


def test_it_ends_with_the_command_that_shows_the_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Where no terminal is: nothing is left behind, and the last line can be run as it stands. EGS's run is first."""
    assert run_demo(monkeypatch, "FOUR", "--on", "framework", "--out", tmp_path) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    program, *words = shlex.split(last.removeprefix("see it: "))
    assert Path(program).resolve().samefile(Path(sys.executable).with_name("egs"))
    names = ("egs", "native", "tuned", "egs-no-hints")
    assert words == ["dashboard", *[str(tmp_path / f"{name}.jsonl") for name in names]]


def test_it_serves_the_runs_until_ctrl_c(tmp_path: Path) -> None:
    """As on a terminal: the last line is an address that shows the run with EGS; Ctrl-C ends it, as a success."""
    script = f"""import sys
from importlib.metadata import EntryPoint
from egs_core import adapter as adapters
from egs_core.cli import app
entry = EntryPoint("framework", "{__name__}:WORKS", adapters.GROUP)
adapters.entry_points = lambda group: [entry] if group == adapters.GROUP else []
sys.exit(app.run(["demo", "--on", "framework", "--out", {str(tmp_path)!r}, "--serve"]))"""
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3]) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        address = next(found[0] for line in lines if (found := re.search(r"http://127\S+", line)))
        with urllib.request.urlopen(address, timeout=60) as page:
            assert "<h1>EGS: egs</h1>" in page.read().decode()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
