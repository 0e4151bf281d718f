"""Which reader a model's file has, and what is said where a library for it is missing."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from egs_core.errors import InputError
from egs_core.model_files.drawn import Drawn
from egs_core.model_files.onnx_file import read_onnx
from egs_core.model_files.torch_file import read_program

ENDINGS = {".onnx": "onnx", ".pt2": "torch"}
"""Of files that are read, and the library that reads them."""


def read_model(path: Path, sizes: Mapping[str, int], measure: int = 0) -> Drawn:
    """The graph of an ONNX model or a program of `torch.export`. sizes: of dimensions that an ONNX model leaves open;
    measure: how often to run a program on this CPU to take its operators' times, 0 for not. Raises InputError."""
    place, library = str(path), ENDINGS[path.suffix.lower()]
    if library == "onnx" and measure:
        raise InputError(
            "--measure", "only programs of torch.export are run", "leave it out for ONNX, or export a .pt2"
        )
    if library == "torch" and sizes:
        raise InputError(
            "--dim", "a program of torch.export has the sizes of its example inputs", "export it with others"
        )
    _check(path, place)
    if find_spec(library) is None:
        raise InputError(place, f"reading it needs {library}, which is not installed", "pip install 'egs-core[model]'")
    return read_onnx(path, sizes) if library == "onnx" else read_program(path, measure)


def _check(path: Path, place: str) -> None:
    try:
        with path.open("rb") as file:
            is_empty = not file.read(1)
    except OSError as error:
        raise InputError(place, f"cannot be read: {error.strerror or error}") from None
    if is_empty:
        raise InputError(place, "the file is empty", "expected a model")
