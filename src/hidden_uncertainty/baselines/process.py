"""Gaussian processes for regression, which need no network: what a calibrated uncertainty looks like on small data."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, Protocol, Self, get_args

import numpy as np
import torch
from torch import Tensor, nn

from ..batches import Adapter, Batch, batches
from ..uncertainty import Uncertainty
from .base import Baseline

Backend = Literal["auto", "sklearn", "gpytorch"]
Array = np.ndarray


class Posterior(NamedTuple):
    """Of the function at m points, in float64."""

    mean: Array  # (m,)
    variance: Array  # of the function itself, without noise, (m,)
    noise: Array | None  # variance of an observation around the function, (m,); None where the model has none


class Process(Protocol):
    """What both libraries are made to offer."""

    def posterior(self, x: Array) -> Posterior:
        """The posterior at x (m, d)."""


class GaussianProcess(Baseline):
    r"""A Gaussian process on the inputs themselves: `fit(loader)`, `method(x)`, `predict(loader)` as for any method.

    .. math:: y = f(x) + \varepsilon, \qquad f \sim \mathcal{GP}(0, k), \qquad \varepsilon \sim \mathcal N(0, \sigma^2)

    `u.prediction` is the posterior mean of f, `u.epistemic` its variance, `u.aleatoric` the variance σ² of the noise,
    None where the kernel has none. The kernel's parameters maximise the marginal likelihood. Time grows with the third
    power of the rows, memory with the second.

    Args:
        kernel: of scikit-learn or gpytorch, for inputs and targets as `standardise` leaves them. None is a constant
            times a squared exponential, plus white noise. gpytorch's have no noise of their own: it is always added.
        backend: `"sklearn"` or `"gpytorch"`, where everything runs where the inputs are; `"auto"` is the one whose
            kernel it is, scikit-learn without one.
        standardise: scale each input and the target to mean 0 and variance 1 first; results are in the target's unit.
        max_rows: more rows than these are an error, because they would take too long.
        restarts: further starts of the optimiser, drawn at random (scikit-learn only).
        seed: of these draws.
        unpack: turns what a loader gives into `(x, y)`, when it gives something else.
        progress: show progress bars; None shows them on a terminal.

    Example:
        >>> x = torch.linspace(-3, 3, 40)[:, None]
        >>> noise = 0.1 * torch.randn(40, generator=torch.Generator().manual_seed(0))
        >>> process = GaussianProcess().fit([(x, x.sin().squeeze(1) + noise)])
        >>> u = process(torch.tensor([[0.0], [30.0]]))
        >>> bool(u.epistemic[1] > 20 * u.epistemic[0])
        True
    """

    unit = "squared units of the target"

    def __init__(
        self,
        kernel: Any = None,
        *,
        backend: Backend = "auto",
        standardise: bool = True,
        max_rows: int = 3000,
        restarts: int = 0,
        seed: int = 0,
        unpack: Adapter | None = None,
        progress: bool | None = None,
    ) -> None:
        # An identity has no device and leaves inputs where they are.
        super().__init__(nn.Identity(), task="regression", unpack=unpack, progress=progress)
        if backend not in get_args(Backend):
            raise ValueError(f"backend must be one of {get_args(Backend)}, not {backend!r}.")
        if backend == "auto":
            backend = "gpytorch" if isinstance(kernel, nn.Module) else "sklearn"
        if backend == "gpytorch":
            _import_gpytorch()
        self.kernel, self.backend, self.standardise = kernel, backend, standardise
        self.max_rows, self.restarts, self.seed = max_rows, restarts, seed
        self.process: Process | None = None

    def fit(self, loader: Iterable[Any]) -> Self:
        """Fit to all of a loader's `(x, y)`, y one number an input; inputs of any shape are flattened."""
        xs, ys, rows = [], [], 0
        for batch in batches(loader, self.unpack):
            rows += len(batch)
            if rows > self.max_rows:
                raise ValueError(
                    f"the loader gives more than max_rows={self.max_rows:,} rows, and a Gaussian process takes time in "
                    "the third power of them: fit to a random part of them, or raise max_rows."
                )
            xs.append(_input(batch))
            ys.append(_target(batch))
        x, y = torch.cat(xs).double(), torch.cat(ys)
        self._dtype = torch.promote_types(y.dtype, torch.float32)
        y = y.to(x)
        for name, values in (("inputs", x), ("targets", y)):
            if not bool(values.isfinite().all()):
                raise ValueError(f"the {name} hold NaN or infinity: leave those rows out.")
        if rows < 2:
            raise ValueError(f"a Gaussian process needs at least 2 rows, not {rows}.")
        self._x, self._y = _scale(x, self.standardise), _scale(y, self.standardise)
        inputs, targets = (x - self._x[0]) / self._x[1], (y - self._y[0]) / self._y[1]
        if self.backend == "sklearn":
            self.process = _Sklearn(self.kernel, self.restarts, self.seed, inputs, targets)
        else:
            self.process = _Gpytorch(self.kernel, inputs, targets)
        return self

    def score(self, batch: Batch) -> Uncertainty:
        """Mean, variance and noise at a batch of inputs."""
        if self.process is None:
            raise RuntimeError("this GaussianProcess is not fitted: call fit(loader) with (x, y) first.")
        x = _input(batch).double()
        (shift, scale), (middle, spread) = self._x, self._y
        if x.shape[1] != len(shift):
            raise ValueError(f"expected inputs of {len(shift)} numbers, as fitted, not {x.shape[1]}.")
        found = self.process.posterior(((x - shift.to(x.device)) / scale.to(x.device)).cpu().numpy())

        def tensor(values: Array) -> Tensor:
            return torch.from_numpy(values).to(self._dtype).to(x.device)

        square = float(spread) ** 2
        noise = None if found.noise is None else tensor(square * found.noise)
        mean, variance = tensor(float(spread) * found.mean + float(middle)), tensor(square * found.variance)
        return Uncertainty(mean, variance, noise)


class _Sklearn:
    def __init__(self, kernel: Any, restarts: int, seed: int, x: Tensor, y: Tensor) -> None:
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

        if kernel is None:
            kernel = ConstantKernel() * RBF() + WhiteKernel()
        model = GaussianProcessRegressor(kernel, n_restarts_optimizer=restarts, random_state=seed)
        self.model = model.fit(x.cpu().numpy(), y.cpu().numpy())

    def posterior(self, x: Array) -> Posterior:
        mean, deviation = self.model.predict(x, return_std=True)
        # Noise is what a point has in common with itself but not with another observation of the same point.
        kernel = self.model.kernel_
        shared = np.concatenate([np.diag(kernel(part, part)) for part in np.array_split(x, -(-len(x) // 256))])
        noise = kernel.diag(x) - shared
        has_noise = bool((noise > 1e-12 * kernel.diag(x)).any())
        return Posterior(mean, np.maximum(deviation**2 - noise, 0), noise if has_noise else None)


class _Gpytorch:
    """An exact process: Cholesky only, because gpytorch's faster solvers draw from the global generator."""

    def __init__(self, kernel: Any, x: Tensor, y: Tensor) -> None:
        gpytorch = _import_gpytorch()
        likelihood = gpytorch.likelihoods.GaussianLikelihood().to(x)
        if kernel is None:
            kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
        kernel = copy.deepcopy(kernel)  # the user's own is not to be trained
        base: Any = gpytorch.models.ExactGP

        class Exact(base):
            def __init__(self) -> None:
                super().__init__(x, y, likelihood)
                self.mean, self.kernel = gpytorch.means.ZeroMean(), kernel

            def forward(self, x: Tensor) -> Any:
                return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

        self.device, self.likelihood, self.exactly = x.device, likelihood, gpytorch.settings.fast_computations
        self.model = Exact().to(x)
        likelihood_of = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, self.model)
        optimiser = torch.optim.LBFGS(self.model.parameters(), max_iter=200, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            optimiser.zero_grad()
            value = -likelihood_of(self.model(x), y)
            value.backward()
            return value

        self.model.train()
        with torch.enable_grad(), self.exactly(False, False, False):
            optimiser.step(loss)
        self.model.eval()

    def posterior(self, x: Array) -> Posterior:
        with torch.no_grad(), self.exactly(False, False, False):
            found = self.model(torch.from_numpy(x).to(self.device))
        noise = np.full(len(x), float(self.likelihood.noise.detach()))
        return Posterior(found.mean.cpu().numpy(), found.variance.clamp(min=0).cpu().numpy(), noise)


def _input(batch: Batch) -> Tensor:
    if len(batch.args) != 1 or batch.kwargs or not isinstance(batch.args[0], Tensor):
        raise TypeError(f"a Gaussian process takes one tensor, not {len(batch.args)} and {list(batch.kwargs)}.")
    return batch.args[0].detach().flatten(1) if batch.args[0].dim() > 1 else batch.args[0].detach()[:, None]


def _target(batch: Batch) -> Tensor:
    y = batch.label
    if y is None or y.numel() != len(batch):
        got = "none" if y is None else f"{tuple(y.shape)}"
        raise ValueError(
            f"a Gaussian process is fitted to (x, y) with one number an input in y, but got {got}. Of several outputs, "
            "fit one process each."
        )
    return y.detach().reshape(-1)


def _scale(values: Tensor, standardise: bool) -> tuple[Tensor, Tensor]:
    """Mean and deviation along the rows, 1 where nothing varies."""
    if not standardise:
        return torch.zeros_like(values[0]), torch.ones_like(values[0])
    deviation = values.std(0, correction=0)
    return values.mean(0), torch.where(deviation > 0, deviation, 1.0)


def _import_gpytorch() -> Any:
    try:
        return importlib.import_module("gpytorch")
    except ImportError as error:
        raise ImportError(
            "backend='gpytorch' needs gpytorch: pip install 'hidden-uncertainty[gpytorch]', or use backend='sklearn'."
        ) from error
