"""A Gaussian mixture over predictions and activations together: the density in closed form for regression."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple, Self, get_args

import torch
from torch import Tensor

from ...io import expect
from ...notes import warn
from ...precision import precise
from ...stored import Stored
from ..base import Density, as_vectors, check_counts, check_covariance, check_dtype, check_numbers
from ..directions import Directions, draw_holdout
from ..linalg import Shrinkage, check_factor, log_det, own_order
from ._classes import ClassFit, fit_classes
from ._em import EMOptions, Mixtures, component_log_prob, distances, whiten_means
from ._packed import pack, packed_squares

JointCovariance = Literal["full", "tied", "diag"]
CHUNK = 1 << 22  # elements of an intermediate at most
ON_GPU = 8  # times as many, which small pieces would leave idle
IN_CACHE = 1 << 17  # elements that stay in a core's cache: five times as fast
FAR = 1e15  # deviations of ŷ at which it saturates, so that squares fit float32


class JointMixture(Density):
    r"""One Gaussian mixture over (ŷ, z), for predictions that are numbers or vectors; nothing is trained by gradient.

    .. math:: p(z \mid y) = \sum_k \frac{w_k\, \mathcal N_k(y)}{\sum_j w_j\, \mathcal N_j(y)}\, \mathcal N_k(z \mid y)

    The mixture is fitted to standardised predictions and to whitened coordinates of z, in the directions in which z
    varies at all; what lies off those gets a Gaussian of its own.

    ŷ is a function of z, at the penultimate layer an affine one, so the true joint density is singular and p(ŷ|z) has
    only the width that `noise` gives it, there up to 1.4 times `noise` deviations of ŷ, and more where covariances are
    shrunk. Read it as the resolution at which the density looks.

    Args:
        components: Gaussians; fewer where there are not `min_samples` samples for each, with a warning.
        covariance: `"full"`, `"tied"` (one for all components) or `"diag"` (ŷ and z independent within a component).
        noise: deviation of the Gaussian blur given to predictions and coordinates, as a share of their own.
        shrinkage: how covariances are shrunk towards a multiple of the identity: `"ledoit-wolf"`, `"oas"` or None.
            `"auto"` fits with Ledoit-Wolf and with None, takes what makes a holdout of a tenth of the rows likelier,
            and fits to all; `"diag"` needs none.
        tol, max_iter, dtype: as for `GaussianMixture`.
        min_samples: samples that there must be for each component.
        seed: decides which rows check the scales of the coordinates.

    Example:
        >>> z = torch.randn(600, 4, generator=torch.Generator().manual_seed(0))
        >>> y = z[:, 0] + z[:, 1].square()
        >>> density = JointMixture(components=5).fit(z, y)                      # z (n, d), y (n,) or (n, q)
        >>> density.log_prob(z, support=torch.linspace(-2, 4, 50)).shape        # one column per support point
        torch.Size([600, 50])
    """

    shown = ("components", "covariance", "noise")

    y_center: Tensor  # (q,)
    y_deviation: Tensor  # (q,)

    def __init__(
        self,
        components: int = 10,
        *,
        covariance: JointCovariance = "full",
        noise: float = 0.05,
        shrinkage: Shrinkage | Literal["auto"] | None = "auto",
        tol: float = 1e-2,
        max_iter: int = 300,
        min_samples: int = 10,
        dtype: Literal["float32", "float64"] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        check_counts(components=components, max_iter=max_iter, min_samples=min_samples)
        check_covariance(covariance, get_args(JointCovariance), shrinkage)
        check_dtype(dtype)
        if not noise > 0:
            raise ValueError(f"noise must be above zero, not {noise}: ŷ is a function of z.")
        self.components, self.covariance, self.noise, self.shrinkage = components, covariance, noise, shrinkage
        self.tol, self.max_iter, self.min_samples = tol, max_iter, min_samples
        self.dtype, self.seed = dtype, seed
        self.directions, self.conditional = Directions(), Conditional(covariance)
        self.register_buffer("y_center", None)
        self.register_buffer("y_deviation", None)

    @precise
    def _fit(self, z: Tensor, y: Tensor) -> Self:
        z, y = check_numbers(z, y, self.dtype)
        order = own_order(z, y[:, 0])
        z, y = z[order], y[order]
        holdout = draw_holdout(len(z), 0.1, self.seed, z.device)
        directions = Directions().fit(z, holdout=holdout)
        center, deviation = y.mean(0).to(z.dtype), y.std(0).to(z.dtype)
        x = torch.cat([((y - center) / deviation).to(z.dtype), directions(z)[0]], dim=1)  # (n, q + r)
        fit = self._fit_mixture(x, self._choose_shrinkage(x, holdout))
        self.conditional = Conditional(self.covariance).take_apart(fit.mixtures, y.shape[1], z.dtype)
        self.directions, self.y_center, self.y_deviation = directions, center, deviation
        made = len(self.conditional.y_scale)
        if made < self.components and fit.fallbacks:  # not where few values repeat
            warn(
                f"{len(z)} samples are too few for {self.components} components of {self.min_samples} each: fitted "
                f"{made}. More data, or fewer components, would help."
            )
        if not bool(fit.converged.all()):
            warn(
                f"EM did not converge in max_iter={self.max_iter} steps: raise max_iter or tol, or use fewer "
                "components."
            )
        return self

    def _choose_shrinkage(self, x: Tensor, holdout: Tensor) -> Shrinkage | None:
        if self.shrinkage != "auto":
            return self.shrinkage
        if self.covariance == "diag":
            return None

        def likelihood(shrinkage: Shrinkage | None) -> float:
            log_weight, mean, factor = self._fit_mixture(x[~holdout], shrinkage).mixtures
            mixtures = Mixtures(log_weight, mean.to(x.dtype), factor)
            return float(component_log_prob(x[None, holdout], mixtures, self.covariance).logsumexp(-1).mean())

        return "ledoit-wolf" if likelihood("ledoit-wolf") > likelihood(None) else None

    def _fit_mixture(self, x: Tensor, shrinkage: Shrinkage | None) -> ClassFit:
        names = ("covariance", "tol", "max_iter", "components", "min_samples")
        options = EMOptions(shrinkage=shrinkage, ridge=self.noise**2, **{name: getattr(self, name) for name in names})
        try:
            one = torch.zeros(len(x), dtype=torch.long, device=x.device)
            return fit_classes(x, one, options, variance=1.0)  # of standardised predictions and coordinates
        except ValueError as error:
            raise ValueError(
                "the covariance of predictions and activations is singular to working precision even with "
                f"noise={self.noise:g}: raise noise."
            ) from error

    def log_prob(self, z: Tensor, support: Tensor) -> Tensor:
        """log p(z | y) for z (n, d): (n, m). Finite for finite z and support, however far away.

        The support is predictions (m,) where they are numbers, (m, q), or (n, m, q) with separate points for every row.
        """
        z, support = self._tensors(z, support)
        return self.given(z)(support)

    @precise
    def given(self, z: Tensor) -> Callable[..., Tensor]:
        """`log_prob` of these z as a function of the support and of rows: what depends on z alone is done once."""
        self._check(z, self.directions.dim)
        u, off = self.directions(z)
        whole = (off, *self.conditional.coordinates(u))  # (n,), (k, n), (s, k, n)
        numbers, along_bias = len(self.y_center), self.conditional.along_bias
        most = CHUNK * ON_GPU if z.is_cuda else min(CHUNK, IN_CACHE)
        pairs = max(1, most // (len(along_bias) * (numbers + along_bias.shape[1])))

        def log_prob(support: Tensor, rows: Tensor | None = None) -> Tensor:
            rest, across, along = whole if rows is None else [part[..., rows] for part in whole]
            y = as_vectors(support, numbers, rest.shape[0])
            if torch.compiler.is_compiling():  # a graph has no loops
                return rest[:, None] + self.conditional.log_prob(across, along, self._given(y))
            size, found = max(1, pairs // max(1, y.shape[-2])), []
            shared = [self._given(few) for few in y.split(pairs)] if y.dim() == 2 else None
            for i in range(0, max(1, len(rest)), size):
                some = slice(i, i + size)
                points = shared or [self._given(few) for few in y[some].split(pairs, dim=1)]
                columns = [self.conditional.log_prob(across[:, some], along[..., some], given) for given in points]
                found.append(torch.cat(columns, dim=1))
            return rest[:, None] + torch.cat(found)

        return log_prob

    def _given(self, y: Tensor) -> Given:
        deviations = (y.double() - self.y_center.double()) / self.y_deviation.double()
        return self.conditional.given(deviations.clamp(-FAR, FAR))

    def check(self) -> None:
        """Raise a ValueError where the tensors cannot be those of a fit."""
        expect(self.y_deviation is None or self.y_deviation > 0, "a deviation of ŷ is not positive")


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
    along_factor: Tensor | None  # in files of versions before 0.2.0, which nothing reads any more

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
            along, slope = mean.new_zeros(k, r, 0), mean.new_zeros(k, 0, q)
        else:
            parts = [_part(w, q) for w in (factor[None] if self.covariance == "tied" else factor[made])]
            y_factor, determinant, across, along, slope = map(torch.stack, zip(*parts, strict=True))
            if self.covariance == "tied":  # one for all components
                across = across[0]
                y_factor, along, slope = (part.expand(k, -1, -1) for part in (y_factor, along, slope))
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
        squares = squares.clamp(max=torch.finfo(squares.dtype).max / 8)  # they may overflow
        return _log_sum(given.prior + self.u_scale[:, None, None] - 0.5 * squares) - _log_sum(given.prior)

    def _prepare(self) -> None:
        self._packed: Tensor | None = None
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
        triangular = self.across > 0 if self.covariance == "diag" else self.across.tril(-1) == 0
        expect(triangular, "the factor of a covariance is not triangular")
        log_weight = self.y_scale - log_det(self.y_factor) + 0.5 * self.y_mean.shape[1] * math.log(2 * math.pi)
        expect(log_weight.logsumexp(0).abs() < 1e-3, "the weights of components do not sum to one")


def _part(w: Tensor, q: int) -> tuple[Tensor, ...]:
    """A, log |Z|, U, Z Q and R of one component's W (q + r, q + r)."""
    a, v, z = w[:q, :q], w[:q, q:], w[q:, q:]
    basis, slope = torch.linalg.qr(v.mT)  # (r, s), (s, q) with s = min(q, r)
    along = z @ basis
    # `distances` wants an upper triangular factor: Z (I - Q Qᵀ) = U times a rotation, which changes no distance.
    upper = torch.linalg.qr((z - along @ basis.mT).flip(0).mT, mode="r")[1].mT.flip(0, 1)
    return a, log_det(z), upper, along, slope


def _log_sum(x: Tensor) -> Tensor:
    """logsumexp over the first dimension; exp is slow where it underflows, so that is kept from it."""
    top = x.amax(0)
    return top + (x - top).clamp(min=-80).exp().sum(0).log()
