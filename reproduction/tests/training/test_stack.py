"""Inside a stack of perceptrons: batches, dropout and the lowest variance."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from reproduction.training import MLP, train_mlps
from reproduction.training.stack import Stack, StackOptions


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_a_variance_that_vanishes_counts_as_the_lowest() -> None:
    options = StackOptions("gaussian", 1, None, 1e-3, 0.0, 1, 0.0)
    zero = torch.zeros(1, 1, 2, dtype=torch.float64)
    stack = Stack([zero.mT, zero[..., :1], zero, zero - torch.tensor([0.0, 1000.0])], [0], options)
    loss = stack._losses(torch.ones(1, 4, 2).double(), torch.full((1, 4, 1), 1e-3).double())
    assert loss.tolist() == [pytest.approx((math.log(1e-6) + 1) / 2)]


def test_batches_cover_the_data_once_per_epoch_in_an_order_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []
    losses = Stack._losses

    def spy(self: Stack, x: Tensor, y: Tensor, **options: bool) -> Tensor:
        assert torch.equal(x[..., 0], y[..., 0])
        seen.append(y[..., 0])
        return losses(self, x, y, **options)

    monkeypatch.setattr(Stack, "_losses", spy)
    y = torch.arange(10.0, dtype=torch.float64)
    train_mlps(
        [MLP(2, (8,), seed=seed).double() for seed in range(2)], torch.stack([y, y], dim=1), y, epochs=3, batch_size=4
    )
    assert [batch.shape[1] for batch in seen] == [4, 4, 2] * 3
    orders = [torch.cat(seen[3 * epoch : 3 * epoch + 3], dim=1) for epoch in range(3)]
    assert all(sorted(row.tolist()) == y.tolist() for order in orders for row in order)
    assert len({tuple(row.tolist()) for order in orders for row in order}) == 6


@pytest.mark.parametrize("dropout", [0.1, 0.5, 0.97])
def test_dropout_drops_its_share_in_training_and_keeps_the_mean(dropout: float) -> None:
    options = StackOptions("squared", 1, None, 1e-3, 0.0, 1, dropout)
    stack = Stack([draw(2, 3, 5), draw(2, 1, 5), draw(2, 5, 1), draw(2, 1, 1)], [0, 1], options)
    masks = torch.stack([stack._mask(torch.zeros(2, 501, 3)) for _ in range(100)])
    assert masks.unique().tolist() == pytest.approx([0, 1 / (1 - dropout)])
    for own in masks.transpose(0, 1):  # ± 4.5 deviations of a share of 150,300
        assert float((own == 0).double().mean()) == pytest.approx(
            dropout, abs=4.5 * math.sqrt(dropout * (1 - dropout) / 150_300)
        )
    assert not torch.equal(masks[:, 0], masks[:, 1])
    if dropout == 0.5:
        x = draw(2, 1, 3).expand(2, 4000, 3)
        with torch.no_grad():
            dropped, whole = stack.forward(x, drop=True), stack.forward(x)[:, 0, 0]
        error = dropped.std(1)[:, 0] / math.sqrt(4000)
        assert ((dropped.mean(1)[:, 0] - whole).abs() < 4.5 * error).all()
        assert (error > 0).all()
