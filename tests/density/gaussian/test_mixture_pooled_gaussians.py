import pytest
import torch
from sklearn.covariance import OAS, EmpiricalCovariance, LedoitWolf

from hidden_uncertainty.density import PooledGaussians
from hidden_uncertainty.density.linalg import Shrinkage


def three_classes(n: int = 300, dim: int = 6, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 3
    mix = torch.randn(dim, dim, generator=generator)
    return torch.randn(n, dim, generator=generator) @ mix + 4 * torch.eye(3, dim)[y], y


@pytest.mark.parametrize(
    ("shrinkage", "reference"), [(None, EmpiricalCovariance), ("ledoit-wolf", LedoitWolf), ("oas", OAS)]
)
def test_distances_are_those_of_scikit_learn(shrinkage: Shrinkage | None, reference: type[EmpiricalCovariance]) -> None:
    z, y = three_classes()
    means = torch.stack([z[y == c].mean(0) for c in range(3)])
    covariance = reference(assume_centered=True).fit((z - means[y]).double().numpy())
    expected = torch.stack([torch.from_numpy(covariance.mahalanobis((z - m).numpy())) for m in means], 1)
    found = PooledGaussians(shrinkage=shrinkage, ridge=0.0).fit(z, torch.tensor([2, 7, 90])[y])(z.double())
    assert torch.allclose(found, expected, rtol=1e-4)


@pytest.mark.parametrize("fitted", [True, False])
def test_rebuilt_from_config_and_tensors(fitted: bool) -> None:
    z, y = three_classes()
    gaussians = PooledGaussians(shrinkage="oas", ridge=1e-3)
    gaussians = gaussians.fit(z, y) if fitted else gaussians
    again = PooledGaussians.from_config(gaussians.config())
    again.load_state_dict(gaussians.state_dict(), strict=True)
    assert again.config() == gaussians.config()
    if fitted:
        assert torch.equal(again(z), gaussians(z))
    else:
        with pytest.raises(RuntimeError, match="not fitted: call fit"):
            again(z)


def test_errors_say_what_to_do() -> None:
    z, y = three_classes(dim=4)
    with pytest.raises(ValueError, match=r"singular.*raise ridge, set shrinkage"):
        PooledGaussians(shrinkage=None, ridge=0.0).fit(torch.cat([z, z], 1), y)
    with pytest.raises(ValueError, match="shrinkage must be one of"):
        PooledGaussians(shrinkage="some")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="ridge must be zero or more"):
        PooledGaussians(ridge=-1.0)
