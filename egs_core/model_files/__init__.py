"""Models themselves as graphs to split: ONNX, and programs of `torch.export`.

Both libraries are loaded only when such a file is read, and are in the extra `egs-core[model]`.
"""

from egs_core.model_files.drawn import Drawn, Rates
from egs_core.model_files.reading import ENDINGS, read_model

__all__ = ["ENDINGS", "Drawn", "Rates", "read_model"]
