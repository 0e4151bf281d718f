"""The command line's frame: what is loaded, how failures are worded, and which exit code each has."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import typer

from egs_core import __version__
from egs_core.cli import app
from egs_core.errors import InputError

Install = Callable[[Callable[..., object]], None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a function in the place of `egs graph`, in a module of its own."""

    def put(function: Callable[..., object]) -> None:
        module = ModuleType("egs_core.cli.graph")
        module.__dict__["graph"] = function
        monkeypatch.setitem(sys.modules, "egs_core.cli.graph", module)

    return put


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    """`egs --help` names all commands and ends well."""
    assert app.run(["--help"]) == 0
    shown = capsys.readouterr().out
    assert [name for name in app.COMMANDS if not re.search(rf"\b{name}\b", shown)] == []


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("run --gpus x -- true", "'--gpus': must be a number, not 'x' (see: egs run --help)"),
        ("run --priority 1.5 -- true", "'--priority': must be a whole number, not '1.5' (see: egs run --help)"),
        ("serve --port 99999", "'--port': must be at most 65535, not '99999' (see: egs serve --help)"),
    ],
)
def test_a_value_of_a_wrong_kind_is_named_in_plain_words(
    line: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the value, and without the names of Python's types."""
    assert app.run(line.split()) == app.EXIT_INPUT
    assert capsys.readouterr().err == f"error: Invalid value for {told}\n"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("serve --data", "Option '--data' requires an argument. (see: egs serve --help)"),
        ("token create --role", "Option '--role' requires an argument. (see: egs token create --help)"),
        ("run --in", "Option '--in' requires an argument. (see: egs run --help)"),
        ("run", "Missing argument '-- CMD...': The command and its arguments. (see: egs run --help)"),
        ("token create", "Missing option '--role': viewer, submitter, operator, admin or agent. (see: "),
        ("why", "Missing argument 'FILE|RUN': A run log, or a workload file to simulate; without TASK a run of "),
    ],
)
def test_what_is_missing_is_said_with_what_it_can_be(line: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    """And with the help of the command that was called, not with that of `egs`."""
    assert app.run(line.split()) == app.EXIT_INPUT
    assert capsys.readouterr().err.startswith(f"error: {told}")


def test_help_imports_no_command_and_no_heavy_library() -> None:
    """`egs --help` stays quick: no command module, no numpy and no database stack is imported for it."""
    program = (
        "import sys; from egs_core.cli.app import run; run(['--help']);"
        "heavy = {'numpy', 'sqlalchemy', 'msgspec', 'ray'} & set(sys.modules);"
        "commands = [m for m in sys.modules if m.startswith('egs_core.cli.') and m != 'egs_core.cli.app'];"
        "sys.exit(f'{heavy} {commands}' if heavy or commands else 0)"
    )
    result = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=240)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize(("line", "found"), [("egs dra", ["drain"]), ("egs run --gp", ["--gpus", "--gpu-memory"])])
def test_a_shell_completes_commands_and_their_options(line: str, found: list[str]) -> None:
    """As the script asks that `egs --install-completion` installs; only the command that is named is imported."""
    words = {"_EGS_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    program = "from egs_core.cli import app; app.main([])"
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | words, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == found, done.stderr


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """`egs --version` prints the version and nothing else."""
    assert app.run(["--version"]) == 0
    assert capsys.readouterr().out == f"egs {__version__}\n"


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (["nope"], "No such command 'nope'"),
        (["--nope"], "No such option: --nope"),
        (["doctor", "--nope"], "No such option: --nope"),
        (["doctor", "extra"], "unexpected extra argument"),
    ],
)
def test_usage_errors_are_one_line(args: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong command line is one line on stderr that names the fault and where help is; exit code 2."""
    assert app.run(args) == app.EXIT_INPUT
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(rf"error: .*{re.escape(problem)}.*--help\)\n", err, re.IGNORECASE)


def test_bad_input_is_one_line(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    """An `InputError` becomes `error: place: problem (hint)` and exit code 2, also when its text has lines."""

    def graph() -> None:
        raise InputError("pipe.json: tasks[3]", "unknown task\n'loda'", "did you mean 'load'?")

    install(graph)
    assert app.run(["graph"]) == 2
    assert capsys.readouterr().err == "error: pipe.json: tasks[3]: unknown task 'loda' (did you mean 'load'?)\n"


def test_a_missing_file_is_bad_input(install: Install, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that cannot be opened is named, with the system's reason; exit code 2."""
    path = tmp_path / "none.json"
    install(lambda: path.read_text() and None)
    assert app.run(["graph"]) == 2
    assert capsys.readouterr().err == f"error: {path}: No such file or directory\n"


def test_a_bug_is_one_line_unless_asked(
    install: Install, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unexpected exception is one line and exit code 1; the traceback comes with EGS_DEBUG=1."""

    def graph() -> None:
        raise ZeroDivisionError("by none")

    install(graph)
    assert app.run(["graph"]) == 1
    quiet = capsys.readouterr().err
    assert quiet.count("\n") == 1
    assert "ZeroDivisionError: by none" in quiet
    assert "EGS_DEBUG=1" in quiet
    monkeypatch.setenv("EGS_DEBUG", "1")
    assert app.run(["graph"]) == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err


@pytest.mark.parametrize(("raised", "code"), [(KeyboardInterrupt(), 130), (typer.Exit(3), 3), (typer.Abort(), 130)])
def test_ends_that_are_no_errors(
    raised: BaseException, code: int, install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    """Interrupting and leaving early have exit codes and say nothing."""

    def graph() -> None:
        raise raised

    install(graph)
    assert app.run(["graph"]) == code
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("returned", "code"), [(None, 0), (0, 0), (1, 1), ({"a": 1}, 0)])
def test_a_number_that_a_command_returns_is_its_exit_code(returned: object, code: int, install: Install) -> None:
    """A command says by a number how it ended; any other value means that it ended well."""
    install(lambda: returned)
    assert app.run(["graph"]) == code


def test_a_command_that_cannot_be_loaded_takes_no_other_down(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command whose library is missing says which; `egs --help` and the others still work."""
    monkeypatch.setitem(sys.modules, "egs_core.cli.graph", None)
    assert app.run(["graph"]) == 2
    assert capsys.readouterr().err.startswith("error: egs graph: cannot be loaded:")
    assert app.run(["--help"]) == 0
    assert app.run(["doctor", "--help"]) == 0


def test_a_reader_that_leaves_is_no_traceback() -> None:
    """`egs … | head -0` ends without a word on stderr."""
    command = [sys.executable, "-m", "egs_core.cli.app", "--help"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        process.wait(timeout=240)
