"""One Gaussian per class: distances to their means (Lee et al. 2018, Ren et al. 2021), and their density."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self, Unpack

import torch
from torch import Tensor, nn

from ..density import GaussianMixture, Moments, Sums
from ..density.linalg import Shrinkage
from ..extract import Features
from ..latent import LatentDensity
from ..model.tasks import Condition
from ..notes import deprecated
from ..scoring.terms import Layers
from .base import LayerDetector, LayerOptions, RowMethod


class MahalanobisDistance(RowMethod):
    """The squared distance to the nearest class mean, less that to the mean of all data where it is `relative`."""

    unit = "squared deviations"

    def __init__(self, shrinkage: Shrinkage | None, ridge: float, relative: bool) -> None:
        super().__init__()
        self.shrinkage, self.ridge, self.relative = shrinkage, ridge, relative
        pooled: dict[str, Any] = {"covariance": "pooled", "shrinkage": shrinkage, "ridge": ridge, "dtype": "float64"}
        self.classes = GaussianMixture(**pooled)
        self.background = GaussianMixture(**pooled) if relative else None

    def fit(self, z: Tensor, y: Tensor | None, features: Features) -> Self:
        """Class means and the covariance around them, and the mean and covariance of all."""
        assert y is not None
        classes, y = y.unique(return_inverse=True)
        if self.background is not None:
            self.background.fit_moments(Moments.of(z, torch.zeros_like(y), 1, "pooled"))
        self.classes.fit_moments(Moments.of(z, y, len(classes), "pooled"))
        return self

    @property
    def sums(self) -> Sums | None:
        """One scatter, unless its shrinkage needs more."""
        return self.classes.sums

    def fit_gathered(self, data: Moments | Any, features: Features) -> Self:
        """The same from sums over rows."""
        self.classes.fit_moments(data)
        if self.background is not None:
            self.background.fit_moments(data.merged())
        return self

    def measure(self, z: Tensor, prediction: Tensor, *, seen: bool = False) -> Tensor:
        """The distance of each row."""
        nearest = _squares(self.classes, z).amin(1)
        return nearest if self.background is None else nearest - _squares(self.background, z)[:, 0]


def _squares(gaussians: GaussianMixture, z: Tensor) -> Tensor:
    """Squared distances of z (n, d) to all means, from log-densities in float64: (n, C)."""
    return 2 * (gaussians.log_scale[:, 0] - gaussians.log_prob(z, gaussians.classes)).clamp(min=0)


class Mahalanobis(LayerDetector):
    r"""The distance of activations to the nearest class mean, under a covariance that all classes share.

    .. math::
        s(z) = \min_c\, (z - \mu_c)^\top \Sigma^{-1} (z - \mu_c), \qquad
        \Sigma = \frac 1 n \sum_i (z_i - \mu_{y_i}) (z_i - \mu_{y_i})^\top

    After Lee et al. (2018). Where it differs by default: classes are what the network predicts, as everywhere in this
    library (theirs are labels: `condition="label"`); the covariance is shrunk (theirs is not: `shrinkage=None`); inputs
    are not moved along a gradient first; and layers are weighed equally, because a regression that weighs them needs
    outliers (give its weights to `combine`).
    Feature maps are averaged over positions with `reduce="channels"`, as in that paper.

    Args:
        condition: means of the classes that the network predicts, or of the labels.
        shrinkage: how the covariance is shrunk towards a multiple of the identity: `"oas"`, `"ledoit-wolf"`, for
            which all features are kept (see `Moments`), or None.
        ridge: added to the diagonal of the covariance, as a share of its mean.
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
        **options: Unpack[LayerOptions],
    ) -> None:
        method = MahalanobisDistance(shrinkage, ridge, self.relative)
        super().__init__(model, layers, method, condition=condition, **options)


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
