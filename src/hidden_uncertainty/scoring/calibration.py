"""p-values against unseen scores, and thresholds at a false-alarm rate, both without a single outlier."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Self

import torch
from torch import Tensor, nn


class Calibration(nn.Module):
    r"""Scores of in-distribution data that nothing was fitted to, and what they say about a new score.

    .. math:: p(s) = \frac{1 + \#\{i : s_i \geq s\}}{n + 1}

    P(p ≤ α) ≤ α for every α: of new in-distribution inputs, at most a share α is called surprising. This holds

    - marginally, over the draw of the calibration set and the new input together, not for this one calibration set:
      for that, ask `threshold` for a confidence;
    - if calibration and new inputs are exchangeable (images are; the pixels of one image are not);
    - if the score was fixed without the calibration inputs: neither the density nor the network has seen them. What the
      network was trained on may look more familiar to it than new data, and the alarm would then ring too often.

    Example:
        >>> calibration = Calibration().fit(torch.arange(99.0))
        >>> calibration.p_value(torch.tensor([-5.0, 49.0, 98.0, 1000.0]))
        tensor([1.0000, 0.5100, 0.0200, 0.0100])
        >>> calibration.threshold(false_alarm=0.05)
        94.0
    """

    scores: Tensor  # (n,) ascending

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scores", torch.zeros(0, device="cpu"))

    def fit(self, scores: Tensor) -> Self:
        """Keep the scores of unseen in-distribution inputs, (n,), higher when more uncertain.

        Example:
            >>> Calibration().fit(torch.tensor([3.0, 1.0, 2.0])).scores
            tensor([1., 2., 3.])
        """
        if scores.dim() != 1 or len(scores) == 0:
            raise ValueError(
                f"expected one score per input, (n,) with n > 0; got a tensor of shape {tuple(scores.shape)}"
            )
        _refuse_nan(scores)
        at_least_single = torch.promote_types(scores.dtype, torch.float32)
        self.scores = scores.detach().to(at_least_single).sort().values
        return self

    def p_value(self, scores: Tensor) -> Tensor:
        """Share of unseen scores at least as high, the new one counted; of the scores' shape.

        A tie counts against the alarm. NaN is an error; an exported graph, which cannot raise one, gives it the lowest
        p-value.

        Args:
            scores: Scores of new inputs, of any shape.

        Example:
            >>> Calibration().fit(torch.tensor([1.0, 2.0, 2.0])).p_value(torch.tensor([2.0, 2.5]))
            tensor([0.7500, 0.2500])
        """
        n, known = self._fitted(), self.scores
        if not torch.compiler.is_compiling():
            _refuse_nan(scores)
        # Rounding to the stored precision keeps the order: at worst a higher score becomes a tie, the safe side.
        below = torch.searchsorted(known, scores.detach().to(known.dtype).contiguous())
        return (n + 1 - below).to(known.dtype).div_(n + 1)

    def threshold(self, false_alarm: float, confidence: float | None = None) -> float:
        r"""The score above which at most a share `false_alarm` of in-distribution inputs lies.

        Without a confidence it is the :math:`\lceil (n+1)(1-\alpha) \rceil`-th lowest score: score > threshold exactly
        when p-value ≤ α, with the p-value's marginal guarantee. With one, it is the lowest :math:`s_{(k)}` for which

        .. math::
            P(\text{false-alarm rate of } s_{(k)} \leq \alpha)
            = \mathrm{Beta}(n + 1 - k, k).\mathrm{cdf}(\alpha) \geq \text{confidence}

        over the draw of the calibration set (ties only raise it): this one set keeps the rate with that confidence.

        Args:
            false_alarm: α, the largest acceptable share of false alarms.
            confidence: Probability that the drawn calibration set keeps the rate; None for the guarantee on average.

        Example:
            >>> calibration = Calibration().fit(torch.arange(1000.0))
            >>> calibration.threshold(0.01), calibration.threshold(0.01, confidence=0.95)
            (990.0, 995.0)
        """
        n = self._fitted()
        _check_share("false_alarm", false_alarm)
        if confidence is None:
            rank, needed = _marginal_rank(n, false_alarm)
        else:
            _check_share("confidence", confidence)
            rank, needed = _confident_rank(n, false_alarm, confidence)
        if n < needed:
            rate = f"{false_alarm}" if confidence is None else f"{false_alarm} with confidence {confidence}"
            raise ValueError(
                f"a false-alarm rate of {rate} needs at least {needed:,} calibration scores; there are {n:,}. "
                "Calibrate on more unseen data, or ask for a higher rate."
            )
        return float(self.scores[rank - 1])

    def covering(self, coverage: float) -> float:
        """The score that at least a share `coverage` of in-distribution inputs stays within: `threshold(1 - coverage)`.

        Example:
            >>> Calibration().fit(torch.arange(1000.0)).covering(0.99)
            990.0
        """
        _check_share("coverage", coverage)
        # 1 - 0.9 is a little less than 0.1 in floats, which would ask for one rank more.
        return self.threshold(round(1 - coverage, 12))

    def config(self) -> dict[str, Any]:
        """Arguments of `from_config`: how many scores there are, and their dtype."""
        return {"samples": len(self.scores), "dtype": str(self.scores.dtype).removeprefix("torch.")}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Build the module with a buffer of the right shape, to be filled by `load_state_dict`.

        Example:
            >>> fitted = Calibration().fit(torch.arange(5.0))
            >>> Calibration.from_config(fitted.config()).load_state_dict(fitted.state_dict(), strict=True)
            <All keys matched successfully>
        """
        dtypes = {"float32": torch.float32, "float64": torch.float64}
        calibration = cls()
        calibration.scores = torch.zeros(config["samples"], dtype=dtypes[config["dtype"]], device="cpu")
        return calibration

    def _fitted(self) -> int:
        if len(self.scores) == 0:
            raise RuntimeError(
                "there are no calibration scores yet: call fit with scores of data the network has not seen"
            )
        return len(self.scores)


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


def _check_share(name: str, value: float) -> None:
    if not 0 < value < 1:
        raise ValueError(f"{name} must lie between 0 and 1, both excluded; got {value}")


def _refuse_nan(scores: Tensor) -> None:
    # A sum is NaN if a summand is; where infinities of both signs make it so, each is looked at.
    if math.isnan(scores.sum().item()) and bool(scores.isnan().any()):
        wrong = int(scores.isnan().sum())
        raise ValueError(
            f"{wrong:,} of {scores.numel():,} scores are NaN: look for NaN in the inputs or the network's outputs"
        )
