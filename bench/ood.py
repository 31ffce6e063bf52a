"""pytorch-ood, where it can be imported. It needs torchvision, of which it uses nothing here."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import torch

# Torchvision describes these two as it is imported, and cannot where its compiled part does not fit torch's build.
OPERATORS = ("nms", "qnms")
_defined: torch.library.Library | None = None  # operators live as long as this


def detectors() -> ModuleType:
    """The module `pytorch_ood.detector`; ImportError where it is not there."""
    global _defined
    try:
        return importlib.import_module("pytorch_ood.detector")
    except RuntimeError as error:
        if "torchvision::nms" not in str(error) or _defined is not None:
            raise ImportError(f"pytorch-ood cannot be imported: {error}") from error
    for name in [name for name in sys.modules if name.partition(".")[0] in ("torchvision", "pytorch_ood")]:
        del sys.modules[name]
    _defined = torch.library.Library("torchvision", "DEF")
    for operator in OPERATORS:
        _defined.define(f"{operator}(Tensor boxes, Tensor scores, float threshold) -> Tensor")
    return detectors()
