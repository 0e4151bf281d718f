"""What is said where the library that reads a model is not installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from egs_core.errors import InputError
from egs_core.model_files import read_model


@pytest.mark.parametrize(("name", "library"), [("net.onnx", "onnx"), ("NET.PT2", "torch")])
def test_a_missing_library_is_named(name: str, library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to install; a file that is not there is said first."""
    monkeypatch.setattr("egs_core.model_files.reading.find_spec", lambda _: None)
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_model(tmp_path / name, {})
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(
        InputError, match=rf"needs {library}, which is not installed \(pip install 'egs-core\[model\]'\)"
    ):
        read_model(tmp_path / name, {})
