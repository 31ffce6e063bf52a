"""One Gaussian per class: Mukhoti et al. (2021), which here is a mixture of one component."""

from __future__ import annotations

from typing import Any, Literal

from torch import nn

from ..density import GaussianMixture
from ..density.linalg import Shrinkage
from ..latent import LatentDensity
from ..notes import deprecated
from ..scoring.terms import Layers


def one_gaussian_per_class(
    model: nn.Module,
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
        model: any trained classifier.
        layers: as for `LatentDensity`.
        shrinkage: of each class's covariance, as for `GaussianMixture`; theirs has none.
        ridge: added to the diagonal of every covariance, as for `GaussianMixture`.
        options: further arguments of `LatentDensity`.

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
