"""A conditional normalizing flow, trained by likelihood: the density that the paper uses for regression."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from numbers import Integral
from typing import Any, Literal, NamedTuple, Self, get_args

import torch
from torch import Generator, Tensor

from ..io import expect
from ..notes import warn
from ..precision import gradients, precise
from ..progress import progress_bar
from ._coupling import Couplings, Form, fold, log_prob
from .base import Density, as_vectors, check_classes, check_counts, check_dtype, check_numbers, match_classes
from .directions import Directions, draw_holdout

FEWEST = 20  # samples
FULL_BATCH = 1024  # rows up to which a step takes all of them
STEPS = 3000  # at most, where max_epochs is None
IDLE_STEPS, IDLE_EPOCHS = 200, 5  # without growth, where patience is None
DRAWS = 256  # of noise on the holdout at least
RETREATS = 5
WARM_UP = 3  # steps before one is recorded, as torch asks for


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
        schedule = Schedule(**{name: getattr(self, name) for name in Schedule._fields})
        trained = train(flow, Sample(*parts[0]), Sample(*parts[1]), schedule)
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
        flow = self._fitted()
        if z.dim() != 2 or z.shape[1] != self.directions.dim:
            raise ValueError(f"expected z of shape (n, {self.directions.dim}), as fitted, not {tuple(z.shape)}.")
        u, rest = self.directions(z.detach())
        columns, folded = u.mT.contiguous(), fold(flow)

        @precise
        def scores(support: Tensor, rows: Tensor | None = None) -> Tensor:
            own, off = (columns, rest) if rows is None else (columns[:, rows], rest[rows])
            condition = self._condition(support, len(off))  # (1, m, q) or (n, m, q)
            return off[:, None] + log_prob(flow, own, condition.movedim(-1, 0), folded)

        return scores

    @gradients(False)
    @precise
    def sample(self, support: Tensor, count: int = 1, *, generator: Generator | None = None) -> Tensor:
        """Draw activations given each support point, blurred as the density is: (count, m, d).

        Args:
            support: predictions (m,) where they are numbers or classes, or (m, q).
            count: draws per point.
            generator: of the draws, on the density's device; None takes one of the density's seed.
        """
        flow, at = self._fitted(), self.directions
        condition = self._condition(support, 0)[0].mT.repeat(1, count)  # (q, count · m)
        random = generator or Generator(condition.device).manual_seed(self.seed)
        draw = partial(torch.randn, generator=random, dtype=condition.dtype, device=condition.device)
        u = flow.inverse(draw(at.kept, condition.shape[1]), condition).mT
        off = draw(len(u), at.dim) * at.residual_deviation
        z = at.center + (u * at.deviation - off @ at.basis) @ at.basis.mT + off
        return z.view(count, -1, at.dim)

    def _condition(self, support: Tensor, n: int) -> Tensor:
        """Support points as the flow is given them, (1, m, q) or (n, m, q)."""
        if self.classes is not None:
            return match_classes(support, self.classes)[None].to(self.directions.center.dtype)
        assert self.y_center is not None
        assert self.y_deviation is not None
        y = as_vectors(support, len(self.y_center), n).detach()
        return _standardised(y if y.dim() == 3 else y[None], self.y_center, self.y_deviation)

    def _fitted(self) -> Couplings:
        if self.flow is None:
            raise RuntimeError("this ConditionalFlow is not fitted: call fit(z, y) first.")
        return self.flow

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

    def extra_repr(self) -> str:
        """The arguments that shape the density."""
        return f"form={self.form!r}, blocks={self.blocks}, noise={self.noise}"


def _standardised(y: Tensor, center: Tensor, deviation: Tensor) -> Tensor:
    """In deviations, saturated where the flow's products would overflow."""
    limit = torch.finfo(center.dtype).max ** 0.25
    return ((y.double() - center.double()) / deviation.double()).clamp(-limit, limit).to(center.dtype)


class Schedule(NamedTuple):
    """How long and how fast, as in `ConditionalFlow`."""

    noise: float
    batch_size: int | None
    learning_rate: float
    weight_decay: float
    max_epochs: int | None
    patience: int | None
    seed: int
    gain: float = 0.01


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


def train(flow: Couplings, fitted: Sample, holdout: Sample, schedule: Schedule) -> Trained:
    """Maximise the likelihood of `fitted`, blurred afresh at every step, and keep the weights best for `holdout`.

    Where the likelihood becomes NaN, training goes back to the best weights at half the learning rate.
    """
    random = Generator(fitted.u.device).manual_seed(schedule.seed)
    n = fitted.u.shape[1]
    size = schedule.batch_size or min(n, FULL_BATCH)
    steps = math.ceil(n / size)  # per epoch
    max_epochs = schedule.max_epochs or math.ceil(STEPS / steps)
    patience = schedule.patience or max(IDLE_EPOCHS, math.ceil(IDLE_STEPS / steps))
    checked = _blurred(holdout, math.ceil(DRAWS / holdout.u.shape[1]), schedule.noise, random)

    gain = schedule.gain * len(fitted.u)
    best = mark = -math.inf  # the highest likelihood, and the one that last counted as growth
    at = epoch = retreats = 0
    rate = schedule.learning_rate
    kept = _weights(flow)
    step = _Step(flow, fitted, schedule, rate, random)
    with progress_bar("flow", total=max_epochs) as bar:
        for epoch in range(max_epochs + 1):
            with torch.no_grad():
                likelihood = float(log_likelihood(flow, checked).mean())
            if likelihood > best:
                best, kept = likelihood, _weights(flow)
            if likelihood > mark + gain:
                mark, at = likelihood, epoch
            if not math.isfinite(likelihood):
                retreats += 1
                if retreats > RETREATS:
                    raise RuntimeError(
                        f"the likelihood of the holdout was NaN {retreats} times, the last time at a learning rate "
                        f"of {rate:g}: lower learning_rate, raise noise, or look for outliers in z."
                    )
                _restore(flow, kept)
                rate /= 2
                step = _Step(flow, fitted, schedule, rate, random)
            if epoch - at >= patience or epoch == max_epochs:
                break
            for columns in _batches(n, size, random):
                step(columns)
            bar.advance(likelihood=likelihood)
    _restore(flow, kept)
    return Trained(epoch, max_epochs, epoch - at >= patience, best)


def log_likelihood(flow: Couplings, sample: Sample) -> Tensor:
    """log p(u | c) of each column, (n,)."""
    base, log_scale = flow(*sample)
    return log_scale - 0.5 * base.square().sum(0) - 0.5 * len(base) * math.log(2 * math.pi)


class _Step:
    """One step on some columns; recorded and replayed on a GPU, whose kernels take less time than launching them."""

    def __init__(self, flow: Couplings, fitted: Sample, schedule: Schedule, rate: float, random: Generator) -> None:
        self.flow, self.fitted, self.noise, self.random = flow, fitted, schedule.noise, random
        device = fitted.u.device.type
        self.optimiser = torch.optim.AdamW(
            flow.parameters(),
            lr=rate,
            weight_decay=schedule.weight_decay,
            fused=device in ("cpu", "cuda"),
            capturable=device == "cuda",
        )
        self.graph: torch.cuda.CUDAGraph | None = None
        self.columns: Tensor | None = None

    def __call__(self, columns: Tensor | slice) -> None:
        """Learn from these columns."""
        if isinstance(columns, slice) or not columns.is_cuda:
            self._learn(columns)
            return
        if self.graph is None or self.columns is None:
            self.graph, self.columns = self._record(columns)
        if len(columns) == len(self.columns):
            self.columns.copy_(columns)
            self.graph.replay()
        else:  # what was left over for the last step of an epoch
            self._learn(columns)

    def _learn(self, columns: Tensor | slice) -> None:
        some = Sample(self.fitted.u[:, columns], self.fitted.condition[:, columns])
        self.optimiser.zero_grad()
        (-log_likelihood(self.flow, _blurred(some, 1, self.noise, self.random)).mean()).backward()
        self.optimiser.step()

    def _record(self, columns: Tensor) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        """A step, and where it finds its columns; the steps that recording takes leave no trace."""
        before, state, columns = _weights(self.flow), self.random.get_state(), columns.clone()
        stream = torch.cuda.Stream(columns.device)
        stream.wait_stream(torch.cuda.current_stream(columns.device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                self._learn(columns)
        torch.cuda.current_stream(columns.device).wait_stream(stream)
        self.random.set_state(state)
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.random)
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self._learn(columns)
        _restore(self.flow, before)
        for values in self.optimiser.state.values():
            for value in values.values():
                value.zero_()
        return graph, columns


def _blurred(sample: Sample, times: int, noise: float, random: Generator) -> Sample:
    u = sample.u.repeat(1, times)
    draws = torch.randn(u.shape, generator=random, dtype=u.dtype, device=u.device)
    return Sample(u + noise * draws, sample.condition.repeat(1, times))


def _batches(n: int, size: int, random: Generator) -> list[Tensor | slice]:
    if size >= n:  # a view on a CPU; what is recorded on a GPU reads its columns by number
        return [torch.arange(n, device=random.device) if random.device.type == "cuda" else slice(None)]
    return list(torch.randperm(n, generator=random, device=random.device).split(size))


def _weights(flow: Couplings) -> list[Tensor]:
    return [weight.detach().clone() for weight in flow.parameters()]


def _restore(flow: Couplings, weights: list[Tensor]) -> None:
    with torch.no_grad():
        for weight, value in zip(flow.parameters(), weights, strict=True):
            weight.copy_(value)
