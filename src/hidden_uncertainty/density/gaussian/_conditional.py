"""A Gaussian mixture over (y, u) taken apart into p(y) and p(u | y)."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, Self

import torch
from torch import Tensor

from ...io import expect
from ...stored import Stored
from ..linalg import check_factor, log_det, precision_factor
from ._em import Mixtures, distances, whiten_means
from ._packed import pack, packed_squares

JointCovariance = Literal["full", "tied", "diag"]


class Given(NamedTuple):
    """Points y, as p(u | y) reads them."""

    prior: Tensor  # log w_k N_k(y) from its largest on, (k, n or 1, m)
    moves: Tensor  # (y - μ_y) Rᵀ, (s, k, n or 1, m)


class Conditional(Stored):
    r"""p(u | y) of a mixture over (y, u), for many points y at little more than the cost of one.

    .. math:: p(u \mid y) = \sum_k \frac{w_k\, \mathcal N_k(y)}{\sum_j w_j\, \mathcal N_j(y)}\, \mathcal N_k(u \mid y)

    With y first, the upper triangular W = [[A, V], [0, Z]] of a component's Σ⁻¹ = W Wᵀ is enough: A whitens y, and u
    given y has the residual a + (y - μ_y) V, where a = (u - μ_u) Z. A decomposition Vᵀ = Q R splits it into a - a Q Qᵀ,
    which does not depend on y, and a Q + (y - μ_y) Rᵀ, which is as short as y: m points cost m short squares.
    """

    y_scale: Tensor  # log w_k + log |A| - q/2 log 2π, (k,)
    y_mean: Tensor  # (k, q)
    y_factor: Tensor  # A, (k, q, q)
    u_scale: Tensor  # log |Z| - r/2 log 2π, (k,)
    across: Tensor  # U, the same distances as Z (I - Q Qᵀ): (k, r, r), (r, r) or (k, r)
    across_bias: Tensor  # μ_u U, (k, r)
    along: Tensor  # Z Q, (k, r, s)
    along_bias: Tensor  # μ_u Z Q, (k, s)
    slope: Tensor  # R, (k, s, q)
    along_factor: Tensor  # of the precision of a Q when y is not given, (k, s, s)

    def __init__(self, covariance: JointCovariance) -> None:
        super().__init__()
        self.covariance = covariance  # the form of the mixture's factors
        for name in Conditional.__annotations__:
            self.register_buffer(name, None)
        self._prepare()

    def take_apart(self, mixtures: Mixtures, q: int, dtype: torch.dtype) -> Self:
        """Fill the buffers, computed in float64, from a stack of one mixture whose first q dimensions are y."""
        made = mixtures.log_weight[0].isfinite()
        log_weight, mean = mixtures.log_weight[0, made].double(), mixtures.mean[0, made].double()
        factor = mixtures.factor[0].double()
        k, r = len(mean), mean.shape[1] - q
        if self.covariance == "diag":
            y_part, across = factor[made].split([q, r], dim=1)
            y_factor, determinant = torch.diag_embed(y_part), across.log().sum(1)
            along, slope, along_factor = mean.new_zeros(k, r, 0), mean.new_zeros(k, 0, q), mean.new_zeros(k, 0, 0)
        else:
            parts = [_part(w, q) for w in (factor[None] if self.covariance == "tied" else factor[made])]
            y_factor, determinant, across, along, slope, along_factor = map(torch.stack, zip(*parts, strict=True))
            if self.covariance == "tied":  # one for all components
                across = across[0]
                y_factor, along, slope, along_factor = (
                    part.expand(k, -1, -1) for part in (y_factor, along, slope, along_factor)
                )
        y_mean, u_mean = mean.split([q, r], dim=1)
        found = {
            "y_scale": log_weight + log_det(y_factor) - 0.5 * q * math.log(2 * math.pi),
            "y_mean": y_mean,
            "y_factor": y_factor,
            "u_scale": (determinant - 0.5 * r * math.log(2 * math.pi)).expand(k),
            "across": across,
            "across_bias": whiten_means(u_mean[None], across[None], self.covariance)[0],
            "along": along,
            "along_bias": (u_mean[:, None] @ along)[:, 0],
            "slope": slope,
            "along_factor": along_factor,
        }
        for name, value in found.items():
            setattr(self, name, value.to(dtype).contiguous())
        self._prepare()
        return self

    def coordinates(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """The two parts of u (n, r): ‖(u - μ_u) U‖² (k, n), and a Q (s, k, n)."""
        if self._packed is None:
            across = distances(u[None], self.across[None], self.across_bias[None], self.covariance)[0]
        else:
            across = packed_squares(u[None], self._packed)[0]
        along = torch.addmm(self._start, u, self._wide).view(u.shape[0], *self.along_bias.shape)
        return across.mT, along.permute(2, 1, 0)

    def given(self, y: Tensor) -> Given:
        """What y (m, q) or (n, m, q) in float64 alone decides: log w_k N_k(y), and (y - μ_y) Rᵀ."""
        y = y if y.dim() == 3 else y[None]
        q, away = y.shape[-1], self._shift
        for part, slope in zip(y.unbind(-1), self._slopes, strict=True):
            away = torch.addcmul(away, part, slope)  # (q + s, k, n, m)
        squares = away[0].square() if q == 1 else away[:q].square().sum(0)
        prior = torch.sub(self._scale, squares, alpha=0.5)
        dtype = self.slope.dtype
        return Given((prior - prior.amax(0)).to(dtype), away[q:].to(dtype))

    def log_prob(self, across: Tensor, along: Tensor, given: Given) -> Tensor:
        """log p(u | y) from the coordinates of u, for y as `given` prepares them: (n, m)."""
        squares = across[..., None]
        for own, move in zip(along, given.moves, strict=True):
            squares = squares + (own[..., None] + move).square()  # (k, n, m)
        return _mix(given.prior + self.u_scale[:, None, None], squares) - _log_sum(given.prior)

    def log_evidence(self, across: Tensor, along: Tensor) -> Tensor:
        """log p(u), y integrated out, from the coordinates of u: (n,)."""
        white = torch.einsum("skn,kst->tkn", along, self.along_factor)
        log_weight = self.y_scale - log_det(self.y_factor) + 0.5 * self.y_mean.shape[1] * math.log(2 * math.pi)
        scale = log_weight + self.u_scale + log_det(self.along_factor)
        return _mix(scale[:, None], across + white.square().sum(0))

    def log_prior(self, y: Tensor) -> Tensor:
        """log w_k + log N_k(y) for y (n, q) in float64: (k, n)."""
        white = torch.einsum("knq,kqp->knp", y - self.y_mean.double()[:, None], self.y_factor.double())
        return self.y_scale.double()[:, None] - 0.5 * white.square().sum(-1)

    def _prepare(self) -> None:
        """Make what scoring reads of the buffers: it is not saved, and made again whenever they change."""
        self._packed: Tensor | None = None
        self.latest: tuple[Tensor, int, Given] | None = None  # points, their version, and what `given` gave
        if self.slope is None or self.slope.is_meta:
            return
        if self.covariance == "full":
            self._packed = pack(self.across[None], self.across_bias[None])
        self._wide, self._start = self.along.transpose(0, 1).flatten(1), -self.along_bias.flatten()
        # The columns of A, then the rows of R: lines of y, in float64.
        lines = torch.cat([self.y_factor.mT, self.slope], dim=1).double().transpose(0, 1)  # (q + s, k, q)
        self._shift = -(self.y_mean.double() * lines).sum(-1)[..., None, None]
        self._slopes = [slope[..., None, None] for slope in lines.unbind(-1)]
        self._scale = self.y_scale.double()[:, None, None]

    def check(self) -> None:
        """Raise a ValueError where the tensors cannot be those of a fit."""
        if self.slope is None:
            return
        check_factor(self.y_factor)
        check_factor(self.along_factor)
        triangular = self.across > 0 if self.covariance == "diag" else self.across.tril(-1) == 0
        expect(triangular, "the factor of a covariance is not triangular")
        log_weight = self.y_scale - log_det(self.y_factor) + 0.5 * self.y_mean.shape[1] * math.log(2 * math.pi)
        expect(log_weight.logsumexp(0).abs() < 1e-3, "the weights of components do not sum to one")


def _part(w: Tensor, q: int) -> tuple[Tensor, ...]:
    """A, log |Z|, U, Z Q, R and the factor for a Q, of one component's W (q + r, q + r)."""
    a, v, z = w[:q, :q], w[:q, q:], w[q:, q:]
    basis, slope = torch.linalg.qr(v.mT)  # (r, s), (s, q) with s = min(q, r)
    along = z @ basis
    # `distances` wants an upper triangular factor: Z (I - Q Qᵀ) = U times a rotation, which changes no distance.
    upper = torch.linalg.qr((z - along @ basis.mT).flip(0).mT, mode="r")[1].mT.flip(0, 1)
    spread = torch.linalg.solve_triangular(a.mT, slope, upper=False, left=False)  # of (y - μ_y) Rᵀ, as a root
    eye = torch.eye(len(slope), dtype=w.dtype, device=w.device)
    return a, log_det(z), upper, along, slope, precision_factor(eye + spread @ spread.mT)[0]


def _mix(scale: Tensor, squares: Tensor) -> Tensor:
    """logsumexp of scale - ½ squares over components, (k, ...), finite when squares overflow."""
    return _log_sum(scale - 0.5 * squares.clamp(max=torch.finfo(squares.dtype).max / 8))


def _log_sum(x: Tensor) -> Tensor:
    """logsumexp over the first dimension; exp is slow where it underflows, so that is kept from it."""
    top = x.amax(0)
    return top + (x - top).clamp(min=-80).exp().sum(0).log()
