"""Distances to the nearest training activations: Sun et al. (2022)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self, Unpack

import torch
from torch import Tensor, nn

from ..extract import Features
from ..io import plain
from ..scoring.terms import Layers
from .base import LayerDetector, LayerOptions, RowMethod

QUERIES, POINTS = 256, 16384  # of one block of distances: 32 MB
CELLS = 1 << 20  # numbers of one block of differences: 8 MB


class Index(nn.Module):
    """Exact search for the nearest of points (n, d), of which there must be as many as neighbours will be asked for."""

    points: Tensor
    center: Tensor

    def __init__(self, points: Tensor, most: int) -> None:
        super().__init__()
        if most > len(points):
            raise ValueError(f"k={most} neighbours are asked for, but there are {len(points):,} training inputs.")
        self.register_buffer("points", points.detach().clone())
        total = torch.stack([some.double().sum(0) for some in points.split(POINTS)]).sum(0)  # float64 makes copies
        self.register_buffer("center", total / len(points))

    def search(self, z: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Distances in float64, ascending, and indices of the k points nearest to each of z (n, d): (n, k) both.

        Neighbours are found by matrix products; their distances are then computed without them, to all digits.
        """
        rows, few = z.double(), max(1, CELLS // (k * z.shape[1]))
        index = torch.cat([self._candidates(some, k) for some in rows.split(QUERIES)])
        parts = zip(rows.split(few), index.split(few), strict=True)
        squares = [(some[:, None] - self.points[near].double()).square().sum(-1) for some, near in parts]
        distances, order = torch.cat(squares).sqrt().sort(dim=1, stable=True)
        return distances, index.gather(1, order)

    def _candidates(self, rows: Tensor, k: int) -> Tensor:
        rows = rows - self.center  # it lies amid them, so that squares do not drown what they differ by
        own = rows.square().sum(1, keepdim=True)
        near = []
        for start in range(0, len(self.points), POINTS):
            block = self.points[start : start + POINTS].double() - self.center
            squares = torch.addmm(own + block.square().sum(1), rows, block.mT, alpha=-2).clamp_(min=0)  # (r, b)
            best = squares.topk(min(k, squares.shape[1]), largest=False)
            near.append((best.values, best.indices + start))
        values, index = (torch.cat(parts, 1) for parts in zip(*near, strict=True))
        return index.gather(1, values.topk(k, largest=False).indices)


class NeighbourDistance(RowMethod):
    """The distance to the k-th nearest training point, of directions only where it is to `normalise`."""

    unit = "distance"
    conditional = needs_classes = False

    def __init__(self, k: int, *, normalise: bool = True) -> None:
        super().__init__()
        k = plain(k)
        if not isinstance(k, int) or k < 1:
            raise ValueError(f"k must be a whole number of at least 1, not {k!r}.")
        self.k, self.normalise = k, normalise
        self.index: Index = None  # type: ignore[assignment]  # until it is fitted

    def fit(self, z: Tensor, y: Tensor | None, features: Features) -> Self:
        """Keep the rows, or their directions."""
        self.index = Index(self._prepared(z), self.k)
        return self

    def measure(self, z: Tensor, prediction: Tensor, *, seen: bool = False) -> Tensor:
        """The distance of each row."""
        k = min(self.k + seen, len(self.index.points))
        return self.index.search(self._prepared(z), k)[0][:, -1]

    def _build(self, shapes: Mapping[str, list[Any]]) -> None:
        if shapes:
            self.index = Index(torch.zeros(1, shapes["index.points"][2], device="cpu"), 0)

    def _prepared(self, z: Tensor) -> Tensor:
        if not self.normalise:
            return z
        largest = z.abs().amax(1, keepdim=True).clamp(min=torch.finfo(z.dtype).tiny)  # whose squares might underflow
        return nn.functional.normalize(z / largest, dim=1)


class NearestNeighbours(LayerDetector):
    r"""The distance of activations to the k-th nearest ones of the training data.

    .. math:: s(z) = \lVert z / \lVert z \rVert - (z_i / \lVert z_i \rVert)_{(k)} \rVert

    After Sun et al. (2022), who normalise activations to unit length; without that it is the plain distance. The search
    is exact and needs no classes, so networks that predict numbers are welcome. Activations are centred only where a
    layer is wider than `max_dim`; `max_dim=None` keeps their norm and direction as the network made them.

    Args:
        k: which neighbour; 50 is the authors' for CIFAR-10 with all of its training data. With less data take fewer.
        normalise: compare directions only.
        model, layers, options: as for `LayerDetector`.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> x = torch.randn(500, 2, generator=torch.Generator().manual_seed(0))
        >>> method = NearestNeighbours(model, "0", k=5, normalise=False, task="classification").fit(x.split(100))
        >>> u = method(torch.tensor([[0.0, 0.0], [30.0, -20.0]]))
        >>> bool(u.epistemic[1] > 10 * u.epistemic[0])
        True
    """

    def __init__(
        self,
        model: nn.Module | None,
        layers: Layers,
        *,
        k: int = 50,
        normalise: bool = True,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(model, layers, NeighbourDistance(k, normalise=normalise), **options)
