"""Detectors to files and back: what is written, and what is checked before it is used."""

from __future__ import annotations

from os import PathLike
from typing import Any

import torch
from torch import nn

from .. import io
from ..extract import Pixels
from ..model.capture import device_of, find
from ..model.identity import check_same, describe, weights
from ..model.tasks import from_config
from .head import Fitted
from .legacy import convert
from .restore import restore_terms


def save(detector: Any, fitted: Fitted, path: str | PathLike[str]) -> None:
    """Write a detector; the model is not in the file."""
    kinds = detector.kinds
    header = {
        **fitted.config(),
        "version": 2,  # of this header; 0.1.0 had none
        "kinds": [io.name_of(kinds, kind) for kind in type(detector).__mro__ if hasattr(kind, "kinds")],
        "model": describe(detector.model),
        "terms": [term.config() for term in detector.terms.values()],
        "task": None if detector.task is None else detector.task.config(),
        "output": detector.reader.output,
        "condition": detector.condition,
        "combine": detector.combine,
        "pixels": None if detector.pixels is None else detector.pixels.config(),
        "seed": detector.seed,
    }
    io.write(path, header, {**fitted.head.state_dict(), "weights": weights(detector.model)})


def load(
    cls: Any, base: Any, path: str | PathLike[str], model: nn.Module, device: torch.device | str | None, **options: Any
) -> tuple[Any, Fitted]:
    """Read a detector and what it had fitted.

    Args:
        cls: the class that was asked for.
        base: the class that all detectors are of.
        path: the file.
        model: the network it was fitted for.
        device: where to put what was fitted; None is where the model is.
        options: arguments of `base` that are not saved.
    """
    header, tensors = io.read(path)
    find(model, [])  # raises unless it is a module
    with io.blaming(path):
        header, tensors = convert(header, tensors)
        check_same(model, header["model"], tensors.pop("weights"), path)
        known = next((base.kinds[name] for name in header["kinds"] if name in base.kinds), base)
        own = issubclass(cls, known) and not cls.__module__.startswith("hidden_uncertainty.")  # a class of the user's
        if not issubclass(known, cls) and not own:
            raise io.Unusable(f"'{path}' holds {known.__name__}, not {cls.__name__}: use {known.__name__}.load.")
        kind = known if issubclass(known, cls) else cls
        fitted, pixels, task = Fitted.from_config(header, tensors), header["pixels"], header["task"]
        detector = kind.__new__(kind)
        # Not the class's own __init__, which only builds terms: the file holds them.
        base.__init__(
            detector,
            model,
            kind.restored(restore_terms(header, fitted.head)),
            combine=header["combine"],
            condition=header["condition"],
            task=None if task is None else from_config(task),
            output=header["output"],
            pixels=None if pixels is None else Pixels.from_config(pixels),
            seed=header["seed"],
            **options,
        )
    fitted.head.to(device or device_of(model) or "cpu")
    return detector, fitted
