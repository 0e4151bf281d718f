"""The private kfp API that conversion and rewrite use: there, and its absence said clearly."""

import os
import subprocess
import sys

import pytest
from kfp import dsl, kubernetes

from egs_core.errors import InputError
from egs_kubeflow import compat
from egs_kubeflow.adapter import ADAPTER
from egs_kubeflow.convert.documents import documents_of
from egs_kubeflow.convert.pipeline import convert
from egs_kubeflow.rewrite.pipeline import rewrite
from egs_kubeflow.rewrite.profile import Profile, parse_profile


@dsl.component(base_image="python:3.11")
def step() -> None:
    print("step")


@dsl.pipeline(name="plain")
def plain() -> None:
    step()


@dsl.pipeline(name="placed")
def placed() -> None:
    kubernetes.add_node_selector(step(), "a", "b")


def test_the_platforms_message_is_what_kfp_writes() -> None:
    """What kfp.kubernetes put into a pipeline fills our message, field by field."""
    assert compat.available("kubernetes")
    spec = placed.platform_spec
    (config,) = compat.kubernetes_executors(spec).values()
    assert config == {"nodeSelector": {"labels": {"a": "b"}}}
    names = {field.name for field in compat.executor_config().DESCRIPTOR.fields}
    assert {"node_selector", "node_affinity", "tolerations", "pod_metadata", "active_deadline_seconds"} <= names


def test_without_it_pipelines_with_a_platform_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """One clear error; those without a platform convert as before, and `egs doctor` says it."""
    monkeypatch.setenv(compat.WITHOUT, "kubernetes, version")
    assert convert(plain).graph.n_tasks == 1
    with pytest.raises(InputError, match=r"kfp-kubernetes: .* cannot be checked"):
        convert(placed)
    with pytest.raises(InputError, match=r"kfp-kubernetes: .* cannot be checked"):
        rewrite(documents_of(plain), Profile())
    checks = {check.name: check for check in ADAPTER.doctor()}
    assert not checks["kfp"].ok
    assert not checks["private API: kubernetes"].ok


def test_fields_of_a_newer_platform_pass_through() -> None:
    """`init_container` and its like: kept unchanged, in nested messages and lists too, with a note; a second rewrite
    changes nothing; the graph does not depend on them."""
    documents = documents_of(placed)
    executors = documents.platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    added = {
        "initContainers": [{"image": "i", "resources": {"limits": {"cpu": "1"}}}],
        "podMetadata": {"labels": {"team": "a"}, "newer": {"x": 1.0}},
        "tolerations": [{"key": "k", "operator": "Exists"}, {"key": "l", "operator": "Exists", "newer": [True]}],
    }
    executors["exec-step"] |= added
    assert convert(documents).graph.n_tasks == 1
    site = parse_profile("pools: [{name: a, selector: {a: b}, tolerations: [{key: m, operator: Exists}]}]")
    result = rewrite(documents, site)
    written = result.documents.platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]["exec-step"]
    assert written["initContainers"] == added["initContainers"]
    assert written["podMetadata"]["newer"] == {"x": 1.0}
    assert written["podMetadata"]["labels"]["egs.io/task"] == "step"
    assert written["tolerations"][:2] == added["tolerations"]
    names = "initContainers, podMetadata.newer, tolerations.1.newer"
    assert result.notes == (f"step: {names}: not known to this kfp-kubernetes, and kept as it is",)
    assert rewrite(result.documents, site).changes == ()


def test_a_value_that_the_platform_refuses_is_an_error() -> None:
    """What is not a field that is newer, but wrong."""
    documents = documents_of(placed)
    executors = documents.platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    executors["exec-step"]["activeDeadlineSeconds"] = "soon"
    with pytest.raises(InputError, match="activeDeadlineSeconds"):
        rewrite(documents, Profile())


def test_a_field_of_a_newer_pipeline_is_named_with_the_version_here() -> None:
    """Compiling it again with the same kfp 2 would help nobody."""
    documents = documents_of(plain)
    documents.pipeline["notYetKnown"] = 1
    with pytest.raises(InputError, match=r"notYetKnown.* \(a newer kfp wrote it\? This one is 2\."):
        rewrite(documents, Profile())


def test_the_packages_names_are_those_of_its_documentation() -> None:
    """In a new process: nothing imports kfp before one of the two is asked for, and each is what it says."""
    code = """
import sys, egs_kubeflow
import egs_kubeflow.adapter
assert "kfp" not in sys.modules
assert egs_kubeflow.component.__name__ == "component" and callable(egs_kubeflow.component)
import kfp
assert issubclass(egs_kubeflow.Client, kfp.Client)
assert not hasattr(egs_kubeflow, "Clients")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=with_paths(), check=False)
    assert (done.returncode, done.stderr) == (0, "")


def with_paths() -> dict[str, str]:
    """This process's environment; what pytest put on the path is on that of another Python too."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
