"""`egs split-model`: what it prints, its exit codes, and one clear error for each input that is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from egs_core.cli.app import run
from egs_core.cli.split_model import stretches
from egs_core.model import Instance, read_devices, read_operators

DEVICES = """
devices:
  - {name: "fast [bold]", memory: 6GiB, speed: 2.0}
  - {name: slow, memory: 8GiB}
link_bytes_s: 10GB
link_latency_s: 10us
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A chain of four operators of 2 GiB, and the devices, in the current folder."""
    monkeypatch.chdir(tmp_path)
    nodes = [{"id": f"layer{i}", "bytes": "2GiB", "seconds": 0.01} for i in range(4)]
    edges = [{"from": f"layer{i}", "to": f"layer{i + 1}", "bytes": 1_000_000} for i in range(3)]
    (tmp_path / "model.json").write_text(json.dumps({"nodes": nodes, "edges": edges}))
    (tmp_path / "devices.yaml").write_text(DEVICES)
    return tmp_path


def printed(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    """The JSON of a call that goes well."""
    assert run(["split-model", "model.json", "--devices", "devices.yaml", "--json", *options]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.usefixtures("folder")
def test_the_figures_of_a_request(capsys: pytest.CaptureFixture[str]) -> None:
    """Three operators on the fast device, one on the slow one, one transfer: worked out by hand."""
    found = printed(capsys)
    latency_s = 3 * 0.005 + 0.01 + 1e6 / 1e10 + 1e-5
    assert found["latency_s"] == pytest.approx(latency_s)
    assert found["lambda_s"] == pytest.approx(0.0004)
    assert found["idle_bytes"] == 6 << 30
    assert found["loss"] == pytest.approx(latency_s + 0.0004 * 6 / 14)
    assert (found["cut_edges"], found["objective"], found["feasible"], found["optimal"]) == (1, "request", True, True)
    assert sorted(found["assignment"]) == [f"layer{i}" for i in range(4)]
    assert sorted(found["assignment"].values()) == ["fast [bold]"] * 3 + ["slow"]
    assert [row["used_bytes"] for row in found["devices"]] == [6 << 30, 2 << 30]
    assert printed(capsys, "--seed", "0") == found


@pytest.mark.usefixtures("folder")
def test_the_figures_of_a_stream(capsys: pytest.CaptureFixture[str]) -> None:
    """The pace of the busier device: three halves on the fast one."""
    found = printed(capsys, "--objective", "stream")
    assert found["latency_s"] == pytest.approx(0.015)
    assert found["objective"] == "stream"


@pytest.mark.usefixtures("folder")
def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    """Each device with what it holds; names are shown as they are written."""
    assert run(["split-model", "model.json", "--devices", "devices.yaml"]) == 0
    shown = capsys.readouterr().out
    assert "fast [bold]" in shown
    assert "6.0 GiB" in shown
    assert shown.startswith("0.02511 s one request; loss 0.0252814 s, the least there is\n")
    assert "1 edge between devices" in " ".join(shown.split())


def test_which_operators_a_device_has() -> None:
    """First and last of each stretch of the order, of many the first ones; one by itself is named once."""
    nodes = [{"id": f"o{number}", "bytes": 1, "seconds": 1} for number in range(20)]
    operators = read_operators(json.dumps({"nodes": nodes, "edges": []}).encode())
    devices = read_devices("devices: [{name: a, memory: 20}, {name: b, memory: 20}]\nlink_bytes_s: 1", "d")
    instance = Instance(operators, devices)
    assert stretches(instance, [0] * 3 + [1] + [0] * 16, 0) == "o0 to o2, o4 to o19"
    assert stretches(instance, [0] * 3 + [1] + [0] * 16, 1) == "o3"
    assert stretches(instance, [0, 1] * 10, 1) == "o1, o3, o5, o7, o9, o11 and 4 more"


def test_what_does_not_fit_is_exit_code_1(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`feasible: false` with the reason; nothing that depends on an assignment has a value."""
    (folder / "devices.yaml").write_text(DEVICES.replace("8GiB", "1GiB"))
    command = ["split-model", "model.json", "--devices", "devices.yaml"]
    assert run([*command, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["feasible"] is False
    assert "need 8.0 GiB, the devices have 7.0 GiB together" in found["reason"]
    assert found["lambda_s"] == pytest.approx(0.0004)
    assert [found[key] for key in ("assignment", "loss", "latency_s", "idle_bytes", "cut_edges")] == [None] * 5
    assert run(command) == 1
    assert capsys.readouterr().out.startswith("infeasible: the operators need")


@pytest.mark.parametrize(
    ("model", "devices", "options", "said"),
    [
        ("", None, [], "model.json: the file is empty"),
        ("{", None, [], "model.json: "),
        (b"\x08\x07\x00onnx", None, [], "model.json: is a binary file, not JSON"),
        (b"\xff\xfe\xfd{}", None, [], "model.json: "),
        ("[" * 100_000, None, [], "model.json: "),
        ("[1, 2]", None, [], "model.json: must be an object"),
        ("{}", None, [], "model.json: nodes: is missing"),
        ('{"nodes": [{"id": "a", "bytes": NaN, "seconds": 1}]}', None, [], "NaN"),
        ('{"nodes": [{"id": "a", "bytes": 1, "seconds": 1e999}]}', None, [], "model.json: nodes[0].seconds: "),
        ('{"nodes": [{"id": "a", "bytes": 1' + "0" * 5000 + ', "seconds": 1}]}', None, [], "model.json: "),
        (
            '{"nodes": [{"id": "a", "bytes": 1, "bytes": 2, "seconds": 1}]}',
            None,
            [],
            "the key 'bytes' of 'a' is there twice",
        ),
        ('{"nodes": [], "nodes": []}', None, [], "model.json: the key 'nodes' is there twice"),
        (None, "", [], "devices.yaml: needs a list of devices"),
        (None, "devices: [" * 50, [], "devices.yaml"),
        (None, b"\xff\xfe", [], "devices.yaml: is no text in UTF-8"),
        (None, "devices: [{name: a, memory: 20XiB}]", [], "devices[0].memory"),
        (None, "devices: [{name: a, memory: 1GiB}]\nspeed: 1", [], "devices.yaml line 2: speed: unknown field"),
        (None, "a: &a [x, x]\nb: &b [*a, *a]\n" + "c: *b\n" * 3, [], "devices.yaml"),
        (None, None, ["--objective", "latency"], "--objective: must be one of request, stream"),
        (None, None, ["--seed", "x"], "--seed"),
        (None, None, ["--nothing"], "--nothing"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    model: str | bytes | None,
    devices: str | bytes | None,
    options: list[str],
    said: str,
) -> None:
    """It names the place; nothing is printed on stdout, and no traceback."""
    for name, content in (("model.json", model), ("devices.yaml", devices)):
        if content is not None:
            (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    assert run(["split-model", "model.json", "--devices", "devices.yaml", *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert said in captured.err


@pytest.mark.parametrize(
    "words", [["gone.json", "--devices", "devices.yaml"], ["model.json", "--devices", "gone.yaml"]]
)
@pytest.mark.usefixtures("folder")
def test_a_file_that_is_not_there(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Its name, and what the system says."""
    assert run(["split-model", *words]) == 2
    assert "cannot be read: No such file or directory" in capsys.readouterr().err


@pytest.mark.usefixtures("folder")
def test_folders_and_missing_options_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """A folder in place of a file; no devices."""
    assert run(["split-model", ".", "--devices", "devices.yaml"]) == 2
    assert "is a folder" in capsys.readouterr().err
    assert run(["split-model", "model.json", "--devices", "."]) == 2
    assert "cannot be read" in capsys.readouterr().err
    assert run(["split-model", "model.json"]) == 2
    assert "--devices" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["net.pt", "NET.PTH", "net.safetensors"])
@pytest.mark.usefixtures("folder")
def test_weights_without_a_graph_are_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """By its ending, before it is read."""
    assert run(["split-model", name, "--devices", "devices.yaml"]) == 2
    assert f"{name}: has weights, and no graph (export the model" in capsys.readouterr().err


def test_what_is_no_model_is_told_with_the_kinds_that_are(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A script, as a user of `egs profile` gives it. A graph as JSON may have any name."""
    (folder / "train.py").write_text("import torch\n")
    assert run(["split-model", "train.py", "--devices", "devices.yaml"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: train.py: is no model that can be read (expected ONNX (.onnx), a program of torch")
    assert ".pt2), or JSON with nodes and edges" in error
    (folder / "model.json").rename(folder / "graph.txt")
    assert run(["split-model", "graph.txt", "--devices", "devices.yaml"]) == 0


@pytest.mark.parametrize(
    ("options", "kinds"),
    [
        (["--dim", "a=1"], "ONNX"),
        (["--measure", "2"], ".pt2"),
        (["--profile", "out"], "ONNX or .pt2"),
        (["--flop-s", "1e12"], "ONNX or .pt2"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_options_of_models_are_refused_for_a_profile(
    options: list[str], kinds: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has its own bytes and seconds, so that they would do nothing. Which files the option is for is said."""
    assert run(["split-model", "model.json", "--devices", "devices.yaml", *options]) == 2
    assert f"{options[0]}: model.json is no {kinds} file" in capsys.readouterr().err
