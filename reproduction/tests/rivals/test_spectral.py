"""Bounded layers: their spectral norm against a singular value decomposition, and what they keep of distances."""

from __future__ import annotations

import pytest
import torch

from reproduction.rivals.spectral import ResidualPerceptron, SpectralLinear

random = torch.Generator().manual_seed(0)


@pytest.mark.parametrize(("scale", "expected"), [(10.0, 0.7), (0.1, None)])
def test_the_norm_is_bounded_but_never_raised(scale: float, expected: float | None) -> None:
    layer = SpectralLinear(9, 6, bound=0.7)
    with torch.no_grad():
        layer.weight.copy_(scale * torch.randn(6, 9, generator=random) / 4)
    for _ in range(300):  # power iterations
        layer(torch.zeros(1, 9))
    largest = torch.linalg.svdvals(layer.bounded())[0].item()
    if expected is None:
        assert torch.equal(layer.bounded(), layer.weight)
    else:
        assert largest == pytest.approx(expected, rel=1e-4)
        rows = torch.randn(5, 9, generator=random)
        torch.testing.assert_close(layer(rows), rows @ layer.bounded().T + layer.bias)


def test_evaluation_changes_nothing() -> None:
    layer = SpectralLinear(4, 4).eval()
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    layer(torch.ones(2, 4))
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())


def test_the_gradient_is_that_of_the_normalised_matrix() -> None:
    layer = SpectralLinear(3, 3, bound=0.2).double()
    for _ in range(200):
        layer(torch.zeros(1, 3).double())
    layer.eval()
    direction = torch.randn(3, 3, generator=random).double()

    def value(weight: torch.Tensor) -> torch.Tensor:  # by the true singular value
        return (direction * weight * 0.2 / torch.linalg.svdvals(weight)[0]).sum()

    expected = torch.autograd.functional.jacobian(value, layer.weight.detach())
    (found,) = torch.autograd.grad((direction * layer.bounded()).sum(), layer.weight)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)


def test_blocks_keep_distances_between_bounds() -> None:
    network = ResidualPerceptron(5, 16, bound=0.5)
    for _ in range(200):
        network(torch.zeros(1, 5))
    block = network[2].eval()
    one, other = torch.randn(2, 300, 16, generator=random)
    ratio = (block(one) - block(other)).norm(dim=1) / (one - other).norm(dim=1)
    assert ratio.min().item() >= 0.5 - 1e-3 and ratio.max().item() <= 1.5 + 1e-3
