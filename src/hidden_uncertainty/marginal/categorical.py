"""Frequencies of classes, or of sets of labels: the marginal p(y) of a classifier."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from ..io import expect
from ..precision import without_autocast
from .base import LogProb, Marginal, Support

FEWEST = 5  # inputs that a set of labels must have to be a class of its own
MOST = 512  # sets of labels
ROWS = 1 << 14  # compared with all sets at a time


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
        for name in ("log_prob", "support", "log_weight"):
            self.register_buffer(name, torch.zeros(0, device="cpu"))

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


class LabelSets(Categorical):
    r"""Frequencies of sets of labels: which labels an input has, together, is its class.

    .. math:: p(y_l = 1 \mid z) = \sum_g p(g \mid z)\, f_{gl}

    with f_gl how often label l holds among the inputs of class g. The most frequent sets are classes. An input with
    another set is of the class whose set differs in the fewest labels, of several that of the most frequent: its class
    depends on its labels alone.

    Example:
        >>> labels = torch.tensor([[1, 0, 0]] * 20 + [[0, 1, 1]] * 10 + [[1, 1, 1]])
        >>> marginal = LabelSets().fit(labels)
        >>> marginal.sets
        tensor([[1, 0, 0],
                [0, 1, 1]])
        >>> marginal.of(torch.tensor([[1, 1, 1], [0, 0, 0]]))
        tensor([1, 0])
    """

    sets: Tensor  # (m, L), the most frequent first
    share: Tensor  # f, (m, L)

    def __init__(self) -> None:
        super().__init__()
        for name in ("sets", "share"):
            self.register_buffer(name, torch.zeros(0, 0, device="cpu"))

    def fit(self, y: Tensor, classes: int | None = None) -> Self:
        """Count the sets of labels.

        Args:
            y: which labels each sample has, (n, L), zeros and ones.
            classes: how many sets at most; None is 512.
        """
        if y.is_floating_point() or y.dim() != 2 or len(y) == 0 or bool(((y != 0) & (y != 1)).any()):
            raise ValueError(f"expected zeros and ones as integers (n, labels), n > 0, not {y.dtype} {tuple(y.shape)}.")
        y = y.long()
        found, counts = y.unique(dim=0, return_counts=True)
        order = counts.argsort(descending=True, stable=True)  # ties by content: no order of samples matters
        # Two at least, so that there is something to be torn between.
        self.sets = found[order[: min(max(2, int((counts >= FEWEST).sum())), classes or MOST)]]
        which = self.of(y)
        self.fit_counts(which.bincount(minlength=len(self.sets)))
        have = torch.zeros_like(self.sets).index_add_(0, which, y)
        self.share = have.float() / which.bincount()[:, None]
        return self

    def of(self, y: Tensor) -> Tensor:
        """The class of each set of labels y (n, L): (n,)."""
        flips = 1 - 2 * self.sets.float().mT  # (L, m): how a label changes the distance
        rank = torch.arange(len(self.sets), device=y.device)
        with without_autocast(y.device):
            parts = [(part.float() @ flips + self.sets.sum(1)).long() for part in y.split(ROWS)]  # labels that differ
        return torch.cat([(away * len(rank) + rank).argmin(1) for away in parts])

    def probabilities(self, log_posterior: Tensor) -> Tensor:
        """p(y_l = 1 | z) of each label, (n, L), from log p(g | z) of each class, (n, m)."""
        return (log_posterior.exp() @ self.share.to(log_posterior.dtype)).clamp(0.0, 1.0)

    def check(self) -> None:
        """Raise a ValueError where the buffers cannot be those of a fit."""
        super().check()
        expect(len(self.support) == len(self.sets) > 0, "there are not as many classes as sets of labels")
        expect((self.sets == 0) | (self.sets == 1), "a set of labels is not zeros and ones")
        expect((self.share >= 0) & (self.share <= 1), "the frequency of a label is not between 0 and 1")
