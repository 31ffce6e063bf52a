"""Bayes over one support, in log space (paper, eq. 5 and 6); and the method that scores by a density and a marginal."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from ..arrays import pieces
from ..density import Density, GaussianMixture, JointMixture, Moments, Sums
from ..extract import Features, Lattice
from ..marginal import KINDS as MARGINALS
from ..marginal import Categorical, LabelSets, Marginal, Support, by_name, choose
from ..marginal.base import MarginalName
from ..model.tasks import TaskName
from ..notes import about, warn
from ..precision import without_autocast
from ..uncertainty import LayerScores
from .combination import agreement
from .terms import Method, build, with_kind

ROWS = 4096  # scored at a time at most, which bounds the memory of every density
ROWS_ON_GPU = 1 << 16  # which small pieces would leave idle
CELLS = 1 << 22  # rows times support points at a time
DEFAULTS: dict[TaskName, Callable[[], Density]] = {
    "classification": GaussianMixture,
    "regression": JointMixture,
    "multi-label": lambda: GaussianMixture(covariance="pooled"),  # there are many sets of labels, and some are rare
}
T = TypeVar("T")


class Posterior(NamedTuple):
    """What `infer` gives for n inputs and m support points, in nats.

    `-log_evidence` is the epistemic uncertainty, `entropy` the aleatoric one, and `log_entropy` ranks inputs whose
    entropy underflows; a density's entropy may be negative and has none.
    """

    log_evidence: Tensor  # (n,)
    log_posterior: Tensor  # of each point's mass, (n, m)
    entropy: Tensor  # (n,)
    log_entropy: Tensor | None  # (n,)


def infer(log_likelihood: Tensor, log_weight: Tensor, log_volume: Tensor | None = None) -> Posterior:
    r"""Evidence, posterior and entropy by a sum over the support.

    .. math::
        \log p(z) = \log \sum_j p(z \mid y_j)\, w_j, \qquad
        h(y \mid z) = -\sum_j p(y_j \mid z) \log p(y_j \mid z)

    With t the most probable point, δ_j = log p(y_j|z) - log p(y_t|z) ≤ 0 and s = Σ_{j≠t} exp δ_j, the entropy is

    .. math::
        h = s \left( \frac{\log(1 + s)}{s} + \frac{1}{1 + s} \sum_{j \neq t} \frac{e^{\delta_j}}{s} (-\delta_j) \right)

    a sum of terms that are never negative, so that it keeps its digits however small it is; in the bracket nothing
    underflows, so that its logarithm is there where exp δ_j is not. Where y is continuous, the entropy of the density
    is that of the masses P_j = p(y_j|z) v_j, and Σ_j P_j log v_j.

    Finite likelihoods give finite evidence and entropies, saturated where the dtype ends. An entropy of exactly zero
    has the lowest finite number as its logarithm. A weight of -inf takes its point out. `log_weight` is (m,), or (n, m)
    where every input has its own points, and holds log v_j too; `log_volume` is log v_j, of the same shape.
    """
    log_weight = log_weight.to(log_likelihood.dtype)
    points = log_weight.shape[-1]
    limits = torch.finfo(log_likelihood.dtype)
    lowest, eps = limits.min, limits.eps

    unused = log_weight == -math.inf  # (m,) or (n, m)
    log_likelihood = log_likelihood.masked_fill(unused, lowest).clamp(lowest, -lowest)
    # Likelihoods are compared before weights are added: beside a likelihood of -1e37 a weight would be rounded away.
    shift = log_likelihood.amax(dim=1, keepdim=True)  # (n, 1)
    joint = (log_likelihood - shift + log_weight).clamp(min=lowest)  # (n, m)
    best, top = joint.max(dim=1, keepdim=True)  # (n, 1)
    delta = joint - best
    # The top is taken out by the lowest number, not by -inf: 0 · inf is not a number, in gradients too.
    others = delta.scatter(1, top, lowest)

    # Softmax, as on a CPU exp takes ten times as long where it underflows, which it does for most points.
    mass = others.softmax(dim=1)
    nearest, largest = others.amax(dim=1), mass.amax(dim=1)  # (n,)
    s = nearest.exp() / largest
    log_norm = torch.log1p(s)  # -log p(y_t|z)
    log_evidence = ((shift + best).squeeze(1) + log_norm).clamp(lowest, -lowest)
    log_posterior = (delta - log_norm[:, None]).masked_fill(unused, -math.inf)
    gap = (mass * others).sum(dim=1).clamp(min=lowest)  # mean δ of the others, by their mass
    some = s.clamp(min=eps)  # log(1 + s) / s is 1 to all digits once s is below the precision
    share = torch.addcdiv(torch.log1p(some) / some, gap, s + 1, value=-1)  # h / s
    entropy = s * share

    if log_volume is not None:
        posterior = delta.softmax(dim=1)
        density_entropy = entropy + (posterior * log_volume.to(posterior.dtype)).sum(dim=1)
        return Posterior(log_evidence, log_posterior, density_entropy, None)

    log_entropy = nearest - largest.log() + share.log()  # log s + log (h / s), finite where s underflows
    bound = math.log(points)
    log_bound = math.log(bound) if points > 1 else lowest
    return Posterior(log_evidence, log_posterior, entropy.clamp(0.0, bound), log_entropy.clamp(lowest, log_bound))


class Prior(nn.Module):
    """The marginal p(ŷ) of a detector, which its terms share: what was asked for, and what was fitted."""

    spec: MarginalName | Literal["auto"] | Marginal  # what was asked for

    def __init__(self, spec: MarginalName | Literal["auto"] | Marginal = "auto") -> None:
        super().__init__()
        self.marginal: Marginal | None = None
        self.__dict__["spec"] = spec  # not as a module, which would be a part of the state

    @property
    def fitted(self) -> Marginal:
        """What was fitted."""
        if self.marginal is None:
            raise RuntimeError("the marginal is not fitted yet: call fit first.")
        return self.marginal

    def fit(self, y: Tensor, features: Features) -> None:
        """Fit p(y) to what densities are conditioned on; for pixels that were drawn, to what all of them have."""
        fit = self._count if features.task.discrete else self._choose
        with about(""):  # p(y) belongs to no layer
            self.marginal = fit(y, features).to(features.prediction.device)

    def fit_counts(self, counts: Tensor, features: Features) -> None:
        """Fit p(y) to how often each class came, (C,)."""
        counts = pad(counts.long(), (0, max(0, (features.classes or 0) - len(counts))))
        self.marginal = self._checked(Categorical().fit_counts(counts), counts, features).to(features.prediction.device)

    def _count(self, y: Tensor, features: Features) -> Marginal:
        if y.dim() == 2:
            sets = LabelSets().fit(y)
            return self._checked(sets, sets.of(y).bincount(), features)
        counts = y.bincount(minlength=features.classes or 0)
        drawn = counts if features.population is None else _drawn(features.population.values, y)
        return self._checked(Categorical().fit_counts(drawn), counts, features)

    def _checked(self, fitted: Categorical, counts: Tensor, features: Features) -> Marginal:
        if self.spec != "auto" and not isinstance(self.spec, Categorical):
            raise ValueError(f"marginal={self.spec!r} is for numbers; classes are counted: leave it out.")
        classes, rows = features.classes or 0, int(counts.sum())
        if len(fitted.support) < 2:
            same, hint = f"class, {int(counts.argmax())}", "a single logit, (n, 1), must be one, not a probability"
            if isinstance(fitted, LabelSets):
                same = f"labels, {fitted.sets[0].tolist()}"
                hint = "where logits are probabilities, pass MultiLabel(logits=False)"
            raise ValueError(
                f"all {rows:,} inputs have the same {same}, so there is nothing to be torn between. Check the network "
                f"and the loader; {hint}."
            )
        if rows < classes:
            raise ValueError(f"{rows} inputs are fewer than the network's {classes} classes: fit to more.")
        return fitted

    def _choose(self, y: Tensor, features: Features) -> Marginal:
        spec = self.spec
        if isinstance(spec, Categorical):
            raise TypeError("Categorical counts classes; a network that predicts numbers needs a continuous marginal.")
        y = y if features.population is None else features.population.values
        if isinstance(spec, Marginal):
            return copy.deepcopy(spec).fit(y)
        return choose(y) if spec == "auto" else by_name(spec).fit(y)


class DensityMethod(Method):
    """Surprise -log p(z), and the entropy of p(ŷ|z), under a density p(z|ŷ); None is the default of the task."""

    def __init__(self, density: Density | None = None, prior: Prior | None = None) -> None:
        super().__init__()
        self.density, self.prior = density, Prior() if prior is None else prior

    @property
    def shared(self) -> Sequence[nn.Module]:
        """The marginal."""
        return (self.prior,)

    @property
    def interpolates(self) -> bool:
        """Whether the density scores a lattice."""
        return self.density is not None and self.density.interpolates

    @property
    def fitted(self) -> Density:
        """The density that was fitted."""
        assert self.density is not None
        return self.density

    def fit(self, z: Tensor, y: Tensor | None, features: Features) -> Self:
        """Fit the density, and the marginal unless another term has done so."""
        assert y is not None
        if self.prior.marginal is None:
            self.prior.fit(y, features)
        self.density = self._asked(features).fit(z, self.prior.fitted.of(y))
        return self

    def _asked(self, features: Features) -> Density:
        return DEFAULTS[features.task.name]() if self.density is None else self.density

    @property
    def sums(self) -> Sums | None:
        """What the density can be fitted to instead of rows."""
        return None if self.density is None else self.density.sums

    @property
    def chunks(self) -> bool:
        """Whether the density can be fitted to rows on disk."""
        return GaussianMixture().chunks if self.density is None else self.density.chunks

    def fit_gathered(self, data: Moments | Any, features: Features) -> Self:
        """Fit the density, and the marginal unless another term has done so, to sums over rows, or to rows on disk."""
        if self.prior.marginal is None:
            self.prior.fit_counts(data.count, features)
        density = self._asked(features)
        self.density = density.fit_moments(data) if isinstance(data, Moments) else density.fit_chunks(data)
        return self

    def score(self, z: Tensor | Lattice, prediction: Tensor, *, seen: bool = False) -> LayerScores:
        """Score rows by Bayes over the marginal's support.

        `expected_error` is that of y as `fit` was given it: where that was predictions, it says nothing of labels.
        """

        marginal = self.prior.fitted

        def take(p: Posterior, support: Support, some: Tensor) -> LayerScores:
            error = None if support.log_volume is None else _expected_error(p, support, some)
            labels = marginal.probabilities(p.log_posterior) if isinstance(marginal, LabelSets) else None
            return LayerScores(-p.log_evidence, p.entropy, p.log_entropy, error, labels)

        return LayerScores.cat(self.posteriors(z, prediction, take))

    def agreement(self, z: Tensor, prediction: Tensor) -> float:
        """Of the most probable class given z with the one predicted: Cohen's kappa; 1 for numbers."""
        marginal = self.prior.fitted
        if not isinstance(marginal, Categorical):
            return 1.0
        parts = self.posteriors(z, prediction, lambda p, support, _: support.points[p.log_posterior.argmax(1)])
        told, predicted = torch.cat(parts), marginal.of(prediction)
        if isinstance(marginal, LabelSets):
            told, predicted = marginal.sets[told], marginal.sets[predicted]
        return agreement(told, predicted)

    def posteriors(
        self, z: Tensor | Lattice, prediction: Tensor, take: Callable[[Posterior, Support, Tensor], T]
    ) -> list[T]:
        """What `take` keeps of p(y | z) over the support, the support and the predictions, some rows at a time."""
        with without_autocast(z.device):
            scored = self._scored(z, prediction)
            return [take(infer(log_prob, *support[1:]), support, some) for log_prob, support, some in scored]

    def _scored(self, z: Tensor | Lattice, prediction: Tensor) -> Iterator[tuple[Tensor, Support, Tensor]]:
        """log p(z | y) over the support (n, m), the support and the predictions, some rows at a time."""
        marginal, density = self.prior.fitted, self.fitted
        if isinstance(z, Lattice):
            support, start = marginal.at(prediction), 0
            for log_prob in density.log_prob_between(z, support.points):
                yield log_prob, support, prediction[start : start + len(log_prob)]
                start += len(log_prob)
            return
        size = min(ROWS_ON_GPU if z.is_cuda else ROWS, max(1, CELLS // marginal.size))
        for rows, some in pieces(size, z, prediction):
            given = density.given(rows)
            support = marginal.at(some, given)
            yield given(support.points), support, some

    def config(self) -> dict[str, Any]:
        """Everything but the tensors, as JSON."""
        spec, fitted = self.prior.spec, self.prior.marginal
        return {
            "density": None if self.density is None else with_kind(self.density),
            "spec": spec if isinstance(spec, str) else with_kind(spec),
            "marginal": None if fitted is None else with_kind(fitted),
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """The method that `config` describes."""
        density, fitted, spec = config["density"], config["marginal"], config["spec"]
        prior = Prior(spec if isinstance(spec, str) else build(MARGINALS, spec, "marginal"))  # type: ignore[arg-type]
        prior.marginal = None if fitted is None else build(MARGINALS, fitted, "marginal")
        return cls(None if density is None else build(Density.kinds, density, "density"), prior)


def _drawn(counts: Tensor, y: Tensor) -> Tensor:
    """The counts without classes of which no pixel is among those drawn: they have no density."""
    drawn = y.bincount(minlength=len(counts)) > 0
    lost = (counts > 0) & ~drawn
    if bool(lost.any()):
        warn(
            f"class {lost.nonzero()[:, 0].tolist()} has {int(counts[lost].sum()):,} of {int(counts.sum()):,} pixels, "
            "none of which is in the reservoir: left out, as if it never came. A larger reservoir would hold some."
        )
    return torch.where(drawn, counts, 0)


def _expected_error(posterior: Posterior, support: Support, prediction: Tensor) -> Tensor:
    """Root of E[(y - prediction)² | z]: of numbers (n,), of vectors (n, q)."""
    root = (posterior.log_posterior / 2).exp()  # of p(y|z), (n, m)
    away = support.points - prediction.reshape(prediction.shape[0], 1, support.points.shape[-1])  # (n, m, q)
    limits = torch.finfo(root.dtype)
    each = root[..., None] * away.to(root.dtype).clamp(-limits.max, limits.max)
    largest = each.abs().amax(1, keepdim=True).clamp(min=limits.tiny)  # in its units, no square over- or underflows
    return (largest[:, 0] * (each / largest).square().sum(1).sqrt()).view(prediction.shape)
