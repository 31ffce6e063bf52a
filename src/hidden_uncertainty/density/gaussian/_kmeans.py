"""The start of a mixture: clusters split in two, one after the other, and Lloyd's iterations, for a stack of classes.

Nothing looks at the number of a row: the same rows in another order start alike, up to rounding. A cluster is split at
its mean, across the direction in which it is long, and a few steps of 2-means follow. That direction comes from the row
that lies farthest from the mean, by a step of power iteration. Of all clusters the one goes first whose split lowers
the inertia most.

Distances and memberships lie in memory as (k, n): a minimum over few centres then runs over long rows. After the first
iterations few rows change their cluster, so that sums of clusters take in these alone. There are tens of such steps;
what they add in rounding is far below the shift at which the iteration stops.
"""

from __future__ import annotations

import torch
from torch import Tensor

STEPS = 2  # of 2-means, with which starts are as good as greedy k-means++


def kmeans(
    x: Tensor,
    present: Tensor,
    components: int,
    directions: Tensor | None = None,
    *,
    max_iter: int = 300,
    tol: float = 1e-4,
) -> Tensor:
    """Assign each row to one of k clusters: (B, n, k), one-hot.

    Args:
        x: (B, n, d), the rows of each class first, padded to the same n.
        present: 1 for a row, 0 for padding, (B, n).
        components: k.
        directions: for another start, what takes the place of the farthest rows: one per split, (k - 1, d) or more.
            2-means is then left out, as it would lead back to the same splits.
        max_iter: Lloyd iterations at most.
        tol: stop when centres move less than this share of the mean variance.
    """
    if components == 1:
        return present[..., None]
    centres = _split(x, present, components, directions)
    norm = x.square().sum(-1)  # (B, n)
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


def _split(x: Tensor, present: Tensor, components: int, directions: Tensor | None) -> Tensor:
    """Centres of clusters that are split off one by one: (B, k, d)."""
    stack = torch.arange(len(x), device=x.device)[:, None]
    norm = x.square().sum(-1)
    member = x.new_zeros(len(x), components, x.shape[1])  # (B, k, n)
    member[:, 0] = present
    half = torch.zeros_like(member)  # of each cluster: where it would be split
    centres = x.new_zeros(len(x), components, x.shape[2])
    centres[:, :1] = torch.bmm(member[:, :1], x) / present.sum(1)[:, None, None]
    halves = torch.stack([centres, centres])  # of each cluster: the centres it would be split into
    lowered = torch.zeros_like(centres[..., 0])  # by how much that lowers the inertia
    new = torch.zeros_like(stack)  # which clusters are: the first, then the two halves of the one that was split
    for made in range(1, components):
        own, middle = member[stack, new], centres[stack, new]  # (B, 1 or 2, n), (B, 1 or 2, d)
        size = own.sum(2, keepdim=True)
        if directions is None:
            axis = x[stack, (_distances(x, norm, middle) * own).argmax(2)] - middle
        else:
            axis = directions[made - 1].expand_as(middle)
        along = _along(x, own, middle, axis)
        axis = torch.bmm(along, x) - along.sum(2, keepdim=True) * middle
        between = middle
        for _ in range(1 + (STEPS if directions is None else 0)):
            right = own * (_along(x, own, between, axis) > 0)
            some = right.sum(2, keepdim=True)
            rest = (size - some).clamp(min=1)
            one = torch.where(some > 0, torch.bmm(right, x) / some.clamp(min=1), middle)
            other = middle + (middle - one) * some / rest
            between, axis = (one + other) / 2, one - other
        half[stack, new], halves[0, stack, new], halves[1, stack, new] = right, one, other
        lowered[stack, new] = (axis.square().sum(2, keepdim=True) * some * rest / size.clamp(min=1))[..., 0]
        best = lowered.argmax(1, keepdim=True)  # (B, 1)
        member[:, made] = half[stack, best][:, 0]
        member[stack, best] -= half[stack, best]
        centres[:, made], centres[stack, best] = halves[0, stack, best][:, 0], halves[1, stack, best]
        new = torch.cat([best, torch.full_like(best, made)], dim=1)
    return centres


def _along(x: Tensor, own: Tensor, middle: Tensor, axis: Tensor) -> Tensor:
    """How far rows lie from the middle along an axis (B, p, d), to scale, 0 for rows not their own: (B, p, n)."""
    axis = axis / axis.abs().amax(2, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)
    return torch.baddbmm(-(middle * axis).sum(2, keepdim=True), axis, x.mT) * own


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
