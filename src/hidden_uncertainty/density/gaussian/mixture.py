"""One Gaussian mixture per class, the density that the paper uses for classification."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor

from ...extract import Lattice
from ...io import expect
from ...notes import warn
from ...precision import farthest, precise, saturate
from ..base import Density, check_amounts, check_classes, check_counts, check_covariance, check_dtype, match_classes
from ..linalg import Shrinkage, check_factor, mean_square, power_of_two
from ._chunks import Chunks, fit_chunks
from ._classes import ClassFit, fit_classes, fit_gaussians
from ._em import MANY, Covariance, EMOptions, Mixtures, distances, log_scale, whiten_means
from ._packed import Squares, between, pack, packed_squares, place_squares, shifts
from .moments import Moments, Sums

CHUNK = 1 << 26  # elements of factors held in float64 at a time
FEW = 4  # rows up to which one product of whole factors takes less time than several of packed ones
WHOLE = 1 << 20  # elements of these factors at most: larger ones take longer to read than the packed half
SUMS: dict[Covariance, Sums] = {"full": "each", "pooled": "pooled"}  # what one Gaussian per class is fitted to
AUTO: dict[Covariance, Shrinkage] = {"full": "ledoit-wolf", "tied": "ledoit-wolf", "pooled": "oas"}  # else None
BUFFERS = ("classes", "center", "log_weight", "mean", "factor", "log_scale", "bias")
UNSAVED = ("packed", "shift", "spread", "wide")


class GaussianMixture(Density):
    r"""One Gaussian mixture per class, fitted by expectation-maximisation.

    .. math:: p(z \mid y) = \sum_k w_{yk}\, \mathcal N(z \mid \mu_{yk}, \Sigma_{yk})

    Multiplying activations by a constant changes nothing but the unit of the density, and their order changes nothing.
    The paper's setting is `GaussianMixture(components=5, shrinkage=None)`.

    A class with fewer than `min_samples` samples per component gets fewer components. One with fewer than `min_samples`
    in all gets a single Gaussian, its covariance shrunk towards the covariance pooled over all classes as if d samples
    came with that. A warning names these classes.

    Args:
        components: Gaussians per class; None is 5, or 1 where classes share covariances.
        covariance: `"full"`, `"tied"` (one per class, shared by its components), `"diag"`, `"spherical"`, or `"pooled"`
            (one for all classes, around their means).
        shrinkage: how covariances are shrunk towards a multiple of the identity: `"ledoit-wolf"`, `"oas"` or None.
            `"auto"` is Ledoit-Wolf for full and tied covariances, OAS for pooled ones, whose parts can then be added
            up (see `Moments`), and None for the others.
        ridge: added to the diagonal of every covariance, as a share of the variance of all activations around the
            means of their classes, averaged over dimensions.
        tol: EM stops when log p(z | y) of a class's activations would change by less than this, in nats and on
            average, however long it went on; by extrapolation.
        max_iter: EM steps at most.
        min_samples: samples that a class must have for each component it starts with.
        pooling: for one component, average the covariance of each class with the pooled one, as if that came with this
            many times d samples more; zero leaves them apart.
        dtype: `"float32"` or `"float64"`; None follows the features. A class whose covariance is too close
            to singular for float32 is fitted in float64 anyway, and stored in `dtype`.

    Example:
        >>> y = torch.arange(600) % 3
        >>> z = torch.randn(600, 4, generator=torch.Generator().manual_seed(0)) + 5 * y[:, None]
        >>> density = GaussianMixture(components=2).fit(z, y)       # z (n, d), y (n,)
        >>> density.log_prob(z, support=density.classes).shape      # one column per support point, here a class
        torch.Size([600, 3])
    """

    shown = ("components", "covariance", "shrinkage", "pooling")
    infinite = ("log_weight", "log_scale")  # where a class has fewer components

    classes: Tensor  # (C,)
    center: Tensor  # subtracted from z before products, which keeps their digits (d,)
    log_weight: Tensor  # (C, k), -inf where a class has fewer components
    mean: Tensor  # (C, k, d)
    factor: Tensor  # W with Σ⁻¹ = W Wᵀ: (C, k, d, d), (C, d, d), (C, k, d) or (C, k)
    log_scale: Tensor  # (C, k)
    bias: Tensor  # (μ - center) W, (C, k, d)
    packed: Tensor | None  # factors and biases as `log_prob` reads them: (1, rows, C, k or 1, width); not saved
    shift: Tensor | None  # from a class's first bias to the others that share its factor, in blocks; not saved
    spread: Tensor | None  # the largest norm of a class's factors and biases, where they are matrices; not saved
    wide: Tensor | None  # the factors of a small mixture side by side, for few rows: (d, C k d) or (d, C d); not saved

    def __init__(
        self,
        components: int | None = None,
        *,
        covariance: Covariance = "full",
        shrinkage: Shrinkage | Literal["auto"] | None = "auto",
        ridge: float = 1e-6,
        tol: float = 1e-2,
        max_iter: int = 300,
        min_samples: int = 10,
        pooling: float = 0.0,
        dtype: Literal["float32", "float64"] | None = None,
    ) -> None:
        super().__init__()
        check_amounts(ridge=ridge, pooling=pooling)
        share = covariance == "pooled" or pooling > 0
        components = (1 if share else 5) if components is None else components
        check_counts(components=components, max_iter=max_iter, min_samples=min_samples)
        check_covariance(covariance, get_args(Covariance), shrinkage)
        check_dtype(dtype)
        if share and components != 1:
            raise ValueError(f"classes share covariances of one Gaussian each: components must be 1, not {components}.")
        self.components, self.covariance, self.shrinkage = components, covariance, shrinkage
        self.ridge, self.tol, self.max_iter = ridge, tol, max_iter
        self.min_samples, self.pooling, self.dtype = min_samples, pooling, dtype
        for name in (*BUFFERS, *UNSAVED):
            self.register_buffer(name, None, persistent=name in BUFFERS)
        self._steep = False  # whether products of far rows overflow, as factors of tiny activations are large

    @property
    def sums(self) -> Sums | None:
        """What `fit_moments` takes: for one Gaussian per class, full or pooled; but see `Moments` for Ledoit-Wolf."""
        whole = self.covariance == "pooled" and self.shrinkage == "ledoit-wolf"
        return SUMS.get(self.covariance) if self.components == 1 and not whole else None

    @precise
    def _fit(self, z: Tensor, y: Tensor) -> Self:
        z, y = check_classes(z, y, self.dtype)
        if self.components == 1 and self.covariance in SUMS:
            classes, y = y.unique(return_inverse=True)
            # Fourth powers of what float32 holds are no trouble to float64.
            unit = power_of_two(mean_square([z]) ** 0.5 or 1.0) if z.dtype == torch.float64 else 1.0
            return self._fit_sums(Moments.of(z, y, len(classes), SUMS[self.covariance], unit), classes, unit)
        return self._keep(fit_classes(z, y, self._options()))

    @precise
    def fit_moments(self, moments: Moments) -> Self:
        """Fit to sums over the rows of classes 0 … C - 1; some may have none."""
        return self._fit_sums(moments, torch.arange(len(moments.count), device=moments.count.device))

    @property
    def chunks(self) -> bool:
        """Whether `fit_chunks` fits it: mixtures of full or tied covariances."""
        return self.components > 1 and self.covariance in ("full", "tied")

    @precise
    def fit_chunks(self, rows: Chunks) -> Self:
        """Fit to rows z (n, d) with classes y (n,) that are read several times, some at a time, as from a disk."""
        return self._keep(fit_chunks(rows, self._options()))

    def _fit_sums(self, moments: Moments, classes: Tensor, unit: float = 1.0) -> Self:
        if self.dtype is not None:
            moments = replace(moments, dtype=getattr(torch, self.dtype))
        return self._keep(fit_gaussians(moments, classes, self._options(), unit))

    def _options(self) -> EMOptions:
        shrinkage = AUTO.get(self.covariance) if self.shrinkage == "auto" else self.shrinkage
        return EMOptions(**{name: getattr(self, name) for name in EMOptions._fields})._replace(shrinkage=shrinkage)

    def _keep(self, fit: ClassFit) -> Self:
        log_weight, mean, factor = fit.mixtures
        self.classes, self.center, self.log_weight, self.factor = fit.classes, fit.center, log_weight, factor
        self.log_scale = log_scale(fit.mixtures, self.covariance).to(factor.dtype)
        self.bias = self._bias(mean - fit.center.double(), factor)
        self.mean = mean.to(factor.dtype)
        self._pack()
        self._warn(fit)
        return self

    @precise
    def log_prob(self, z: Tensor, support: Tensor) -> Tensor:
        """log p(z | y) for z (n, d) and the classes in support (m,): (n, m). Finite for finite z, however far away."""
        z, support = self._tensors(z, support)
        self._check(z, self._dim)
        x = saturate(z, self.mean.dtype) - self.center
        if self._steep:
            x = self._pull_back(x, 1.0)
        rows = self._rows(support)
        squares = self._squares(x, rows).clamp(max=torch.finfo(x.dtype).max / 8)  # (n, m, k)
        scale = self.log_scale if rows is None else self.log_scale[rows]
        return torch.sub(scale, squares, alpha=0.5).logsumexp(-1)

    @property
    def interpolates(self) -> bool:
        """Whether covariances are full or tied, and the device has float64 to interpolate their squares in."""
        return self.packed is not None and self.packed.dtype.itemsize >= 4 and self.packed.device.type != "mps"

    def log_prob_between(self, lattice: Lattice, support: Tensor) -> Iterator[Tensor]:
        """log p(z | y) at all pixels of a lattice, image by image and row by row, some at a time: (pixels, m).

        Up to rounding (see `_packed`), what `log_prob` gives for bilinearly interpolated vectors. Places whose squares
        would nearly overflow are pulled back along their rays, so that scores are finite there too.
        """
        self._check(lattice.places, self._dim, "n, h, w")
        rows = self._rows(support)
        packed, shift = self._packed(rows)
        scale = (self.log_scale if rows is None else self.log_scale[rows]).mT  # (k, m)

        @precise
        def squares(z: Tensor) -> Squares:
            return place_squares(self._pull_back(saturate(z, packed.dtype) - self.center, 0.5), packed, shift)

        for found in between(lattice, squares, scale.numel()):
            log_probs = torch.sub(scale, found.to(scale.dtype), alpha=0.5)  # (pixels, k, m)
            best = log_probs.amax(1)
            if len(scale) > 1:
                # A CPU takes ten times as long for exponentials that underflow, and e⁻⁸⁰ is nothing beside 1.
                best += (log_probs - best[:, None]).clamp_(min=-80).exp_().sum(1).log_()
            yield best

    def _pull_back(self, x: Tensor, power: float) -> Tensor:
        """Pull rows back along their rays where x W would go beyond this power of the largest number."""
        assert self.spread is not None
        farthest = torch.finfo(x.dtype).max ** power / 16 / x.shape[-1] ** 0.5 / self.spread
        return x * (farthest / x.abs().amax(-1, keepdim=True)).clamp(max=1)

    @property
    def _dim(self) -> int | None:
        return None if self.mean is None else self.mean.shape[-1]

    def _packed(self, rows: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Packed factors of some classes, (rows, m, k or 1, width), and the shifts, where Gaussians share factors."""
        assert self.packed is not None
        if rows is None:
            return self.packed[0], self.shift
        return self.packed[0][:, rows], None if self.shift is None else self.shift[:, :, rows]

    def _squares(self, x: Tensor, rows: Tensor | None) -> Tensor:
        """Squared Mahalanobis distances of x (n, d) to the components of some classes: (n, m, k)."""
        if self.wide is not None and rows is None and not torch.compiler.is_compiling() and 0 < len(x) <= FEW:
            white = (x @ self.wide).view(len(x), len(self.bias), -1, x.shape[1])
            return (white - self.bias).square().sum(-1)
        if self.packed is not None:
            packed, shift = self._packed(rows)
            squares = packed_squares(x[None], packed.flatten(1, 2)[None], shift)[0]
            return squares if shift is not None else squares.unflatten(1, packed.shape[1:3])
        if self.covariance == "pooled":
            bias = self.bias if rows is None else self.bias[rows]
            return distances(x[None], self.factor, bias.transpose(0, 1), "tied")[0][..., None]
        factor, bias = (self.factor, self.bias) if rows is None else (self.factor[rows], self.bias[rows])
        return distances(x[None], factor, bias, self.covariance).transpose(0, 1)

    def _bias(self, mean: Tensor, factor: Tensor) -> Tensor:
        """Centred means (C, k, d) times their factors in float64, in parts: a thousand classes take 34 GB."""
        if self.covariance == "pooled":
            return whiten_means(mean, factor.double(), self.covariance).to(factor.dtype)
        some = max(1, CHUNK // factor[0].numel())
        parts = zip(mean.split(some), factor.split(some), strict=True)
        return torch.cat([whiten_means(m, f.double(), self.covariance).to(factor.dtype) for m, f in parts])

    def lay_out(self, width: int) -> None:
        """Pack factors in wider blocks, for graphs, which have some nodes for each; nothing else is then kept twice."""
        self._pack(width)
        self.wide = None
        if self.packed is not None:
            self.factor = None  # type: ignore[assignment]

    def _pack(self, width: int | None = None) -> None:
        self.packed = self.shift = self.spread = self.wide = None
        self._steep = False
        shared = self.covariance == "tied"
        if self.factor is None or self.covariance in ("diag", "spherical"):
            return
        # Class by class, as copies in float64 go: squares of float32 might overflow.
        pairs = [(self.factor, self.bias)] if self.covariance == "pooled" else zip(self.factor, self.bias, strict=True)
        norms = [torch.hypot(*(torch.linalg.vector_norm(t, dtype=torch.float64) for t in pair)) for pair in pairs]
        self.spread = torch.stack(norms).max().to(self.factor.dtype)
        single = torch.float32  # whatever the dtype: it may be cast later
        self._steep = float(self.spread) * farthest(single) * self.bias.shape[-1] ** 0.5 > torch.finfo(single).max / 16
        if self.covariance == "pooled" or (shared and self.components >= MANY):
            return
        if self.factor.numel() <= WHOLE:
            self.wide = self.factor.flatten(0, -3).transpose(0, 1).flatten(1)
        bias = self.bias[:, :1] if shared else self.bias
        packed = pack(self.factor.view(1, -1, *self.factor.shape[-2:]), bias.flatten(0, 1)[None], width)
        self.packed = packed.unflatten(2, bias.shape[:2])
        if shared and self.bias.shape[1] > 1:
            self.shift = shifts(self.bias, packed.shape[3])

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._pack()

    def _rows(self, support: Tensor) -> Tensor | None:
        """Which classes a support names; None for all, in their order."""
        if support is self.classes or torch.equal(support, self.classes):
            return None
        return match_classes(support, self.classes).long().argmax(1)

    def _warn(self, fit: ClassFit) -> None:
        if fit.fallbacks:
            shown, rest = fit.fallbacks[:5], len(fit.fallbacks) - 5
            text = "; ".join(shown) + (f"; and {rest} more classes" if rest > 0 else "")
            warn(f"{text}. More data{', or fewer components,' if self.components > 1 else ''} would help.")
        late = int((~fit.converged).sum())
        if late:
            warn(
                f"{late} of {len(fit.converged)} classes did not converge in max_iter={self.max_iter} steps: "
                "raise max_iter or tol, or use fewer components."
            )

    def check(self) -> None:
        """Raise a ValueError where the tensors cannot be those of a fit."""
        if self.mean is None:
            return
        used, full = self.log_weight > -torch.inf, self.covariance not in ("diag", "spherical")
        expect(self.classes.diff() > 0, "classes do not ascend")
        expect(self.log_weight.logsumexp(1).abs() < 1e-3, "the weights of a class's components do not sum to one")
        for factor, made in zip(self.factor, used, strict=False):
            own = factor if self.covariance in ("tied", "pooled") else factor[made]
            check_factor(own) if full else expect(own > 0, "a deviation is not positive")
        scale = log_scale(Mixtures(self.log_weight, self.mean, self.factor), self.covariance)[used]
        expect((self.log_scale[used] - scale).abs() <= 1e-3 * (1 + scale.abs()), "log_scale is not that of its factor")
        mean, center, eps = self.mean.double(), self.center.double(), torch.finfo(self.factor.dtype).eps
        bias = self._bias(mean - center, self.factor)[used]
        # Means far from zero are rounded before they are multiplied.
        reach = self._bias(mean.abs() + center.abs(), self.factor.abs())[used] * eps
        expect((self.bias[used] - bias).abs() <= 1e-3 * (1 + bias.abs()) + 4 * reach, "bias is not that of its mean")
