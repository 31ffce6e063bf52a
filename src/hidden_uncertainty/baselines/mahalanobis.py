"""Distances to class means under one covariance: Lee et al. (2018), and relative to all data: Ren et al. (2021)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Unpack, get_args

import torch
from torch import Tensor, nn

from .._condition import Condition
from ..batches import Batch
from ..capture import select, watch
from ..density._em import distances, has_digits
from ..density._linalg import gram, precision_factor
from ..density._shrinkage import Shrinkage, find_target
from ..extract import Features
from ..uncertainty import Uncertainty
from .features import FeatureBaseline, Layers, LayerScore, Options

ROWS = 1 << 14  # in float64 at a time: of a million activations a copy takes gigabytes


class Gaussians(nn.Module):
    """Gaussians with a mean a class and one covariance, from activations z (n, d) and their classes y (n,).

    Example:
        >>> z = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 1.0], [2.0, 1.0]])
        >>> one = Gaussians(z, torch.zeros(4, dtype=torch.long), shrinkage=None, ridge=0.0)
        >>> squares = one(torch.tensor([[3.0, 0.5]]))    # two deviations from the mean in one, none in the other
        >>> round(squares.item(), 6)
        4.0
    """

    center: Tensor  # (d,)
    factor: Tensor  # W with Σ⁻¹ = W Wᵀ, (d, d)
    bias: Tensor  # (μ_c - center) W, (C, d)

    def __init__(self, z: Tensor, y: Tensor, *, shrinkage: Shrinkage | None, ridge: float) -> None:
        super().__init__()
        _, y, counts = y.unique(return_inverse=True, return_counts=True)
        rows = y.argsort(stable=True).split(counts.tolist())
        mean = torch.stack([_mean(z, some) for some in rows])  # (C, d)
        covariance, fourth = _scatter(z, mean, y)
        covariance = (covariance / len(z))[None, None]
        if shrinkage is not None:
            count = fourth.new_full((1, 1), len(z))
            covariance = find_target(covariance, count, fourth.view(1, 1), shrinkage).shrink(covariance)
        covariance = covariance[0, 0]
        covariance.diagonal().add_(ridge)
        factor, good = precision_factor(covariance)
        if not bool(good & has_digits(covariance, factor, fourth.new_zeros(()))):
            raise ValueError(
                f"the covariance of {len(z):,} activations of {z.shape[1]} dimensions is singular to working precision "
                f"even with ridge={ridge:g}: raise ridge, set shrinkage='ledoit-wolf', or reduce the dimensions."
            )
        self.register_buffer("center", (counts[:, None] * mean).sum(0) / len(z))
        self.register_buffer("factor", factor)
        self.register_buffer("bias", (mean - self.center) @ self.factor)

    def forward(self, z: Tensor) -> Tensor:
        """Squared Mahalanobis distances of z (n, d) to every mean: (n, C)."""
        return distances((z - self.center)[None], self.factor[None], self.bias[None], "tied")[0]


def _mean(z: Tensor, rows: Tensor) -> Tensor:
    """The mean of some rows of z (n, d), in float64: (d,)."""
    return torch.stack([z[some].double().sum(0) for some in rows.split(ROWS)]).sum(0) / len(rows)


def _scatter(z: Tensor, mean: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Σ (z - μ_y)(z - μ_y)ᵀ in float64, (d, d), and Σ ‖z - μ_y‖⁴."""
    dim = z.shape[1]
    scatter, fourth = mean.new_zeros(dim, dim), mean.new_zeros(())
    for some, classes in zip(z.split(ROWS), y.split(ROWS), strict=True):
        centred = some.double() - mean[classes]
        scatter += gram(centred[None])[0]
        fourth += centred.square().sum(1).square().sum()
    return scatter, fourth


class _Nearest(LayerScore):
    """The squared distance to the nearest mean, less that to the mean of all data where there is a background."""

    def __init__(self, classes: Gaussians, background: Gaussians | None = None) -> None:
        super().__init__()
        self.classes, self.background = classes, background

    def forward(self, z: Tensor, prediction: Tensor, *, seen: bool = False) -> Tensor:
        nearest = self.classes(z).amin(1)
        return nearest if self.background is None else nearest - self.background(z)[:, 0]


class Mahalanobis(FeatureBaseline):
    r"""The distance of activations to the nearest class mean, under a covariance that all classes share.

    .. math::
        s(z) = \min_c\, (z - \mu_c)^\top \Sigma^{-1} (z - \mu_c), \qquad
        \Sigma = \frac 1 n \sum_i (z_i - \mu_{y_i}) (z_i - \mu_{y_i})^\top

    After Lee et al. (2018). Where it differs by default: classes are what the network predicts, as everywhere in this
    library (theirs are labels: `condition="label"`); the covariance is shrunk (theirs is not: `shrinkage=None`); and
    layers are weighed equally, because a regression that weighs them needs outliers (give its weights to `combine`).
    Feature maps are averaged over positions with `reduce="channels"`, as in that paper.

    Args:
        model: any trained classifier.
        layers: as for `LatentDensity`.
        condition: means of the classes that the network predicts, or of the labels.
        shrinkage: how the covariance is shrunk towards a multiple of the identity: `"ledoit-wolf"`, `"oas"` or None.
        ridge: added to the diagonal of the covariance.
        epsilon: inputs are first moved to :math:`x - \epsilon\, \operatorname{sign} \nabla_x s`, each layer's own way.
            This takes a backward pass, and a forward pass a layer.
        options: see `FeatureBaseline`.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> x = torch.randn(500, 2, generator=torch.Generator().manual_seed(0))
        >>> method = Mahalanobis(model, "0", task="classification").fit(x.split(100))
        >>> u = method(torch.tensor([[0.0, 0.0], [30.0, -20.0]]))
        >>> bool(u.epistemic[1] > 50 * u.epistemic[0])
        True
    """

    unit = "squared deviations"

    def __init__(
        self,
        model: nn.Module,
        layers: Layers,
        *,
        condition: Condition = "prediction",
        shrinkage: Shrinkage | None = "ledoit-wolf",
        ridge: float = 1e-6,
        epsilon: float = 0.0,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(model, layers, condition=condition, **options)
        if shrinkage not in (None, *get_args(Shrinkage)):
            raise ValueError(f"shrinkage must be one of {get_args(Shrinkage)} or None, not {shrinkage!r}.")
        for name, value in (("ridge", ridge), ("epsilon", epsilon)):
            if not value >= 0:
                raise ValueError(f"{name} must be zero or more, not {value}.")
        self.shrinkage, self.ridge, self.epsilon = shrinkage, ridge, epsilon

    def fit_layer(self, z: Tensor, y: Tensor | None) -> LayerScore:
        """Class means, and the covariance around them."""
        assert y is not None
        return _Nearest(self._gaussians(z, y))

    def score(self, batch: Batch) -> Uncertainty:
        """Score one batch, which is where the model is."""
        if self.epsilon == 0:
            return super().score(batch)
        reductions = self.fitted()
        output, _ = self.extractor.read(batch, {})
        z = {}
        for name, moved in self._moved(batch).items():
            _, reduced = self.extractor.read(moved, {name: reductions[name]})
            z[name] = reduced[name][0]
        return self.result(self.read(output), z)

    def predict_features(self, features: Features) -> Uncertainty:
        """Score features that `extract` gave."""
        if self.epsilon != 0:
            raise ValueError("epsilon moves inputs, which features no longer have: use predict(loader), or epsilon=0.")
        return super().predict_features(features)

    def _gaussians(self, z: Tensor, y: Tensor) -> Gaussians:
        return Gaussians(z, y, shrinkage=self.shrinkage, ridge=self.ridge)

    @torch.inference_mode(False)
    def _moved(self, batch: Batch) -> dict[str, Batch]:
        """The batch, moved against the gradient of each layer's score.

        `watch` lends the model; gradients are switched on inside it, and asked for inputs only, so that parameters
        get none.
        """
        args, kwargs = [_leaf(value) for value in batch.args], {k: _leaf(v) for k, v in batch.kwargs.items()}
        leaves = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.requires_grad]
        if not leaves:
            raise TypeError("epsilon moves floating-point inputs, but the model is given none: use epsilon=0.")
        reductions, scores = self.fitted(), {}

        def tap(name: str) -> Callable[[Any], None]:
            def callback(output: Any) -> None:
                with torch.enable_grad():
                    activation = select(output, self.extractor.layers[name].select, f"layer {name!r}")
                    z = reductions[name](activation)[0].to(self._device).double()
                    scores[name] = self.parts[name](z, z).sum()

            return callback

        moved = {}
        with watch(self.model, {name: tap(name) for name in self.layers}) as inner, torch.enable_grad():
            inner(*args, **kwargs)
            for name in self.layers:
                if name not in scores or not scores[name].requires_grad:
                    raise RuntimeError(
                        f"no gradient comes from layer {name!r} to the input, as when a model computes without "
                        "gradients by itself: use epsilon=0."
                    )
                found = torch.autograd.grad(scores[name], leaves, retain_graph=True, allow_unused=True)
                steps = {id(x): g for x, g in zip(leaves, found, strict=True) if g is not None}
                moved[name] = replace(
                    batch,
                    args=tuple(self._step(value, steps) for value in args),
                    kwargs={key: self._step(value, steps) for key, value in kwargs.items()},
                )
        return moved

    def _step(self, value: Any, steps: dict[int, Tensor]) -> Any:
        """x - ε sign g; where there is no gradient, or NaN, x stays."""
        gradient = steps.get(id(value))
        if gradient is None:
            return value.detach() if isinstance(value, Tensor) else value
        return value.detach() - self.epsilon * gradient.nan_to_num(0.0).sign()


class RelativeMahalanobis(Mahalanobis):
    r"""The distance to the nearest class mean, less the distance to the mean of all data, each under its covariance.

    .. math:: s(z) = \min_c\, (z - \mu_c)^\top \Sigma^{-1} (z - \mu_c) - (z - \mu_0)^\top \Sigma_0^{-1} (z - \mu_0)

    After Ren et al. (2021): what is unusual about an input whatever its class cancels. It may be negative. Arguments
    and defaults are those of `Mahalanobis`.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> x = torch.randn(500, 2, generator=torch.Generator().manual_seed(0))
        >>> RelativeMahalanobis(model, "0", task="classification").fit(x.split(100))(x[:5]).epistemic.shape
        torch.Size([5])
    """

    def fit_layer(self, z: Tensor, y: Tensor | None) -> LayerScore:
        """Class means and the covariance around them, and the mean and covariance of all."""
        assert y is not None
        return _Nearest(self._gaussians(z, y), self._gaussians(z, torch.zeros_like(y)))


def _leaf(value: Any) -> Any:
    return value.detach().clone().requires_grad_() if isinstance(value, Tensor) and value.is_floating_point() else value
