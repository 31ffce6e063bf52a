"""What is made on the way is bounded, however much data there is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hidden_uncertainty.baselines.ensemble import decompose_classes
from hidden_uncertainty.baselines.mahalanobis import MahalanobisDistance
from hidden_uncertainty.baselines.neighbours import Index


class Largest(TorchDispatchMode):
    """Remembers how many bytes the largest tensor had."""

    most = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        self.most = max([self.most, *(leaf.nbytes for leaf in tree_leaves(found) if isinstance(leaf, Tensor))])
        return found


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def gaussians(classes: int) -> tuple[int, Callable[[], object]]:
    z, y = draw(60_000, 8), torch.arange(60_000) % classes
    return z.numel(), lambda: MahalanobisDistance("ledoit-wolf", 1e-6, False).fit(z, y, None)


def distances() -> tuple[int, Callable[[], object]]:
    index = Index(draw(40_000, 2), 3)
    return 600 * 40_000, lambda: index.search(index.points[:600], 3)


def differences() -> tuple[int, Callable[[], object]]:
    index = Index(draw(1000, 32), 1000)
    return 250 * index.points.numel(), lambda: index.search(index.points[:250], 1000)


def points() -> tuple[int, Callable[[], object]]:
    known = draw(60_000, 8)
    return known.numel(), lambda: Index(known, 3)


def decomposition() -> tuple[int, Callable[[], object]]:
    scores = draw(5, 50_000, 4)
    return scores.numel() // 2, lambda: decompose_classes(scores)  # which is in float32


@pytest.mark.parametrize(
    ("everything", "work"),
    [gaussians(1), gaussians(3), gaussians(100), distances(), differences(), points(), decomposition()],
)
def test_nothing_is_half_as_large_as_all_of_the_data_in_float64(everything: int, work: Callable[[], object]) -> None:
    with Largest() as seen:
        work()
    assert 0 < seen.most <= 4 * everything
