"""The ridge of the paper's mixtures, which is a number as in scikit-learn, for the library, whose ridge is a share."""

from __future__ import annotations

from torch import Tensor


def as_share(ridge: float, z: Tensor, y: Tensor) -> float:
    """The `ridge` with which `GaussianMixture().fit(z, y)` adds this number to every variance.

    It is a share of the variance of z (n, d) around the means of its classes y (n,), averaged over dimensions.

    Example:
        >>> z, y = torch.tensor([[0.0], [4.0], [10.0], [14.0]]), torch.tensor([0, 0, 1, 1])
        >>> as_share(0.1, z, y)
        0.025
    """
    classes, y = y.unique(return_inverse=True)
    sums = z.new_zeros(len(classes), z.shape[1]).index_add_(0, y, z)
    around = z - (sums / y.bincount()[:, None])[y]
    return ridge / (float(around.double().square().mean()) or 1.0)
