"""The paper's ridge as a share of the variance."""

import numpy as np
import pytest
import torch

from hidden_uncertainty import GaussianMixture
from reproduction.studies.ridge import as_share


@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
def test_a_share_adds_the_number_to_every_variance(scale: float) -> None:
    random = torch.Generator().manual_seed(0)
    y = torch.arange(400) % 2
    spread = torch.tensor([1.0, 2.0, 0.5])
    z = scale * (torch.randn(400, 3, generator=random, dtype=torch.float64) * spread + 5 * y[:, None])
    density = GaussianMixture(1, shrinkage=None, ridge=as_share(0.1, z, y)).fit(z, y)
    for c in range(2):
        factor = density.factor[c, 0].numpy()
        expected = np.cov(z[y == c].numpy().T, bias=True) + 0.1 * np.eye(3)
        np.testing.assert_allclose(np.linalg.inv(factor @ factor.T), expected, rtol=1e-9, atol=1e-9 * scale**2)
