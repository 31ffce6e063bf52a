"""One Gaussian per class: distances to their means (Lee et al. 2018, Ren et al. 2021), and their density."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self, Unpack

import torch
from torch import Tensor, nn

from ..density import GaussianMixture, Moments, PooledGaussians, Sums
from ..density.linalg import Shrinkage
from ..extract import Features, Later, Reading, Rows, Unseen, activation_of
from ..latent import LatentDensity
from ..model.batches import Batch, leaves
from ..model.capture import Callback, lend
from ..model.tasks import Condition
from ..notes import deprecated
from ..reduce import Reduction
from ..scoring.fitted import Fitted
from ..scoring.terms import Layers
from ..uncertainty import Uncertainty
from .base import LayerDetector, LayerOptions, RowMethod


class MahalanobisDistance(RowMethod):
    """The squared distance to the nearest class mean, less that to the mean of all data where it is `relative`.

    `epsilon` is how far `Mahalanobis` moves inputs first; other detectors do not.
    """

    unit = "squared deviations"

    def __init__(self, shrinkage: Shrinkage | None, ridge: float, epsilon: float, relative: bool) -> None:
        super().__init__()
        self.shrinkage, self.ridge, self.epsilon, self.relative = shrinkage, ridge, epsilon, relative
        self.classes = PooledGaussians(shrinkage=shrinkage, ridge=ridge)
        self.background = PooledGaussians(shrinkage=shrinkage, ridge=ridge) if relative else None

    def fit(self, z: Tensor, y: Tensor | None, features: Features) -> Self:
        """Class means and the covariance around them, and the mean and covariance of all."""
        assert y is not None
        self.classes.fit(z, y)
        if self.background is not None:
            self.background.fit(z, torch.zeros_like(y))
        return self

    @property
    def sums(self) -> Sums | None:
        """One scatter, unless its shrinkage needs more."""
        return None if self.classes.shrinkage == "ledoit-wolf" else "pooled"

    def fit_gathered(self, data: Moments | Any, features: Features) -> Self:
        """The same from sums over rows."""
        self.classes.fit_moments(data)
        if self.background is not None:
            self.background.fit_moments(data.merged())
        return self

    def measure(self, z: Tensor, prediction: Tensor, *, seen: bool = False) -> Tensor:
        """The distance of each row."""
        nearest = self.classes(z).amin(1)
        return nearest if self.background is None else nearest - self.background(z)[:, 0]


class Mahalanobis(LayerDetector):
    r"""The distance of activations to the nearest class mean, under a covariance that all classes share.

    .. math::
        s(z) = \min_c\, (z - \mu_c)^\top \Sigma^{-1} (z - \mu_c), \qquad
        \Sigma = \frac 1 n \sum_i (z_i - \mu_{y_i}) (z_i - \mu_{y_i})^\top

    After Lee et al. (2018). Where it differs by default: classes are what the network predicts, as everywhere in this
    library (theirs are labels: `condition="label"`); the covariance is shrunk (theirs is not: `shrinkage=None`); and
    layers are weighed equally, because a regression that weighs them needs outliers (give its weights to `combine`).
    Feature maps are averaged over positions with `reduce="channels"`, as in that paper.

    Args:
        condition: means of the classes that the network predicts, or of the labels.
        shrinkage: how the covariance is shrunk towards a multiple of the identity: `"oas"`, `"ledoit-wolf"`, for
            which all features are kept (see `Moments`), or None.
        ridge: added to the diagonal of the covariance, as a share of its mean.
        epsilon: inputs are first moved to :math:`x - \epsilon\, \operatorname{sign} \nabla_x s`, for each layer in its
            own direction. This takes a backward pass, and one forward pass per layer.
        model, layers, options: as for `LayerDetector`.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> x = torch.randn(500, 2, generator=torch.Generator().manual_seed(0))
        >>> method = Mahalanobis(model, "0", task="classification").fit(x.split(100))
        >>> u = method(torch.tensor([[0.0, 0.0], [30.0, -20.0]]))
        >>> bool(u.epistemic[1] > 50 * u.epistemic[0])
        True
    """

    relative: ClassVar[bool] = False

    def __init__(
        self,
        model: nn.Module | None,
        layers: Layers,
        *,
        condition: Condition = "prediction",
        shrinkage: Shrinkage | None = "oas",
        ridge: float = 1e-6,
        epsilon: float = 0.0,
        **options: Unpack[LayerOptions],
    ) -> None:
        if not epsilon >= 0:
            raise ValueError(f"epsilon must be zero or more, not {epsilon}.")
        if epsilon and options.get("pixels") is not None:
            raise ValueError("epsilon moves whole inputs: leave pixels= out, or use epsilon=0.")
        method = MahalanobisDistance(shrinkage, ridge, epsilon, self.relative)
        super().__init__(model, layers, method, condition=condition, **options)

    @property
    def epsilon(self) -> float:
        """How far inputs are moved before they are scored."""
        method = next(iter(self.terms.values())).method
        assert isinstance(method, MahalanobisDistance)
        return method.epsilon

    def fit(
        self,
        loader: Iterable[Any],
        calibration: Iterable[Any] | None = None,
        *,
        holdout: float | None = None,
        **options: Any,
    ) -> Self:
        """Fit to the activations on training data, as `Detector.fit`; `epsilon` and `holdout` exclude each other."""
        if self.epsilon and holdout is not None:
            raise ValueError("what is held out is kept as features, which cannot be moved: pass calibration=.")
        return super().fit(loader, calibration, holdout=holdout, **options)

    def fit_features(self, features: Features, calibration: Features | None = None) -> Self:
        """Fit to features that `extract` gave, as `Detector.fit_features`."""
        if calibration is not None:
            self._refuse_features()
        return super().fit_features(features, calibration)

    def predict_features(self, features: Features) -> Uncertainty:
        """Score features that `extract` gave."""
        self._refuse_features()
        return super().predict_features(features)

    def _refuse_features(self) -> None:
        if self.epsilon:
            raise ValueError("epsilon moves inputs, which features no longer have: use loaders, or epsilon=0.")

    def _unseen(self, loader: Iterable[Any], reductions: Mapping[str, Reduction]) -> Unseen:
        return super()._unseen(loader, reductions) if self.epsilon == 0 else Later(self.reader, loader, {})

    def _readings(self, unseen: Unseen, fitted: Fitted) -> Iterator[Reading]:
        if not isinstance(unseen, Later) or self.epsilon == 0:
            yield from super()._readings(unseen, fitted)
            return
        for index, batch in enumerate(self.reader.batches(unseen.loader, "calibrating")):
            yield self._reading(batch, fitted, index, labels=True)

    def _reading(self, batch: Batch, fitted: Fitted, index: int | None = None, *, labels: bool = False) -> Reading:
        reading = super()._reading(batch, fitted, index, labels=labels)
        if self.epsilon == 0:
            return reading
        assert isinstance(reading, Rows)
        reductions, reduced = fitted.head.reductions, {}
        for name, moved in self._moved(batch, fitted).items():
            found = self.reader.reading(moved, {name: reductions[name]}, index)
            assert isinstance(found, Rows)
            reduced[name] = found.reduced[name]
        return replace(reading, reduced=reduced)

    @torch.inference_mode(False)
    def _moved(self, batch: Batch, fitted: Fitted) -> dict[str, Batch]:
        """The batch, moved against the gradient of each layer's score.

        `lend` lends the model; gradients are switched on inside it, and asked for inputs only, so that parameters
        get none.
        """

        def leaf(x: Tensor) -> Tensor:
            return x.detach().clone().requires_grad_() if x.is_floating_point() else x.detach()

        copied = replace(batch, label=None).map(leaf)
        inputs = [x for x in leaves((copied.args, copied.kwargs), Tensor) if x.requires_grad]
        if not inputs:
            raise TypeError("epsilon moves floating-point inputs, but the model is given none: use epsilon=0.")
        scores: dict[str, Tensor] = {}

        def tap(name: str) -> Callback:
            term = fitted.head.terms[name]

            def callback(output: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
                assert isinstance(term.method, MahalanobisDistance)
                reduce = self.terms[name].reduce
                read = output if reduce.read == "output" else (*args, *kwargs.values())
                with torch.enable_grad():
                    activation = activation_of(read, reduce, copied, name)
                    z = term.reduction(activation)[0].to(fitted.head.device).double()
                    scores[name] = term.method.measure(z, z).sum()

            return callback

        moved = {}

        @torch.enable_grad()
        def work(inner: nn.Module) -> None:
            inner(*copied.args, **copied.kwargs)
            for name in self.layers:
                if name not in scores or not scores[name].requires_grad:
                    raise RuntimeError(
                        f"no gradient comes from layer {name!r} to the input, as when a model computes without "
                        "gradients by itself: use epsilon=0."
                    )
                found = torch.autograd.grad(scores[name], inputs, retain_graph=True, allow_unused=True)
                steps = {id(x): g for x, g in zip(inputs, found, strict=True) if g is not None}
                moved[name] = copied.map(lambda x, steps=steps: self._step(x, steps.get(id(x))))  # type: ignore[misc]

        after = {name: tap(name) for name in self.layers if self.terms[name].reduce.read == "output"}
        before = {name: tap(name) for name in self.layers if name not in after}
        lend(self.model, after, work, before=before)
        return moved

    def _step(self, x: Tensor, gradient: Tensor | None) -> Tensor:
        """x - ε sign g; where there is no gradient, or NaN, x stays."""
        return x.detach() if gradient is None else x.detach() - self.epsilon * gradient.nan_to_num(0.0).sign()


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

    relative = True


def one_gaussian_per_class(
    model: nn.Module | None,
    layers: Layers,
    *,
    shrinkage: Shrinkage | Literal["auto"] | None = "auto",
    ridge: float = 1e-6,
    **options: Any,
) -> LatentDensity:
    r"""Deep deterministic uncertainty (DDU), post hoc: the density of one Gaussian per class.

    .. math:: s(z) = -\log \sum_c p(c)\, \mathcal N(z \mid \mu_c, \Sigma_c)

    After Mukhoti et al. (2021), for any network: theirs is trained with spectral normalisation. It is a `LatentDensity`
    and has all of its methods. Its aleatoric score is h(ŷ | z), theirs the entropy of the softmax; and classes are
    those predicted, where theirs are labels (`condition="label"`).

    Args:
        shrinkage, ridge: of each class's covariance, as for `GaussianMixture`; theirs has no shrinkage.
        model, layers, options: as for `LatentDensity`.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 3))
        >>> x = torch.randn(600, 2, generator=torch.Generator().manual_seed(0))
        >>> detector = one_gaussian_per_class(model, "0", task="classification").fit(x.split(100))
        >>> detector.densities["0"].components
        1
    """
    return LatentDensity(model, layers, GaussianMixture(components=1, shrinkage=shrinkage, ridge=ridge), **options)


def one_gaussian_a_class(*args: Any, **options: Any) -> LatentDensity:
    """The name of `one_gaussian_per_class` in version 0.1.0."""
    deprecated("one_gaussian_a_class", "one_gaussian_per_class")
    return one_gaussian_per_class(*args, **options)
