"""Distances to the nearest training activations: Sun et al. (2022)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any, Literal, Self, Unpack, get_args

import torch
from torch import Tensor, nn

from ..density.linalg import mean_square
from ..extract import Features
from ..io import plain
from ..scoring.terms import Layers
from .base import LayerDetector, LayerOptions, RowMethod, import_backend

Backend = Literal["torch", "faiss", "auto"]

QUERIES, POINTS = 256, 16384  # of one block of distances: 32 MB
CELLS = 1 << 20  # numbers of one block of differences: 8 MB


def squared_distances(rows: Tensor, points: Tensor, center: Tensor) -> Iterator[tuple[int, Tensor]]:
    """‖x - p‖² of rows x (r, d) to points p (n, d) in float64, block by block: the first point's index, and (r, b).

    The center (d,) lies amid them, so that squares do not drown what they differ by.
    """
    rows = rows.double() - center
    own = rows.square().sum(1, keepdim=True)
    for start in range(0, len(points), POINTS):
        block = points[start : start + POINTS].double() - center
        yield start, torch.addmm(own + block.square().sum(1), rows, block.mT, alpha=-2).clamp_(min=0)


def center_of(points: Tensor) -> Tensor:
    """The mean of points (n, d) in float64, without a copy of all of them: (d,)."""
    return torch.stack([some.double().sum(0) for some in points.split(POINTS)]).sum(0) / len(points)


def deviation_of(points: Tensor) -> float:
    """The root of the mean variance of points (n, d); 1 where all are the same."""
    center = center_of(points)
    return math.sqrt(mean_square(some.double() - center for some in points.split(POINTS))) or 1.0


class Index(nn.Module):
    """Exact search for the nearest of points (n, d).

    Args:
        points: what is searched.
        most: how many neighbours will be asked for; an error when there are not so many points.
        backend: see `NearestNeighbours`.
    """

    points: Tensor
    center: Tensor

    def __init__(self, points: Tensor, most: int, backend: Backend = "torch") -> None:
        super().__init__()
        if most > len(points):
            raise ValueError(f"k={most} neighbours are asked for, but there are {len(points):,} training inputs.")
        self.backend = backend
        self.register_buffer("points", points.detach().clone())
        self.register_buffer("center", center_of(points))
        self._built: Any = None
        self._deviation = 1.0

    @property
    def _faiss(self) -> Any:
        """The index of faiss, made when it is first needed; None where torch searches."""
        backend = self.backend
        if backend == "auto":
            backend = "faiss" if find_spec("faiss") is not None and self.points.device.type == "cpu" else "torch"
        if backend == "faiss" and self._built is None:
            self._deviation = deviation_of(self.points)
            built = import_backend("faiss", "torch").IndexFlatL2(self.points.shape[1])
            built.add(((self.points.double() - self.center) / self._deviation).float().cpu().numpy())
            self._built = built
        return self._built

    def search(self, z: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Distances in float64, ascending, and indices of the k points nearest to each of z (n, d): (n, k) both.

        Neighbours are found by matrix products; their distances are then computed without them, to all digits.
        """
        found = []
        for rows in z.double().split(QUERIES):
            index = self._candidates(rows, k)
            few = max(1, CELLS // (k * z.shape[1]))
            parts = zip(rows.split(few), index.split(few), strict=True)
            squares = [(some[:, None] - self.points[near].double()).square().sum(-1) for some, near in parts]
            away, order = torch.cat(squares).sqrt().sort(dim=1, stable=True)  # (r, k)
            found.append((away, index.gather(1, order)))
        distances, indices = zip(*found, strict=True)
        return torch.cat(distances), torch.cat(indices)

    def _candidates(self, rows: Tensor, k: int) -> Tensor:
        faiss = self._faiss
        if faiss is not None:
            # In deviations, whose squares float32 can hold; beyond that they overflow, and faiss answers with index -1.
            centred = ((rows - self.center) / self._deviation).clamp(-1e15, 1e15).float().cpu().numpy()
            return torch.from_numpy(faiss.search(centred, k)[1]).to(rows.device)
        best = rows.new_empty(len(rows), 0)
        index = torch.empty(len(rows), 0, dtype=torch.long, device=rows.device)
        for start, squares in squared_distances(rows, self.points, self.center):
            near = squares.topk(min(k, squares.shape[1]), largest=False)
            best, index = torch.cat([best, near.values], 1), torch.cat([index, near.indices + start], 1)
            kept = best.topk(min(k, best.shape[1]), largest=False)
            best, index = kept.values, index.gather(1, kept.indices)
        return index


class PointMethod(RowMethod):
    """A method that keeps training points, to look at the k nearest of each row."""

    def __init__(self, k: int, backend: Backend = "torch") -> None:
        super().__init__()
        k = plain(k)
        if not isinstance(k, int) or k < 1:
            raise ValueError(f"k must be a whole number of at least 1, not {k!r}.")
        if backend not in get_args(Backend):
            raise ValueError(f"backend must be one of {get_args(Backend)}, not {backend!r}.")
        if backend == "faiss":
            import_backend("faiss", "torch")
        self.k, self.backend = k, backend
        self.index: Index = None  # type: ignore[assignment]  # until it is fitted

    def fit(self, z: Tensor, y: Tensor | None, features: Features) -> Self:
        """Keep the rows."""
        self.index = Index(z, self.k, self.backend)
        return self

    def _build(self, shapes: Mapping[str, list[Any]]) -> None:
        if shapes:
            self.index = Index(torch.zeros(1, shapes["index.points"][2], device="cpu"), 0, self.backend)


class NeighbourDistance(PointMethod):
    """The distance to the k-th nearest point, of directions only where it is to `normalise`."""

    unit = "distance"
    needs_classes = False

    def __init__(self, k: int, backend: Backend = "torch", *, normalise: bool = True) -> None:
        super().__init__(k, backend)
        self.normalise = normalise

    def fit(self, z: Tensor, y: Tensor | None, features: Features) -> Self:
        """Keep the rows, or their directions."""
        return super().fit(self._prepared(z), y, features)

    def measure(self, z: Tensor, prediction: Tensor, *, seen: bool = False) -> Tensor:
        """The distance of each row."""
        k = min(self.k + seen, len(self.index.points))
        return self.index.search(self._prepared(z), k)[0][:, -1]

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
        backend: `"torch"` searches by blocked matrix products in float64, where the model is; `"faiss"` by that
            library's flat index in float32, on the CPU, 2.5 times as fast there, and rougher about who is nearest for
            inputs far away; `"auto"` is faiss where it is installed and the activations are on the CPU.
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
        backend: Backend = "torch",
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(model, layers, NeighbourDistance(k, backend, normalise=normalise), **options)
