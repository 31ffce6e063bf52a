"""p-values against unseen scores, and thresholds at a false-alarm rate, both without a single outlier."""

from __future__ import annotations

import math
from bisect import bisect_left
from fractions import Fraction
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from ..arrays import to_array, to_tensor
from ..io import expect
from ..notes import warn
from ..stored import Stored

LEAST = 1e-6  # of a score: the margin of ties where none was measured
TIMES = 4  # the largest difference that was seen is not the largest there is


class Calibration(Stored):
    r"""Scores of in-distribution data that nothing was fitted to, and what they say about a new score.

    .. math:: p(s) = \frac{1 + \#\{i : s_i \geq s\}}{n + 1}

    P(p ≤ α) ≤ α for every α: of new in-distribution inputs, at most a share α is called surprising. This holds
    marginally, over the draw of the calibration set and the new input together (for this one set, ask `threshold` for a
    confidence); if calibration and new inputs are exchangeable (images are; the pixels of one image are not); and if
    the score was fixed without the calibration inputs: neither the density nor the network has seen them.

    The same input has scores that differ in their last digits when it comes alone and when it comes among others, as
    the network's own products do. So that no tie is lost, each known score counts as a little higher than it is:

    .. math:: s_i + \rho \max(|s_i|, a), \qquad a = \operatorname{median} |s_i|

    with :math:`\rho = 10^{-6}`, or four times the largest such difference that was measured.

    Example:
        >>> calibration = Calibration().fit(torch.arange(99.0))
        >>> calibration.p_value(torch.tensor([-5.0, 49.0, 98.0, 1000.0])).tolist()
        [1.0, 0.51, 0.02, 0.01]
        >>> round(calibration.threshold(false_alarm=0.05), 3)
        94.0
    """

    infinite = ("scores", "reach")  # of inputs that the network gives NaN for

    scores: Tensor  # (n,) ascending
    reach: Tensor  # (n,) ascending: up to where a new score ties with each

    def __init__(self, margin: float = LEAST) -> None:
        super().__init__()
        self.margin = margin  # ρ
        self.register_buffer("scores", torch.zeros(0, device="cpu"))
        self.register_buffer("reach", torch.zeros(0, device="cpu"), persistent=False)

    def fit(self, scores: Tensor | Any, again: tuple[Tensor, Tensor] | None = None) -> Self:
        """Keep the scores of unseen in-distribution inputs, (n,), higher when more uncertain.

        Args:
            scores: one per input; a tensor, an array or a list.
            again: scores of some inputs, (m,), when they come together, and when each comes alone.
        """
        scores = scores if isinstance(scores, Tensor) else torch.as_tensor(to_tensor(scores), device=self.scores.device)
        if scores.dim() != 1 or len(scores) == 0:
            raise ValueError(f"expected one score per input, (n,) with n > 0; got shape {tuple(scores.shape)}")
        refuse_nan(scores)
        at_least_single = torch.promote_types(scores.dtype, torch.float32)
        self.scores = scores.detach().to(at_least_single).sort().values
        if again is not None and len(again[0]):
            together, alone = (part.detach().to(self.scores) for part in again)
            differences = ((together - alone).abs() / _size(together, self.scores)).nan_to_num(0.0)
            self.margin = max(TIMES * float(differences.max()), LEAST)
        self._prepare()
        return self

    def p_value(self, scores: Tensor | Any) -> Tensor:
        """Share of unseen scores at least as high, the new one counted; in float64, of the scores' shape.

        A tie counts against the alarm. NaN is an error; an exported graph, which cannot raise one, gives it the lowest
        p-value.
        """
        n = self._fitted()
        scores = scores if isinstance(scores, Tensor) else torch.as_tensor(to_tensor(scores), device=self.scores.device)
        # Both in the wider of their precisions, as `surprising` compares.
        dtype = torch.promote_types(self.reach.dtype, scores.dtype)
        if torch.compiler.is_compiling():  # graphs that are exported have no search
            below = (~(self.reach.to(dtype) >= scores.detach().to(dtype)[..., None])).sum(-1)
        else:
            refuse_nan(scores)
            below = torch.searchsorted(self.reach.to(dtype), scores.detach().to(dtype).contiguous())
        # As Python divides whole numbers, so that p ≤ 0.05 is the same here and in a list.
        precise = torch.float32 if scores.device.type == "mps" else torch.float64
        return (n + 1 - below).to(precise).div_(n + 1)

    def threshold(self, false_alarm: float, confidence: float | None = None) -> float:
        r"""The score above which at most a share `false_alarm` of in-distribution inputs lies.

        Without a confidence it is where the :math:`\lceil (n+1)(1-\alpha) \rceil`-th lowest score reaches to: score >
        threshold exactly when p-value ≤ α. With one, it is that of the lowest :math:`s_{(k)}` for which

        .. math::
            P(\text{false-alarm rate of } s_{(k)} \leq \alpha)
            = \mathrm{Beta}(n + 1 - k, k).\mathrm{cdf}(\alpha) \geq \text{confidence}

        over the draw of the calibration set (ties only raise it): this one set keeps the rate with that confidence.

        Args:
            false_alarm: α, the largest acceptable share of false alarms.
            confidence: Probability that the drawn calibration set keeps the rate; None for the guarantee on average.

        Example:
            >>> calibration = Calibration().fit(torch.arange(1000.0))
            >>> round(calibration.threshold(0.01)), round(calibration.threshold(0.01, confidence=0.95))
            (990, 995)
        """
        n, alpha = self._fitted(), check_share("false_alarm", false_alarm)
        what = f"a false-alarm rate of {false_alarm}"
        if confidence is None:
            rank, needed = _marginal_rank(n, alpha)
        else:
            rank, needed = _confident_rank(n, alpha, check_share("confidence", confidence))
            what += f" with confidence {confidence}"
        return self._reached(rank, needed, what, "a higher rate")

    def covering(self, coverage: float) -> float:
        """The score that at least a share `coverage` of in-distribution inputs stays within."""
        # 1 - 0.9 is a little less than 0.1 in floats, which would ask for one rank more.
        beyond = round(1 - check_share("coverage", coverage), 12)
        return self._reached(*_marginal_rank(self._fitted(), beyond), f"a coverage of {coverage}", "a lower one")

    def check(self) -> None:
        """Raise a ValueError where the scores cannot be those of a fit."""
        expect(self.scores.dim() == 1 and len(self.scores) > 0, "there are no calibration scores")
        ascending = (self.scores[1:] >= self.scores[:-1]).all() & ~self.scores.isnan().any()
        expect(ascending, "calibration scores do not ascend")
        expect(self.margin >= 0, "the margin of ties is negative")

    def _prepare(self) -> None:
        known = self.scores
        if len(known):
            reach = (known + self.margin * _size(known, known)).clamp(max=torch.finfo(known.dtype).max)
            self.reach = torch.where(known.isfinite(), reach, known).sort().values

    def _reached(self, rank: int, needed: int, what: str, instead: str) -> float:
        if len(self.scores) < needed:
            raise ValueError(
                f"{what} needs at least {needed:,} calibration scores; there are {len(self.scores):,}. Calibrate on "
                f"more unseen data, or ask for {instead}."
            )
        return float(self.reach[rank - 1])

    def _fitted(self) -> int:
        if len(self.scores) == 0:
            raise RuntimeError("there are no calibration scores yet: call fit with scores of unseen data first.")
        return len(self.scores)


def _size(scores: Tensor, known: Tensor) -> Tensor:
    """What differences of scores are measured in: max(|s|, a); a is positive where any score differs from zero."""
    sizes = known.abs().nan_to_num(posinf=0.0)
    usual = sizes.median()
    usual = torch.where(usual > 0, usual, sizes.max()).clamp(min=torch.finfo(known.dtype).tiny)
    return scores.abs().nan_to_num(posinf=0.0).maximum(usual)


def _marginal_rank(n: int, alpha: float) -> tuple[int, int]:
    """Rank of the threshold among n scores, and how many scores are needed for one to exist.

    p-values are j / (n + 1), and `alarms` is the largest j with p ≤ α. That comparison is made as a user makes it, of
    floats: 29 / 100 ≤ 0.29 although the float 0.29 is a little less than 29 / 100.
    """
    whole = math.floor((n + 1) * Fraction(alpha))
    alarms = whole + 1 if (whole + 1) / (n + 1) <= alpha else whole
    total = math.ceil(1 / Fraction(alpha))
    needed = total - 2 if 1 / (total - 1) <= alpha else total - 1
    return n + 1 - alarms, needed


def _confident_rank(n: int, alpha: float, confidence: float) -> tuple[int, int]:
    """Rank of the threshold among n scores, and how many scores are needed for one to exist."""
    from scipy.special import betainc  # scoring needs no scipy

    # The highest score, of rank n, has Beta(1, n).cdf(α) = 1 - (1 - α)^n.
    needed = math.ceil(math.log1p(-confidence) / math.log1p(-alpha))
    ranks = range(1, n)
    rank = 1 + bisect_left(ranks, confidence, key=lambda k: float(betainc(n + 1 - k, k, alpha)))
    return rank, needed


def p_value_by_group(unseen: Any, unseen_groups: Any, scores: Any, groups: Any) -> Tensor:
    r"""p-values that keep their promise within each group, such as a predicted class or a camera, (n,) in float64.

    .. math:: P(p \leq \alpha \mid \text{group}) \leq \alpha

    A score is compared with those of its own group alone (`Calibration`). An alarm is `p <= 0.05`: of each group, at
    most 5 % of new in-distribution inputs. A group with n unseen scores has no p-value below 1 / (n + 1). One with none
    has p = 1, and there is a warning.

    Args:
        unseen: scores (m,) of data that nothing was fitted to, higher when more uncertain.
        unseen_groups: of each, (m,): whole numbers or names.
        scores: of new inputs, (n,).
        groups: of each, (n,).

    Example:
        >>> unseen, groups = torch.tensor([1.0, 2.0, 3.0, 10.0, 20.0, 30.0]), [0, 0, 0, 1, 1, 1]
        >>> p_value_by_group(unseen, groups, torch.tensor([5.0, 5.0]), [0, 1]).tolist()
        [0.25, 1.0]
    """
    values = [torch.as_tensor(to_tensor(part)) for part in (unseen, scores)]
    names = [to_array(part) if isinstance(part, Tensor) else np.asarray(part) for part in (unseen_groups, groups)]
    for value, name in zip(values, names, strict=True):
        if value.dim() != 1 or name.shape != tuple(value.shape):
            raise ValueError(f"expected one score and one group per input; got {tuple(value.shape)} and {name.shape}.")
    found, lost = torch.ones(len(values[1]), dtype=torch.float64, device=values[1].device), []
    for group in np.unique(names[1]):
        known, new = (torch.from_numpy(name == group) for name in names)
        if bool(known.any()):
            own = values[0][known].to(values[1].device)
            found[new] = Calibration().fit(own).p_value(values[1][new]).to(found)
        else:
            lost.append(group.item())
    if lost:
        warn(f"no unseen score is of group {', '.join(map(repr, lost))}: p is 1 there, so that nothing is an alarm.")
    return found


def check_share(name: str, value: float) -> float:
    """A share as a float, whatever kind of number came."""
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be a number between 0 and 1, not {value!r}") from error
    if not 0 < number < 1:
        raise ValueError(f"{name} must lie between 0 and 1, both excluded; got {value}")
    return number


def refuse_nan(scores: Tensor) -> None:
    """Raise a ValueError that counts the scores that are NaN, where any is."""
    if wrong := int(scores.isnan().sum()):
        raise ValueError(
            f"{wrong:,} of {scores.numel():,} scores are NaN: look for NaN in the inputs or the network's outputs"
        )
