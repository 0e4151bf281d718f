"""The benchmark of upstream scripts: what it runs, what counts as wrong, and how its figure is made. No Ray starts."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

from benchmarks import upstream, upstream_scripts
from benchmarks.process_tree import Used
from benchmarks.upstream import SAID, Seen, at_least, compare, geometric_mean, run_once, run_pairs, wrong
from benchmarks.upstream_scripts import FILES, SCRIPTS, Script, check_files, how_to_get
from egs_core.errors import InputError

HELLO = Script("hello", "hello.py", "", 1, 1, "prints")


def seen(wall_s: float = 1.0, code: int = 0, output: str = "", said: str = SAID) -> Seen:
    return Seen(wall_s, code, output, said)


def test_ten_scripts_are_listed_each_with_the_hash_of_its_file() -> None:
    """None may be dropped in silence: ten names, ten programs, all of one commit, every file with a SHA-256."""
    assert len({script.name for script in SCRIPTS}) == len({(s.path, s.function) for s in SCRIPTS}) == 10
    assert {script.path for script in SCRIPTS} <= set(FILES)
    assert all(len(bytes.fromhex(digest)) == 32 for digest in FILES.values())
    assert len(bytes.fromhex(upstream_scripts.COMMIT)) == 20
    assert all(path in how_to_get() for path in FILES)


def test_a_file_that_is_missing_or_of_another_commit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its place and what to do, so that nobody measures another text by mistake."""
    monkeypatch.setitem(FILES, "hello.py", hashlib.sha256(b"print('hello')\n").hexdigest())
    with pytest.raises(InputError, match=r"hello\.py: cannot be read.*--how"):
        check_files(tmp_path, [HELLO])
    (tmp_path / "hello.py").write_text("print('hello')\n")
    check_files(tmp_path, [HELLO])
    (tmp_path / "hello.py").write_text("print('hallo')\n")
    with pytest.raises(InputError, match=r"hello\.py: is not the text of commit"):
        check_files(tmp_path, [HELLO])


def test_a_folder_without_the_scripts_is_one_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 and no traceback."""
    assert upstream.main(["--scripts", str(tmp_path)]) == 2
    assert "error: " in capsys.readouterr().err


def test_a_run_is_a_process_of_its_own_with_an_empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the run under EGS has the hook's variables, whatever the caller has set; the clock has the whole process."""
    monkeypatch.setenv("EGS_URL", "https://other")
    monkeypatch.setenv("RAY_ADDRESS", "other:6379")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    (tmp_path / "hello.py").write_text(
        "import os, sys, time\nwhile time.process_time() < 0.1:\n    pass\ntime.sleep(0.2)\n"
        "print('(f pid=%d) b' % os.getpid(), os.listdir(os.environ['HOME']))\nprint('a')\n"
        "names = ('EGS_', 'RAY_RUN', 'RAY_ADD', 'PYTHONDONT')\n"
        "print(sorted(n for n in os.environ if n.startswith(names)), file=sys.stderr)\n"
        "raise SystemExit(3)\n"
    )
    native, egs = (run_once(HELLO, way, tmp_path) for way in upstream.WAYS)
    assert native.code == egs.code == 3
    assert native.output == egs.output == "(f pid=) b []\na"
    assert min(native.wall_s, egs.wall_s) > 0.2
    assert native.used.processes == egs.used.processes == 1
    assert 0 < native.used.driver_cpu_s == native.used.cpu_s < native.wall_s
    assert native.said.strip() == "[]"
    assert egs.said.strip() == "['EGS_MODE', 'RAY_RUNTIME_ENV_HOOK']"


def test_what_ray_says_of_itself_is_not_compared(tmp_path: Path) -> None:
    """Whether one of its processes dies at its end, and with which numbers, is chance: such lines are counted. A script
    that speaks of a raylet itself is compared."""
    words = "a (raylet) is ours", "(f pid=7) b"
    rays = "\x1b[33m(raylet)\x1b[0m A worker died. Worker PID: 12", "(raylet, ip=192.0.2.2) A worker died."
    (tmp_path / "hello.py").write_text(f"print({chr(10).join((words[0], *rays, words[1]))!r})\n")
    run = run_once(HELLO, "native", tmp_path)
    assert run.output == "(f pid=) b\na (raylet) is ours"
    assert run.rays_lines == 2


def test_a_function_of_a_file_runs_as_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a test of Ray's would: with its arguments, unchanged, its failure being the exit code."""
    monkeypatch.setattr(upstream, "CALL", upstream.CALL.replace("import ray\nray.shutdown()\n", ""))
    (tmp_path / "many.py").write_text(
        "import sys\ndef twice(shutdown_only, flag):\n    print(flag, shutdown_only)\n    assert not flag\n"
    )
    runs = [
        run_once(Script("f", "many.py", "twice", 1, 1, "prints", (None, flag)), "native", tmp_path)
        for flag in (False, True)
    ]
    assert [(run.output, run.code) for run in runs] == [("False None", 0), ("True None", 1)]


def test_pairs_alternate_who_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What gets slower or faster meanwhile meets both alike."""
    order: list[str] = []

    def run(_script: Script, way: str, _folder: Path) -> Seen:
        order.append(way)
        return seen()

    monkeypatch.setattr(upstream, "run_once", run)
    run_pairs(HELLO, 3, tmp_path)
    assert order == ["native", "egs", "egs", "native", "native", "egs"]


@pytest.mark.parametrize(
    ("native", "egs", "what"),
    [
        ([seen(), seen()], [seen(), seen()], ""),
        ([seen(), seen()], [seen(), seen(code=1, said="boom")], "exit code 1 under EGS: boom"),
        ([seen(), seen(code=1, said="bad")], [seen(), seen()], "native exit code 1: bad"),
        ([seen(), seen()], [seen(), seen(said="")], "EGS was not on"),
        ([seen(output="a"), seen(output="a")], [seen(output="a"), seen(output="b")], "other output under EGS"),
        ([seen(output="a"), seen(output="b")], [seen(output="c"), seen(output="d")], ""),
    ],
)
def test_what_is_no_comparison_is_named(native: list[Seen], egs: list[Seen], what: str) -> None:
    """Output counts only where native agrees with itself; a run in which EGS was not on proves nothing."""
    assert wrong(native, egs) == what


def test_a_row_says_by_how_much_the_limit_is_broken() -> None:
    """Native x 1.03 plus half a second a driver, pair by pair."""
    row = compare(HELLO, {"native": [seen(10.0), seen(20.0)], "egs": [seen(11.0), seen(22.1)]})
    assert row["over_limit_s"] == pytest.approx((0.2 + 1.0) / 2)
    assert row["native_over_egs"] == pytest.approx((10 / 11 * 20 / 22.1) ** 0.5, abs=1e-3)


def test_a_row_has_processes_and_processor_time_of_both_ways() -> None:
    """Medians, which still say something where the wall clock is the machine's; and how much Ray printed itself."""
    native = [Seen(1.0, 0, "", SAID, Used(20 + n, 5, 10.0 + n, 1.5), n) for n in range(3)]
    egs = [Seen(1.0, 0, "", SAID, Used(22, 7, 12.5, 2.0))] * 3
    row = compare(HELLO, {"native": native, "egs": egs})
    assert row["native"] == {"processes": 21, "workers": 5, "cpu_s": 11.0, "driver_cpu_s": 1.5}
    assert row["egs"]["cpu_s"] == 12.5
    assert row["rays_lines"] == {"native": 3, "egs": 0}


def test_the_bound_of_the_geometric_mean_is_below_it_by_the_noise() -> None:
    """Each script counts once; without noise the bound is the mean, with noise it is lower, and never above."""
    assert geometric_mean([[2.0, 2.0, 2.0], [0.5]]) == pytest.approx(1.0)
    assert at_least([[1.2, 1.2], [1.1, 1.1]]) == pytest.approx(geometric_mean([[1.2], [1.1]]))
    noisy = [[0.8, 1.5], [0.9, 1.3]]
    assert min(map(min, noisy)) < at_least(noisy) < geometric_mean(noisy)


def test_the_commands_that_bring_the_scripts_are_shell() -> None:
    """They parse; what they fetch is the network's."""
    assert subprocess.run(["sh", "-n"], input=how_to_get(), text=True, check=False).returncode == 0
