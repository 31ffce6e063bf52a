"""Where a mixture starts: greedy k-means++ and Lloyd's iterations, for a stack of classes at once."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def candidates(components: int) -> int:
    """How many points greedy k-means++ tries for each new centre, as in scikit-learn."""
    return 2 + int(math.log(components))


def kmeans(
    x: Tensor, present: Tensor, components: int, draws: Tensor, *, max_iter: int = 300, tol: float = 1e-4
) -> Tensor:
    """Assign each row to one of k clusters: (B, n, k), one-hot.

    Args:
        x: (B, n, d), rows of class b first, padded to the same n.
        present: 1 for a row, 0 for padding, (B, n).
        components: k.
        draws: uniform numbers in [0, 1) that decide the start, (B, k, candidates(k)). They come from outside, so that
            a class starts alike whatever device it is on and whichever classes share its stack.
        max_iter: Lloyd iterations at most.
        tol: stop when centres move less than this share of the mean variance.
    """
    centres = _plus_plus(x, present, components, draws)
    mean = (x * present[..., None]).sum(1, keepdim=True) / present.sum(1)[:, None, None]
    variance = ((x - mean).square() * present[..., None]).sum((1, 2)) / present.sum(1) / x.shape[-1]  # (B,)
    done = torch.zeros_like(variance, dtype=torch.bool)
    for _ in range(max_iter):
        distance = _distances(x, centres)  # (B, n, k)
        member = _one_hot(distance.argmin(-1), components, present)
        size = member.sum(1)  # (B, k)
        moved = torch.bmm(member.mT, x) / size.clamp(min=1)[..., None]
        if bool((size == 0).any()):
            moved = _fill_empty(x, present, distance, size, moved)
        shift = (moved - centres).square().sum((1, 2))
        centres = torch.where(done[:, None, None], centres, moved)  # the others of a stack may need longer
        done |= shift <= tol * variance
        if bool(done.all()):
            break
    return _one_hot(_distances(x, centres).argmin(-1), components, present)


def _plus_plus(x: Tensor, present: Tensor, components: int, draws: Tensor) -> Tensor:
    """Greedy k-means++: of several points drawn by squared distance, keep the one that lowers the inertia most."""
    stack = torch.arange(x.shape[0], device=x.device)
    first = _draw(present, draws[:, 0, :1])[:, 0]
    centres = [x[stack, first]]
    closest = _distances(x, centres[0][:, None])[..., 0] * present  # (B, n)
    for step in range(1, components):
        picks = _draw(torch.where(closest.sum(1, keepdim=True) > 0, closest, present), draws[:, step])  # (B, t)
        tried = x[stack[:, None], picks]  # (B, t, d)
        lowered = torch.minimum(_distances(x, tried), closest[..., None]) * present[..., None]  # (B, n, t)
        best = lowered.sum(1).argmin(-1)
        centres.append(tried[stack, best])
        closest = lowered[stack, :, best]
    return torch.stack(centres, dim=1)  # (B, k, d)


def _draw(weight: Tensor, uniform: Tensor) -> Tensor:
    """Indices drawn with probability proportional to weight (B, n), one for each uniform number (B, t)."""
    total = weight.double().cumsum(1)
    target = uniform.double() * total[:, -1:]
    return torch.searchsorted(total, target, right=True).clamp(max=weight.shape[1] - 1)


def _distances(x: Tensor, centres: Tensor) -> Tensor:
    """Squared distances (B, n, k) between rows (B, n, d) and centres (B, k, d)."""
    cross = torch.bmm(x, centres.mT)
    return (x.square().sum(-1)[..., None] - 2 * cross + centres.square().sum(-1)[:, None]).clamp_(min=0)


def _one_hot(index: Tensor, components: int, present: Tensor) -> Tensor:
    return torch.nn.functional.one_hot(index, components).to(present.dtype) * present[..., None]


def _fill_empty(x: Tensor, present: Tensor, distance: Tensor, size: Tensor, centres: Tensor) -> Tensor:
    """Move each centre that lost all its rows to one of the rows farthest from their own centre."""
    centres = centres.clone()
    far = (distance.amin(-1) * present).argsort(dim=1, descending=True)
    for b, k in (size == 0).nonzero().tolist():
        rank = int((size[b, :k] == 0).sum())
        centres[b, k] = x[b, far[b, rank]]
    return centres
