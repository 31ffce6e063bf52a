"""Two methods of others that need the weights of the last layer, as functions of features and logits."""

from __future__ import annotations

from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

Head = tuple[Tensor, Tensor]  # weights (C, d) and biases (C,) of the last layer


def head_of(layer: nn.Module) -> Head:
    """Weights and biases of a linear layer, in double precision.

    Example:
        >>> [tuple(part.shape) for part in head_of(nn.Linear(8, 3))]
        [(3, 8), (3,)]
    """
    if not isinstance(layer, nn.Linear):
        raise TypeError(f"expected nn.Linear as the network's last layer, got {type(layer).__name__}.")
    weight = layer.weight.detach().double()
    return weight, weight.new_zeros(len(weight)) if layer.bias is None else layer.bias.detach().double()


def principal(width: int) -> int:
    """How many principal components ViM keeps.

    Example:
        >>> [principal(width) for width in (2048, 768, 100)]
        [1000, 512, 50]
    """
    return 1000 if width >= 2048 else 512 if width >= 768 else width // 2


class ViM(NamedTuple):
    r"""Virtual-logit matching (Wang et al. 2022): the residual of principal components beside the logits.

    .. math:: s(z) = \alpha \lVert R^\top (z - o) \rVert - \log \sum_c \exp l_c

    with :math:`o = -W^+ b` where all logits are zero, R the directions of least variance around it, and α such that the
    residual's mean is that of the largest logit on training data.
    """

    origin: Tensor  # (d,)
    residual: Tensor  # (d, d - D)
    alpha: float

    @classmethod
    def fit(cls, z: Tensor, logits: Tensor, head: Head) -> Self:
        """Learn from features (n, d) and logits (n, C) of training data.

        Example:
            >>> random = torch.Generator().manual_seed(0)
            >>> z = torch.randn(500, 4, generator=random) * torch.tensor([3.0, 3.0, 0.1, 0.1])
            >>> layer = nn.Linear(4, 2)
            >>> vim = ViM.fit(z, torch.ones(500, 2), head_of(layer))
            >>> some = torch.tensor([[3.0, 3.0, 0.0, 0.0], [0.0, 0.0, 3.0, 3.0]])
            >>> low, high = vim(some + vim.origin, torch.ones(2, 2))
            >>> bool(high > low + 1)
            True
        """
        weight, bias = head
        origin = -torch.linalg.pinv(weight) @ bias
        centred = z.double() - origin
        _, directions = torch.linalg.eigh(centred.T @ centred / len(centred))  # of ascending variance
        residual = directions[:, : z.shape[1] - principal(z.shape[1])]
        size = (centred @ residual).norm(dim=1).mean()
        return cls(origin, residual, float(logits.double().amax(1).mean() / size))

    def __call__(self, z: Tensor, logits: Tensor) -> Tensor:
        """Scores (n,)."""
        return self.alpha * ((z.double() - self.origin) @ self.residual).norm(dim=1) - logits.double().logsumexp(1)


def fdbd(z: Tensor, logits: Tensor, head: Head, mean: Tensor) -> Tensor:
    r"""Distance to decision boundaries, relative to that to the mean of training features (Liu and Qin 2024).

    .. math:: s(z) = -\frac{1}{C - 1} \sum_{c \neq \hat y} \frac{l_{\hat y} - l_c}{\lVert w_{\hat y} - w_c \rVert} \Big/
        \lVert z - \mu \rVert

    Args:
        z: features (n, d).
        logits: of these (n, C).
        head: the last layer.
        mean: of training features (d,).

    Example:
        >>> head = (torch.eye(2).double(), torch.zeros(2).double())
        >>> z = torch.tensor([[3.0, 0.0], [1.0, 0.9]])
        >>> fdbd(z, z, head, torch.zeros(2))
        tensor([-0.7071, -0.0526], dtype=torch.float64)
    """
    weight, _ = head
    logits = logits.double()
    top, best = logits.max(1)
    apart = torch.cdist(weight, weight)[best]  # (n, C), zero for the class itself
    ratio = ((top[:, None] - logits) / apart).scatter(1, best[:, None], 0.0)
    return -ratio.sum(1) / (logits.shape[1] - 1) / (z.double() - mean.double()).norm(dim=1)
