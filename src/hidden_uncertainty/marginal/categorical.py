"""Frequencies of classes: the marginal p(y) of a classifier."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor

from ..io import expect
from .base import LogProb, Marginal, Support


class Categorical(Marginal):
    r"""Frequencies of the predicted classes.

    .. math:: p(\hat y = c) = \frac{1}{n} \sum_i [\hat y_i = c]

    `log_prob` has one entry per class, -inf for one that never occurred; `support` and `log_weight` hold the others.

    Example:
        >>> marginal = Categorical().fit(torch.tensor([0, 2, 2, 2]), classes=4)
        >>> marginal.support, marginal.log_weight.exp()
        (tensor([0, 2]), tensor([0.2500, 0.7500]))
        >>> marginal.log_prob.exp()
        tensor([0.2500, 0.0000, 0.7500, 0.0000])
    """

    infinite = ("log_prob",)

    log_prob: Tensor  # (C,)
    support: Tensor  # (m,)
    log_weight: Tensor  # (m,)

    def __init__(self) -> None:
        super().__init__()
        self._allocate(classes=0, occurring=0)

    def fit(self, y: Tensor, classes: int | None = None) -> Self:
        """Count the classes.

        Args:
            y: class of each sample, (n,) integers.
            classes: how many classes the network has; None takes the largest of y, plus one.
        """
        if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
            raise TypeError(f"classes must be integers, not {y.dtype}: for numbers use a continuous marginal.")
        if y.dim() != 1 or len(y) == 0:
            raise ValueError(f"expected one class per sample, (n,) with n > 0, not {tuple(y.shape)}.")
        low, high = int(y.min()), int(y.max())
        classes = high + 1 if classes is None else classes
        if low < 0 or high >= classes:
            raise ValueError(f"classes must lie in 0 … {classes - 1}, not {low} … {high}.")
        return self.fit_counts(torch.bincount(y.long(), minlength=classes))

    def fit_counts(self, counts: Tensor) -> Self:
        """Take how often each class occurred, (C,), where there are too many samples to hold."""
        whole = counts.cpu().double()
        self.log_prob = (whole / whole.sum()).log().to(counts.device, torch.float32)
        self.support = counts.nonzero().squeeze(1)
        self.log_weight = self.log_prob[self.support]
        return self

    @property
    def size(self) -> int:
        """How many classes occurred."""
        return len(self.support)

    def at(self, prediction: Tensor, log_prob: LogProb | None = None) -> Support:
        """The classes that occurred, with their frequencies, whatever is predicted."""
        return Support(self.support, self.log_weight)

    def check(self) -> None:
        """Raise a ValueError where the buffers cannot be those of a fit."""
        occurring = self.log_prob.isfinite().nonzero()[:, 0]
        same = len(occurring) == len(self.support) and bool((occurring == self.support).all())
        expect(same, "the support is not the classes that occurred")
        expect(self.log_weight == self.log_prob[occurring], "the weights are not those of the classes")
        expect(abs(float(self.log_prob.exp().sum()) - 1) < 1e-3, "the frequencies of classes do not sum to one")

    def config(self) -> dict[str, Any]:
        """Arguments of `from_config`: how many classes there are, and how many of them occurred."""
        return {"classes": len(self.log_prob), "occurring": len(self.support)}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Build the module with buffers of the right shapes, to be filled by `load_state_dict`."""
        marginal = cls()
        marginal._allocate(classes=config["classes"], occurring=config["occurring"])
        return marginal

    def _allocate(self, *, classes: int, occurring: int) -> None:
        self.register_buffer("log_prob", torch.zeros(classes, dtype=torch.float32, device="cpu"))
        self.register_buffer("support", torch.zeros(occurring, dtype=torch.long, device="cpu"))
        self.register_buffer("log_weight", torch.zeros(occurring, dtype=torch.float32, device="cpu"))
