"""The 1,797 handwritten digits that come with scikit-learn: 8×8 pixels, no download."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from sklearn.datasets import load_digits

from .split import Split


@dataclass(frozen=True, eq=False)
class Digits:
    """Digits, split at random.

    Args:
        train: what a network learns from.
        calibration: unseen by the network, for p-values and thresholds.
        test: unseen by both.
        left_out: every digit of the classes left out, which are in none of the others.
    """

    train: Split
    calibration: Split
    test: Split
    left_out: Split


def digits(*, left_out: Collection[int] = (), calibration: float = 0.2, test: float = 0.2, seed: int = 0) -> Digits:
    """The digits of scikit-learn as images (n, 1, 8, 8) in [0, 1], split at random.

    Args:
        left_out: classes to keep away from training, calibration and test.
        calibration: share of the other images.
        test: share of the other images; training gets the rest.
        seed: of the split.

    Example:
        >>> data = digits(left_out=(8, 9))
        >>> len(data.train), len(data.calibration), len(data.test), len(data.left_out)
        (865, 289, 289, 354)
    """
    unknown = sorted(set(left_out) - set(range(10)))
    if unknown or len(set(left_out)) > 8:
        raise ValueError(f"left_out must name some of the digits 0 … 9 and leave two or more, got {sorted(left_out)}.")
    if not (calibration > 0 and test > 0 and calibration + test < 1):
        raise ValueError(f"calibration and test are shares that leave some for training, got {calibration} and {test}.")
    found = load_digits()
    order = torch.randperm(len(found.target), generator=torch.Generator().manual_seed(seed), device="cpu")
    images = torch.from_numpy(found.images).float().div(16).unsqueeze(1)[order]  # (n, 1, 8, 8)
    labels = torch.from_numpy(found.target).long()[order]
    away = torch.isin(labels, torch.tensor(sorted(left_out), dtype=torch.long, device="cpu"))
    everything = Split(images, labels)
    known = everything[~away]
    unseen, last = round(calibration * len(known)), round(test * len(known))
    first = len(known) - unseen - last
    return Digits(known[:first], known[first : first + unseen], known[first + unseen :], everything[away])
