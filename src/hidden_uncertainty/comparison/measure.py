"""What a method is worth and what it costs, and the machine that it was measured on."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from .. import metrics
from ..extract import Pixels
from ..model.tasks import whole_labels
from ..uncertainty import Uncertainty
from ..version import __version__


def milliseconds(sides: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """The median time of each side, over rounds in which each has its turn, after one call that does not count.

    Turn by turn, whatever disturbs the machine disturbs all of them.
    """
    for side in sides.values():
        side()
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            start = time.perf_counter()
            side()
            seconds[name].append(time.perf_counter() - start)
    return {name: 1000 * median(values) for name, values in seconds.items()}


def versions() -> dict[str, str]:
    """Versions of Python, of this package and of those whose numbers it builds on."""
    own = {"python": platform.python_version(), "hidden-uncertainty": __version__}
    return own | {name: version(name) for name in ("torch", "numpy", "scipy", "scikit-learn")}


def hardware() -> str:
    """The machine, in words: processor, cores, and the GPU where there is one."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    name = next((line.partition(":")[2].strip() for line in lines if "model name" in line), name)
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return f"{name}, {os.cpu_count()} cores{gpu}"


def detection(known: Uncertainty, unknown: Uncertainty) -> dict[str, float]:
    """How well the epistemic score tells unknown inputs from known ones."""
    scores = {"negative": known.epistemic, "positive": unknown.epistemic}
    return {
        "auroc": metrics.auroc(**scores),
        "average precision": metrics.average_precision(**scores),
        "fpr95": metrics.fpr_at_tpr(**scores, tpr=0.95),
    }


def errors(u: Uncertainty, label: Tensor | None, pixels: Pixels | None = None) -> dict[str, float]:
    """How large the errors are, and how well each score ranks them; nothing without labels."""
    if label is None:
        return {}
    prediction = u.prediction
    whole = whole_labels(label, prediction)
    label = label if whole is None else whole
    if label.numel() != prediction.numel() or label.is_floating_point() > prediction.is_floating_point():
        raise ValueError(
            f"predictions are of shape {tuple(prediction.shape)} and {prediction.dtype}, labels of "
            f"{tuple(label.shape)} and {label.dtype}: give labels like predictions, or none."
        )
    label = label.to(prediction.device).reshape(prediction.shape)
    # In the order of its logarithm the aleatoric score also ranks inputs whose entropy underflows.
    scores = {"epistemic": u.epistemic, "aleatoric": u.aleatoric if u.log_aleatoric is None else u.log_aleatoric}
    given = {name: score for name, score in scores.items() if score is not None}
    if pixels is not None:
        valid = pixels.valid(label)
        prediction, label = prediction[valid], label[valid]
        given = {name: score[valid] for name, score in given.items()}
    if prediction.is_floating_point():
        error = prediction.double() - label.double()
        if error.shape != given["epistemic"].shape:  # a vector per input
            error = error.flatten(1).norm(dim=1)
        return {
            "rmse": metrics.rmse(prediction, label),
            **{f"ause {name}": metrics.ause(uncertainty=score, error=error) for name, score in given.items()},
        }
    correct = prediction == label
    if correct.shape != given["epistemic"].shape:  # several labels per input
        correct = correct.all(1)
    return {
        "accuracy": float(correct.double().mean()),
        **{f"aurc {name}": metrics.aurc(score, correct) for name, score in given.items()},
    }
