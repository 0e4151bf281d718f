"""What the suites share of their output: the plots' library, how a figure begins and is written, and the JSON."""

from __future__ import annotations

import importlib
import json
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


def is_printed(result: dict[str, Any], where: str | None) -> bool:
    """Write a suite's result as JSON into the file, or print it for "-". Whether it was printed: then no table is."""
    if where == "-":
        print(json.dumps(result))
    elif where:
        Path(where).write_text(json.dumps(result, indent=1) + "\n")
    return where == "-"
