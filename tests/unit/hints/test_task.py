"""`egs.task`: the same function with checked hints, or an error that names function and argument."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any, get_overloads

import cloudpickle
import pytest

import egs_core as egs
from egs_core import notices
from egs_core.errors import InputError
from egs_core.hints import HINTS, TaskHints, hints_of, phase_kinds


def plain(path: str) -> str:
    return path


def fresh() -> Any:
    """A function without hints; `task` marks the function itself, so tests must not share one."""

    def train(path: str) -> str:
        return path

    return train


def test_the_arguments_of_task_are_the_table() -> None:
    """What an editor offers, and mypy accepts, is what is checked at run time, in the order of the reference."""
    typed = inspect.signature(get_overloads(egs.task)[1]).parameters
    assert list(typed) == list(HINTS)
    defaults = {name: one.default for name, one in typed.items()}
    assert defaults == {name: hint.default for name, hint in HINTS.items()}


def test_the_function_stays_the_same_object() -> None:
    """The decorator returns its argument; the hints are normalised to bytes and seconds."""
    train = fresh()
    decorated = egs.task(
        gpus=1,
        cpus=4,
        memory="8GiB",
        gpu_memory="20 GB",
        preload=[egs.modules("json", "csv"), egs.files("model.pt")],
        max_runtime="2h",
        max_wait="90s",
        priority=3,
        gang="shards",
        stage="fit",
        name="train-it",
        expect="1.5 min",
        flavors=["a100", "h100"],
        gang_same="rack",
    )(train)
    assert decorated is train
    assert hints_of(train) == TaskHints(
        gpus=1.0,
        cpus=4.0,
        gpu_cpus=4.0,
        memory_bytes=8 * 1024**3,
        gpu_memory_bytes=20 * 10**9,
        preload=(egs.modules("json", "csv"), egs.files("model.pt")),
        max_runtime_s=7200.0,
        max_wait_s=90.0,
        priority=3,
        gang="shards",
        stage="fit",
        name="train-it",
        expect_s=(90.0,),
        flavors=("a100", "h100"),
        gang_same="rack",
    )


def test_without_parentheses_it_means_defaults() -> None:
    """`@egs.task` alone marks the function with default hints."""
    train = fresh()
    assert egs.task(train) is train
    assert hints_of(train) == TaskHints()
    assert hints_of(plain) is None


def test_hints_are_frozen() -> None:
    """Nobody changes a hint after it was checked."""
    hints = hints_of(egs.task(gpus=1)(fresh()))
    with pytest.raises(AttributeError):
        hints.gpus = 2  # type: ignore[union-attr, misc]  # bad on purpose


def test_hints_travel_with_the_function() -> None:
    """A function pickled by value, as frameworks do it, has equal hints on the other side."""
    train = egs.task(gpus=0.5, preload=egs.modules("json"))(fresh())
    assert hints_of(cloudpickle.loads(cloudpickle.dumps(train))) == hints_of(train)


BAD: list[tuple[str, object]] = [
    ("gpus", -1),
    ("gpus", 1.5),
    ("gpus", float("nan")),
    ("gpus", True),
    ("cpus", "4"),
    ("gpu_cpus", float("inf")),
    ("memory", "512m"),
    ("gpu_memory", -1),
    ("preload", "torch"),
    ("preload", ["torch"]),
    ("preload", 5),
    ("max_runtime", "soon"),
    ("max_gpu_time", -1),
    ("max_runtime", 0),
    ("max_gpu_time", "0s"),
    ("max_cost", "5"),
    ("deadline", "tomorrow"),
    ("max_wait", -1),
    ("priority", 1.5),
    ("gang", 3),
    ("stage", b"x"),
    ("name", ["x"]),
    ("split", "yes"),
    ("expect", ("1s", "later")),
    ("expect", ("1s", "1s")),
    ("flavors", ["a100", ""]),
    ("flavors", 5),
    ("gang_same", 1),
    ("gpu", 1),
    ("max_runtime", 0),
    ("max_runtime", "0s"),
    ("max_gpu_time", 0.0),
    ("max_cost", 0),
    ("deadline", 0),
    ("idle_timeout", "soon"),
    ("idle_timeout", 0),
]


@pytest.mark.parametrize(("argument", "value"), BAD)
def test_bad_hints_name_function_and_argument(argument: str, value: object) -> None:
    """The error comes at decoration and says which argument of which function."""
    hints: dict[str, Any] = {argument: value}
    with pytest.raises(InputError, match=rf"@egs\.task on .*train: {argument}"):
        egs.task(**hints)(fresh())


def test_limits_and_deadline_in_plain_units() -> None:
    """Spans in seconds, a cost as it is."""
    hints = hints_of(egs.task(max_runtime="2h", max_gpu_time="90m", max_cost=2.5, deadline="1d")(fresh()))
    assert hints is not None
    assert (hints.max_runtime_s, hints.max_gpu_s, hints.max_cost, hints.deadline_s) == (7200.0, 5400.0, 2.5, 86400.0)


def test_an_idle_timeout_is_accepted_with_one_warning(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name stays; nothing measures whether a task is idle, so nothing is stopped for it."""
    monkeypatch.setattr(notices, "_said", set())
    first, second = (hints_of(egs.task(gpus=1, idle_timeout="3s")(fresh())) for _ in range(2))
    assert first == second == hints_of(egs.task(gpus=1)(fresh()))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("egs: the hint idle_timeout is not applied")
    assert line.endswith("use max_runtime")


def test_a_function_that_was_refused_has_no_hints() -> None:
    """An error leaves the function as it was."""
    train = fresh()
    with pytest.raises(InputError):
        egs.task(expect=("1s", "2s"))(train)
    assert hints_of(train) is None


def test_a_class_is_one_phase() -> None:
    """A class takes hints and stays as it is, its subclasses have them, and it is one phase; durations are checked."""

    class Server:
        def serve(self) -> None:
            with egs.gpu():
                pass

    assert egs.task(gpus=2, expect="1h", priority=3)(Server) is Server
    hints = hints_of(type("Derived", (Server,), {}))
    assert hints is not None
    assert (hints.gpus, hints.expect_s, hints.priority) == (2, (3600.0,), 3)
    assert phase_kinds(Server) == ("gpu",)
    assert phase_kinds(Server, 0) == ("cpu",)
    with pytest.raises(InputError, match="2 durations for 1 phases"):
        egs.task(gpus=1, expect=[1, 2])(Server)


@pytest.mark.parametrize("target", [5, "x", len])
def test_only_functions_and_classes_are_decorated(target: Any) -> None:
    """A framework's object or a number below the decorator is an error that tells the right order."""
    with pytest.raises(InputError, match="below the framework's decorator"):
        egs.task(gpus=1)(target)


def test_expect_has_one_entry_a_phase() -> None:
    """Three durations fit a split function, and are kept in order."""

    def train() -> None:
        with egs.gpu():
            pass

    egs.task(gpus=1, expect=("1s", "1.5s", "0.3s"))(train)
    hints = hints_of(train)
    assert hints is not None
    assert hints.expect_s == (1.0, 1.5, 0.3)
    assert len(phase_kinds(train)) == 3


def test_phases_make_a_real_function() -> None:
    """In order, each gets the result of the one before, under the given name and the first one's parameters."""

    def decode(path: str, *, times: int = 1) -> list[str]:
        return [path] * times

    def fit(batch: list[str]) -> int:
        return len(batch)

    train = egs.phases(decode, egs.on_gpu(fit), str, name="train")
    assert inspect.isfunction(train)
    assert (train.__name__, train.__qualname__) == ("train", "train")
    assert inspect.signature(train) == inspect.signature(decode)
    assert train("a", times=3) == "3"
    assert vars(train)["__egs_phases__"] == phase_kinds(train) == ("cpu", "gpu", "cpu")
    copy = cloudpickle.loads(cloudpickle.dumps(egs.task(gpus=1, expect=(1, 2, 3))(train)))
    assert (copy("b"), copy.__name__, phase_kinds(copy), hints_of(copy)) == (
        "1",
        "train",
        phase_kinds(train),
        hints_of(train),
    )


def test_phases_refuse_what_cannot_be_a_phase() -> None:
    """No function, a value instead of one, a coroutine, a generator."""

    async def later() -> None: ...

    def stream() -> Any:
        yield 1

    for bad in ((), (5,), (later,), (plain, stream)):
        with pytest.raises(InputError, match=r"egs\.phases"):
            egs.phases(*bad)
    with pytest.raises(InputError, match=r"egs\.on_gpu"):
        egs.on_gpu(later)


LIGHT = """
import sys
import egs_core
assert "egs_core.hints" not in sys.modules
egs_core.task, egs_core.gpu, egs_core.loaded
heavy = {"pydantic", "numpy", "sqlalchemy", "msgspec", "pandas", "typer", "rich", "psutil", "ray"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
assert set(egs_core.__all__) <= set(dir(egs_core))
"""


def test_importing_the_hints_is_light() -> None:
    """Workers import them: nothing but the standard library comes with them, and not even that with the package."""
    subprocess.run([sys.executable, "-c", LIGHT], check=True, timeout=240)


def test_an_unknown_name_is_an_attribute_error() -> None:
    """The lazy package behaves like any other module."""
    assert not hasattr(egs, "nothing")


def test_what_is_misspelt_has_the_nearest_name_first() -> None:
    """Then all that there are."""
    with pytest.raises(InputError, match=r"priorty: unknown argument \(did you mean 'priority'\? known: "):
        egs.task(priorty=3)(fresh())  # type: ignore[call-overload]  # that is the mistake
    with pytest.raises(InputError, match=r"zzz: unknown argument \(known: "):
        egs.task(zzz=3)(fresh())  # type: ignore[call-overload]  # that is the mistake


def test_durations_that_do_not_fit_the_phases_show_how_they_are_written() -> None:
    def train() -> None:
        with egs.gpu():
            pass

    with pytest.raises(InputError, match="1 durations for 3 phases") as found:
        egs.task(gpus=1, expect="2s")(train)
    assert found.value.hint == 'one a phase: expect=("1s", "2s", "1s")'
