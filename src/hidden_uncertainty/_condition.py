"""What a density is conditioned on: predictions or labels, their marginal, and whether its support is fine enough."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from .density import Density, GaussianMixture, JointMixture
from .extract import Condition, Features
from .head import LayerHead
from .marginal import Categorical, Continuous, Marginal, by_name, choose
from .marginal.base import MarginalName

ROWS = 256  # looked at to see whether the support is fine enough
MOST_POINTS = 8193


def condition_of(features: Features, condition: Condition) -> Tensor:
    """The predictions, or the labels in their shape."""
    prediction = features.prediction
    if condition == "label":
        label = features.label
        if features.classes is not None:
            if label is None or label.dim() != 1 or label.is_floating_point():
                raise ValueError(
                    f"condition='label' needs one whole-numbered label an input in the loader, but got {_show(label)}."
                )
            return label.long().to(prediction.device)
        prediction = as_numbers(label, prediction)
    if features.classes is None:
        wrong = int((~prediction.isfinite()).sum())
        if wrong:
            raise ValueError(
                f"{wrong:,} of {prediction.numel():,} {condition}s are NaN or infinite: leave those inputs out, or "
                "find out why."
            )
    return prediction


def as_numbers(label: Tensor | None, prediction: Tensor) -> Tensor:
    """Labels as numbers, in the shape of the predictions and where these are."""
    if label is None or label.numel() != prediction.numel():
        raise ValueError(
            f"condition='label' and intervals need labels of the predictions' shape, {tuple(prediction.shape)}, in the "
            f"loader, but got {_show(label)}."
        )
    return label.reshape(prediction.shape).to(prediction.device, prediction.dtype)


def fit_marginal(
    marginal: MarginalName | Literal["auto"] | Marginal, y: Tensor, features: Features, condition: Condition
) -> Marginal:
    """Fit p(y) to what the density is conditioned on; of pixels that were drawn, to what all of them have."""
    population = features.population
    if population is not None and population.condition != condition:
        raise ValueError(
            f"these pixels were drawn and counted by their {population.condition}s: extract them with a detector that "
            f"has condition={condition!r} too."
        )
    if features.classes is not None:
        if marginal != "auto" and not isinstance(marginal, Categorical):
            raise ValueError(f"marginal={marginal!r} is of numbers; classes are counted: leave it out.")
        if population is None:
            fitted = Categorical().fit(y, classes=max(features.classes, int(y.max()) + 1))
        else:
            fitted = Categorical().fit_counts(_drawn(population.values, y))
        if len(fitted.support) < 2:
            raise ValueError(
                f"all {len(y):,} inputs have the {condition} {int(y[0])}, so there is nothing to be torn between. "
                "Check the network and the loader; a single logit, (n, 1), must be one, not a probability."
            )
        if len(y) < features.classes:
            raise ValueError(f"{len(y)} inputs are fewer than the network's {features.classes} classes: fit to more.")
        return fitted
    if isinstance(marginal, Categorical):
        raise TypeError("Categorical counts classes; a network that predicts numbers needs a continuous marginal.")
    y = y if population is None else population.values
    if isinstance(marginal, Marginal):
        return copy.deepcopy(marginal).fit(y)
    return choose(y) if marginal == "auto" else by_name(marginal).fit(y)


def _drawn(counts: Tensor, y: Tensor) -> Tensor:
    """The counts without classes of which no pixel is among those drawn: they have no density."""
    drawn = y.bincount(minlength=len(counts)) > 0
    lost = (counts > 0) & ~drawn
    if bool(lost.any()):
        warnings.warn(
            f"class {lost.nonzero()[:, 0].tolist()} has {int(counts[lost].sum()):,} of {int(counts.sum()):,} pixels, "
            "none of which is in the reservoir: left out, as if it never came. A larger reservoir would hold some.",
            stacklevel=6,
        )
    return torch.where(drawn, counts, 0)


def refine(marginal: Marginal, parts: Mapping[str, LayerHead], features: Features) -> None:
    """Make the support finer until p(y|z) spans several of its points, in every layer; warn where it cannot be.

    An integral over points farther apart than what is integrated is wide would depend on where the points happen to
    lie.
    """
    if isinstance(marginal, Categorical):
        return
    assert isinstance(marginal, Continuous)
    some = torch.linspace(0, len(features) - 1, min(ROWS, len(features)), device="cpu").long()
    for name, part in parts.items():
        z, prediction = features.z[name][some.to(features.z[name].device)], features.prediction[some]
        while True:
            largest = torch.cat(part.posteriors(z, marginal, prediction, lambda p, *_: p.log_posterior.amax(1)))
            if float(largest.median()) < math.log(0.5):
                break
            points = marginal.nodes(prediction[:1]).log_weight.shape[-1]
            if marginal.fixed or 2 * points - 1 > MOST_POINTS:
                warnings.warn(
                    f"layer {name!r}: p(y|z) is narrower than the distance of the {points:,} support points, so both "
                    "scores depend on where these lie. Give the marginal more points=, or the density more noise=.",
                    stacklevel=5,
                )
                break
            marginal.refine()


def _show(label: Tensor | None) -> str:
    return "none" if label is None else f"{tuple(label.shape)} of {label.dtype}"


def default_density(classes: int | None) -> Density:
    """The density for classes, and the one for numbers."""
    return GaussianMixture() if classes is not None else JointMixture()
