"""EGS for Kubeflow Pipelines: compiled pipelines in, better pipelines out.

    egs_kubeflow.Client       kfp's client; what it submits is written for a site
    egs_kubeflow.component    kfp's decorator, with hints

Both import kfp when they are first asked for; `egs doctor` and the adapter work where kfp is broken or missing.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_PUBLIC = {"Client": "egs_kubeflow.client", "component": "egs_kubeflow.components.wrapper"}


def __getattr__(name: str) -> Any:
    """One of the public names."""
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_PUBLIC[name]), name)
    return found
