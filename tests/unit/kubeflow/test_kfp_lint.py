"""`egs kubernetes lint`: all that is wrong with a profile at once, and a schema that agrees with what is read."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from egs_core.cli.app import run as egs
from egs_core.errors import InputError
from egs_kubeflow.rewrite.lint import faults_of, profile_schema
from egs_kubeflow.rewrite.profile import load_profile
from tests.unit.kubeflow.made_site import SITE_TEXT

EXAMPLE = Path(__file__).parents[3] / "examples/kubeflow/site.yaml"
GOOD = {
    "example": EXAMPLE.read_text(),
    "made": SITE_TEXT,
    "nothing placed": "pools: []",
    "spans": "pools: []\ntime_limits: {cpu: 1.5 min, gpu: 7200}\npreload: {takes: 0}",
    "sizes": "pools: [{name: a, selector: {b.c/d: e}, accelerator: nvidia.com/gpu, gpu_memory: 40GiB, memory: 9}]",
}
BAD = """pools:
  - name: A
    selector: {}
    tolerations: [{key: "a b", value: x}]
    gpus: 4
  - name: b
    selector: {"a[b": c, x: "a b"}
    gpu_memory: 40Gx
    cpus: zero
time_limits: {gpu: 0}
queus: []
queues: [{name: team, exists: yess}, {kind: tpu}]
"""
FAULTS = [
    (2, "pools[0].name", "'A' is no name of Kubernetes"),
    (3, "pools[0].selector", "needs at least one entry"),
    (4, "pools[0].tolerations[0].key", "'a b' is no label key of Kubernetes"),
    (5, "pools[0].gpus", "unknown field"),
    (7, "pools[1].selector.a[b", "'a[b' is no label key of Kubernetes"),
    (7, "pools[1].selector.x", "'a b' is no label value of Kubernetes"),
    (8, "pools[1].gpu_memory", "'40Gx' is not a size"),
    (9, "pools[1].cpus", "must be a number"),
    (10, "time_limits.gpu", "must be 1 or more"),
    (11, "queus", "unknown field"),
    (12, "queues[0].exists", "must be true or false"),
    (12, "queues[1].name", "is missing"),
    (12, "queues[1].kind", "must be one of 'cpu' or 'gpu'"),
]


def written(folder: Path, text: str) -> Path:
    path = folder / "site.yaml"
    path.write_text(text)
    return path


def test_each_fault_has_its_line_and_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All at once, in the order of the file; exit code 2; the same as an object."""
    path = written(tmp_path, BAD)
    found = faults_of(path)
    assert [(one.line, one.field, one.problem) for one in found] == FAULTS
    assert all(one.remedy for one in found)
    assert (found[3].remedy, found[9].remedy) == ("did you mean 'gpus_per_node'?", "did you mean 'queues'?")
    assert egs(["kubernetes", "lint", str(path), str(EXAMPLE)]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert [f"error: {path} line {line}: {field}: {problem} (" for line, field, problem in FAULTS] == [
        line[: line.index(" (") + 2] for line in lines[:-1]
    ]
    assert lines[-1] == f"{EXAMPLE}: nothing is wrong"
    assert egs(["kubernetes", "lint", "--json", str(path)]) == 2
    (told,) = json.loads(capsys.readouterr().out)["files"]
    assert told["faults"][0] == {
        "file": str(path),
        "line": 2,
        "field": "pools[0].name",
        "problem": "'A' is no name of Kubernetes",
        "remedy": "name: Name of the pool.",
    }


@pytest.mark.parametrize(
    ("text", "line", "problem", "remedy"),
    [
        ("pools: [\n- a", 2, "is no YAML", "brackets, quotes, colons"),
        ("pools: []\nqueues: []\npools: []", 3, "'pools' is there twice", "keep one of them"),
        ("pools: []\n---\n{}", 3, "there is a second document", "one a file"),
        ("pools: []\n? [a]\n: 1", 2, "a key that is no text", "write it as"),
        ("pools: []\nwhat: 1", 2, "unknown field", "known here: "),
        ("pools: [{name: a, selector: {a: b}, num_gpu: 1}]", 1, "unknown field", "known here: "),
        ("[]", 1, "is no site", "it has pools"),
        ("queues: []", 1, "is missing", "pools: []"),
        ("pools:\n- {name: a, selector: {a: b}, gpus_per_node: 2}", 2, "but not which", "add accelerator: nvidia"),
        ("pools: []\nnamespace: a\ncontroller_namespace: a", 1, "where pipelines run", "needs one of its own"),
        ("pools: [{name: a, selector: {a: b}}, {name: a, selector: {a: c}}]", 1, "a second pool 'a'", "change it"),
    ],
)
def test_what_is_wrong_with_more_than_one_field(
    text: str, line: int, problem: str, remedy: str, tmp_path: Path
) -> None:
    (fault,) = faults_of(written(tmp_path, text))
    assert (fault.line, problem in fault.problem, remedy in fault.remedy) == (line, True, True), fault


@pytest.mark.parametrize("text", GOOD.values(), ids=GOOD)
def test_what_can_be_used_has_no_fault_and_fits_the_schema(text: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    load_profile(path)
    assert faults_of(path) == []
    jsonschema.validate(yaml.safe_load(text), profile_schema(), jsonschema.Draft202012Validator)


def test_the_schema_refuses_what_one_value_shows() -> None:
    """It has the same fields, forms and bounds as the profile itself, each with its meaning."""
    schema = profile_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    found = jsonschema.Draft202012Validator(schema).iter_errors(yaml.safe_load(BAD))
    seen = {re.sub(r"^\$\.?", "", one.json_path) for one in found}
    assert seen >= {"", "pools[0]", "pools[0].name", "pools[0].selector", "pools[1].cpus", "queues[1].kind"}
    assert schema["required"] == ["pools"]
    parts = [schema, *schema["$defs"].values()]
    assert all(one.get("description") for part in parts for one in part["properties"].values())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({}, schema, jsonschema.Draft202012Validator)


def test_what_the_first_error_of_every_reader_says_is_a_fault(tmp_path: Path) -> None:
    """`egs kubeflow compile` and the linter are of one mind."""
    path = written(tmp_path, BAD)
    with pytest.raises(InputError) as error:
        load_profile(path)
    first = faults_of(path)[0]
    assert error.value.place == f"{path} line {first.line}: {first.field}"
    assert error.value.problem == first.problem


def test_wrong_command_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A mistyped path is a fault, no file an error, and a schema is of no file."""
    missing = tmp_path / "none.yaml"
    assert egs(["kubernetes", "lint", str(missing)]) == 2
    said = f"error: {missing}: cannot be read: No such file or directory (name a file that is there)"
    assert said in capsys.readouterr().out
    missing.write_bytes(b"\xff\xfe")
    assert egs(["kubernetes", "lint", str(missing)]) == 2
    assert f"{missing}: is no text in UTF-8 (save it as UTF-8)" in capsys.readouterr().out
    missing.unlink()
    for words, told in (([], "PROFILE: no profile is named"), (["--schema", str(missing)], "--schema: prints the")):
        assert egs(["kubernetes", "lint", *words]) == 2
        assert told in capsys.readouterr().err
    assert egs(["kubernetes", "lint", "--schema"]) == 0
    assert json.loads(capsys.readouterr().out) == profile_schema()
