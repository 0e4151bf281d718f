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
from egs_kubeflow.rewrite.profile import Profile


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


def test_a_field_of_a_newer_platform_is_read_past_but_not_rewritten() -> None:
    """kfp passes it on unread, so the graph does not depend on it; a rewrite could not keep it, and says so."""
    documents = documents_of(placed)
    executors = documents.platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    executors["exec-step"]["notYetKnown"] = [{"image": "i"}]
    assert convert(documents).graph.n_tasks == 1
    with pytest.raises(InputError, match="notYetKnown"):
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
