"""How far probabilities of classes are to be believed, beside temperature scaling."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from hidden_uncertainty.metrics import expected_calibration_error

DEFAULT, PLAIN, SCALED = "default", "softmax", "scaled softmax"
MEASURES = {"nll": "NLL", "ece": "ECE"}
REPEATS = 1000  # of the bootstrap
COVERED = 0.95


def scaled(logits: Tensor, labels: Tensor) -> float:
    """The temperature at which labels (n,) are likeliest (Guo et al. 2017), found without the library's own search.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0]] * 4)
        >>> round(scaled(logits, torch.tensor([0, 0, 0, 1])), 2)  # 2 / log 3
        1.82
    """

    def loss(log_temperature: float) -> float:
        return float(_losses((logits.double() / math.exp(log_temperature)).log_softmax(1), labels).mean())

    return math.exp(minimize_scalar(loss, bounds=(math.log(1e-2), math.log(1e2)), method="bounded").x)


def judge(default: Tensor, logits: Tensor, labels: Tensor, temperature: float, seed: int) -> dict[str, Any]:
    """NLL and ECE of the default's probabilities, of the softmax, and of the softmax at a temperature.

    The bootstrap draws inputs and says where the last one's numbers lie with 95 % probability.

    Args:
        default: probabilities (n, C).
        logits: of the same inputs (n, C).
        labels: of these (n,).
        temperature: learnt elsewhere.
        seed: of the bootstrap.
    """
    tiny = torch.finfo(torch.float32).tiny  # probabilities in float32 may be rounded to zero
    logs = {
        DEFAULT: default.double().clamp(min=tiny).log(),
        PLAIN: logits.double().log_softmax(1),
        SCALED: (logits.double() / temperature).log_softmax(1),
    }
    found: dict[str, Any] = {"temperature": round(temperature, 4)}
    found["nll"] = {name: round(float(_losses(log_p, labels).mean()), 5) for name, log_p in logs.items()}
    sure = {name: _confidence(log_p, labels) for name, log_p in logs.items()}
    found["ece"] = {name: round(expected_calibration_error(*pair), 5) for name, pair in sure.items()}
    random = torch.Generator().manual_seed(seed)
    drawn = torch.randint(len(labels), (REPEATS, len(labels)), generator=random, device="cpu")
    losses, (stated, right) = _losses(logs[SCALED], labels), sure[SCALED]
    again = {
        "nll": torch.stack([losses[rows].mean() for rows in drawn]),
        "ece": torch.tensor([expected_calibration_error(stated[rows], right[rows]) for rows in drawn]),
    }
    ends = torch.tensor([(1 - COVERED) / 2, (1 + COVERED) / 2], dtype=torch.float64)
    for name, values in again.items():
        found[name]["low"], found[name]["high"] = (round(v, 5) for v in values.double().quantile(ends).tolist())
    return found


def within(found: Mapping[str, float]) -> bool:
    """Whether the default is within the interval of temperature scaling, or better.

    Example:
        >>> within({"default": 0.2, "low": 0.1, "high": 0.3}), within({"default": 0.4, "low": 0.1, "high": 0.3})
        (True, False)
    """
    return found[DEFAULT] <= found["high"]


def _losses(log_p: Tensor, labels: Tensor) -> Tensor:
    return -log_p.gather(1, labels[:, None])[:, 0]


def _confidence(log_p: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The probability of the likeliest class, and whether it is right."""
    top, best = log_p.max(1)
    return top.exp(), best == labels
