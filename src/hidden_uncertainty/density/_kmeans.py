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
    if components == 1:
        return present[..., None]
    norm = x.square().sum(-1)  # (B, n)
    centres = _plus_plus(x, norm, present, components, draws)
    mean = torch.bmm(present[:, None], x) / present.sum(1)[:, None, None]
    variance = torch.bmm(present[:, None], (x - mean).square()).sum((1, 2)) / present.sum(1) / x.shape[-1]  # (B,)
    done = torch.zeros_like(variance, dtype=torch.bool)
    for _ in range(max_iter):
        member = _nearest(x, present, centres)
        size = member.sum(2)  # (B, k)
        moved = torch.bmm(member, x) / size.clamp(min=1)[..., None]
        if bool((size == 0).any()):
            moved = _fill_empty(x, present, _distances(x, norm, centres), size, moved)
        shift = (moved - centres).square().sum((1, 2))
        centres = torch.where(done[:, None, None], centres, moved)  # the others of a stack may need longer
        done |= shift <= tol * variance
        if bool(done.all()):
            break
    return _nearest(x, present, centres).mT.contiguous()


def _plus_plus(x: Tensor, norm: Tensor, present: Tensor, components: int, draws: Tensor) -> Tensor:
    """Greedy k-means++: of several points drawn by squared distance, keep the one that lowers the inertia most."""
    stack = torch.arange(x.shape[0], device=x.device)
    first = _draw(present, draws[:, 0, :1])[:, 0]
    centres = [x[stack, first]]
    closest = _distances(x, norm, centres[0][:, None])[..., 0] * present  # (B, n)
    for step in range(1, components):
        picks = _draw(torch.where(closest.sum(1, keepdim=True) > 0, closest, present), draws[:, step])  # (B, t)
        tried = x[stack[:, None], picks]  # (B, t, d)
        lowered = torch.minimum(_distances(x, norm, tried), closest[..., None]) * present[..., None]  # (B, n, t)
        best = lowered.sum(1).argmin(-1)
        centres.append(tried[stack, best])
        closest = lowered[stack, :, best]
    return torch.stack(centres, dim=1)  # (B, k, d)


def _draw(weight: Tensor, uniform: Tensor) -> Tensor:
    """Indices drawn with probability proportional to weight (B, n), one for each uniform number (B, t)."""
    total = weight.double().cumsum(1)
    target = uniform.double() * total[:, -1:]
    return torch.searchsorted(total, target, right=True).clamp(max=weight.shape[1] - 1)


def _distances(x: Tensor, norm: Tensor, centres: Tensor) -> Tensor:
    """Squared distances (B, n, k) between rows (B, n, d), of squared norms (B, n), and centres (B, k, d)."""
    rest = torch.baddbmm(centres.square().sum(-1)[:, None], x, centres.mT, alpha=-2)
    return rest.add_(norm[..., None]).clamp_(min=0)


def _nearest(x: Tensor, present: Tensor, centres: Tensor) -> Tensor:
    """The centre nearest to each row, one-hot (B, k, n). ‖x‖² is the same for all of them and left out."""
    half = 0.5 * centres.square().sum(-1)[:, None]
    nearest = torch.baddbmm(half, x, centres.mT, alpha=-1).argmin(-1)  # (B, n)
    member = x.new_zeros(*centres.shape[:2], x.shape[1])
    return member.scatter_(1, nearest[:, None], present[:, None])


def _fill_empty(x: Tensor, present: Tensor, distance: Tensor, size: Tensor, centres: Tensor) -> Tensor:
    """Move each centre that lost all its rows to one of the rows farthest from their own centre."""
    centres = centres.clone()
    far = (distance.amin(-1) * present).argsort(dim=1, descending=True)
    for b, k in (size == 0).nonzero().tolist():
        rank = int((size[b, :k] == 0).sum())
        centres[b, k] = x[b, far[b, rank]]
    return centres
