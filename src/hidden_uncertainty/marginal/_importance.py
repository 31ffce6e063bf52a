"""Importance samples of vectors: points for integrals of likelihoods that may be narrow, and far from the marginal."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

LADDER = tuple(3.0**-rung for rung in range(5))  # deviations around a prediction, in those of the marginal
AROUND = (1.2, 1.2, 1.2, 2.4, 4.8)  # deviations around p(y|z) once it is found, in its own
WIDE = 1.5  # deviation of the draws that all inputs share, around a normal marginal
EDGE = math.sqrt(3)  # a uniform distribution of unit variance reaches from -√3 to √3
INSIDE = 1 - 1e-9  # of the way to an edge
FAR = 1e3  # deviations at which a prediction is clamped, so that nothing overflows
POWERS = tuple(8.0**-power for power in range(1, 6))
ENOUGH = 10  # points that count, to see where p(y|z) lies
MIN_DRAWS = 16
HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


class Frame(NamedTuple):
    """Coordinates of vectors y = center + L u in float64, where u has unit covariance under the marginal.

    In a box, coordinates are x with u = √3 tanh(x/2) instead: no x lies outside, and what p(y|z) holds at an edge is as
    smooth in x as what it holds elsewhere.
    """

    center: Tensor  # (q,)
    factor: Tensor  # L, lower triangular (q, q)
    inverse: Tensor  # L⁻¹ (q, q)
    box: bool = False

    def standard(self, y: Tensor) -> Tensor:
        """Coordinates of y (..., q); what lies outside of a box is put at its edge."""
        u = (y.double() - self.center) @ self.inverse.mT
        return unbounded(u) if self.box else u.clamp(-FAR, FAR)

    def vectors(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """y of coordinates (..., q), and the logarithm of the volume that a unit of coordinates has, (...)."""
        u, log_volume = x, self.factor.diagonal().log().sum()
        if self.box:
            u = EDGE * (x / 2).tanh().clamp(-INSIDE, INSIDE)
            log_volume = log_volume + (math.log(2 * EDGE) + _log_logistic(x)).sum(-1)
        return self.center + u @ self.factor.mT, log_volume.expand(x.shape[:-1])


class Place(NamedTuple):
    """Where p(y|z) of each input is thought to lie, in the frame's coordinates."""

    center: Tensor  # (n, q)
    factor: Tensor  # of the covariance, lower triangular (n, q, q)
    scales: Tensor  # of the rungs that draws around it are on, (n, 5)

    def where(self, which: Tensor, other: Place) -> Place:
        """This place for some inputs (n,), and another for the others."""
        pairs = zip(self, other, strict=True)
        return Place(*(torch.where(which.view(-1, *[1] * (a.dim() - 1)), a, b) for a, b in pairs))


def unbounded(u: Tensor) -> Tensor:
    """x of u in a box."""
    return 2 * (u / EDGE).clamp(-INSIDE, INSIDE).atanh()


def draw(points: int, numbers: int, *, box: bool) -> tuple[Tensor, Tensor]:
    """Draws in standard coordinates, in float64: half to share (g, q), half to put around each prediction (l, q).

    The first half is uniform in a box or normal with deviation 1.5; the rungs of the second are normal with deviations
    1, 1/3, 1/9, 1/27 and 1/81. All come from scrambled Sobol sequences.
    """
    counts = _counts(points)
    shared = _sobol(counts[0], numbers, seed=0)
    shared = EDGE * (2 * shared - 1) if box else WIDE * torch.special.ndtri(shared)
    rungs = [
        scale * torch.special.ndtri(_sobol(count, numbers, seed))
        for seed, (scale, count) in enumerate(zip(LADDER, counts[1:], strict=True), start=1)
    ]
    return shared, torch.cat(rungs)


def around(center: Tensor) -> Place:
    """Near coordinates (n, q); the farther out these are, the less near."""
    unit = 1 + center.abs().amax(1, keepdim=True) / 2
    return Place(center, torch.diag_embed(unit.expand_as(center)), center.new_tensor(LADDER).expand(len(center), -1))


def wider(place: Place, center: Tensor) -> Place:
    """A place of the same form around other coordinates, with draws from far wider to far narrower ones."""
    return Place(center, place.factor, 9 * center.new_tensor(LADDER).expand(len(center), -1))


def locate(x: Tensor, log_density: Tensor, log_volume: Tensor) -> tuple[Place, Tensor]:
    r"""Where p(y|z) lies, its mean and covariance, and whether enough points lay there to tell, (n,).

    Where too few did, :math:`p^\tau` is looked at instead, with τ = 1/8, 1/64 … as they need. A Gaussian's covariance
    is τ times that of :math:`p^\tau`; to it comes the uncertainty of the mean. Of points x (n, m, q) the density is
    known but for a constant, (n, m), and the volume that each stands for, (n, m).
    """
    fall = (log_density - log_density.amax(1, keepdim=True)).double().clamp(min=-1e30)
    weight = (fall + log_volume).softmax(1)
    enough = weight.square().sum(1, keepdim=True) < 1 / ENOUGH
    tau = fall.new_ones(len(x), 1)
    for power in POWERS:
        if not torch.compiler.is_compiling() and bool(enough.all()):
            break
        other = (power * fall + log_volume).softmax(1)
        tau, weight = torch.where(enough, tau, power), torch.where(enough, weight, other)
        enough = enough | (other.square().sum(1, keepdim=True) < 1 / ENOUGH)
    center = torch.einsum("nm,nmq->nq", weight, x)
    away = x - center[:, None]
    sure = tau == 1
    share = torch.where(sure, 1.0, tau + 1 / ENOUGH)
    covariance = share[..., None] * torch.einsum("nm,nmp,nmq->npq", weight, away, away)
    size = covariance.diagonal(dim1=1, dim2=2).mean(1).clamp(min=1e-24)
    covariance = covariance + 1e-4 * torch.diag_embed(size[:, None].expand_as(center))
    scales = center.new_tensor(AROUND).expand(len(center), -1)
    return Place(center, _cholesky(covariance), scales), sure[:, 0]


class Draws(NamedTuple):
    """Some of the draws, as `spread` reads them."""

    shared: Tensor  # coordinates (g, q)
    normal: Tensor  # draws around each input before they are scaled, (l, q)
    rung: Tensor  # which each is on, (l,)
    log_counts: Tensor  # of each rung, (5,)
    box: bool


def chosen(shared: Tensor, offset: Tensor, points: int, *, box: bool) -> Draws:
    """The first draws on each rung, as many as points at least: Sobol sequences are even from their beginning."""
    total = len(shared) + len(offset)
    every = max(1, total // points)
    rungs = [rung[: -(-len(rung) // every)] for rung in offset.double().split(_counts(total)[1:])]
    normal = torch.cat([rung / own for rung, own in zip(rungs, LADDER, strict=True)])
    shared = shared[: -(-len(shared) // every)].double()
    counts = normal.new_tensor([len(rung) for rung in rungs])
    rung = torch.repeat_interleave(counts.long())
    return Draws(unbounded(shared) if box else shared, normal, rung, counts.log(), box)


def spread(place: Place, draws: Draws) -> tuple[Tensor, Tensor]:
    r"""Coordinates of points for each input, and the log volume in them that each stands for: (n, m, q) and (n, m).

    All draws count as draws of one mixture (balance heuristic), so that no point weighs much more than its neighbours:

    .. math::
        v_{ij} = \frac{1}{m\, q_i(x_{ij})}, \qquad
        m\, q_i(x) = g\, q_\text{shared}(x) + \sum_r l_r\, \mathcal N(x \mid \mu_i, s_r^2 \Sigma_i)

    with μ, Σ and the scales s of the place, from draws (g, l) that `chosen` gave.
    """
    center, factor, scales = place
    n, numbers = center.shape
    width = scales.index_select(1, draws.rung)  # (n, l)
    own = torch.baddbmm(center[:, None], width[..., None] * draws.normal, factor.mT)
    x = torch.cat([draws.shared.expand(n, -1, -1), own], dim=1)  # (n, m, q)
    white = _solve(factor, draws.shared - center[:, None])
    square = torch.cat([white.square().sum(2), width.square() * draws.normal.square().sum(1)], dim=1)  # (n, m)
    shared = _log_common(draws.shared, len(draws.shared), box=draws.box).expand(n, -1)
    log_total = torch.cat([shared, _log_common(own, len(draws.shared), box=draws.box)], dim=1)
    log_size = factor.diagonal(dim1=1, dim2=2).log().sum(1, keepdim=True)
    log_counts = draws.log_counts - log_size - numbers * (scales.log() + HALF_LOG_TAU)  # (n, 5)
    steepness = -0.5 / scales.square()
    for rung in range(len(LADDER)):
        here = torch.addcmul(log_counts[:, rung, None], square, steepness[:, rung, None])
        log_total = torch.logaddexp(log_total, here)
    return x, -log_total


def _log_common(x: Tensor, count: int, *, box: bool) -> Tensor:
    """log of how many of the shared draws lie around coordinates (..., q), per unit of volume."""
    if box:
        return math.log(count) + _log_logistic(x).sum(-1)
    log_count = math.log(count) - x.shape[-1] * (math.log(WIDE) + HALF_LOG_TAU)
    return log_count - 0.5 / WIDE**2 * x.square().sum(-1)


def _counts(points: int) -> list[int]:
    """How many points are shared, and how many there are on each rung."""
    own = points - points // 2
    return [points // 2] + [own // len(LADDER) + (rung < own % len(LADDER)) for rung in range(len(LADDER))]


def _sobol(count: int, numbers: int, seed: int) -> Tensor:
    engine = torch.quasirandom.SobolEngine(numbers, scramble=True, seed=seed)
    return engine.draw(count, dtype=torch.float64) + 2.0**-31  # off the lower edge, by half of the 30 bits' last


def _log_logistic(x: Tensor) -> Tensor:
    """The density of x in a box, where u is uniform."""
    return -x.abs() - 2 * (-x.abs()).exp().log1p()


def _cholesky(covariance: Tensor) -> Tensor:
    """The lower factor of (n, q, q), column by column: q is small, and graphs that are exported have no Cholesky."""
    columns: list[Tensor] = []
    for j in range(covariance.shape[1]):
        column = covariance[:, :, j]
        for before in columns:
            column = column - before * before[:, j : j + 1]
        pivot = column[:, j : j + 1].clamp(min=torch.finfo(column.dtype).tiny).sqrt()
        columns.append(torch.cat([torch.zeros_like(column[:, :j]), pivot, column[:, j + 1 :] / pivot], dim=1))
    return torch.stack(columns, dim=2)


def _solve(factor: Tensor, x: Tensor) -> Tensor:
    """L⁻¹ x for lower factors (n, q, q) and x (n, m, q)."""
    solved: list[Tensor] = []
    for j in range(factor.shape[1]):
        rest = x[..., j]
        for i, before in enumerate(solved):
            rest = rest - factor[:, j, i, None] * before
        solved.append(rest / factor[:, j, j, None])
    return torch.stack(solved, dim=2)
