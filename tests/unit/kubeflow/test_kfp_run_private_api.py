"""What EGS uses of kfp without a public name, for the runner and for components, is there and does what it did."""

# kfp reads the annotations of components: they must not be text, so no `from __future__ import annotations`
import sys
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl
from kfp.dsl import Dataset, Input, Model, Output

from egs_core.errors import InputError
from egs_kubeflow import compat
from egs_kubeflow.convert.documents import checked, documents_of
from egs_kubeflow.run.plan import Slots, make_plan


@dsl.component(base_image="python:3.12", install_kfp_package=False)
def many(n: int, share: float, names: list[int], files: Input[list[Dataset]], out: Output[Model]) -> int:
    out.metadata["of"] = (share, names, files)
    return n


@dsl.component(base_image="python:3.12", packages_to_install=["some-package"])
def installing() -> None:
    print("python3")


NAMES = {"pipeline_resource_name": "j", "task_resource_name": "t", "pipeline_root": "/r", "unique_pipeline_id": "1"}


def _parts(component: Any) -> tuple[Any, Any]:
    """The component's message and its container's."""
    spec = checked(documents_of(component), "test")
    message = spec.pipeline.components[f"comp-{component.name}"]
    return message, spec.executors[message.executor_label].container


@pytest.mark.parametrize("feature", ["local", "component"])
def test_the_features_are_there(feature: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this kfp they are; where their probe fails they are not."""
    assert compat.available(feature)
    monkeypatch.setenv(compat.WITHOUT, feature)
    assert not compat.available(feature)


def test_without_its_api_the_runner_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fallback of `local` is an error before anything runs; of `component`, that tasks are a pipeline's."""
    monkeypatch.setenv(compat.WITHOUT, "local, component")
    with pytest.raises(InputError, match="has no local executor that EGS knows"):
        make_plan(documents_of(many), {}, Slots(1.0), "test")
    assert compat.in_pipeline()


def test_inputs_are_as_the_backend_writes_them(tmp_path: Path) -> None:
    """Whole numbers without `.0` but where a float is stated; lists of artifacts; files under the task's folder."""
    component, container = _parts(many)
    file = Dataset(name="a", uri="/x/a", metadata={"k": "v"})
    values = {"n": 3.0, "share": 2.0, "names": [1.0, 2.0], "files": [file, file]}
    _, inputs = compat.task_inputs(component, values, str(tmp_path))
    found = inputs["inputs"]["parameterValues"]
    assert repr([found[name] for name in ("n", "share", "names")]) == "[3, 2.0, [1, 2]]"
    assert [a["uri"] for a in inputs["inputs"]["artifacts"]["files"]["artifacts"]] == ["/x/a", "/x/a"]
    assert inputs["outputs"]["artifacts"]["out"]["artifacts"][0]["uri"] == str(tmp_path / "out")
    command = compat.filled_command([*container.command, *container.args], inputs, NAMES)
    assert compat.runs_user_code(list(container.command))
    filled = compat.filled_command(["{{$.pipeline_job_resource_name}} {{$.inputs.parameters['n']}}"], inputs, NAMES)
    assert filled == ["j 3"]
    assert '"/x/a"' in command[command.index("--executor_input") + 1]


def test_outputs_are_read_from_the_tasks_files(tmp_path: Path) -> None:
    """A parameter of its type; an artifact of its class, also where the executor has said nothing of it."""
    component, _ = _parts(many)
    message, _ = compat.task_inputs(component, {"n": 1, "share": 1.0, "names": [], "files": []}, str(tmp_path))
    (tmp_path / "executor_output.json").write_text('{"parameterValues": {"Output": 7}}')
    found = compat.task_outputs(message, component)
    assert found["Output"] == 7
    assert (type(found["out"]), found["out"].uri) == (Model, str(tmp_path / "out"))


def test_the_interpreter_is_replaced_but_not_in_the_users_code() -> None:
    """`python3` of kfp's own shell text becomes the interpreter; the user's text stays."""
    _, container = _parts(installing)
    command = compat.with_python([*container.command, *container.args], sys.executable)
    assert sys.executable in command[2]
    assert any('print("python3")' in part for part in command)


def test_a_component_has_its_container_and_knows_pipelines() -> None:
    """Its command is kfp's, and only while a pipeline is traced is there one."""
    asked: list[bool] = []

    @dsl.pipeline
    def traced() -> None:
        asked.append(compat.in_pipeline())
        installing()

    assert asked == [True]
    assert not compat.in_pipeline()
    assert compat.container_of(installing).command[0] == "sh"
    assert isinstance(installing, compat.python_component())
    assert compat.is_output(Output[Model])
    assert not compat.is_output(Input[Model])
