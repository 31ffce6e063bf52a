"""A Gaussian mixture over predictions and activations together: the density in closed form for regression."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Self, get_args

import torch
from torch import Tensor

from ...arrays import pieces
from ...io import expect
from ...notes import warn
from ...precision import precise
from ..base import Density, as_vectors, check_counts, check_covariance, check_dtype, check_numbers
from ..directions import Directions, draw_holdout
from ..linalg import Shrinkage, own_order
from ._classes import ClassFit, fit_classes
from ._conditional import Conditional, Given, JointCovariance
from ._em import EMOptions, Mixtures, component_log_prob

CHUNK = 1 << 22  # elements of an intermediate at most
ON_GPU = 8  # times as many, which small pieces would leave idle
IN_CACHE = 1 << 17  # elements that stay in a core's cache: five times as fast
LATEST = 1024  # points of the latest support, at most, that are kept as densities read them
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
        tol, max_iter, restarts, dtype: as for `GaussianMixture`.
        min_samples: samples that there must be for each component.
        seed: decides which rows check the scales of the coordinates, and all starts but the first.

    Example:
        >>> z = torch.randn(600, 4, generator=torch.Generator().manual_seed(0))
        >>> y = z[:, 0] + z[:, 1].square()
        >>> density = JointMixture(components=5).fit(z, y)                      # z (n, d), y (n,) or (n, q)
        >>> density.log_prob(z, support=torch.linspace(-2, 4, 50)).shape        # one column per support point
        torch.Size([600, 50])
    """

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
        restarts: int = 1,
        min_samples: int = 10,
        dtype: Literal["float32", "float64"] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        check_counts(components=components, max_iter=max_iter, restarts=restarts, min_samples=min_samples)
        check_covariance(covariance, get_args(JointCovariance), shrinkage)
        check_dtype(dtype)
        if not noise > 0:
            raise ValueError(f"noise must be above zero, not {noise}: ŷ is a function of z.")
        self.components, self.covariance, self.noise, self.shrinkage = components, covariance, noise, shrinkage
        self.tol, self.max_iter, self.restarts, self.min_samples = tol, max_iter, restarts, min_samples
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
        self._warn(len(z), fit)
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
        options = EMOptions(self.covariance, shrinkage, self.noise**2, self.tol, self.max_iter, self.components)
        options = options._replace(restarts=self.restarts, min_samples=self.min_samples, seed=self.seed)
        try:
            variance = 1.0  # of standardised predictions and coordinates
            return fit_classes(x, torch.zeros(len(x), dtype=torch.long, device=x.device), options, variance)
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
        self._check_fitted()
        self._check_width(z)
        parts = []
        for (few,) in pieces(max(1, CHUNK * (ON_GPU if z.is_cuda else 1) // self.directions.dim), z):
            u, rest = self.directions(few)
            parts.append((rest, *self.conditional.coordinates(u)))  # (n,), (k, n), (s, k, n)
        numbers, along_bias = len(self.y_center), self.conditional.along_bias
        whole = parts[0] if len(parts) == 1 else [torch.cat(part, dim=-1) for part in zip(*parts, strict=True)]
        most = CHUNK * ON_GPU if z.is_cuda else min(CHUNK, IN_CACHE)
        pairs = max(1, most // (len(along_bias) * (numbers + along_bias.shape[1])))

        def log_prob(support: Tensor, rows: Tensor | None = None) -> Tensor:
            rest, across, along = whole if rows is None else [part[..., rows] for part in whole]
            y = as_vectors(support, numbers, rest.shape[0])
            if torch.compiler.is_compiling():  # a graph has no loops
                return rest[:, None] + self.conditional.log_prob(across, along, self._given(y))
            size, points = max(1, pairs // max(1, y.shape[-2])), None
            if y.dim() == 2:
                points = [self._given(y)] if y.shape[0] <= pairs else [self._given(few) for few in y.split(pairs)]
            found = []
            for i in range(0, max(1, len(rest)), size):
                some = slice(i, i + size)
                own = points or [self._given(few) for few in y[some].split(pairs, dim=1)]
                columns = [self.conditional.log_prob(across[:, some], along[..., some], given) for given in own]
                found.append(columns[0] if len(columns) == 1 else torch.cat(columns, dim=1))
            return rest[:, None] + (found[0] if len(found) == 1 else torch.cat(found))

        return log_prob

    @precise
    def log_evidence(self, z: Tensor) -> Tensor:
        r"""log p(z) for z (n, d) under the mixture itself, :math:`\sum_k w_k\, \mathcal N_k(z)`: (n,)."""
        self._check_fitted()
        self._check_width(z)
        u, rest = self.directions(z)
        return rest + self.conditional.log_evidence(*self.conditional.coordinates(u))

    @precise
    def marginal_log_prob(self, y: Tensor) -> Tensor:
        r"""log p(y) for y (n,) or (n, q) under the mixture itself, :math:`\sum_k w_k\, \mathcal N_k(y)`: (n,)."""
        self._check_fitted()
        prior = self.conditional.log_prior(self._standardise(as_vectors(y, len(self.y_center), len(y))))
        return (prior.logsumexp(0) - self.y_deviation.double().log().sum()).to(self.y_center.dtype)

    def _given(self, y: Tensor) -> Given:
        """What points decide alone; of the latest that all rows share it is kept, as calls begin with the same ones."""
        if y.dim() == 3 or y.is_inference() or y.requires_grad or torch.compiler.is_compiling():
            return self.conditional.given(self._standardise(y))
        latest = self.conditional.latest
        if latest is None or latest[0] is not y or latest[1] != y._version:
            latest = (y, y._version, self.conditional.given(self._standardise(y)))
            if len(y) <= LATEST:
                self.conditional.latest = latest
        return latest[2]

    def _standardise(self, y: Tensor) -> Tensor:
        """y (..., q) in deviations, in float64."""
        return ((y.double() - self.y_center.double()) / self.y_deviation.double()).clamp(-FAR, FAR)

    def _check_fitted(self) -> None:
        if self.y_center is None:
            raise RuntimeError("this JointMixture is not fitted: call fit(z, y) first.")

    def _check_width(self, z: Tensor) -> None:
        if z.dim() != 2 or z.shape[1] != self.directions.dim:
            raise ValueError(f"expected z of shape (n, {self.directions.dim}), as fitted, not {tuple(z.shape)}.")

    def _warn(self, n: int, fit: ClassFit) -> None:
        made = len(self.conditional.y_scale)
        if made < self.components and fit.fallbacks:  # not where few values repeat
            warn(
                f"{n} samples are too few for {self.components} components of {self.min_samples} each: fitted {made}. "
                "More data, or fewer components, would help."
            )
        if not bool(fit.converged.all()):
            warn(
                f"EM did not converge in max_iter={self.max_iter} steps: raise max_iter or tol, or use fewer "
                "components."
            )

    def check(self) -> None:
        """Raise a ValueError where the tensors cannot be those of a fit."""
        expect(self.y_deviation is None or self.y_deviation > 0, "a deviation of ŷ is not positive")

    def extra_repr(self) -> str:
        """The arguments that shape the density."""
        return f"components={self.components}, covariance={self.covariance!r}, noise={self.noise}"
