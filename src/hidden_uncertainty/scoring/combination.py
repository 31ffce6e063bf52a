"""How the scores of several terms become one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ..io import expect
from ..notes import deprecated

Combine = Literal["last", "mean", "fisher"] | Mapping[str, float]
LOWEST = math.log(20)  # -log p from which on the tail is extrapolated: beyond that there are few scores
PIECES = 24  # of -log p below
STEEPEST = 1e100  # slope of a tail, which is computed in float64
LARGEST = float(torch.finfo(torch.float32).max)  # score that can be compared with


class Standard(NamedTuple):
    """Mean and deviation of a term's scores on training data."""

    mean: float
    deviation: float

    def __call__(self, scores: Tensor) -> Tensor:
        """Scores in deviations."""
        return (scores - self.mean) / self.deviation

    def check(self) -> None:
        """Raise a ValueError where these cannot be learnt."""
        expect_numbers(self)
        expect(self.deviation > 0, "a deviation of scores is not positive")


class Tail(NamedTuple):
    r"""How rare a term's score is among in-distribution data, and how much its word counts.

    .. math:: w \cdot t + \tfrac12 \max(0, t - \log 20)^2, \qquad t = -\log P(s_i \geq s)

    with t in straight pieces between `knots`; beyond the last, where 5 % of the scores lie, the tail is exponential,
    with the mean excess of these. Without it all inputs that are farther than all known ones would be alike. There,
    what scores exceed it by counts whatever the weight is, and the more the farther: what is far from everything for
    one term is unfamiliar, also where others know nothing of it.
    """

    knots: list[float]  # scores, ascending
    heights: list[float]  # -log p there, ascending
    slope: float  # beyond the last
    weight: float

    @classmethod
    def fit(cls, scores: Tensor, weight: float) -> Tail:
        """Learn from scores (n,) of in-distribution data.

        Example:
            >>> tail = Tail.fit(torch.arange(1000.0), weight=1.0)
            >>> [round(share, 2) for share in (-tail.rarity(torch.tensor([-5.0, 500.0, 900.0, 1000.0]))).exp().tolist()]
            [1.0, 0.5, 0.1, 0.01]
        """
        scores = scores.double().sort().values
        heights = torch.linspace(0, LOWEST, PIECES + 1, dtype=torch.float64, device=scores.device)
        place = -torch.expm1(-heights) * (len(scores) - 1)
        low = place.floor().long()
        high = (low + 1).clamp(max=len(scores) - 1)
        knots = torch.lerp(scores[low], scores[high], place - low)
        # Where scores repeat, the lowest height: ties count against an alarm.
        apart = torch.cat([knots.new_ones(1, dtype=torch.bool), knots[1:] > knots[:-1]])
        excess, width = scores[scores > knots[-1]] - knots[-1], float(knots[-1] - knots[0])
        if not len(excess):  # where more than 5 % share the highest score, as steep as all pieces together
            excess = knots.new_tensor([width / LOWEST])
        slope = min(1 / float(excess.mean()), STEEPEST) if width else 0.0
        return cls(knots[apart].tolist(), heights[apart].tolist(), slope, weight)

    def __call__(self, scores: Tensor) -> Tensor:
        """What the term adds for scores, in their shape."""
        rare = self.rarity(scores)
        found = self.weight * rare + (rare - LOWEST).clamp(min=0).square() / 2
        return found.clamp(max=torch.finfo(scores.dtype).max).to(scores.dtype)

    def rarity(self, scores: Tensor) -> Tensor:
        """-log p of scores, of their shape, in float64."""
        told = ([*self.knots], [*self.heights], [self.slope])
        knots, heights, last = (torch.tensor(part, dtype=torch.float64, device=scores.device) for part in told)
        slopes = torch.cat([(heights.diff() / knots.diff()).clamp(max=STEEPEST), last])
        x = scores.double().clamp(self.knots[0], torch.finfo(torch.float64).max)
        piece = (x[..., None] >= knots).sum(-1) - 1
        return heights[piece] + slopes[piece] * (x - knots[piece])

    def check(self) -> None:
        """Raise a ValueError where these cannot be learnt."""
        expect(len(self.knots) == len(self.heights) > 0, "the tail of scores has not one height per knot")
        expect_numbers([*self.knots, *self.heights, self.slope / STEEPEST, self.weight])
        ascending = sorted(set(self.knots)) == self.knots and sorted(self.heights) == self.heights
        expect(ascending and self.slope >= 0 and self.weight >= 0, "the tail of scores does not ascend")


def expect_numbers(values: Sequence[Any], what: str = "what is known of scores") -> None:
    """Raise a ValueError unless these are numbers that scores can be compared with."""
    known = all(type(value) in (int, float) and abs(value) < LARGEST for value in values)
    expect(known, f"{what} is not a number, or too large")


class Combination:
    r"""One epistemic score from those of all terms.

    .. math:: s = \sum_l \kappa_l^4 t_l + \tfrac12 \max(0, t_l - \log 20)^2, \qquad t_l = -\log p_l

    for `"fisher"`, with p_l the share of in-distribution scores of term l that are at least as high, and κ_l how far
    the class, or set of labels, that the term itself would tell agrees with the network's (Cohen's kappa): what knows
    the classes counts near the data, and what does not know them counts far from them, beyond the highest 5 %. The
    outputs have κ = 1.

    Args:
        as for `Detector`, or as above.
        learnt: of each term's scores, for `"mean"` and `"fisher"`.

    Example:
        >>> combination = Combination({"conv": 1.0, "fc": 2.0}, ["conv", "fc"])
        >>> combination({"conv": torch.tensor([1.0]), "fc": torch.tensor([3.0])})
        tensor([7.])
    """

    def __init__(
        self,
        combine: Combine,
        names: Sequence[str],
        learnt: Mapping[str, Standard | Tail] | None = None,
        *,
        unseen: bool = False,
    ) -> None:
        self.combine: Combine = dict(combine) if isinstance(combine, Mapping) else combine
        self.names, self.learnt, self.unseen = list(names), dict(learnt or {}), unseen
        weights = self.combine if isinstance(self.combine, dict) else None
        # The term that tells what is not combined, such as the aleatoric score: the last that counts.
        self.leading = [name for name in self.names if weights is None or name in weights][-1]
        # Whether the score is that of the leading term, as it is.
        self.single = [*weights.values()] == [1.0] if weights else self.combine == "last" or len(self.names) == 1
        self.learns = self.combine in ("mean", "fisher") and not self.single  # whether `learnt` is needed
        self.tails = self.learns and self.combine == "fisher"

    def __call__(self, scores: Mapping[str, Tensor]) -> Tensor:
        """One score per input."""
        if self.single:
            return scores[self.leading]
        parts = torch.stack([*self.parts(scores).values()])
        return parts.mean(0) if self.combine == "mean" else parts.sum(0)

    def parts(self, scores: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What each term adds to the score, or to the mean."""
        if isinstance(self.combine, Mapping):
            return {name: weight * scores[name] for name, weight in self.combine.items()}
        return {name: learnt(scores[name]) for name, learnt in self.learnt.items()}

    def learn(
        self, scores: Mapping[str, Tensor], weights: Mapping[str, float] | None = None, *, unseen: bool = False
    ) -> Combination:
        """The combination that knows the scores of in-distribution data, and what each term weighs."""
        learnt: dict[str, Standard | Tail] = {}
        for name, some in scores.items():
            mean, deviation = float(some.mean()), float(some.std()) or 1.0
            learnt[name] = Tail.fit(some, (weights or {}).get(name, 1.0)) if self.tails else Standard(mean, deviation)
        return Combination(self.combine, self.names, learnt, unseen=unseen)

    def config(self) -> dict[str, Any]:
        """Everything, as JSON."""
        learnt = {name: [*values] for name, values in self.learnt.items()}
        return {"combine": self.combine, "standard": learnt, "unseen": self.unseen}

    @classmethod
    def from_config(cls, config: Mapping[str, Any], names: Sequence[str]) -> Combination:
        """The inverse of `config`."""
        combine, learnt = config["combine"], config["standard"]
        kind: Any = Tail if combine == "fisher" else Standard
        made = {name: kind(*parts) for name, parts in learnt.items()}
        return cls(combine, names, made, unseen=config.get("unseen", False))


def agreement(guess: Tensor, prediction: Tensor) -> float:
    r"""How far two say the same class beyond chance, between 0 and 1: Cohen's kappa.

    .. math:: \kappa = \frac{p_o - p_e}{1 - p_e}

    with p_o the share of inputs on which they agree, and p_e the share if each said its classes at random. Of sets of
    labels, (n, L) zeros and ones, both shares are averaged over labels: sets that differ in one of many nearly agree.

    Example:
        >>> agreement(torch.tensor([0, 0, 1, 1]), torch.tensor([0, 0, 1, 0]))
        0.5
    """
    if guess.dim() == 2:
        said, seen = guess.double().mean(0), prediction.double().mean(0)
        chance = float((said * seen + (1 - said) * (1 - seen)).mean())
    else:
        classes = int(max(guess.max(), prediction.max())) + 1
        said, seen = (values.bincount(minlength=classes).double() / len(values) for values in (guess, prediction))
        chance = float(said @ seen)
    same = float((guess == prediction).double().mean())
    return 1.0 if chance == 1 else max(0.0, (same - chance) / (1 - chance))


def check_combine(combine: Any, names: Sequence[str]) -> Combine:
    """What `combine=` may be; a layer's name stands, as in version 0.1.0, for that layer alone."""
    if isinstance(combine, Mapping):
        if not combine or not set(combine) <= set(names):
            raise ValueError(f"combine has weights for {list(combine)}; name some of the layers {list(names)}.")
        numbers = all(isinstance(weight, Real) and math.isfinite(weight) for weight in combine.values())
        weights = {name: float(weight) for name, weight in combine.items() if weight != 0} if numbers else {}
        if not weights:
            raise ValueError(f"combine's weights are finite numbers, not all zero; got {list(combine.values())}.")
        return weights
    if combine in ("last", "mean", "fisher"):
        return combine
    if combine in names:
        deprecated(f"combine={combine!r}, a layer's name,", f"combine={{{combine!r}: 1.0}}")
        return {combine: 1.0}
    raise ValueError(
        f"combine must be 'last', 'mean', 'fisher' or weights of the layers {list(names)}, not {combine!r}."
    )
