"""A task that is forked from the fork server is the process that its command would be."""

# kfp reads the annotations of components: they must not be text, so no `from __future__ import annotations`
import os
import signal
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl

from egs_kubeflow import compat
from egs_kubeflow.convert.documents import checked, documents_of
from egs_kubeflow.run import RunResult, run
from egs_kubeflow.run.forked import Starter, has_use, started
from egs_kubeflow.run.process import Process

VARYING = "CUDA_VISIBLE_DEVICES"


@dsl.component(base_image="python:3.12", install_kfp_package=False)
def behave(way: str) -> str:
    import atexit
    import os
    import signal
    import sys
    import threading
    import time

    atexit.register(print, "at exit")
    main: Any = sys.modules["__main__"]
    print(main.__spec__.name, main.__file__ == sys.argv[0], __name__, sys.argv[1::2], sys.path[0] == os.getcwd())
    print(os.getpgid(0) in (os.getpid(), os.getppid()), os.environ["CUDA_VISIBLE_DEVICES"])
    print({k: v for k, v in sorted(os.environ.items()) if k not in ("_", "SHLVL", "PWD", "OLDPWD")})
    print(
        signal.getsignal(signal.SIGINT) is signal.default_int_handler,
        signal.getsignal(signal.SIGCHLD),
        sys.stdin.read() == "",
    )
    print([name for name in sys.modules if name.startswith("egs_")])
    if way == "raises":
        raise RuntimeError("on purpose")
    if way == "exits":
        sys.exit(3)
    if way == "is killed":
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    if way == "is interrupted":
        raise KeyboardInterrupt
    if way == "leaves a thread":
        threading.Timer(0.1, print, ["the thread ends"]).start()
    if way == "leaves a process" and os.fork() == 0:
        time.sleep(600)
    print("unended line", end="")
    return way


def command_of(component: Any, arguments: dict[str, Any], folder: Path) -> list[str]:
    """What the runner would start."""
    spec = checked(documents_of(component), "test")
    message = spec.pipeline.components[f"comp-{component.name}"]
    container = spec.executors[message.executor_label].container
    _, inputs = compat.task_inputs(message, arguments, str(folder))
    names = dict.fromkeys(("pipeline_resource_name", "task_resource_name", "pipeline_root", "unique_pipeline_id"), "x")
    parts = compat.filled_command([*container.command, *container.args], inputs, names)
    return compat.with_python(parts, sys.executable)


def end_of(process: Any, folder: Path) -> tuple[int, list[str]]:
    """Its exit code and what it says, but for times, the frames of a traceback, and what the shell says of a kill."""
    said: list[str] = []
    code = Process(process, folder, said.append).wait()
    return code, [line.split("[KFP Executor")[0] for line in said if not line.startswith(("  ", "Killed"))]


@pytest.mark.parametrize(
    ("way", "code"),
    [
        ("returns", 0),
        ("raises", 1),
        ("exits", 3),
        ("is killed", 128 + signal.SIGKILL),
        ("is interrupted", 128 + signal.SIGINT),
        ("leaves a thread", 0),
        ("leaves a process", 0),
    ],
)
def test_a_forked_task_is_what_its_command_would_be(tmp_path: Path, way: str, code: int) -> None:
    """The same main module, arguments, environment, signal handlers, lines and exit code."""
    environment = {**os.environ, VARYING: "1"}
    command = command_of(behave, {"way": way}, tmp_path)
    with closing(Starter(str(tmp_path), (VARYING,), [command_of_template()], [])) as forks:
        forked = forks.forked(command, environment)
        assert forked is not None
        found = end_of(forked, tmp_path)
    assert found == end_of(started(command, environment), tmp_path)
    assert found[0] == code


def test_a_task_with_a_variable_of_its_own_is_not_forked(tmp_path: Path) -> None:
    """Python and libraries read variables when they start: such a task has its own start. So has any other command."""
    command = command_of(behave, {"way": "returns"}, tmp_path)
    with closing(Starter(str(tmp_path), (VARYING,), [command_of_template()], [])) as forks:
        assert forks.forked(command, {**os.environ, "OMP_NUM_THREADS": "1"}) is None
        assert forks.forked([*command[:2], f"true; {command[2]}", *command[3:]], os.environ) is None
        assert forks.forked(["true"], os.environ) is None
    assert has_use([["true"], command_of_template()])
    assert not has_use([["true"]])


def command_of_template() -> list[str]:
    """The command as it is compiled, with an installation in front."""
    spec = checked(documents_of(installing), "test")
    return list(next(iter(spec.executors.values())).container.command)


@dsl.component(base_image="python:3.12", packages_to_install=["some-package"])
def installing() -> None:
    pass


@dsl.component(base_image="python:3.12", install_kfp_package=False)
def ends_its_parent(path: str) -> int:
    import os
    import signal

    with open(path, "a+") as tries:
        tries.write("x")
        tries.flush()
        tries.seek(0)
        count = len(tries.read())
    if count == 1:
        os.kill(os.getppid(), signal.SIGKILL)
    return count


@dsl.pipeline
def fatal(path: str) -> int:
    first = ends_its_parent(path=path)
    return ends_its_parent(path=path).after(first).output  # type: ignore[no-any-return]  # what it will give


@pytest.fixture
def runner(tmp_path: Path) -> Callable[..., RunResult]:
    """A run that leaves nothing outside of the test's folder."""
    return lambda *a: run(*a, root=tmp_path / "out", runlog=str(tmp_path / "run.jsonl"))


def test_a_run_goes_on_without_its_fork_server(runner: Callable[..., RunResult], tmp_path: Path) -> None:
    """The server is killed under a task: it goes on to its end, and later ones have their own interpreters."""
    assert runner(fatal, {"path": str(tmp_path / "tries")}).outputs == {"Output": 2}


def test_a_server_that_cannot_start_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it ends at once, tasks start as they always could."""
    with monkeypatch.context() as broken:
        broken.setattr("egs_kubeflow.run.forked._TEXT", "raise SystemExit(1)")
        server = Starter(str(tmp_path), (VARYING,), [command_of_template()], [])
    with closing(server):
        assert server.forked(command_of(behave, {"way": "returns"}, tmp_path), os.environ) is None
        assert server.forked(command_of(behave, {"way": "returns"}, tmp_path), os.environ) is None


def test_when_the_runner_is_gone_so_are_its_tasks(tmp_path: Path) -> None:
    """The server ends what it has forked when it is closed."""
    server = Starter(str(tmp_path), (VARYING,), [command_of_template()], [])
    forked = server.forked(command_of(sleep, {"seconds": 600.0}, tmp_path), os.environ)
    assert forked is not None
    server.close()
    assert forked.wait() in (-signal.SIGKILL, 128 + signal.SIGKILL)  # the server may be gone before it tells
    with forked.stdout as output:
        assert "Wrote executor output" not in output.read()


@dsl.component(base_image="python:3.12", install_kfp_package=False)
def sleep(seconds: float) -> None:
    import time

    time.sleep(seconds)
