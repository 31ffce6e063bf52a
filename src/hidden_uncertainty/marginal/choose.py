"""Choosing the marginal of numbers: by name, or by the likelihood of a holdout."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .base import check_values
from .beta_prime import BetaPrime
from .continuous import Continuous
from .gaussian import Gaussian
from .histogram import Histogram
from .uniform import Uniform

NAMES: dict[str, type[Continuous]] = {kind.name: kind for kind in (Uniform, Gaussian, BetaPrime, Histogram)}
FEWEST = 10  # predictions that can be split, per number of each


def by_name(name: str, *, points: int | None = None, low: float | None = None, high: float | None = None) -> Continuous:
    """The marginal of that name, not fitted yet.

    Args:
        name: `"uniform"`, `"gaussian"`, `"beta-prime"` or `"histogram"`.
        points: how many points integrals are summed at; see `Continuous`.
        low: where the support begins.
        high: where it ends.

    Example:
        >>> by_name("uniform", low=-10, high=10, points=1000)
        Uniform(points=1000, low=-10.0, high=10.0)
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

    Each distribution that can hold y is fitted to four fifths of it, and the best is fitted again to all. The smallest
    and the largest value are never in the holdout: they would rule out every bounded distribution that is fitted
    without them. The mean log-likelihoods of the holdout stay in `compared`.

    Args:
        y: values, (n,) numbers or (n, q) vectors.
        seed: decides the split.
        points: how many points integrals are summed at; see `Continuous`.
        low: where the support begins; a uniform distribution begins there too.
        high: where it ends.

    Example:
        >>> marginal = choose(torch.randn(1000, generator=torch.Generator().manual_seed(0)))
        >>> marginal
        Gaussian()
        >>> sorted(marginal.compared)
        ['gaussian', 'histogram', 'uniform']
    """
    check_values(y)
    needed = FEWEST * y[0].numel()
    if len(y) < needed:
        raise ValueError(f"choosing needs at least {needed} predictions, not {len(y)}: name a distribution instead.")
    candidates = [by_name(name, points=points, low=low, high=high) for name in NAMES]
    values = y.detach().to("cpu", torch.promote_types(y.dtype, torch.float32))
    reasons = [candidate._refuses(values) for candidate in candidates]
    possible = [candidate for candidate, reason in zip(candidates, reasons, strict=True) if reason is None]
    if not possible:
        raise ValueError(" ".join(dict.fromkeys(reason for reason in reasons if reason is not None)))
    compared = {}
    fitted, holdout = _split(values.double(), seed)
    for candidate in possible:
        candidate._estimate(fitted)
        compared[candidate.name] = float(candidate._log_prob(holdout).mean())
    best = max(possible, key=lambda candidate: compared[candidate.name])
    best.fit(y)
    best.compared = compared
    return best


def _split(y: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed), device="cpu")
    extreme = torch.cat([y.argmin(0).flatten(), y.argmax(0).flatten()])
    order = order[~torch.isin(order, extreme)]
    count = math.ceil(len(order) / 5)
    return torch.cat([y[order[count:]], y[extreme.unique()]]), y[order[:count]]
