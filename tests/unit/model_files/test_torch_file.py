"""Programs of `torch.export` as graphs to split. torch is no requirement of EGS: where it is missing, these skip."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from egs_core.cli.app import run
from egs_core.errors import InputError
from egs_core.model_files import read_model

torch: Any = pytest.importorskip("torch", reason="torch is not installed: pip install 'egs-core[model]'")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A convolution with a buffer added, cut in two parts that a product takes, and a batch that is left open."""

    class Net(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]  # torch may be missing
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.dense = torch.nn.Conv2d(3, 8, 3), torch.nn.Linear(4, 5, bias=False)
            self.register_buffer("shift", torch.ones(36), persistent=False)

        def forward(self, x: Any) -> Any:
            first, second = torch.split(self.conv(x).flatten(2) + self.shift, 18, dim=2)
            return self.dense((first * second).reshape(-1, 36, 4)).relu()

    inputs, path = (torch.rand(2, 3, 8, 8),), tmp_path_factory.mktemp("program") / "net.pt2"
    shapes = ({0: torch.export.Dim("batch", min=1, max=64)},)
    torch.export.save(torch.export.export(Net().eval(), inputs, dynamic_shapes=shapes), path)
    return path


def test_the_graph_of_a_program(program: Path) -> None:
    """Sizes of the example's batch, worked out by hand; parts of a result belong to who made it; no times."""
    drawn = read_model(program, {})
    kinds = {one.id: one for one in drawn.operators}
    conv, add, dense = kinds["conv2d"], kinds["add"], kinds["linear"]
    assert (conv.weight_bytes, conv.output_bytes) == ((8 * 27 + 8) * 4, 2 * 8 * 36 * 4)
    assert (conv.outside_bytes, conv.flops) == (2 * 192 * 4, 2 * (2 * 8 * 36) * 27)
    assert (add.weight_bytes, add.inputs) == (36 * 4, {"flatten": 2304})
    assert (dense.weight_bytes, dense.output_bytes, dense.flops) == (80, 72 * 5 * 4, 2 * 72 * 5 * 4)
    assert not any("getitem" in name for name in kinds)
    product = next(one for one in drawn.operators if one.id.startswith("mul"))
    assert sum(product.inputs.values()) == 2304  # both halves
    assert len(product.inputs) == 1  # of the one that made them
    assert drawn.unknown == 0
    assert all(one.seconds is None for one in drawn.operators)


def test_measured_times_are_of_the_operators(program: Path) -> None:
    """Each operator has the seconds that it took here, and the convolution took some."""
    drawn = read_model(program, {}, measure=3)
    assert drawn.summary()["seconds"] == "measured"
    assert all(one.seconds is not None and one.seconds > 0 for one in drawn.operators)


def test_split_from_the_command_line(program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A program that fits neither device by itself is split over both; where it does not fit at all, exit code 1."""
    need = sum(node["bytes"] for node in _profile(program)["nodes"])
    devices = tmp_path / "devices.yaml"
    text = "devices: [{{name: a, memory: {0}}}, {{name: b, memory: {0}}}]\nlink_bytes_s: 10GB\n"
    devices.write_text(text.format(int(need * 0.8)))
    assert run(["split-model", str(program), "--devices", str(devices)]) == 0
    assert "torch.export: " in capsys.readouterr().out
    devices.write_text(text.format(int(need * 0.4)))
    assert run(["split-model", str(program), "--devices", str(devices)]) == 1


def _profile(path: Path) -> dict[str, Any]:
    from egs_core.model_files import Rates

    return read_model(path, {}).profile(Rates())


@pytest.mark.parametrize("content", [b"PK\x03\x04 no", b"hello" * 100])
def test_what_is_no_program(content: bytes, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """One error, and torch's own log of it is not shown."""
    (tmp_path / "net.pt2").write_bytes(content)
    with pytest.raises(InputError, match=r"net\.pt2: is no program of torch\.export: .*\(write one by"):
        read_model(tmp_path / "net.pt2", {})
    assert capfd.readouterr() == ("", "")


def test_a_size_of_a_dimension_is_refused(program: Path) -> None:
    """A program has those of its example."""
    with pytest.raises(InputError, match="--dim"):
        read_model(program, {"batch": 2})
