"""Joint distributions of labels and activations that are known, so that p(z) and h(y|z) are too."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributions import Categorical, MixtureSameFamily, MultivariateNormal, Normal

PRIOR = (0.5, 0.3, 0.2)  # of the classes
EIGENVALUES = (0.3, 3.0)  # of every covariance
POINTS = 2001  # at which the entropy of a label that is a number is summed
REACH = 9.0  # deviations beyond the outermost means of p(y|z) that the sum goes to


class Mixture(NamedTuple):
    """A Gaussian mixture with k components in d dimensions."""

    weight: Tensor  # (k,)
    mean: Tensor  # (k, d)
    covariance: Tensor  # (k, d, d)

    def draw(self, n: int, random: torch.Generator) -> Tensor:
        """Draw n points, (n, d)."""
        which = self.weight.multinomial(n, replacement=True, generator=random)
        noise = torch.randn(n, self.mean.shape[1], dtype=torch.float64, generator=random)
        scaled = torch.einsum("nij,nj->ni", torch.linalg.cholesky(self.covariance)[which], noise)
        return self.mean[which] + scaled

    def log_prob(self, z: Tensor) -> Tensor:
        """log p(z) for z (n, d): (n,)."""
        parts = MultivariateNormal(self.mean, self.covariance)
        return MixtureSameFamily(Categorical(self.weight), parts).log_prob(z.double())


def draw_mixture(components: int, dim: int, spread: float, random: torch.Generator) -> Mixture:
    """A mixture whose means lie about `spread` from the origin, and whose covariances are full and well-conditioned.

    Example:
        >>> mixture = draw_mixture(3, 2, 1.0, torch.Generator().manual_seed(0))
        >>> mixture.draw(5, torch.Generator().manual_seed(0)).shape
        torch.Size([5, 2])
    """
    low, high = (torch.tensor(value, dtype=torch.float64).log() for value in EIGENVALUES)
    shape = (components, dim)
    eigenvalues = (low + (high - low) * torch.rand(shape, dtype=torch.float64, generator=random)).exp()
    axes = torch.linalg.qr(torch.randn(components, dim, dim, dtype=torch.float64, generator=random)).Q
    away = torch.randn(shape, dtype=torch.float64, generator=random)
    weight = 1 + torch.rand(components, dtype=torch.float64, generator=random)
    covariance = axes * eigenvalues[:, None] @ axes.mT
    mean = spread * away / away.norm(dim=1, keepdim=True)
    return Mixture(weight / weight.sum(), mean, (covariance + covariance.mT) / 2)


class Classes(NamedTuple):
    """Classes with a mixture each."""

    given: list[Mixture]

    def draw(self, n: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw activations (n, d) and classes (n,)."""
        y = torch.tensor(PRIOR).multinomial(n, replacement=True, generator=random)
        z = torch.zeros(n, self.given[0].mean.shape[1], dtype=torch.float64)
        for label, mixture in enumerate(self.given):
            z[y == label] = mixture.draw(int((y == label).sum()), random)
        return z.float(), y

    def log_joint(self, z: Tensor) -> Tensor:
        """log p(z, y) for z (n, d): (n, 3)."""
        prior = torch.tensor(PRIOR, dtype=torch.float64)
        return torch.stack([mixture.log_prob(z) for mixture in self.given], dim=1) + prior.log()

    def predict(self, z: Tensor) -> Tensor:
        """The best possible logits."""
        return self.log_joint(z).to(z.dtype)

    def truth(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """-log p(z) and h(y|z), both (n,)."""
        joint = self.log_joint(z)
        return -joint.logsumexp(1), Categorical(logits=joint).entropy()


class Numbers(NamedTuple):
    """A mixture over z and a label that is a number, in the last dimension."""

    joint: Mixture

    def draw(self, n: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw activations (n, d) and labels (n,)."""
        drawn = self.joint.draw(n, random).float()
        return drawn[:, :-1], drawn[:, -1]

    def predict(self, z: Tensor) -> Tensor:
        """Any number will do, as densities are fitted given labels."""
        return z[:, 0]

    def truth(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """-log p(z), and h(y|z) by a fine sum over the y of each row, both (n,)."""
        weight, mean, covariance = self.joint
        inner, cross = covariance[:, :-1, :-1], covariance[:, :-1, -1]  # (k, d, d), (k, d)
        evidence = Mixture(weight, mean[:, :-1], inner)
        slope = torch.linalg.solve(inner, cross)  # (k, d)
        deviation = (covariance[:, -1, -1] - (slope * cross).sum(1)).sqrt()  # (k,)
        entropies = []
        for some in z.double().split(500):
            away = some[:, None] - mean[:, :-1]  # (n, k, d)
            centers = mean[:, -1] + (away * slope).sum(-1)  # (n, k)
            log_weight = weight.log() + MultivariateNormal(mean[:, :-1], inner).log_prob(some[:, None])
            low = (centers - REACH * deviation).amin(1, keepdim=True)
            high = (centers + REACH * deviation).amax(1, keepdim=True)
            y = low + (high - low) * torch.linspace(0, 1, POINTS, dtype=torch.float64)  # (n, m)
            parts = Normal(centers[:, None], deviation).log_prob(y[..., None])  # (n, m, k)
            log_density = (log_weight.log_softmax(1)[:, None] + parts).logsumexp(-1)
            entropies.append(-torch.trapezoid(log_density.exp() * log_density, y))
        return -evidence.log_prob(z), torch.cat(entropies)
