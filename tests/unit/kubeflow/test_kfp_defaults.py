"""What the default of a pipeline's parameter decides in a rewrite is noted, since a run may have another value."""

# kfp reads the annotations of components: they must not be text, so no `from __future__ import annotations`
from pathlib import Path
from typing import Any

import pytest
from kfp import compiler, dsl

from egs_core.errors import InputError
from egs_kubeflow.cli import app
from egs_kubeflow.convert.documents import documents_of
from egs_kubeflow.rewrite.changes import Rewritten
from egs_kubeflow.rewrite.pipeline import rewrite
from egs_kubeflow.rewrite.profile import parse_profile
from tests.unit.kubeflow.made_site import hinted

SITE = """
pools:
  - {name: cpu, selector: {pool: cpu}, memory: 60GiB}
  - {name: a100, selector: {pool: a100}, accelerator: nvidia.com/gpu, gpus_per_node: 2}
  - {name: tpu, selector: {pool: tpu}, accelerator: google.com/tpu}
"""


@dsl.component(base_image="python:3.12")
def step(n: int = 1) -> int:
    return n


@dsl.pipeline
def inner(memory: str) -> None:
    step().set_memory_limit(memory)


@dsl.pipeline
def sized(mem: str = "16G", kind: str = "nvidia.com/gpu", items: list[int] = [1, 2]) -> None:  # noqa: B006  # kfp takes it from here
    """Amounts by parameters: of the pipeline, of one inside it, of a kind; a gang as wide as a parameter says."""
    step().set_memory_limit(mem)
    inner(memory=mem)
    inner(memory="2G")
    step().set_accelerator_type(kind).set_accelerator_limit(1)
    with dsl.ParallelFor(items) as n:
        hinted(step(n=n), gang="shards")


def written(arguments: dict[str, Any] | None = None, run_id: str = "", site: str = SITE) -> Rewritten:
    return rewrite(documents_of(sized), parse_profile(site), None, arguments, run_id)


def noted(result: Rewritten) -> dict[str, str]:
    """What is noted, by what it is about, up to what is to be done."""
    return {who: text.partition(": for a run")[0] for who, _, text in (note.partition(": ") for note in result.notes)}


def test_what_a_default_decides_is_noted() -> None:
    """Each task with what depends on it; not one whose amount no run can change."""
    assert noted(written()) == {
        "gang 'shards'": "its size is by the default of parameter 'items'",
        "step": "where it runs is decided by the default of parameter 'mem'",
        "inner.step": "where it runs is decided by the default of parameter 'mem'",
        "step-2": "where it runs is decided by the default of parameter 'kind'",
    }
    assert "compile with --arg mem=VALUE, or submit it with egs_kubeflow.Client" in "".join(written().notes)


def test_an_argument_is_no_default() -> None:
    """What is given for the rewrite counts, and needs no note; nor has a rewrite for one run any."""
    result = written({"mem": "500G", "kind": "google.com/tpu", "items": [1, 2, 3]})
    assert noted(result) == {}
    pools = {change.task: change.after for change in result.changes if change.field == "node selector"}
    assert pools["step-2"] == {"pool": "tpu"}
    assert "step" not in pools
    assert noted(written(run_id="r1")) == {}


def test_a_default_that_decides_nothing_is_not_noted() -> None:
    """A pool that does not say how large its nodes are fits any amount."""
    site = (
        "pools: [{name: cpu, selector: {pool: cpu}}, {name: gpu, selector: {pool: gpu}, accelerator: nvidia.com/gpu}]"
    )
    assert set(noted(written(site=site))) == {"gang 'shards'", "step-2"}


def test_compile_takes_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--arg name=value`, by the types that the pipeline states; a wrong one is named."""
    compiler.Compiler().compile(sized, str(tmp_path / "p.yaml"))
    (tmp_path / "site.yaml").write_text(SITE)
    command = ["compile", str(tmp_path / "p.yaml"), "--profile", str(tmp_path / "site.yaml")]
    command += ["-o", str(tmp_path / "out.yaml")]
    app(command, standalone_mode=False)
    assert "note: step: where it runs is decided by the default of parameter 'mem'" in capsys.readouterr().err
    given = ["--arg", "mem=2G", "--arg", "kind=nvidia.com/gpu", "--arg", "items=[1]"]
    app([*command, *given], standalone_mode=False)
    assert "note:" not in capsys.readouterr().err
    for wrong, problem in (("items=x", "'x' is no LIST"), ("mem", "name=value"), ("me=1", "did you mean 'mem'")):
        with pytest.raises(InputError, match=problem):
            app([*command, "--arg", wrong], standalone_mode=False)


def test_manifests_say_what_a_default_decides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The rewrite behind `egs kubeflow manifests` notes the same as that of `compile`, each thing once."""
    compiler.Compiler().compile(sized, str(tmp_path / "p.yaml"))
    (tmp_path / "site.yaml").write_text(SITE)
    command = ["manifests", str(tmp_path / "p.yaml"), "--profile", str(tmp_path / "site.yaml")]
    app([*command, "-o", str(tmp_path / "out")], standalone_mode=False)
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: ")]
    assert sum("note: step: where it runs is decided by the default of parameter 'mem'" in line for line in said) == 1
    assert len(set(said)) == len(said)
