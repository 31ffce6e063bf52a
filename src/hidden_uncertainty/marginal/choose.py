"""Choosing the marginal of numbers: by name, or by the likelihood of a holdout."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .base import check_values
from .continuous import Continuous
from .scalars import BetaPrime, Histogram
from .vectors import Gaussian, Uniform

NAMES: dict[str, type[Continuous]] = {kind.name: kind for kind in (Uniform, Gaussian, BetaPrime, Histogram)}
FEWEST = 10  # predictions that can be split, per number of each


def by_name(name: str, *, points: int | None = None, low: float | None = None, high: float | None = None) -> Continuous:
    """The marginal of that name, not fitted yet.

    Args:
        name: `"uniform"`, `"gaussian"`, `"beta-prime"` or `"histogram"`.
        points, low, high: as for `Continuous`.

    Example:
        >>> by_name("uniform", low=-10, high=10, points=1000)
        Uniform(low=-10.0, high=10.0, points=1000)
    """
    if name == "auto":
        raise ValueError("marginal='auto' depends on the predictions: use choose(y).")
    if name not in NAMES:
        known = ", ".join(repr(known) for known in NAMES)
        raise ValueError(f"marginal must be one of {known} or 'auto', not {name!r}.")
    return NAMES[name](points=points, low=low, high=high)


def choose(
    y: Tensor, *, seed: int = 0, points: int | None = None, low: float | None = None, high: float | None = None
) -> Continuous:
    """Fit the distribution under which a holdout of a fifth of the values is likeliest.

    Only distributions with tails come into question, because inputs that nothing was fitted to have predictions beyond
    all values. Each that can hold y is fitted to four fifths of it, and the best is fitted again to all. The mean
    log-likelihoods of the holdout stay in `compared`. The order of the values changes nothing. Vectors have one such
    distribution, the Gaussian.

    Args:
        y: values, (n,) numbers or (n, q) vectors.
        seed: decides the split.
        points, low, high: as for `Continuous`.

    Example:
        >>> marginal = choose(torch.randn(1000, generator=torch.Generator().manual_seed(0)))
        >>> marginal
        Gaussian()
        >>> sorted(marginal.compared)
        ['gaussian', 'histogram']
    """
    check_values(y)
    needed = FEWEST * y[0].numel()
    if len(y) < needed:
        raise ValueError(f"choosing needs at least {needed} predictions, not {len(y)}: name a distribution instead.")
    options: dict[str, Any] = {"points": points, "low": low, "high": high}
    candidates = [Gaussian(**options), BetaPrime(None, **options), Histogram(**options)]
    values = y.detach().to("cpu", torch.promote_types(y.dtype, torch.float32))
    reasons = [candidate._refuses(values) for candidate in candidates]
    possible = [candidate for candidate, reason in zip(candidates, reasons, strict=True) if reason is None]
    if not possible:
        raise ValueError(" ".join(dict.fromkeys(reason for reason in reasons if reason is not None)))
    if y.dim() == 2:
        return possible[0].fit(y)
    ordered = values.double().sort().values
    drawn = torch.randperm(len(y) - 2, generator=torch.Generator().manual_seed(seed), device="cpu")
    holdout, fitted = ordered[1:-1][drawn].tensor_split([-(-len(drawn) // 5)])
    fitted = torch.cat([ordered[:1], fitted, ordered[-1:]])  # of which not all are the same
    compared = {}
    for candidate in possible:
        candidate._estimate(fitted)
        compared[candidate.name] = float(candidate._log_prob(holdout).mean())
    best = max(possible, key=lambda candidate: compared[candidate.name])
    best.fit(y)
    best.compared = compared
    return best
