"""Studies on real data, each written to a result file by `hidden-uncertainty reproduce NAME`."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from .results import Study

NAMES = (
    "digits",
    "compare-digits",
    "toy-regression",
    "uci",
    "table-1-fcnet",
    "table-1-resnet",
    "layer-depth",
    "regularisation",
    "segmentation",
    "depth-estimation",
)


def load(name: str) -> Callable[..., Study]:
    """The function that runs the study of this name.

    Example:
        >>> load("digits").__name__
        'run'
    """
    if name not in NAMES:
        raise ValueError(f"there is no study {name!r}; there are: {', '.join(NAMES)}.")
    return import_module(f"{__name__}.{name.replace('-', '_')}").run
