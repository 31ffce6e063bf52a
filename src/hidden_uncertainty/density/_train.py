"""Training of a flow by likelihood, stopped by a holdout."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from ..progress import progress_bar
from ._coupling import Couplings

FULL_BATCH = 1024  # rows up to which a step takes all of them
STEPS = 3000  # at most, where max_epochs is None
IDLE_STEPS, IDLE_EPOCHS = 200, 5  # without growth, where patience is None
DRAWS = 256  # of noise on the holdout at least
RETREATS = 5
WARM_UP = 3  # steps before one is recorded, as torch asks for


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
