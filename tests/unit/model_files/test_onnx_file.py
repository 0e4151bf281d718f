"""ONNX models as graphs to split: bytes, operations and edges worked out by hand, and what is wrong with a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from egs_core.cli.app import run
from egs_core.errors import InputError
from egs_core.model_files import Rates, read_model

onnx: Any = pytest.importorskip("onnx", reason="onnx is not installed: pip install 'egs-core[model]'")

DEVICES = """
devices: [{name: gpu0, memory: 40KiB}, {name: gpu1, memory: 40KiB}]
link_bytes_s: 10GB
"""


def small_net(path: Path) -> Path:
    """A convolution, a view of it, and a product with a bias; the batch is left open, one weight is a `Constant`."""
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    filled = [
        onnx.numpy_helper.from_array(np.full(dims, 0.5, np.float32), name)
        for name, dims in (("kernel", [4, 3, 3, 3]), ("weight", [144, 10]))
    ]
    bias = onnx.numpy_helper.from_array(np.ones(10, np.float32))
    nodes = [
        helper.make_node("Conv", ["x", "kernel"], ["c"], name="conv"),
        helper.make_node("Constant", [], ["bias"], value=bias),
        helper.make_node("Flatten", ["c"], ["f"], name="flat"),
        helper.make_node("Gemm", ["f", "weight", "bias"], ["g"], name="dense"),
        helper.make_node("Relu", ["g"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", kind, ["batch", 3, 8, 8])
    y = helper.make_tensor_value_info("y", kind, ["batch", 10])
    model = helper.make_model(helper.make_graph(nodes, "net", [x], [y], filled))
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
    return path


def test_the_graph_of_a_small_net(tmp_path: Path) -> None:
    """For a batch of 2: each operator's weights, what it hands on and its operations; a `Constant` is a weight, a view
    holds nothing; times are the longer of operations and bytes."""
    drawn = read_model(small_net(tmp_path / "net.onnx"), {"batch": 2})
    by_id = {one.id: one for one in drawn.operators}
    conv, flat, dense, relu = by_id["conv"], by_id["flat"], by_id["dense"], by_id["Relu:y"]
    assert (conv.weight_bytes, conv.output_bytes, conv.outside_bytes) == (108 * 4, 2 * 144 * 4, 2 * 192 * 4)
    assert conv.flops == 2 * (2 * 144) * 27
    assert (flat.inputs, flat.is_view, flat.flops) == ({"conv": 1152}, True, 0)
    assert (dense.weight_bytes, dense.flops, dense.inputs) == (1450 * 4, 2 * 20 * 144, {"flat": 1152})
    assert (relu.weight_bytes, relu.output_bytes, relu.inputs) == (0, 80, {"dense": 80})
    assert (drawn.dimensions, drawn.unknown) == ({"batch": 2}, 0)
    profile = drawn.profile(Rates(flop_s=1e6, memory_bytes_s=1e5))
    assert [node["bytes"] for node in profile["nodes"]] == [432 + 1152, 0, 5800 + 80, 80]
    assert [node["seconds"] for node in profile["nodes"]] == pytest.approx(
        [(432 + 1152 + 1536) / 1e5, 0.0, (5800 + 80 + 1152) / 1e5, 160 / 1e5]
    )
    fast_memory = drawn.profile(Rates(flop_s=1e6, memory_bytes_s=1e15))
    assert fast_memory["nodes"][0]["seconds"] == pytest.approx(conv.flops / 1e6)


def test_weights_kept_in_another_file_are_not_needed(tmp_path: Path) -> None:
    """A model of more than 2 GB has its weights beside it; their shapes are in the model."""
    model = onnx.load(small_net(tmp_path / "net.onnx"))
    onnx.save(model, tmp_path / "net.onnx", save_as_external_data=True, location="weights", size_threshold=0)
    (tmp_path / "weights").unlink()
    assert sum(one.weight_bytes for one in read_model(tmp_path / "net.onnx", {}).operators) == (108 + 1450) * 4


def test_a_body_reads_what_is_around_it(tmp_path: Path) -> None:
    """`If`: what its branches read from outside is an edge, and their own weights are its."""
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    out = helper.make_tensor_value_info("o", kind, [4])
    own = helper.make_tensor("own", kind, [4], [1.0] * 4)
    branches = [
        helper.make_graph([helper.make_node(op, ["r", "own"], ["o"])], op, [], [out], [own]) for op in ("Add", "Mul")
    ]
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="relu"),
        helper.make_node("If", ["cond"], ["y"], name="if", then_branch=branches[0], else_branch=branches[1]),
    ]
    inputs = [
        helper.make_tensor_value_info("x", kind, [4]),
        helper.make_tensor_value_info("cond", onnx.TensorProto.BOOL, []),
    ]
    graph = helper.make_graph(nodes, "net", inputs, [helper.make_tensor_value_info("y", kind, [4])])
    onnx.save(helper.make_model(graph), tmp_path / "if.onnx")
    chooses = read_model(tmp_path / "if.onnx", {}).operators[1]
    assert (chooses.inputs, chooses.weight_bytes) == ({"relu": 16}, 32)


def test_split_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`egs split-model` of the file; the profile that it writes gives the same split again, as JSON."""
    small_net(tmp_path / "net.onnx")
    (tmp_path / "devices.yaml").write_text(DEVICES)
    saved, devices = str(tmp_path / "net.json"), ["--devices", str(tmp_path / "devices.yaml")]
    command = ["split-model", str(tmp_path / "net.onnx"), *devices, "--dim", "batch=4"]
    assert run([*command, "--profile", saved, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    told = found.pop("model")
    assert (told["kind"], told["operators"], told["seconds"]) == ("ONNX", 4, "estimated")
    assert told["dimensions"] == {"batch": 4}
    assert run(["split-model", saved, *devices, "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again.pop("model") is None
    assert again == found
    assert set(found["assignment"]) == {"conv", "flat", "dense", "Relu:y"}
    assert run(command) == 0
    assert capsys.readouterr().out.startswith("ONNX: 4 operators, ")


@pytest.mark.parametrize(
    ("content", "options", "said"),
    [
        (b"", [], "net.onnx: the file is empty"),
        (b"this is no model", [], "net.onnx: is no ONNX model"),
        (b"\x08\x07", [], "net.onnx: is no ONNX model, or one without an operator"),
        (None, ["--dim", "bach=2"], "--dim: net.onnx has no open dimension 'bach' (open: batch)"),
        (None, ["--dim", "batch"], "--dim: 'batch' is no dimension with its size"),
        (None, ["--dim", "batch=0"], "--dim: 'batch=0' is no dimension with its size"),
        (None, ["--measure", "3"], "--measure: only programs of torch.export are run"),
        (None, ["--flop-s", "0"], "--flop-s: must be more than 0"),
        (None, ["--profile", "gone/net.json"], "--profile: gone/net.json cannot be written"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    content: bytes | None,
    options: list[str],
    said: str,
) -> None:
    """Of files that are no models, and of options that do not fit one."""
    monkeypatch.chdir(tmp_path)
    small_net(tmp_path / "net.onnx")
    (tmp_path / "devices.yaml").write_text(DEVICES)
    if content is not None:
        (tmp_path / "net.onnx").write_bytes(content)
    assert run(["split-model", "net.onnx", "--devices", "devices.yaml", *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith(f"error: {said}")


def test_a_model_that_is_cut_short(tmp_path: Path) -> None:
    """As a download that broke off: one clear error, at any length."""
    whole = small_net(tmp_path / "net.onnx").read_bytes()
    for length in range(1, len(whole), 97):
        (tmp_path / "net.onnx").write_bytes(whole[:length])
        with pytest.raises(InputError, match=r"net\.onnx"):
            read_model(tmp_path / "net.onnx", {})
