"""Support points in the shape that densities of numbers and vectors work with."""

from __future__ import annotations

from torch import Tensor


def as_vectors(support: Tensor, numbers: int, rows: int) -> Tensor:
    """Support points as (m, q), or (n, m, q) where every row has its own.

    Args:
        support: (m,) where y is one number, (m, q) or (n, m, q).
        numbers: q, as fitted.
        rows: n, of what is scored.

    Example:
        >>> as_vectors(torch.zeros(5), numbers=1, rows=3).shape
        torch.Size([5, 1])
    """
    y = support[:, None] if support.dim() == 1 and numbers == 1 else support
    if y.dim() not in (2, 3) or y.shape[-1] != numbers or (y.dim() == 3 and len(y) != rows):
        one = "(m,), " if numbers == 1 else ""
        raise ValueError(
            f"expected support of shape {one}(m, {numbers}) or ({rows}, m, {numbers}), as fitted, not "
            f"{tuple(support.shape)}."
        )
    return y
