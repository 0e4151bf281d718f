"""A pipeline of the conformance suite as its author would have written it for Kubeflow: the text of a module.

Each task is a component of its own name, which finds the suite's `body` in the folder of the run; a task of several
phases is made by `egs.phases`. Values travel as text, with `|` between those of several predecessors.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from egs_core.testing.conformance import body
from egs_core.testing.conformance.pipeline import Pipeline, Task

HEAD = """
from kfp import dsl
import egs_core as egs
from egs_kubeflow import component

KFP = {'base_image': 'python:3.12', 'install_kfp_package': False, 'record': False}
"""

FUNCTION = """
def {name}(given: str) -> str:
    import sys
    sys.path.insert(0, {folder!r})
    import body
"""


def text_of(pipeline: Pipeline, folder: Path, environment: dict[str, str], is_split: bool, is_loading: bool) -> str:
    """The module. environment: variables of every task. is_split: phases are declared, else each task is one
    component that holds its GPUs from start to end. is_loading: what is loaded before a task is a module that tells."""
    assert body.__file__ is not None
    (folder / "body.py").write_text(Path(body.__file__).read_text())
    for task in pipeline.tasks:
        if task.loads:
            told = f"import body\n\nbody.mark({str(folder)!r}, {task.name!r}, 'load')\n"
            (folder / f"{_module_of(task)}.py").write_text(told)
    lines = [f"\n@dsl.pipeline(name={pipeline.name!r})", "def pipeline() -> None:"]
    for task in pipeline.tasks:
        given = "|".join(f"{{made_{parent}.output}}" for parent in task.after)
        lines.append(f"    made_{task.name} = {task.name}(given=f'{given}')")
        lines += [f"    made_{task.name}.set_env_variable({key!r}, {value!r})" for key, value in environment.items()]
    tasks = pipeline.tasks if is_loading else [msgspec.structs.replace(task, loads=False) for task in pipeline.tasks]
    components = [_phased(task, folder) if _is_phased(task, is_split) else _whole(task, folder) for task in tasks]
    return HEAD + "".join(components) + "\n".join(lines) + "\n"


def _is_phased(task: Task, is_split: bool) -> bool:
    return is_split and len(task.phases) > 1


def _whole(task: Task, folder: Path) -> str:
    text = _function(task.name, task, folder, range(len(task.phases)))
    return f"{text}\n{task.name} = component({_hints(task, sum(task.expect_s))} **KFP)({task.name})\n"


def _phased(task: Task, folder: Path) -> str:
    names = [f"{task.name}_{number}" for number in range(len(task.phases))]
    text = "".join(_function(name, task, folder, [number]) for number, name in enumerate(names))
    steps = [f"egs.on_gpu({name})" if phase.gpus else name for name, phase in zip(names, task.phases, strict=True)]
    phases = f"egs.phases({', '.join(steps)}, name={task.name!r})"
    return f"{text}\n{task.name} = component(egs.task({_hints(task, list(task.expect_s))})({phases}), **KFP)\n"


def _function(name: str, task: Task, folder: Path, numbers: range | list[int]) -> str:
    lines = []
    for number in numbers:
        phase = task.phases[number]
        what = (str(folder), task.name, number, phase.seconds, phase.until)
        lines.append(f"    body.do_phase({', '.join(map(repr, what))})\n")
    if task.fails:
        lines.append(f"    raise ValueError('{task.name} fails')\n")
    value = f"body.value({task.name!r}, tuple(value for value in given.split('|') if value))"
    lines.append(f"    return {'given' if numbers[0] else value}\n")
    return FUNCTION.format(name=name, folder=str(folder)) + "".join(lines)


def _hints(task: Task, expect_s: object) -> str:
    stated = {
        "gpus": task.gpus,
        "cpus": task.cpus,
        "expect": expect_s if task.expect_s else None,
        "gang": task.gang,
        "max_runtime": task.max_runtime_s,
    }
    loads = f"preload=egs.modules({_module_of(task)!r}), " if task.loads else ""
    return "".join(f"{name}={value!r}, " for name, value in stated.items() if value) + loads


def _module_of(task: Task) -> str:
    return f"loaded_for_{task.name}"
