"""What of a function can be cut at its GPU block; what cannot is an error that names the line."""

# kfp reads the annotations of components: they must not be text, so no `from __future__ import annotations`
import inspect
from collections.abc import Callable
from typing import Any

import pytest
from kfp import dsl
from kfp.dsl import Model, Output, OutputPath

import egs_core as egs
from egs_core.errors import InputError
from egs_core.hints import TaskHints
from egs_kubeflow.components import component
from egs_kubeflow.components.phases import parts_of


def in_a_loop(n: int) -> None:
    for _ in range(n):
        with egs.gpu():  # here
            print(n)


def twice(n: int) -> None:
    with egs.gpu():
        print(n)
    with egs.gpu():  # here
        print(n)


def returning(n: int) -> int:
    if n > 3:
        return 0  # here
    with egs.gpu():
        n += 1
    return n


def handing_on_a_file(path: str) -> None:
    file = open(path)  # noqa: SIM115  # here: what is tested
    with egs.gpu():
        print(file.read())


def named(n: int) -> None:
    with egs.gpu() as devices:  # here
        print(n, devices)


def importing_late(n: int) -> None:
    if n:
        import json  # here
    with egs.gpu():
        print(json.dumps(n))


def writing_twice(model: Output[Model]) -> None:  # here
    print(model.path)
    with egs.gpu():
        print(model.path)


def to_a_path(path: OutputPath(str)) -> None:  # type: ignore[valid-type]  # here: how kfp has it
    with egs.gpu():
        print(path)


def cpus_unknown(n: int) -> None:
    with egs.gpu(cpus=n):  # here
        print(n)


def yielding(n: int) -> Any:
    with egs.gpu():
        yield n  # here


def in_a_function_of_its_own(n: int) -> None:
    import egs_core

    def inner() -> None:
        with egs_core.gpu():  # here
            print(n)

    inner()


UNCUT = [
    in_a_loop,
    twice,
    returning,
    handing_on_a_file,
    named,
    importing_late,
    writing_twice,
    to_a_path,
    cpus_unknown,
    yielding,
    in_a_function_of_its_own,
]


@pytest.mark.parametrize("function", UNCUT, ids=lambda function: str(function.__name__))
def test_what_cannot_be_cut_is_an_error_that_names_its_line(function: Callable[..., Any]) -> None:
    """File and line of what is in the way, when the component is made: nothing has been compiled."""
    lines, first = inspect.getsourcelines(function)
    line = next(first + number for number, text in enumerate(lines) if "here" in text)
    with pytest.raises(InputError, match=rf"test_kfp_component_cut\.py:{line}: "):
        component(gpus=1, base_image="python:3.12")(function)


def handing_on(path: str, n: int = 2) -> int:
    import json as j
    import os.path

    def double(value: int) -> int:
        return twofold(value)

    def twofold(value: int) -> int:
        return value * 2

    _base = os.path.basename(path)
    size: int = j.loads(path)
    with egs.gpu():
        result = double(size) + sum(size for size in range(n))
    return result + size


def test_a_part_gets_what_it_uses_and_no_more() -> None:
    """Values by name; imports and functions again, with those that they use; parameters where they are used."""
    before, block, after = parts_of(egs.task(gpus=1)(handing_on), TaskHints(gpus=1))
    assert [part.inputs for part in (before, block, after)] == [("path",), ("n",), ()]
    text = inspect.getsource(block.function)
    assert "'size'" in text
    assert "'_base'" not in text
    assert "def double" in text
    assert "def twofold" in text
    assert "import json" not in text
    assert inspect.getsource(after.function).rstrip().endswith("return result + size")
    assert "def double" not in inspect.getsource(after.function)


def test_the_parts_together_give_what_the_function_gives(tmp_path: Any) -> None:
    """Called one after the other, with files between them, in this process."""

    class File:
        def __init__(self, name: str) -> None:
            self.path = str(tmp_path / name)

    before, block, after = parts_of(egs.task(gpus=1)(handing_on), TaskHints(gpus=1))
    before.function(File("a"), path="5")
    block.function(File("b"), File("a"), n=3)
    assert after.function(File("b")) == handing_on("5", 3)


def importing_egs(path: str) -> Any:
    import json as j

    import egs_core as egs

    values = j.loads(path)
    with egs.gpu():
        result = sum(values)
    return result + 1


def importing_a_name(path: str) -> Any:
    import json

    from egs_core import gpu

    values = json.loads(path)
    with gpu():
        result = sum(values)
    return result + 1


def importing_more(path: str) -> Any:
    import json

    from egs_core import gpu, units

    values = json.loads(path)
    with gpu():
        result = sum(values) + int(units.parse_seconds("1s")) - 1
    return result + 1


@pytest.mark.parametrize("function", [importing_egs, importing_a_name, importing_more])
def test_what_a_function_imports_of_egs_itself_is_its_block(function: Callable[..., Any], tmp_path: Any) -> None:
    """Where kfp's authors put imports: cut as with an import of the module, the same value, and the import is left out
    unless something else uses it."""

    class File:
        def __init__(self, name: str) -> None:
            self.path = str(tmp_path / name)

    parts = parts_of(egs.task(gpus=1)(function), TaskHints(gpus=1))
    assert [vars(part.function)["__egs__"].gpus or 0 for part in parts] == [0, 1, 0]
    texts = [inspect.getsource(part.function) for part in parts]
    kept = ["from egs_core import units" in text for text in texts]
    assert kept == [False, function is importing_more, False]
    assert not any("gpu()" in text or "import gpu" in text for text in texts)
    assert ["egs_core" in text for text in texts] == kept
    before, block, after = parts
    before.function(File("a"), path="[1, 2]")
    block.function(File("b"), File("a"))
    assert after.function(File("b")) == function("[1, 2]") == 4


def test_what_is_not_split_imports_nothing_of_egs() -> None:
    """`split=False`: one part, without the import and the block."""
    (part,) = parts_of(egs.task(gpus=1, split=False)(importing_egs), TaskHints(gpus=1, split=False))
    assert "egs" not in inspect.getsource(part.function).replace("importing_egs", "")
    assert part.function("[1, 2]") == 4


def rebinding(flag: bool, name: str = "a") -> str:
    if flag:
        name = "b"
    with egs.gpu():
        text = f"{name}{name}"
    return text + ""


def test_a_parameter_that_may_be_bound_again_goes_on(tmp_path: Any) -> None:
    """The value that it has when the block begins, whichever that is."""

    class File:
        def __init__(self, name: str) -> None:
            self.path = str(tmp_path / name)

    before, block, after = parts_of(egs.task(gpus=1)(rebinding), TaskHints(gpus=1))
    for flag, text in ((True, "bb"), (False, "aa")):
        before.function(File("a"), flag=flag, name="a")
        block.function(File("b"), File("a"))
        assert after.function(File("b")) == text


def test_a_function_that_is_not_split_keeps_its_statements() -> None:
    """Blocks anywhere, also in loops, are opened: the container knows no `egs`."""

    def many(n: int) -> int:
        for _ in range(n):
            try:
                with egs.gpu():
                    n += 1
            finally:
                with egs.gpu():
                    n += 1
        return n

    (part,) = parts_of(egs.task(gpus=1, split=False)(many), TaskHints(gpus=1, split=False))
    assert "egs.gpu" not in inspect.getsource(part.function)
    assert part.function(3) == many(3) == 9


def test_hints_are_those_of_each_phase() -> None:
    """CPU parts say that they need no GPU; a gang is one for each phase; expectations are their own."""
    hints = TaskHints(gpus=2.0, cpus=4.0, gpu_memory_bytes=5, gang="g", expect_s=(1.0, 2.0, 3.0), max_runtime_s=9.0)
    found = [part.function.__dict__["__egs__"] for part in parts_of(egs.task(gpus=2)(handing_on), hints)]
    assert [hint.gpus for hint in found] == [0.0, 2.0, 0.0]
    assert [hint.gang for hint in found] == ["g.0", "g.1", "g.2"]
    assert [hint.expect_s for hint in found] == [(1.0,), (2.0,), (3.0,)]
    assert [hint.gpu_memory_bytes for hint in found] == [None, 5, None]
    assert {hint.max_runtime_s for hint in found} == {9.0}


def test_kfps_arguments_and_wrong_hints_are_told_apart() -> None:
    """kfp gets its own; a wrong hint and an unknown argument are errors that name it, and the one that was meant."""

    def step(n: int) -> int:
        return n

    with pytest.raises(InputError, match="gpus"):
        component(gpus=-1, base_image="python:3.12")(step)
    for wrong, meant in (("gpu", "gpus"), ("base_imag", "base_image")):
        arguments: dict[str, Any] = {wrong: 1}
        with pytest.raises(InputError, match=rf"component: {wrong}: unknown argument \(did you mean '{meant}'"):
            component(**arguments)(step)
    assert isinstance(component(idle_timeout="5m", base_image="python:3.12")(step), dsl.base_component.BaseComponent), (
        "warns, as egs.task does"
    )
    assert isinstance(component(base_image="python:3.12")(step), dsl.base_component.BaseComponent)
