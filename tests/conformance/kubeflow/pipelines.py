"""Real pipelines for the local runner's tests, one construct of kfp after the other."""

# mypy: disable-error-code="no-any-return"
# Pipelines return what a task will give, not a value.
# kfp reads the annotations of components: they must not be text, so no `from __future__ import annotations`
from collections.abc import Callable
from typing import Any, Optional

from kfp import dsl, kubernetes
from kfp.dsl import Dataset, Input, Output

from egs_kubeflow.components import component as egs_component


def component(function: Callable[..., Any]) -> Any:
    """A component of this interpreter's packages."""
    return dsl.component(base_image="python:3.12", install_kfp_package=False)(function)


@component
def text(value: str = "x", times: int = 1) -> str:
    return value * times


@component
def coin(seed: int) -> str:
    return "heads" if seed % 2 else "tails"


@component
def numbers(n: int) -> list[int]:
    return list(range(n))


@component
def square(x: int, file: Output[Dataset]) -> int:
    with open(file.path, "w") as out:
        out.write(str(x * x))
    file.metadata["of"] = x
    return x * x


@component
def total(xs: list[int]) -> int:
    return sum(xs)


@component
def join(files: Input[list[Dataset]]) -> str:
    parts = []
    for file in files:
        with open(file.path) as content:
            parts.append(content.read())
    return ",".join(parts)


@component
def read(file: Input[Dataset]) -> str:
    with open(file.path) as content:
        return content.read()


@component
def broken(message: str) -> str:
    raise RuntimeError(message)


@component
def note(path: str, status: dsl.PipelineTaskFinalStatus) -> None:
    with open(path, "w") as out:
        out.write(f"{status.state} {status.pipeline_task_name}")


@component
def third_time(path: str) -> int:
    with open(path, "a+") as tries:
        tries.write("x")
        tries.seek(0)
        count = len(tries.read())
    if count < 3:
        raise RuntimeError("not yet")
    return count


@component
def sleep(seconds: float, after: str = "") -> str:
    import time

    time.sleep(seconds)
    return f"slept {after}"


@component
def variable(name: str) -> str:
    import os

    return os.environ.get(name, "none")


@dsl.pipeline
def summed(n: int) -> int:
    """A loop over what a task gives, and what its iterations give together."""
    with dsl.ParallelFor(numbers(n=n).output, parallelism=2) as x:
        each = square(x=x)
    return total(xs=dsl.Collected(each.outputs["Output"])).output


@dsl.pipeline
def nested(n: int = 4) -> str:
    """A pipeline in a pipeline, whose output goes on; text with a placeholder of a number."""
    inner = summed(n=n)
    return text(value=f"sum {inner.output} of {n}", times=2).output


@dsl.pipeline
def files() -> str:
    """A loop over a list as written, with fields, and its artifacts together."""
    with dsl.ParallelFor([{"a": 3, "b": 1}, {"a": 1, "b": 2}, {"a": 2, "b": 3}]) as item:
        each = square(x=item.a)
        text(times=item.b)
    return join(files=dsl.Collected(each.outputs["file"])).output


@dsl.pipeline
def pairs() -> int:
    """A loop in a loop."""
    with dsl.ParallelFor([1, 2]) as x:
        square(x=x)
        with dsl.ParallelFor([10, 20]) as y:
            square(x=y)
    return total(xs=[1]).output


@component
def shown(values: list[int]) -> str:
    return repr(values)


@dsl.pipeline
def row(x: int) -> list[int]:
    with dsl.ParallelFor([1, 2]):
        each = square(x=x)
    return dsl.Collected(each.outputs["Output"])


@dsl.pipeline
def tables() -> str:
    """What a loop in a loop, in a pipeline of its own, collects; and what the outer one collects of each inner one."""
    with dsl.ParallelFor([2, 3]) as x:
        found = row(x=x)
        told = total(xs=found.output)
    flat = shown(values=dsl.Collected(found.output))
    sums = shown(values=dsl.Collected(told.output))
    return text(value=f"{flat.output} {sums.output}", times=1).output


@component
def elsewhere(folder: str, file: Output[Dataset], tree: Output[Dataset]) -> None:
    """Its artifacts are where it says, not where kfp does."""
    import os

    file.set_path(f"{folder}/file")
    with open(file.path, "w") as out:
        out.write("a file")
    tree.set_path(f"{folder}/tree")
    os.makedirs(tree.path)
    with open(f"{tree.path}/leaf", "w") as out:
        out.write("a tree")


@component
def read_leaf(file: Input[Dataset], tree: Input[Dataset]) -> str:
    with open(file.path) as one, open(f"{tree.path}/leaf") as other:
        return f"{one.read()}, {other.read()}"


@dsl.pipeline
def moved(folder: str) -> str:
    """Files of `set_path`."""
    made = elsewhere(folder=folder)
    return read_leaf(file=made.outputs["file"], tree=made.outputs["tree"]).output


@dsl.pipeline
def finished(path: str) -> None:
    """An exit task after what has gone well."""
    with dsl.ExitHandler(note(path=path)):
        text(value="fine", times=1)


@dsl.pipeline
def choice(seed: int) -> str:
    """One of three branches, and what it gives."""
    tossed = coin(seed=seed)
    with dsl.If(tossed.output == "heads"):
        first = text(value="head", times=1)
    with dsl.Elif(seed > 5):
        second = text(value="large", times=1)
    with dsl.Else():
        third = text(value="tail", times=1)
    return text(value=dsl.OneOf(first.output, second.output, third.output), times=2).output


@dsl.pipeline
def guarded(path: str) -> None:
    """A failure in an exit handler: what follows it is skipped, the exit task hears of it."""
    with dsl.ExitHandler(note(path=path)):
        bad = broken(message="on purpose")
        text(value=bad.output)


@dsl.pipeline
def tolerant() -> None:
    """A task that runs although the one before it has failed."""
    bad = broken(message="on purpose")
    text(value="still", times=1).after(bad).ignore_upstream_failure()


@dsl.pipeline
def patient(path: str) -> int:
    return third_time(path=path).set_retry(num_retries=3, backoff_duration="0s").output


@dsl.pipeline
def importing(uri: str) -> str:
    found = dsl.importer(artifact_uri=uri, artifact_class=Dataset, metadata={"kind": "given"})
    return read(file=found.output).output


@dsl.pipeline
def twice() -> str:
    """Two tasks of one component, whose files must not be each other's."""
    one, two = square(x=2), square(x=3)
    return text(value=f"{read(file=one.outputs['file']).output} {read(file=two.outputs['file']).output}").output


@dsl.pipeline
def twice_plain() -> str:
    return text(value=f"{text(value='a').output} {text(value='b', times=2).output}").output


@component
def described(n: int, share: float, is_on: bool, names: list[str], more: dict[str, str]) -> str:
    return repr((n, share, is_on, names, more))


@dsl.pipeline
def values(
    n: int = 2,
    share: float = 3.0,
    is_on: bool = True,
    names: list[str] = ["a"],  # noqa: B006  # kfp takes its defaults from here
    more: dict[str, str] = {"b": "c"},  # noqa: B006  # as above
) -> str:
    """A value of each type, as a component sees it."""
    return described(n=n, share=share, is_on=is_on, names=names, more=more).output


@component
def optional(n: Optional[int] = None, name: str = "unnamed") -> str:  # noqa: UP045  # kfp reads no `int | None`
    return f"{n} {name}"


@dsl.pipeline
def opted(n: Optional[int] = None) -> str:  # noqa: UP045  # as above
    """Optional inputs that nobody gives."""
    return text(value=f"{optional(n=n).output} {optional(n=3).output}", times=1).output


@dsl.pipeline
def variables() -> str:
    return variable(name="EGS_TEST_VALUE").set_env_variable("EGS_TEST_VALUE", "of the task").output


@dsl.pipeline
def devices() -> None:
    """Four tasks for one GPU each."""
    for _ in range(4):
        task = variable(name="CUDA_VISIBLE_DEVICES")
        task.set_accelerator_type("nvidia.com/gpu").set_accelerator_limit(1)
    variable(name="CUDA_VISIBLE_DEVICES")


def packaged(wheel: str) -> Any:
    """A pipeline of two tasks whose component installs a wheel and imports what is in it."""

    @dsl.component(base_image="python:3.12", packages_to_install=[wheel])
    def use() -> str:
        import egs_test_package  # type: ignore[import-not-found]  # the wheel has it

        return egs_test_package.VALUE

    @dsl.pipeline(name="packaged")
    def twice() -> str:
        return text(value=f"{use().output} {use().output}", times=1).output

    return twice


@dsl.pipeline
def six() -> None:
    """Six tasks of a quarter of a second, four of them a chain: a - b - c - d, and e, f beside it."""
    a = sleep(seconds=0.25)
    b = sleep(seconds=0.25, after=a.output)
    c = sleep(seconds=0.25, after=b.output)
    sleep(seconds=0.25, after=c.output)
    sleep(seconds=0.25)
    sleep(seconds=0.25)


@component
def crowd(folder: str, number: int) -> int:
    """Notes that it has begun, and waits for a sign."""
    import os
    import time

    open(f"{folder}/{number}.began", "w").close()
    while not os.path.exists(f"{folder}/go"):
        time.sleep(0.02)
    return number


@dsl.pipeline
def crowded(folder: str) -> int:
    """Twenty-four tasks that ask for no CPU."""
    with dsl.ParallelFor(list(range(24))) as number:
        one = crowd(folder=folder, number=number)
        one.set_cpu_request("0")
    return total(xs=dsl.Collected(one.output)).output


@dsl.pipeline
def endless() -> None:
    for _ in range(3):
        sleep(seconds=600.0)


@component
def leave(folder: str) -> None:
    with open(f"{folder}/left", "w") as out:
        out.write("by the first")


@component
def find(folders: list[str]) -> str:
    with open(f"{folders[0]}/left") as content:
        return content.read()


@dsl.pipeline(
    pipeline_config=dsl.PipelineConfig(
        workspace=dsl.WorkspaceConfig(size="1Gi", kubernetes=dsl.KubernetesWorkspaceConfig(pvcSpecPatch={}))
    )
)
def sharing() -> str:
    """Two tasks that share the pipeline's workspace."""
    first = leave(folder=dsl.WORKSPACE_PATH_PLACEHOLDER)
    return find(folders=[dsl.WORKSPACE_PATH_PLACEHOLDER]).after(first).output


@component
def unwritten(value: dsl.OutputPath(str)) -> None:  # type: ignore[valid-type]  # how kfp has it
    print(len(value) > 0)


@dsl.pipeline
def over_items(items: list[int]) -> None:
    with dsl.ParallelFor(items) as x:
        square(x=x)


@dsl.pipeline
def on_unwritten() -> None:
    with dsl.If(unwritten().output == "yes"):
        text(value="x", times=1)


@component
def escape(folder: str, seconds: float) -> None:
    """Leaves a process in a session of its own, which keeps the task's output open; then waits itself."""
    import subprocess
    import time

    left = subprocess.Popen(["sleep", "600"], start_new_session=True)
    with open(f"{folder}/escaped", "a") as out:
        out.write(f"{left.pid}\n")
    time.sleep(seconds)


@dsl.pipeline
def escaping(folder: str) -> None:
    """One task that ends, and one that must be ended; the second is started by a command, not forked."""
    first = escape(folder=folder, seconds=0.0)
    second = escape(folder=folder, seconds=600.0).set_env_variable("EGS_TEST_VALUE", "1").after(first)
    kubernetes.set_timeout(second, 1)


def kept(folder: str) -> None:
    """Says its number, leaves a process, and stays."""
    import os
    import subprocess
    import time

    left = subprocess.Popen(["sleep", "600"], start_new_session=True)
    with open(f"{folder}/kept", "a") as out:
        out.write(f"{os.getpid()} {left.pid}\n")
    time.sleep(600)


keep = component(kept)
keep_recorded = egs_component(base_image="python:3.12", install_kfp_package=False)(kept)


@dsl.pipeline
def staying(folder: str) -> None:
    """A task of each way to start one: forked, with a variable, with the recorder."""
    keep(folder=folder)
    keep(folder=folder).set_env_variable("EGS_TEST_VALUE", "1")
    keep_recorded(folder=folder)


@component
def talk(lines: int) -> int:
    for number in range(lines):
        print(f"line {number}", flush=True)
    return lines


@dsl.pipeline
def talking() -> None:
    talk(lines=200)
