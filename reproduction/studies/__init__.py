"""Studies on real data, one folder each: `study` runs it, and `table` shows its result file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..results import Study

NAMES = {  # with what each one is about
    "digits": "Densities of one layer, on digits that a small network never saw. Needs no data.",
    "compare-digits": "All methods on these digits: how well each detects and what it costs. Needs no data.",
    "one-score": "The library's default beside every single method, on networks of several families.",
    "truth": "Known joint distributions: do both uncertainties come to the truth as data grow? Needs no data.",
    "toy-regression": "A curve with a gap in its data, and who notices the gap. Needs no data.",
    "uci": "Eight tables of the UCI repository: uncertainty against error.",
    "table-1-fcnet": "Table 1 of the paper, left half: perceptrons on MNIST and FashionMNIST.",
    "table-1-resnet": "Table 1 of the paper, right half: residual networks on SVHN and CIFAR10.",
    "layer-depth": "How soon each layer notices that images change.",
    "regularisation": "Networks that must reconstruct their input from a layer.",
    "rivals": "Methods that need training of their own, beside densities of networks as they are.",
    "segmentation": "Misclassified pixels on Cityscapes, and unknown objects on Fishyscapes.",
    "depth-estimation": "Uncertainty of depth per pixel, on NYU v2.",
}


def load(name: str) -> Callable[..., Study]:
    """The function that runs the study of this name.

    Example:
        >>> load("digits").__name__
        'run'
    """
    return _module(name, "study").run


def renderer(name: str, part: str | None = None) -> Callable[[Mapping[str, Any]], str]:
    """The function that turns a result of this study into tables in Markdown, or into one that has a name of its own.

    Example:
        >>> renderer("digits").__name__, renderer("one-score", "short").__name__
        ('render', 'short')
    """
    module = _module(name, "table")
    if part is None:
        return module.render
    parts = getattr(module, "PARTS", {})
    if part not in parts:
        raise ValueError(f"the study {name!r} has no table {part!r}; it has: {', '.join(parts) or 'none'}.")
    return parts[part]


def made(result: Mapping[str, Any], part: str | None = None) -> tuple[str, float]:
    """The command that makes a result again, and its seconds; a study whose file grew in several runs knows better.

    Example:
        >>> made({"name": "digits", "command": "make it", "seconds": 7})
        ('make it', 7)
    """
    own = getattr(_module(result["name"], "table"), "made", None)
    return (result["command"], result["seconds"]) if own is None else own(result, part)


def _module(name: str, part: str) -> Any:
    if name not in NAMES:
        raise ValueError(f"there is no study {name!r}; there are: {', '.join(NAMES)}.")
    return import_module(f"{__name__}.{name.replace('-', '_')}.{part}")
