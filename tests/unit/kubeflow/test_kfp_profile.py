"""A site's profile, a history by name, and the command that uses both."""

import json
import re
from pathlib import Path
from textwrap import dedent

import pytest
from kfp import compiler, dsl

from egs_core.cli.app import run
from egs_core.errors import InputError
from egs_core.graph.columns import Shape
from egs_core.history import HistoryRow
from egs_core.history.pending import leave
from egs_core.history.sql import SqlHistory
from egs_core.predict import Predictor
from egs_core.runlog.io import write_run
from egs_core.runlog.records import Ended, Header, Started
from egs_kubeflow.rewrite import profile
from egs_kubeflow.rewrite.history import load_history
from egs_kubeflow.rewrite.profile import parse_profile

CPU_POOL = "pools: [{name: a, selector: {a: b}}]"
TWO = "pools: [{name: a, selector: {a: b}}, {name: b, selector: {a: c}}]"
SITE = "pools:\n  - {name: cpu, selector: {pool: cpu}}\ntime_limits: {cpu: 1h}\n"


@dsl.component(base_image="python:3.11")
def step() -> None:
    print("step")


@dsl.pipeline(name="small")
def small() -> None:
    step()


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    """A compiled pipeline's file."""
    path = tmp_path / "small.yaml"
    compiler.Compiler().compile(small, str(path))
    return path


@pytest.mark.parametrize(
    ("text", "place", "problem"),
    [
        ("pools:\n - {name: a}", "site line 2: pools[0].selector", "is missing"),
        ("pools:\n - {name: A, selector: {a: b}}", "site line 2: pools[0].name", "'A' is no name of Kubernetes"),
        ("pools:\n - {name: a, selector: {}}", "site line 2: pools[0].selector", "at least one entry"),
        ("pools:\n - name: a\n   selector: {x: 'a b'}", "site line 3: pools[0].selector.x", "no label value"),
        ("pools:\n - {name: a, selector: {a: b}, gpus_per_node: 2}", "site line 2: pools[0]", "add accelerator"),
        ("pools: [{name: a, selector: {a: b}}, {name: a, selector: {a: c}}]", "site line 1", "a second pool 'a'"),
        ("pool: []", "site line 1: pool", "unknown field"),
        ("priority_classes: [{name: a}, {name: b}]", "site line 1", "a second priority class at_least '0'"),
        ("time_limits: {cpu: long}", "site line 1: time_limits.cpu", "is not a duration"),
        ("queues: [{name: q, kind: tpu}]", "site line 1: queues[0].kind", "'cpu' or 'gpu'"),
        ("pools: [{name: a, selector: {a: b}, tolerations: [{operator: Equal}]}]", "tolerations[0]", "operator Exists"),
        ("namespace: Team", "site line 1: namespace", "'Team' is no namespace"),
        ("namespace: a\ncontroller_namespace: a", "site line 1", "it needs one of its own"),
        ("preload: {deadline: 0}", "site line 1: preload.deadline", "must be 1 or more"),
        ("pools: [{name: a, selector: {a: b}, device_class: gpu.nvidia.com}]", "pools[0]", "no GPUs: add accelerator"),
        ("cluster_queues: [{name: q, quotas: {}}]", "cluster_queues[0].quotas", "at least one entry"),
        ("cluster_queues: [{name: q, quotas: {a: {cpus: 1}}}]", "site line 1", "pool 'a', which is not there"),
        (
            f"{CPU_POOL}\ncluster_queues: [{{name: q, quotas: {{a: {{gpus: 1}}}}}}]",
            "site line 1",
            "has no GPUs, but gpus",
        ),
        (
            f"{TWO}\ncluster_queues: [{{name: q, quotas: {{a: {{cpus: 1}}, b: {{}}}}}}]",
            "site line 2",
            "pool 'b' without cpus",
        ),
        ("queues:\n- name: " + "q" * 64, "site line 2: queues[0].name", "at most 63"),
        ("priority_classes: [{name: " + "q" * 64 + "}]", "priority_classes[0].name", "at most 63"),
        ("pools:\n- {name: a, selector: {a: b}, accelerator: gpu}", "line 2: pools[0].accelerator", "nvidia.com/gpu"),
        ("gpu_resource: requests.nvidia.com/gpu", "gpu_resource", "no extended resource"),
        ("pools:\n- {name: a, selector: {a..b/x: y}}", "pools[0].selector.a..b/x", "no label key"),
        (
            "pools:\n- {name: a, selector: {a: b}, tolerations: [{key: k, value: a}, {key: k, value: b}]}",
            "site line 2: pools[0]",
            "has the taint k:NoSchedule twice",
        ),
        (
            f"pools:\n- {{name: {'a' * 63}.{'b' * 63}.{'c' * 63}.{'d' * 61}, selector: {{a: b}}, accelerator: x.y/z,"
            " device_class: g}",
            "site line 2: pools[0]",
            "at most 249",
        ),
        ("time_limits: {cpu: 1h}", "site line 1: pools", "is missing"),
        (f"{CPU_POOL}\nqueues: [{{name: q, exists: 'yes'}}]", "line 2: queues[0].exists", "true or false"),
        (
            f"{CPU_POOL}\nqueues: [{{name: p, exists: true}}, {{name: q, kind: gpu, exists: true}}]",
            "site line 1",
            "queue 'q' would get no task",
        ),
        (f"{CPU_POOL}\ntime_limits: {{cpu: 0}}", "site line 2: time_limits.cpu", "must be 1 or more"),
        ("pools: {name: a}", "site line 1: pools", "must be a list"),
        ("- a", "site line 1", "is no site"),
        ("", "site line 1", "is no site"),
        ("[" * 100_000, "site line 1", "nested too deeply"),
    ],
)
def test_what_is_wrong_with_a_site_is_named(text: str, place: str, problem: str) -> None:
    """One error with the line, the field and the reason."""
    with pytest.raises(InputError) as caught:
        parse_profile(text, "site")
    assert place in caught.value.place
    assert problem in caught.value.problem


def test_an_unknown_field_suggests_one_of_its_place() -> None:
    """`gpus` is a field of a quota, not of a pool."""
    with pytest.raises(InputError, match=r"pools\[0\]\.acelerator: unknown field \(did you mean 'accelerator'\?"):
        parse_profile("pools: [{name: a, selector: {a: b}, acelerator: x.y/z}]")
    with pytest.raises(InputError, match=r"pools\[0\]\.gpus: unknown field \(did you mean 'gpus_per_node'\?"):
        parse_profile("pools: [{name: a, selector: {a: b}, gpus: 8}]")


def test_queues_for_different_tasks_are_two() -> None:
    """One for each kind, and one that is still to be written."""
    text = (
        f"{CPU_POOL}\nqueues: [{{name: p, kind: cpu, exists: true}}, {{name: q, kind: gpu, exists: true}}, {{name: r}}]"
    )
    assert [queue.name for queue in parse_profile(text).queues] == ["p", "q", "r"]


def test_the_examples_in_the_documentation_are_sites() -> None:
    """The profiles that the module shows are such, and say what they show."""
    shown = re.findall(r"(?:^    .*\n)+", profile.__doc__ or "", re.MULTILINE)
    site, for_manifests = (parse_profile(dedent(block)) for block in shown)
    assert [pool.accelerator for pool in site.pools] == ["", "nvidia.com/gpu"]
    assert site.time_limits.gpu == 24 * 3600.0
    assert for_manifests.cluster_queues[0].quotas["a100"].gpus == 8
    assert (for_manifests.preload.takes, for_manifests.preload.deadline) == (120.0, 600.0)


def test_a_history_is_a_database_or_a_snapshot(tmp_path: Path) -> None:
    """Both know the same; what is neither is refused."""
    rows = [HistoryRow("small", "step", 0, Shape(), 7.0)] * 4
    database, snapshot = tmp_path / "history.db", tmp_path / "snapshot.json"
    store = SqlHistory(f"sqlite:///{database}")
    store.record(rows)
    store.close()
    predictor = Predictor()
    predictor.learn(rows)
    snapshot.write_text(json.dumps(predictor.to_dict()))
    for name in (str(database), f"sqlite:///{database}", str(snapshot)):
        assert [one.task for one in load_history(name, "small").signatures()] == ["step"]
    snapshot.write_text("no json")
    with pytest.raises(InputError, match="is no history"):
        load_history(str(snapshot), "small")
    with pytest.raises(InputError, match="cannot be read"):
        load_history(str(tmp_path / "missing"), "small")


def test_a_history_knows_the_run_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nobody has asked for it since that run left its log."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("EGS_HISTORY", url := f"sqlite:///{tmp_path}/history.db")
    header = Header(driver="ray", started_at=100.0)
    started = Started(t=1.0, workload="small", task="step", node="n", cpus=1.0)
    write_run(tmp_path / "log.jsonl", header, [started, Ended(8.0, "small", "step")])
    leave(tmp_path / "log.jsonl", header)
    assert [one.task for one in load_history(url, "small").signatures()] == ["step"]


def test_the_command_writes_the_pipeline_and_says_why(
    pipeline: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With -o a file and the changes on stdout; without, the pipeline on stdout and the changes on stderr."""
    site, out = tmp_path / "site.yaml", tmp_path / "out.yaml"
    site.write_text(SITE)
    command = ["kubeflow", "compile", str(pipeline), "--profile", str(site)]
    assert run([*command, "--diff", "-o", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "step\n  node selector: " in shown
    assert shown.endswith(f"{out}: 5 changes in 1 task\n")
    assert run([*command, "--diff"]) == 0
    printed = capsys.readouterr()
    assert printed.out == out.read_text()
    assert "node selector" in printed.err
    assert run([*command, "-o", str(out), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [change["field"] for change in facts["changes"]][:2] == ["node selector", "timeout"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.yaml", "site.yaml", "small.yaml"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["missing.yaml", "--profile", "site.yaml"], "missing.yaml: cannot be read"),
        (["small.yaml", "--profile", "missing.yaml"], "missing.yaml: cannot be read"),
        (["small.yaml", "--profile", "small.yaml"], "unknown field"),
        (["site.yaml", "--profile", "site.yaml"], "is no pipeline that kfp reads"),
        (["small.yaml", "--profile", "site.yaml", "--json"], "give -o a file"),
        (["small.yaml", "--profile", "site.yaml", "-o", "no/where.yaml"], "cannot be written"),
        (["small.yaml", "--profile", "site.yaml", "--history", "site.yaml"], "is no history"),
        (["small.yaml"], "--profile"),
    ],
)
def test_the_command_says_in_one_line_what_is_wrong(
    arguments: list[str],
    problem: str,
    pipeline: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit code 2, one line on stderr, nothing on stdout and nothing half-written."""
    monkeypatch.chdir(pipeline.parent)
    Path("site.yaml").write_text(SITE)
    assert run(["kubeflow", "compile", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert problem in said.err
    assert said.err.count("\n") == 1
    assert sorted(path.name for path in Path().iterdir()) == ["site.yaml", "small.yaml"]


def test_the_command_line_lists_what_an_adapter_adds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`egs --help` names the group without importing the adapter; one without commands of its own says so."""
    assert run(["--help"]) == 0
    assert "kubeflow" in capsys.readouterr().out
    assert run(["kubeflow", "--help"]) == 0
    assert "compile" in capsys.readouterr().out
    assert run(["kubeflow", "launch"]) == 2
    assert "No such command 'launch'" in capsys.readouterr().err
    monkeypatch.setattr("egs_core.adapter.load_adapter", lambda _name: object())
    assert run(["kubeflow", "compile"]) == 2
    assert "has no commands" in capsys.readouterr().err


def test_options_reach_the_rewrite(pipeline: Path, tmp_path: Path) -> None:
    """A history that knows the task gives its label, and a comment above the pipeline stays."""
    site, out, snapshot = tmp_path / "site.yaml", tmp_path / "out.yaml", tmp_path / "snapshot.json"
    site.write_text(SITE)
    predictor = Predictor()
    predictor.learn([HistoryRow("small", "step", 0, Shape(), 7.0)] * 4)
    snapshot.write_text(json.dumps(predictor.to_dict()))
    command = ["kubeflow", "compile", str(pipeline), "--profile", str(site), "-o", str(out), "--history", str(snapshot)]
    assert run(command) == 0
    text = out.read_text()
    assert text.startswith("# PIPELINE DEFINITION\n# Name: small\n")
    assert "egs.io/predicted-s: '7.0'" in text
