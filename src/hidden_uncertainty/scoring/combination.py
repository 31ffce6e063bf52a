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
FAMILIAR = 0.9  # share of in-distribution data that are not far for all terms together
STEEP = 2.0  # how much what is beyond counts: more finds far inputs better, and near ones worse
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
    r"""How rare a term's score is among in-distribution data, :math:`t = -\log P(s_i \geq s)`, and its weight.

    t has straight pieces between `knots`; beyond the last, where 5 % of the scores lie, the tail is exponential, with
    the mean excess of these. Without it all inputs that are farther than all known ones would be alike.
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

    def rarity(self, scores: Tensor) -> Tensor:
        """-log p of scores, of their shape, in float64."""
        told = ([*self.knots], [*self.heights], [self.slope])
        knots, heights, last = (torch.tensor(part, dtype=torch.float64, device=scores.device) for part in told)
        slopes = torch.cat([(heights.diff() / knots.diff()).clamp(max=STEEPEST), last])
        x = scores.double().clamp(self.knots[0], LARGEST)
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

    .. math:: s = \log\left(e^N + e^{2 (F - b)}\right), \qquad N = \sum_l \kappa_l^4 t_l, \quad F = \sum_l t_l

    for `"fisher"`, with :math:`t_l = -\log p_l` and p_l the share of in-distribution scores of term l that are at least
    as high. Two questions are asked, and the score is high where either is answered by yes. N: is the input unfamiliar
    to what knows the classes? κ_l is how far the class, or set of labels, that the term itself would tell agrees with
    the network's (Cohen's kappa); the outputs have κ = 1. F: is it unlike the data for all terms together, whatever
    they know? That counts beyond b, which the highest tenth of in-distribution data exceed, and then twice.

    Args:
        as for `Detector`, or as above.
        learnt: of each term's scores, for `"mean"` and `"fisher"`.
        far: b, for `"fisher"`.

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
        far: float = 0.0,
        unseen: bool = False,
    ) -> None:
        self.combine: Combine = dict(combine) if isinstance(combine, Mapping) else combine
        self.names, self.learnt, self.far, self.unseen = list(names), dict(learnt or {}), far, unseen
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
        if self.tails:
            near, away, _ = self._told(scores)
            found = torch.stack([near, away]).logsumexp(0)
            some = next(iter(scores.values()))
            return found.clamp(max=torch.finfo(some.dtype).max).to(some.dtype)
        parts = torch.stack([*self.parts(scores).values()])
        return parts.mean(0) if self.combine == "mean" else parts.sum(0)

    def parts(self, scores: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What each term adds to the score, or to the mean.

        For `"fisher"`, how much of the score is due to it: in proportion to what N and 2 F have of it, each as far as
        it decides the score.
        """
        if isinstance(self.combine, Mapping):
            return {name: weight * scores[name] for name, weight in self.combine.items()}
        if not self.tails:
            return {name: learnt(scores[name]) for name, learnt in self.learnt.items() if isinstance(learnt, Standard)}
        near, away, rare = self._told(scores)
        by_away, whole = (away - near).sigmoid(), self(scores)
        due = {name: ((1 - by_away) * self._tail(name).weight + STEEP * by_away) * t for name, t in rare.items()}
        total = torch.stack([*due.values()]).sum(0).clamp(min=torch.finfo(torch.float64).tiny)
        return {name: (some / total).to(whole) * whole for name, some in due.items()}

    def _told(self, scores: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """N, 2 (F - b) and every term's t, in float64."""
        rare = {name: self._tail(name).rarity(scores[name]) for name in self.learnt}
        near = torch.stack([self._tail(name).weight * t for name, t in rare.items()]).sum(0)
        return near, STEEP * (torch.stack([*rare.values()]).sum(0) - self.far), rare

    def _tail(self, name: str) -> Tail:
        tail = self.learnt[name]
        assert isinstance(tail, Tail)
        return tail

    def learn(
        self, scores: Mapping[str, Tensor], weights: Mapping[str, float] | None = None, *, unseen: bool = False
    ) -> Combination:
        """The combination that knows the scores of in-distribution data, and what each term weighs."""
        learnt: dict[str, Standard | Tail] = {}
        for name, some in scores.items():
            mean, deviation = float(some.mean()), float(some.std()) or 1.0
            learnt[name] = Tail.fit(some, (weights or {}).get(name, 1.0)) if self.tails else Standard(mean, deviation)
        found = Combination(self.combine, self.names, learnt, unseen=unseen)
        if found.tails:
            _, away, _ = found._told(scores)
            found.far = float((away / STEEP).quantile(FAMILIAR))
        return found

    def config(self) -> dict[str, Any]:
        """Everything, as JSON."""
        learnt = {name: [*values] for name, values in self.learnt.items()}
        return {"combine": self.combine, "standard": learnt, "far": self.far, "unseen": self.unseen}

    def check(self) -> None:
        """Raise a ValueError where this cannot be learnt."""
        expect_numbers([self.far])
        for learnt in self.learnt.values():
            learnt.check()

    @classmethod
    def from_config(cls, config: Mapping[str, Any], names: Sequence[str]) -> Combination:
        """The inverse of `config`."""
        combine, learnt = config["combine"], config["standard"]
        kind: Any = Tail if combine == "fisher" else Standard
        made = {name: kind(*parts) for name, parts in learnt.items()}
        far = config["far"] if kind is Tail and made else 0.0
        return cls(combine, names, made, far=far, unseen=config.get("unseen", False))


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
