"""`egs advise --model`: weights in fewer bits, tried on real programs. torch is no requirement of EGS: where it is
missing, these skip."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from egs_core.cli.app import run
from egs_core.model_files.narrowing import narrowed

torch: Any = pytest.importorskip("torch", reason="torch is not installed: pip install 'egs-core[model]'")
Out = pytest.CaptureFixture[str]


def exported(model: Any, folder: Path, *inputs: Any) -> Path:
    path = folder / "model.pt2"
    torch.export.save(torch.export.export(model.eval(), inputs), path)
    return path


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """One product of 256 by 512 with what is added to it: 512 KiB and 2 KiB of float32."""
    torch.manual_seed(0)
    return exported(torch.nn.Linear(256, 512), tmp_path, torch.rand(4, 256))


def test_what_it_holds_and_how_far_its_output_moves(program: Path) -> None:
    """Bytes worked out by hand: half for bfloat16; a quarter and a scale a row for int8; an eighth and a scale for each
    128 for int4; what is added keeps its type where weights are rounded. Fewer bits move the output further."""
    whole, half, byte, nibble, *_ = narrowed(program, times=2)
    size, added = 512 * 256, 512 * 4
    through = 4 * (256 + 512) * 4
    assert [one.kind for one in (whole, half, byte, nibble)] == ["as exported", "bfloat16", "int8", "int4"]
    assert (whole.weight_bytes, whole.needs_bytes) == (4 * size + added, 4 * size + added + through)
    assert (half.weight_bytes, half.needs_bytes) == (2 * size + added // 2, 2 * size + added // 2 + through // 2)
    assert byte.weight_bytes == size + 2 * 512 + added
    assert nibble.weight_bytes == size // 2 + 2 * 2 * 512 + added
    assert whole.difference is None
    assert half.difference is not None
    assert byte.difference is not None
    assert nibble.difference is not None
    assert 0 < byte.difference < 0.01 < nibble.difference < 0.2
    assert 0 < half.difference < 0.01
    assert [bool(one.seconds) for one in (whole, half, byte, nibble)] == [True, True, False, False]


def test_pruned_weights_say_what_they_save(program: Path) -> None:
    """Half of all weights zero hold what they did before, and are run; one of each two of float32 hold half of the
    matrix and four bits for each that is left. Both move the output, the freer choice less."""
    found = {one.kind: one for one in narrowed(program, times=2)}
    size, added = 512 * 256, 512 * 4
    half, fours = found["half pruned"], found["2:4 pruned"]
    assert half.weight_bytes == found["as exported"].weight_bytes
    assert fours.weight_bytes == size // 2 * 4 + size // 2 * 4 // 8 + added
    assert (half.seconds is not None, fours.seconds) == (True, None)
    assert half.difference is not None
    assert fours.difference is not None
    assert 0.01 < half.difference < fours.difference < 1.0


@pytest.mark.parametrize(("type_name", "kept", "size"), [("float32", (-3.0, -0.5), 9), ("float16", (-3.0, 2.0), 5)])
def test_of_each_four_weights_those_stay_that_a_gpu_can_hold(
    tmp_path: Path, type_name: str, kept: tuple[float, float], size: int
) -> None:
    """The output is that of the matrix pruned by hand: of float32 the larger of each two, of shorter ones the two
    largest of four. What has no whole fours stays as it is."""
    kind = getattr(torch, type_name)
    model = torch.nn.Linear(4, 1, bias=False).to(kind)
    model.weight.data = torch.tensor([[-3.0, 2.0, 0.125, -0.5]], dtype=kind)
    found = {one.kind: one for one in narrowed(exported(model, tmp_path, torch.ones(1, 4, dtype=kind)), times=1)}
    whole = -3.0 + 2.0 + 0.125 - 0.5
    assert found["2:4 pruned"].difference == pytest.approx(abs(sum(kept) - whole) / abs(whole))
    assert found["2:4 pruned"].weight_bytes == size
    odd = {one.kind: one for one in narrowed(exported(torch.nn.Linear(6, 4), tmp_path, torch.ones(1, 6)), times=1)}
    assert odd["2:4 pruned"].difference == 0.0
    assert odd["2:4 pruned"].weight_bytes == odd["as exported"].weight_bytes


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # of torch's own decompositions
@pytest.mark.parametrize("is_decomposed", [False, True])
def test_batch_norms_are_fused_where_they_follow_a_convolution(tmp_path: Path, *, is_decomposed: bool) -> None:
    """The output is the same but for rounding, also of a convolution without a bias of its own, and what the norms hold
    is saved, less that bias. A norm behind a convolution that something else reads stays."""

    class Net(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]  # torch may be missing
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = torch.nn.Conv2d(3, 8, 3, bias=False), torch.nn.Conv2d(8, 8, 3)
            self.three = torch.nn.Conv2d(8, 8, 1)
            self.norms = torch.nn.ModuleList([torch.nn.BatchNorm2d(8) for _ in range(3)])

        def forward(self, x: Any) -> Any:
            x = torch.relu(self.norms[0](self.one(x)))
            x = torch.relu(self.norms[1](self.two(x)))
            x = self.three(x)
            return self.norms[2](x) + x

    torch.manual_seed(0)
    model = Net()
    for norm in model.norms:
        norm.running_mean.uniform_(-1, 1)
        norm.running_var.uniform_(0.5, 2)
        norm.weight.data.uniform_(0.5, 2)
    path = exported(model, tmp_path, torch.rand(2, 3, 16, 16))
    if is_decomposed:
        torch.export.save(torch.export.load(path).run_decompositions(), path)
    found = {one.kind: one for one in narrowed(path, times=2)}
    whole, fused = found["as exported"], found["batch norms fused"]
    assert fused.problem == ""
    assert fused.difference is not None
    assert 0 < fused.difference < 1e-5
    assert fused.seconds
    assert whole.weight_bytes - fused.weight_bytes == 2 * 4 * 8 * 4 - 8 * 4
    assert whole.needs_bytes - fused.needs_bytes == whole.weight_bytes - fused.weight_bytes


def test_weights_that_are_whole_numbers_of_their_scale_stay_as_they_are(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 2, bias=False)
    model.weight.data = torch.tensor([[127.0, -1.0, 0.0, 64.0], [1.0, 0.5, 127 / 2, 0.0]])
    found = {one.kind: one for one in narrowed(exported(model, tmp_path, torch.ones(1, 4)), times=1)}
    assert found["int8"].difference == pytest.approx(0.0, abs=1e-6)


def test_what_cannot_run_in_half_says_why(tmp_path: Path) -> None:
    """A graph that asks for a type by name: the other kinds are told as ever."""

    class Typed(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]  # torch may be missing
        def __init__(self) -> None:
            super().__init__()
            self.dense = torch.nn.Linear(8, 8)

        def forward(self, x: Any) -> Any:
            return self.dense(x) @ torch.ones(8, 8, dtype=torch.float32)

    found = {one.kind: one for one in narrowed(exported(Typed(), tmp_path, torch.rand(2, 8)), times=1)}
    assert found["bfloat16"].problem
    assert (found["bfloat16"].difference, found["bfloat16"].seconds) == (None, None)
    assert found["int8"].difference is not None


def test_the_cheaper_gpu_is_named_with_what_it_costs(program: Path, tmp_path: Path, capsys: Out) -> None:
    """As exported it fits the large one alone; of what fits the small one the kind that moves the output least. Where
    the file has no memory, or nothing is saved, that is said."""
    file = tmp_path / "flavors.yaml"
    file.write_text(
        "flavors:\n  - {name: big, gpu_hour: 3.0, memory: 1MiB}\n  - {name: small, gpu_hour: 0.75, memory: 400KiB}\n"
    )
    line = ["advise", "--model", str(program), "--flavors", str(file)]
    assert run([*line, "--json"]) == 0
    kinds = {one["kind"]: one for one in json.loads(capsys.readouterr().out)["kinds"]}
    assert {kind: one["flavor"] for kind, one in kinds.items()} == {
        "as exported": "big",
        "bfloat16": "small",
        "int8": "small",
        "int4": "small",
        "batch norms fused": "",
        "half pruned": "big",
        "2:4 pruned": "small",
    }
    assert run(line) == 0
    best = min(("bfloat16", "int8", "int4"), key=lambda kind: kinds[kind]["difference"])
    assert kinds["half pruned"]["difference"] > kinds[best]["difference"]
    assert f"weights in {best}: small instead of big, 75% less for an hour" in capsys.readouterr().out
    file.write_text("flavors: [{name: big, gpu_hour: 3.0, memory: 300KiB}]")
    assert run(line) == 0
    assert "as exported it fits no GPU of the file; with weights in" in capsys.readouterr().out
    file.write_text("flavors: [{name: big, gpu_hour: 3.0, memory: 1GiB}]")
    assert run(line) == 0
    assert "nothing of this saves money here" in capsys.readouterr().out
    assert run(["advise", "--model", str(program)]) == 0
    assert "no memory of a GPU is known" in capsys.readouterr().out


def test_no_program_is_one_line(tmp_path: Path, capsys: Out) -> None:
    path = tmp_path / "model.pt2"
    path.write_text("no program")
    assert run(["advise", "--model", str(path)]) == 2
    error = capsys.readouterr().err
    assert "is no program of torch.export" in error
    assert len(error.splitlines()) == 1
