"""A conditional normalizing flow, trained by likelihood: the density that the paper uses for regression."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from numbers import Integral
from typing import Any, Literal, NamedTuple, Self, get_args

import torch
from torch import Generator, Tensor

from ..io import expect
from ..notes import warn
from ..precision import gradients, precise
from ..progress import progress_bar
from ._coupling import Couplings, Form, log_likelihood, log_prob
from .base import Density, as_vectors, check_classes, check_counts, check_dtype, check_numbers, match_classes
from .directions import Directions, draw_holdout

FEWEST = 20  # samples
FULL_BATCH = 1024  # rows up to which a step takes all of them
STEPS = 3000  # at most, where max_epochs is None
IDLE_STEPS, IDLE_EPOCHS = 200, 5  # without growth, where patience is None
DRAWS = 256  # of noise on the holdout at least
RETREATS = 5


class ConditionalFlow(Density):
    r"""A flow of affine couplings from activations to a standard normal, given the prediction; trained by likelihood.

    .. math:: \log p(z \mid y) = \log \mathcal N(f(u; y)) + \log \left| \frac{\partial f(u; y)}{\partial z} \right|

    u are whitened coordinates of z, in the directions in which z varies at all; what lies off those gets a Gaussian of
    its own. The prediction may be a number, a vector or a class, and enters every coupling by addition. Activations of
    a deterministic network lie on a thin manifold, on which the likelihood has no maximum, so Gaussian `noise` is added
    to u at every step: it is the resolution of the density.

    The paper's settings are the form `"glow"` with 4 blocks, trained on all rows at once, for its curve, and
    `ConditionalFlow(form="realnvp", blocks=3, batch_size=128, patience=20, gain=0.0, learning_rate=1e-6,
    weight_decay=1e-5)` for depth.

    Args:
        form: `"glow"`, where a block couples both halves of u in turn, scale and shift from one perceptron, and a
            random permutation follows; or `"realnvp"`, where a block is one coupling with a perceptron each for scale
            and shift, and the halves take turns.
        blocks: how many.
        hidden: widths of the hidden layers of the perceptrons of u.
        condition_hidden: widths of the hidden layers of the perceptron of y.
        noise: deviation of the blur, as a share of the deviation of each direction.
        batch_size: rows per step; None takes all rows up to 1,024, and 1,024 per step of more.
        learning_rate: of Adam.
        weight_decay: of AdamW, separate from the gradients.
        max_epochs: passes over the rows at most; None allows 3,000 steps.
        patience: epochs after which training ends when the likelihood of the holdout has not grown by `gain`; None
            waits for 200 steps, and for at least 5 epochs.
        gain: nats per dimension that count as growth; 0 counts any growth, which a low learning rate needs.
        holdout: share of the rows that training does not see, and that decide when it ends.
        dtype: `"float32"` or `"float64"`; None follows the features.
        seed: decides the holdout, the permutations, the first weights, the noise and the batches.

    Example:
        >>> z = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
        >>> y = z[:, 0] + z[:, 1].square()
        >>> density = ConditionalFlow(blocks=2, patience=10).fit(z, y)          # z (n, d), y (n,) or (n, q)
        >>> density.log_prob(z, support=torch.linspace(-2, 4, 50)).shape        # one column per support point
        torch.Size([300, 50])
    """

    shown = ("form", "blocks", "noise")

    classes: Tensor | None  # (C,), None where y are numbers
    y_center: Tensor | None  # (q,), None where y are classes
    y_deviation: Tensor | None  # (q,)

    def __init__(
        self,
        *,
        form: Form = "glow",
        blocks: int = 4,
        hidden: Sequence[int] = (100, 100),
        condition_hidden: Sequence[int] = (32,),
        noise: float = 0.05,
        batch_size: int | None = None,
        learning_rate: float = 1e-3,
        weight_decay: float = 0.3,
        max_epochs: int | None = None,
        patience: int | None = None,
        gain: float = 0.01,
        holdout: float = 0.1,
        dtype: Literal["float32", "float64"] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if form not in get_args(Form):
            raise ValueError(f"form must be one of {get_args(Form)}, not {form!r}.")
        check_dtype(dtype)
        counts = {"batch_size": batch_size, "max_epochs": max_epochs, "patience": patience}
        check_counts(blocks=blocks, **{name: value for name, value in counts.items() if value is not None})
        for name, widths in (("hidden", hidden), ("condition_hidden", condition_hidden)):
            if not all(isinstance(width, Integral) and width > 0 for width in widths):
                raise ValueError(f"{name} must be widths of layers such as (100, 100), not {widths!r}.")
        if not noise > 0:
            raise ValueError(f"noise must be above zero, not {noise}: activations lie on a thin manifold.")
        if not (learning_rate > 0 and weight_decay >= 0):
            given = f"{learning_rate} and {weight_decay}"
            raise ValueError(f"learning_rate must be above zero and weight_decay zero or more, not {given}.")
        if not gain >= 0:
            raise ValueError(f"gain must be zero or more, not {gain}.")
        if not 0 < holdout < 1:
            raise ValueError(f"holdout must be a share between 0 and 1, not {holdout}.")
        self.form, self.blocks = form, blocks
        self.hidden, self.condition_hidden = list(hidden), list(condition_hidden)
        self.noise, self.batch_size, self.learning_rate = noise, batch_size, learning_rate
        self.weight_decay, self.max_epochs, self.patience = weight_decay, max_epochs, patience
        self.gain, self.holdout, self.dtype, self.seed = gain, holdout, dtype, seed
        self.directions = Directions()
        self.flow: Couplings | None = None
        for name in ("classes", "y_center", "y_deviation"):
            self.register_buffer(name, None)

    @gradients(True, lasting=True)
    @precise
    def _fit(self, z: Tensor, y: Tensor) -> Self:
        z, y = (check_numbers if y.is_floating_point() else check_classes)(z, y, self.dtype)
        if len(z) < FEWEST:
            raise ValueError(f"a flow needs at least {FEWEST} samples, not {len(z)}.")
        classes = center = deviation = None
        if y.is_floating_point():
            center, deviation = y.mean(0).to(z.dtype), y.std(0).to(z.dtype)
            condition = _standardised(y, center, deviation)
        else:
            classes = y.unique()
            condition = (y[:, None] == classes).to(z.dtype)
        holdout = draw_holdout(len(z), self.holdout, self.seed, z.device)
        directions = Directions().fit(z, holdout=holdout)
        u = directions(z)[0]
        flow = self._couplings(u.shape[1], condition.shape[1]).to(u)
        flow.reset(Generator().manual_seed(self.seed))
        parts = [[x[rows].mT.contiguous() for x in (u, condition)] for rows in (~holdout, holdout)]
        trained = train(flow, Sample(*parts[0]), Sample(*parts[1]), self)
        self.directions, self.flow = directions, flow.requires_grad_(False)
        self.classes, self.y_center, self.y_deviation = classes, center, deviation
        if not trained.stopped:
            warn(
                f"training did not converge in max_epochs={trained.max_epochs}: the likelihood of the holdout still "
                "grew. Raise max_epochs or learning_rate."
            )
        return self

    def log_prob(self, z: Tensor, support: Tensor) -> Tensor:
        """log p(z | y) for z (n, d): (n, m). Finite for finite z and support, however far away.

        The support is predictions (m,) where they are numbers or classes, (m, q), or (n, m, q) for each row its own.
        """
        z, support = self._tensors(z, support)
        return self.given(z)(support)

    def given(self, z: Tensor) -> Callable[..., Tensor]:
        """`log_prob` of these z as a function of the support and of rows: what depends on z alone is done once."""
        self._check(z, self.directions.dim)
        flow = self.flow
        assert flow is not None
        u, rest = self.directions(z.detach())
        columns = u.mT.contiguous()

        @precise
        def scores(support: Tensor, rows: Tensor | None = None) -> Tensor:
            own, off = (columns, rest) if rows is None else (columns[:, rows], rest[rows])
            condition = self._condition(support, len(off))  # (1, m, q) or (n, m, q)
            return off[:, None] + log_prob(flow, own, condition.movedim(-1, 0))

        return scores

    def _condition(self, support: Tensor, n: int) -> Tensor:
        """Support points as the flow is given them, (1, m, q) or (n, m, q)."""
        if self.classes is not None:
            return match_classes(support, self.classes)[None].to(self.directions.center.dtype)
        assert self.y_center is not None
        assert self.y_deviation is not None
        y = as_vectors(support, len(self.y_center), n).detach()
        return _standardised(y if y.dim() == 3 else y[None], self.y_center, self.y_deviation)

    def _couplings(self, dim: int, condition: int) -> Couplings:
        widths = {"hidden": self.hidden, "condition_hidden": self.condition_hidden}
        return Couplings(dim, condition, form=self.form, blocks=self.blocks, **widths)

    def _build(self, shapes: Mapping[str, list[Any]]) -> None:
        if shapes:
            dtype, _, kept = shapes["directions.basis"]
            numbers = shapes["y_center" if "y_center" in shapes else "classes"][1]
            self.flow = self._couplings(kept, numbers).to(getattr(torch, dtype)).requires_grad_(False)

    def check(self) -> None:
        """Raise a ValueError where the tensors cannot be those of a fit."""
        expect(self.y_deviation is None or self.y_deviation > 0, "a deviation of ŷ is not positive")
        expect(self.classes is None or self.classes.diff() > 0, "classes do not ascend")


def _standardised(y: Tensor, center: Tensor, deviation: Tensor) -> Tensor:
    """In deviations, saturated where the flow's products would overflow."""
    limit = torch.finfo(center.dtype).max ** 0.25
    return ((y.double() - center.double()) / deviation.double()).clamp(-limit, limit).to(center.dtype)


class Sample(NamedTuple):
    """Whitened activations and what they are conditioned on, as columns."""

    u: Tensor  # (d, n)
    condition: Tensor  # (q, n)


class Trained(NamedTuple):
    """How training ended."""

    epochs: int
    max_epochs: int
    stopped: bool  # by patience
    log_likelihood: float  # mean over the holdout, the best


def train(flow: Couplings, fitted: Sample, holdout: Sample, how: ConditionalFlow) -> Trained:
    """Maximise the likelihood of `fitted`, blurred afresh at every step, and keep the weights best for `holdout`.

    Where the likelihood becomes NaN, training goes back to the best weights at half the learning rate.
    """
    u = fitted.u
    random, n = Generator(u.device).manual_seed(how.seed), u.shape[1]
    size = how.batch_size or min(n, FULL_BATCH)
    steps = math.ceil(n / size)  # per epoch
    max_epochs = how.max_epochs or math.ceil(STEPS / steps)
    patience = how.patience or max(IDLE_EPOCHS, math.ceil(IDLE_STEPS / steps))
    checked = _blurred(holdout, math.ceil(DRAWS / holdout.u.shape[1]), how.noise, random)

    gain = how.gain * len(u)
    best = mark = -math.inf  # the highest likelihood, and the one that last counted as growth
    at = epoch = retreats = 0
    rate = how.learning_rate
    kept = deepcopy(flow.state_dict())
    optimiser = _optimiser(flow, how, rate)
    with progress_bar("flow", total=max_epochs) as bar:
        for epoch in range(max_epochs + 1):
            with torch.no_grad():
                likelihood = float(log_likelihood(flow, *checked).mean())
            if likelihood > best:
                best, kept = likelihood, deepcopy(flow.state_dict())
            if likelihood > mark + gain:
                mark, at = likelihood, epoch
            if not math.isfinite(likelihood):
                retreats += 1
                if retreats > RETREATS:
                    raise RuntimeError(
                        f"the likelihood of the holdout was NaN {retreats} times, the last time at a learning rate "
                        f"of {rate:g}: lower learning_rate, raise noise, or look for outliers in z."
                    )
                flow.load_state_dict(kept)
                rate /= 2
                optimiser = _optimiser(flow, how, rate)
            if epoch - at >= patience or epoch == max_epochs:
                break
            order = (
                torch.randperm(n, generator=random, device=u.device) if size < n else torch.arange(n, device=u.device)
            )
            for columns in order.split(size):
                some = Sample(u[:, columns], fitted.condition[:, columns])
                optimiser.zero_grad()
                (-log_likelihood(flow, *_blurred(some, 1, how.noise, random)).mean()).backward()
                optimiser.step()
            bar.advance(likelihood=likelihood)
    flow.load_state_dict(kept)
    return Trained(epoch, max_epochs, epoch - at >= patience, best)


def _blurred(sample: Sample, times: int, noise: float, random: Generator) -> Sample:
    u = sample.u.repeat(1, times)
    draws = torch.randn(u.shape, generator=random, dtype=u.dtype, device=u.device)
    return Sample(u + noise * draws, sample.condition.repeat(1, times))


def _optimiser(flow: Couplings, how: ConditionalFlow, rate: float) -> torch.optim.Optimizer:
    fused = next(flow.parameters()).device.type in ("cpu", "cuda")
    return torch.optim.AdamW(flow.parameters(), lr=rate, weight_decay=how.weight_decay, fused=fused)
