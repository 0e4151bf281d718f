"""What all plots of the suites share: where the library comes from, how a figure begins, and how it is written."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from egs_core.errors import InputError


def drawing_library() -> Any:
    """matplotlib's module of figures; InputError without it."""
    try:
        return importlib.import_module("matplotlib.figure")
    except ImportError:
        raise InputError("--plot", "needs matplotlib", "pip install 'egs-core[bench]'") from None


def figure_of(width: float, height: float) -> Any:
    """An empty figure of so many inches that makes room for its own labels. InputError without matplotlib."""
    return drawing_library().Figure(figsize=(width, height), layout="constrained")


def drawn(figure: Any, path: Path) -> None:
    """Write the figure; its folder is made when it is not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
