"""Gaussian processes for regression, which need no network: what a calibrated uncertainty looks like on small data."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal, NamedTuple, Self, get_args

import numpy as np
import torch
from torch import Tensor, nn

from hidden_uncertainty import Detector
from hidden_uncertainty.baselines.base import AsRead, ScoringReader, single_input
from hidden_uncertainty.extract.reader import chosen
from hidden_uncertainty.model.batches import Adapter, Batch, batches
from hidden_uncertainty.model.tasks import Prediction, Regression
from hidden_uncertainty.precision import gradients
from hidden_uncertainty.scoring.terms import Term
from hidden_uncertainty.uncertainty import LayerScores

Backend = Literal["auto", "sklearn", "gpytorch"]
Array = np.ndarray


class Estimate(NamedTuple):
    """The posterior of the function at m points, in float64."""

    mean: Array  # (m,)
    variance: Array  # of the function itself, without noise, (m,)
    noise: Array | None  # variance of an observation around the function, (m,); None where the model has none


class Learned(NamedTuple):
    """What was fitted, replaced in one step."""

    process: _Sklearn | _Gpytorch
    inputs: tuple[Tensor, Tensor]  # their mean and deviation, (d,) each
    target: tuple[Tensor, Tensor]  # its mean and deviation
    dtype: torch.dtype  # of results


class GaussianProcess(Detector):
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
        if isinstance(kernel, nn.Module) and not any(
            base.__module__.startswith("gpytorch") for base in type(kernel).__mro__
        ):
            raise TypeError(
                f"the first argument of GaussianProcess is a kernel, but a {type(kernel).__name__} came: it needs no "
                "network, and is fitted to the inputs themselves."
            )
        if backend not in get_args(Backend):
            raise ValueError(f"backend must be one of {get_args(Backend)}, not {backend!r}.")
        if backend == "auto":
            backend = "gpytorch" if isinstance(kernel, nn.Module) else "sklearn"
        if backend == "gpytorch":
            import_gpytorch()
        self.kernel, self.backend, self.standardise = kernel, backend, standardise
        self.max_rows, self.restarts = max_rows, restarts
        build = partial(_Sklearn, kernel, restarts, seed) if backend == "sklearn" else partial(_Gpytorch, kernel)
        reader = ProcessReader(build, standardise=standardise, max_rows=max_rows, unpack=unpack)
        term = Term(AsRead("squared units of the target", fits=True))
        super().__init__(reader.model, [term], seed=seed, progress=progress, reader=reader)
        self.reader: ProcessReader = reader

    @property
    def process(self) -> Any:
        """The fitted `GaussianProcessRegressor` of scikit-learn or `ExactGP` of gpytorch; None before that."""
        return None if self.reader.learned is None else self.reader.learned.process.model

    def fit(self, loader: Iterable[Any], calibration: Iterable[Any] | None = None, **options: Any) -> Self:
        """Fit to `(x, y)`, y one number per input, as `Detector.fit`."""
        before = self.reader.learned
        try:
            return super().fit(loader, calibration, **options)
        except BaseException:
            self.reader.learned = before
            raise

    def save(self, path: Any) -> None:
        """Not possible."""
        raise NotImplementedError("GaussianProcess cannot be saved: what it holds is not only numbers of its own.")


Build = Callable[[Tensor, Tensor], "_Sklearn | _Gpytorch"]  # fits a process to inputs and targets


class ProcessReader(ScoringReader):
    """Lets a Gaussian process score each batch."""

    learns = True

    def __init__(self, build: Build, *, standardise: bool, max_rows: int, unpack: Adapter | None) -> None:
        # An identity has no device and leaves inputs where they are.
        super().__init__(nn.Identity(), task=Regression(), output=None, unpack=unpack)
        self.build, self.standardise, self.max_rows = build, standardise, max_rows
        self.learned: Learned | None = None

    def learn(self, loader: Iterable[Any], holdout: float) -> None:
        """Fit to a loader's `(x, y)`, y one number per input; inputs of any shape are flattened."""
        xs, ys, rows = [], [], 0
        for batch in batches(loader, self.unpack):
            some = ~chosen(batch, holdout)
            xs.append(_input(batch)[some].clone())  # the loader's memory may come again with other numbers
            ys.append(_target(batch)[some].clone())
            rows += len(xs[-1])
            if rows > self.max_rows:
                raise ValueError(
                    f"the loader gives more than max_rows={self.max_rows:,} rows, and a Gaussian process takes time in "
                    "the third power of them: fit to a random part of them, or raise max_rows."
                )
        x, y = torch.cat(xs).double(), torch.cat(ys)
        dtype, y = torch.promote_types(y.dtype, torch.float32), y.to(x)
        for name, values in (("inputs", x), ("targets", y)):
            if not bool(values.isfinite().all()):
                raise ValueError(f"the {name} hold NaN or infinity: leave those rows out.")
        if rows < 2:
            raise ValueError(f"a Gaussian process needs at least 2 rows, not {rows}.")
        (shift, scale), (middle, spread) = scales = _scale(x, self.standardise), _scale(y, self.standardise)
        self.learned = Learned(self.build((x - shift) / scale, (y - middle) / spread), *scales, dtype)

    def parts(self, batch: Batch) -> tuple[Prediction, LayerScores]:
        """Mean, variance and noise at a batch of inputs."""
        assert self.learned is not None
        x = _input(batch).double()
        process, (shift, scale), (middle, spread), dtype = self.learned
        if x.shape[1] != len(shift):
            raise ValueError(f"expected inputs of {len(shift)} numbers, as fitted, not {x.shape[1]}.")
        found = process.posterior(((x - shift.to(x.device)) / scale.to(x.device)).cpu().numpy())

        def tensor(values: Array) -> Tensor:
            return torch.from_numpy(values).to(dtype).to(x.device)

        square = float(spread) ** 2
        noise = None if found.noise is None else tensor(square * found.noise)
        mean, variance = tensor(float(spread) * found.mean + float(middle)), tensor(square * found.variance)
        return Prediction(mean), LayerScores(epistemic=variance, aleatoric=noise)


class _Sklearn:
    def __init__(self, kernel: Any, restarts: int, seed: int, x: Tensor, y: Tensor) -> None:
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

        if kernel is None:
            kernel = ConstantKernel() * RBF() + WhiteKernel()
        model = GaussianProcessRegressor(kernel, n_restarts_optimizer=restarts, random_state=seed)
        self.model = model.fit(x.cpu().numpy(), y.cpu().numpy())

    def posterior(self, x: Array) -> Estimate:
        mean, deviation = self.model.predict(x, return_std=True)
        # Noise is what a point has in common with itself but not with another observation of the same point.
        kernel = self.model.kernel_
        shared = np.concatenate([np.diag(kernel(part, part)) for part in np.array_split(x, -(-len(x) // 256))])
        noise = kernel.diag(x) - shared
        has_noise = bool((noise > 1e-12 * kernel.diag(x)).any())
        return Estimate(mean, np.maximum(deviation**2 - noise, 0), noise if has_noise else None)


def import_gpytorch() -> Any:
    """The library, which need not be installed."""
    try:
        return importlib.import_module("gpytorch")
    except ImportError as error:
        raise ImportError(
            "backend='gpytorch' needs gpytorch: pip install 'hidden-uncertainty[gpytorch]', or use backend='sklearn'."
        ) from error


class _Gpytorch:
    """An exact process: Cholesky only, because gpytorch's faster solvers draw from the global generator."""

    def __init__(self, kernel: Any, x: Tensor, y: Tensor) -> None:
        gpytorch = import_gpytorch()
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

    @gradients(False)
    def posterior(self, x: Array) -> Estimate:
        with self.exactly(False, False, False):
            found = self.model(torch.from_numpy(x).to(self.device))
        noise = np.full(len(x), float(self.likelihood.noise.detach()))
        return Estimate(found.mean.cpu().numpy(), found.variance.clamp(min=0).cpu().numpy(), noise)


def _input(batch: Batch) -> Tensor:
    x = single_input(batch, "a Gaussian process takes").detach()
    return x.flatten(1) if x.dim() > 1 else x[:, None]


def _target(batch: Batch) -> Tensor:
    y = batch.label
    if y is None or y.numel() != len(batch):
        got = "none" if y is None else f"{tuple(y.shape)}"
        raise ValueError(
            f"a Gaussian process is fitted to (x, y) with one number per input in y, but got {got}. For several "
            "outputs, fit one process each."
        )
    return y.detach().reshape(-1)


def _scale(values: Tensor, standardise: bool) -> tuple[Tensor, Tensor]:
    """Mean and deviation along the rows, 1 where nothing varies."""
    if not standardise:
        return torch.zeros_like(values[0]), torch.ones_like(values[0])
    deviation = values.std(0, correction=0)
    return values.mean(0), torch.where(deviation > 0, deviation, 1.0)
