"""From features to a fitted head: one marginal, and a density for every layer."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Literal

from ._condition import condition_of, fit_marginal, refine
from ._options import layer_in_warnings
from .density import Density
from .extract import Condition, Features
from .head import Head, LayerHead
from .marginal import Marginal
from .marginal.base import MarginalName


def fit_head(
    features: Features,
    densities: Mapping[str, Density],
    marginal: MarginalName | Literal["auto"] | Marginal,
    condition: Condition,
    *,
    progress: bool | None,
) -> Head:
    """Fit copies of the densities, and the marginal, to features.

    Args:
        features: of training data.
        densities: one for each layer, which say what to fit and stay as they are.
        marginal: p(ŷ) of numbers.
        condition: what densities are conditioned on.
        progress: show bars; None shows them on a terminal.
    """
    if len(features) == 0:
        raise ValueError("there is nothing to fit to: no input came, or all were held out. Give more.")
    y = condition_of(features, condition)
    fitted = fit_marginal(marginal, y, features, condition).to(features.prediction.device)
    parts = {}
    for name, density in densities.items():
        z = features.z[name]
        if bool((z == z[0]).all()):
            raise ValueError(
                f"layer {name!r} gives the same activations for all {len(y):,} inputs, so its density says nothing "
                "about any. Choose another layer."
            )
        with layer_in_warnings(name):
            parts[name] = LayerHead(features.reductions[name], copy.deepcopy(density).fit(z, y, progress=progress))
    refine(fitted, parts, features)
    return Head(parts, fitted)
