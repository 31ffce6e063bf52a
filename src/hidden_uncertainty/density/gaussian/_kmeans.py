"""The start of a mixture: greedy k-means++ and Lloyd's iterations, for a stack of classes at once.

Distances and memberships lie in memory as (k, n): a minimum over few centres then runs over long rows. After the first
iterations few rows change their cluster, so that sums of clusters take in these alone. There are tens of such steps;
what they add in rounding is far below the shift at which the iteration stops.
"""

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
        x: (B, n, d), the rows of each class first, padded to the same n.
        present: 1 for a row, 0 for padding, (B, n).
        components: k.
        draws: uniform numbers in [0, 1) that decide the start, (B, k, candidates(k)). They come from outside, so that
            a class starts the same way on any device and in any stack.
        max_iter: Lloyd iterations at most.
        tol: stop when centres move less than this share of the mean variance.
    """
    if components == 1:
        return present[..., None]
    norm = x.square().sum(-1)  # (B, n)
    centres = _plus_plus(x, norm, present, components, draws)
    count = present.sum(1)  # (B,)
    mean = torch.bmm(present[:, None], x) / count[:, None, None]
    limit = tol * (_distances(x, norm, mean)[:, 0] * present).sum(1) / count / x.shape[-1]  # (B,)
    done = torch.zeros_like(limit, dtype=torch.bool)
    member = x.new_zeros(len(x), components, x.shape[1])  # (B, k, n)
    total = torch.zeros_like(centres)
    for _ in range(max_iter + 1):  # the last one only assigns
        near = _nearest(x, present, centres)
        rows = (near - member).amax((0, 1)).nonzero()[:, 0]  # that change in any class of the stack
        if len(rows) == 0:
            break
        joined = near.index_select(2, rows)
        joined *= joined.cumsum(1) <= 1  # of equally near centres the first; such rows always are among the changed
        change = joined - member.index_select(2, rows)
        member.index_copy_(2, rows, joined)
        if bool(done.all()):
            break
        if 4 * len(rows) > x.shape[1]:
            total = torch.bmm(member, x)
        else:
            total.baddbmm_(change, x.index_select(1, rows))
        size = member.sum(2)  # (B, k)
        moved = total / size.clamp(min=1)[..., None]
        if bool((size == 0).any()):
            moved = _fill_empty(x, present, _distances(x, norm, centres), size, moved)
        shift = (moved - centres).square().sum((1, 2))
        centres = torch.where(done[:, None, None], centres, moved)  # the others of a stack may need longer
        done |= shift <= limit
    return member.mT.contiguous()


def _plus_plus(x: Tensor, norm: Tensor, present: Tensor, components: int, draws: Tensor) -> Tensor:
    """Greedy k-means++: of several points drawn by squared distance, keep the one that lowers the inertia most."""
    stack = torch.arange(x.shape[0], device=x.device)
    first = _draw(present, draws[:, 0, :1])[:, 0]
    centres = [x[stack, first]]
    closest = _distances(x, norm, centres[0][:, None])[:, 0] * present  # (B, n)
    for step in range(1, components):
        picks = _draw(torch.where(closest.sum(1, keepdim=True) > 0, closest, present), draws[:, step])  # (B, t)
        tried = x[stack[:, None], picks]  # (B, t, d)
        lowered = torch.minimum(_distances(x, norm, tried), closest[:, None]) * present[:, None]  # (B, t, n)
        best = lowered.sum(2).argmin(-1)
        centres.append(tried[stack, best])
        closest = lowered[stack, best]
    return torch.stack(centres, dim=1)  # (B, k, d)


def _draw(weight: Tensor, uniform: Tensor) -> Tensor:
    """Indices drawn with probability proportional to weight (B, n), one for each uniform number (B, t)."""
    total = weight.double().cumsum(1)
    target = uniform.double() * total[:, -1:]
    return torch.searchsorted(total, target, right=True).clamp(max=weight.shape[1] - 1)


def _distances(x: Tensor, norm: Tensor, centres: Tensor) -> Tensor:
    """Squared distances (B, k, n) between rows (B, n, d), of squared norms (B, n), and centres (B, k, d)."""
    rest = torch.baddbmm(centres.square().sum(-1, keepdim=True), centres, x.mT, alpha=-2)
    return rest.add_(norm[:, None]).clamp_(min=0)


def _nearest(x: Tensor, present: Tensor, centres: Tensor) -> Tensor:
    """1 where no centre is nearer to a row, 0 elsewhere (B, k, n). ‖x‖² is the same for all of them and left out."""
    half = 0.5 * centres.square().sum(-1, keepdim=True)
    rest = torch.baddbmm(half, centres, x.mT, alpha=-1)
    farther = rest.gt_(rest.amin(1, keepdim=True))  # false where distances overflow: such a row is near to all
    return farther.lt_(present[:, None])


def _fill_empty(x: Tensor, present: Tensor, distance: Tensor, size: Tensor, centres: Tensor) -> Tensor:
    """Move each centre that lost all its rows to one of the rows farthest from their own centre."""
    centres = centres.clone()
    far = (distance.amin(1) * present).argsort(dim=1, descending=True)
    for b, k in (size == 0).nonzero().tolist():
        rank = int((size[b, :k] == 0).sum())
        centres[b, k] = x[b, far[b, rank]]
    return centres
