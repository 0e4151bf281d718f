"""Functions with and without a GPU block, for the bytecode test. Standard library only: other Pythons run it too."""

# mypy: ignore-errors
# Pipeline code as authors write it: without annotations, and partly wrong on purpose.

import contextlib
import functools
import sys

import egs_core as egs
import egs_core.gpu_phase
import egs_core.hints as h
from egs_core.hints import gpu, has_gpu_block, phase_kinds
from egs_core.hints import gpu as lend


class Fake:
    """Looks like the package, but is not it."""

    gpu = staticmethod(contextlib.nullcontext)


fake = Fake()
nullcontext = contextlib.nullcontext


def attribute(x):
    y = [x]
    with egs.gpu():
        y.append(1)
    return y


def bare_name():
    with gpu():
        pass


def alias_with_target():
    with lend() as devices:
        return devices


def other_module():
    with h.gpu():
        pass


def dotted():
    with egs_core.gpu_phase.gpu():
        pass


def with_arguments(n):
    with egs.gpu(n * 2 + len("x")):
        pass


def with_keyword(n):
    with egs.gpu(cpus=n):
        pass


def with_call_argument(n):
    with egs.gpu(cpus=max(n.real, -n * 2, key=abs)) as devices:
        return devices


def second_of_two():
    with open("x") as file, egs.gpu():
        return file


def first_of_two():
    with egs.gpu(), open("x") as file:
        return file


def in_a_loop(xs):
    for _ in xs:
        if xs:
            with egs.gpu():
                continue
        with contextlib.suppress(ValueError):
            pass


def in_a_handler():
    try:
        pass
    except ValueError:
        with egs.gpu():
            pass


async def in_a_coroutine():
    with egs.gpu():
        pass


def make_closures():
    package, function = egs, gpu

    def through_module():
        with package.gpu():
            pass

    def through_function():
        with function():
            pass

    return through_module, through_function


def many_names():
    """More than 256 constants and names, so that the bytecode needs extended arguments."""
    names = "".join(f"    v{i} = {1000 + i}\n    w{i} = u{i} if v{i} < 0 else 0\n" for i in range(400))
    scope = {"egs": egs}
    exec("def big():\n" + names + "    with egs.gpu(cpus=77777):\n        pass\n", scope)
    return scope["big"]


def imports_it_itself():
    import egs_core as egs

    with egs.gpu(2):
        pass


def imports_the_package():
    import egs_core

    with egs_core.gpu():
        pass


def imports_the_name(n):
    if n:
        from egs_core import gpu, task
    else:
        from egs_core.hints import gpu
    with gpu():
        return task


def imports_a_module():
    import egs_core.hints as other

    with other.gpu():
        pass


def imports_for_an_inner_function():
    import egs_core as egs

    def inner():
        return egs

    with egs.gpu():
        inner()


def imports_and_binds(other):
    import egs_core as egs

    egs = other  # noqa: F811  # that is the case
    with egs.gpu():
        pass


def imports_over_a_parameter(egs=Fake):
    if egs:
        import egs_core as egs
    with egs.gpu():
        pass


def imports_another():
    import argparse as egs

    with egs.gpu():
        pass


def imports_something_else():
    from egs_core import task as gpu

    with gpu():
        pass


def nothing():
    return 1


def only_called():
    return egs.gpu()


def called_then_other():
    block = egs.gpu()
    with open("x"):
        return block


def local_alias():
    block = egs.gpu
    with block():
        pass


def stored_block():
    block = egs.gpu()
    with block:
        pass


def fake_package():
    with fake.gpu():
        pass


def other_name_in_module():
    with egs.on_gpu(nothing):
        pass


def shadowed(egs):
    with egs.gpu():
        pass


def conditional(x):
    with nullcontext() if x else egs.gpu():
        pass


def conditional_other_way(x):
    with egs.gpu() if x else nullcontext():
        pass


def argument_of_another():
    with nullcontext(egs.gpu()):
        pass


def method_of_result():
    with egs.gpu().twice():
        pass


def one_of_two(x):
    with (gpu, nullcontext)[1](x):
        pass


def attribute_of_function():
    with gpu.other():
        pass


def result_called(x):
    with egs.gpu()(x):
        pass


def inner_function():
    def inner():
        with egs.gpu():
            pass

    return inner


def calls_helper():
    attribute(1)


def text_only():
    """with egs.gpu(): pass"""
    return "with egs.gpu():"


@functools.wraps(attribute)
def wrapper(*args):
    return attribute(*args)


YES = [
    attribute,
    bare_name,
    alias_with_target,
    other_module,
    dotted,
    with_arguments,
    with_call_argument,
    with_keyword,
    second_of_two,
]
YES += [imports_it_itself, imports_the_package, imports_the_name, imports_a_module, imports_for_an_inner_function]
YES += [first_of_two, in_a_loop, in_a_handler, in_a_coroutine, *make_closures(), many_names()]
NO = [nothing, only_called, called_then_other, local_alias, stored_block, fake_package, other_name_in_module, shadowed]
NO += [
    conditional,
    conditional_other_way,
    argument_of_another,
    method_of_result,
    one_of_two,
    inner_function,
    calls_helper,
]
NO += [imports_and_binds, imports_over_a_parameter, imports_another, imports_something_else]
NO += [attribute_of_function, result_called, text_only, wrapper, len, Fake, functools.partial(attribute), 5, None]


def check():
    """Raise AssertionError that names the first function that is judged wrongly."""
    for function in YES:
        assert has_gpu_block(function) is True, f"missed: {function}"
        assert phase_kinds(function) == ("cpu", "gpu", "cpu"), function
    for function in NO:
        assert has_gpu_block(function) is False, f"seen where none is: {function}"
        assert phase_kinds(function) == ("cpu",), function
    print(f"{len(YES)} with and {len(NO)} without a GPU block on Python {sys.version.split()[0]}")


if __name__ == "__main__":
    check()
