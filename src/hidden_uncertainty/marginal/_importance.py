"""Importance samples of vectors: points for integrals of likelihoods that may be far narrower than the marginal."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..precision import full_precision

LADDER = tuple(3.0**-rung for rung in range(5))  # deviations around a prediction, in those of the marginal
WIDE = 1.5  # deviation of the draws that all inputs share, around a normal marginal
EDGE = math.sqrt(3)  # a uniform distribution of unit variance reaches from -√3 to √3
FAR = 1e3  # deviations at which a prediction is clamped, so that nothing overflows
MIN_DRAWS = 16
HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


class Frame(NamedTuple):
    """Standard coordinates u of vectors y = center + L u: the marginal has unit covariance there."""

    center: Tensor  # (q,)
    factor: Tensor  # L, lower triangular (q, q)
    inverse: Tensor  # L⁻¹ (q, q)


def draw(points: int, numbers: int, *, box: bool, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Draws in standard coordinates, in float64: half to share (g, q), half to put around each prediction (l, q).

    The first half is uniform in a box or normal with deviation 1.5; the rungs of the second are normal with deviations
    1, 1/3, 1/9, 1/27 and 1/81. All come from scrambled Sobol sequences.

    Args:
        points: how many, both halves together.
        numbers: q.
        box: whether the marginal is uniform.
        seed: of the scrambling.

    Example:
        >>> shared, offset = draw(1024, 2, box=True)
        >>> shared.shape, offset.shape, bool(shared.abs().max() <= 3**0.5)
        (torch.Size([512, 2]), torch.Size([512, 2]), True)
    """
    counts = _counts(points)
    shared = _sobol(counts[0], numbers, seed)
    shared = EDGE * (2 * shared - 1) if box else WIDE * torch.special.ndtri(shared)
    rungs = [
        scale * torch.special.ndtri(_sobol(count, numbers, seed + 1 + rung))
        for rung, (scale, count) in enumerate(zip(LADDER, counts[1:], strict=True))
    ]
    return shared, torch.cat(rungs)


def spread(prediction: Tensor, frame: Frame, shared: Tensor, offset: Tensor, *, box: bool) -> tuple[Tensor, Tensor]:
    r"""Points for each prediction, and the log volume that each stands for: (n, m, q) and (n, m).

    All draws count as draws of one mixture (balance heuristic), so that no point weighs much more than its neighbours:

    .. math::
        v_{ij} = \frac{1}{m\, q_i(y_{ij})}, \qquad
        m\, q_i(y) = g\, q_\text{shared}(y) + \sum_r l_r\, \mathcal N(y \mid \hat y_i, s_r^2 \Sigma)

    Args:
        prediction: ŷ (n, q).
        frame: the marginal's standard coordinates.
        shared: what `draw` gave (g, q).
        offset: what `draw` gave (l, q).
        box: as given to `draw`.

    Example:
        >>> shared, offset = draw(1024, 2, box=True)
        >>> frame = Frame(torch.zeros(2).double(), torch.eye(2).double(), torch.eye(2).double())
        >>> points, log_volume = spread(torch.zeros(3, 2).double(), frame, shared, offset, box=True)
        >>> inside = (points.abs() <= 3**0.5).all(2)
        >>> (log_volume.exp() * inside).sum(1)  # the volume of the box is 12
        tensor([12.0..., 12.0..., 12.0...], dtype=torch.float64)
    """
    n, numbers = prediction.shape
    counts = _counts(len(shared) + len(offset))
    dtype, device = shared.dtype, shared.device
    with full_precision(device):
        reach = FAR * frame.factor.norm(dim=1)
        prediction = prediction.to(device, torch.promote_types(prediction.dtype, dtype))
        prediction = prediction.clamp(frame.center - reach, frame.center + reach).to(dtype)
        own = prediction[:, None] + offset @ frame.factor.mT  # (n, l, q)
        common = frame.center + shared @ frame.factor.mT  # (g, q)
        at = (prediction - frame.center) @ frame.inverse.mT  # (n, q)

    place = torch.cat([shared.expand(n, -1, -1), at[:, None] + offset], dim=1)  # standard coordinates (n, m, q)
    distance = torch.cat([shared - at[:, None], offset.expand(n, -1, -1)], dim=1).square().sum(2)  # (n, m)
    if box:
        inside = (place.abs() <= EDGE).all(2)
        inside[:, : len(shared)] = True  # despite rounding
        flat = torch.full_like(distance, -numbers * math.log(2 * EDGE))
        log_total = flat.masked_fill(~inside, -math.inf) + math.log(counts[0])
    else:
        log_total = _log_normal(place.square().sum(2), WIDE, numbers) + math.log(counts[0])
    for scale, count in zip(LADDER, counts[1:], strict=True):
        log_total = torch.logaddexp(log_total, _log_normal(distance, scale, numbers) + math.log(count))
    log_scale = frame.factor.diagonal().log().sum()  # of the marginal: from standard coordinates to those of y
    return torch.cat([common.expand(n, -1, -1), own], dim=1), log_scale - log_total


def _counts(points: int) -> list[int]:
    """How many points are shared, and how many there are on each rung."""
    own = points - points // 2
    return [points // 2] + [own // len(LADDER) + (rung < own % len(LADDER)) for rung in range(len(LADDER))]


def _sobol(count: int, numbers: int, seed: int) -> Tensor:
    engine = torch.quasirandom.SobolEngine(numbers, scramble=True, seed=seed)
    return engine.draw(count, dtype=torch.float64) + 2.0**-31  # off the lower edge, by half of the 30 bits' last


def _log_normal(square: Tensor, scale: float, numbers: int) -> Tensor:
    return -0.5 * square / scale**2 - numbers * (math.log(scale) + HALF_LOG_TAU)
