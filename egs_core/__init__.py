"""EGS: pipelines that stop wasting GPUs. Pipeline authors need only the names below; see `egs_core.hints`."""

from typing import TYPE_CHECKING

__version__ = "0.1.0"
__all__ = [
    "call",
    "checkpoint",
    "files",
    "gpu",
    "loaded",
    "modules",
    "on_gpu",
    "phases",
    "progress",
    "restored",
    "task",
    "work",
]

if TYPE_CHECKING:
    from egs_core.hints import (
        call,
        checkpoint,
        files,
        gpu,
        loaded,
        modules,
        on_gpu,
        phases,
        progress,
        restored,
        task,
        work,
    )


def __getattr__(name: str) -> object:
    """Import the hints when the first name is used: who needs only a submodule does not pay for them."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from egs_core import hints

    value: object = getattr(hints, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
