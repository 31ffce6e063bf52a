"""Training of a flow by likelihood, stopped by rows that it does not see."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..progress import task
from ._coupling import Couplings

FULL_BATCH = 1024  # rows up to which a step takes all of them
STEPS = 3000  # at most, where the number of epochs is not said
IDLE_STEPS, IDLE_EPOCHS = 200, 5  # without progress, likewise
DRAWS = 256  # of noise on held-out rows at least
RETREATS = 5


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
    log_likelihood: float  # of a held-out row, the best


def train(
    flow: Couplings, fitted: Sample, held_out: Sample, schedule: Schedule, *, progress: bool | None = None
) -> Trained:
    """Maximise the likelihood of `fitted`, blurred afresh at every step, and keep the weights best for `held_out`.

    Where the likelihood is no number any more, training goes back to the best weights at half the learning rate.
    """
    random = torch.Generator(fitted.u.device).manual_seed(schedule.seed)
    n = fitted.u.shape[1]
    size = schedule.batch_size or (n if n <= FULL_BATCH else FULL_BATCH)
    steps = math.ceil(n / size)  # an epoch
    max_epochs = schedule.max_epochs or math.ceil(STEPS / steps)
    patience = schedule.patience or max(IDLE_EPOCHS, math.ceil(IDLE_STEPS / steps))
    seen = _blurred(held_out, math.ceil(DRAWS / held_out.u.shape[1]), schedule.noise, random)

    gain = schedule.gain * len(fitted.u)
    best = mark = -math.inf  # the highest likelihood, and the one at which there last was progress
    at = epoch = retreats = 0
    rate = schedule.learning_rate
    optimiser, kept = _adam(flow, rate, schedule.weight_decay), _weights(flow)
    with task("flow", total=max_epochs, enabled=progress) as bar:
        for epoch in range(max_epochs + 1):
            with torch.no_grad():
                likelihood = float(log_likelihood(flow, seen).mean())
            if likelihood > best:
                best, kept = likelihood, _weights(flow)
            if likelihood > mark + gain:
                mark, at = likelihood, epoch
            if not math.isfinite(likelihood):
                retreats += 1
                if retreats > RETREATS:
                    raise RuntimeError(
                        f"the likelihood of held-out rows was no number {retreats} times, the last at a learning rate "
                        f"of {rate:g}: lower learning_rate, raise noise, or look for outliers in z."
                    )
                _restore(flow, kept)
                rate /= 2
                optimiser = _adam(flow, rate, schedule.weight_decay)
            if epoch - at >= patience or epoch == max_epochs:
                break
            for columns in _batches(n, size, random):
                x = _blurred(Sample(fitted.u[:, columns], fitted.condition[:, columns]), 1, schedule.noise, random)
                optimiser.zero_grad()
                (-log_likelihood(flow, x).mean()).backward()
                optimiser.step()
            bar.advance(likelihood=likelihood)
    _restore(flow, kept)
    return Trained(epoch, max_epochs, epoch - at >= patience, best)


def log_likelihood(flow: Couplings, sample: Sample) -> Tensor:
    """log p(u | c) of each column, (n,)."""
    base, log_scale = flow(*sample)
    return log_scale - 0.5 * base.square().sum(0) - 0.5 * len(base) * math.log(2 * math.pi)


def _blurred(sample: Sample, times: int, noise: float, random: torch.Generator) -> Sample:
    u = sample.u.repeat(1, times)
    draws = torch.randn(u.shape, generator=random, dtype=u.dtype, device=u.device)
    return Sample(u + noise * draws, sample.condition.repeat(1, times))


def _batches(n: int, size: int, random: torch.Generator) -> list[Tensor | slice]:
    if size >= n:
        return [slice(None)]
    return list(torch.randperm(n, generator=random, device=random.device).split(size))


def _adam(flow: Couplings, rate: float, decay: float) -> torch.optim.Optimizer:
    fused = next(flow.parameters()).device.type in ("cpu", "cuda")
    return torch.optim.AdamW(flow.parameters(), lr=rate, weight_decay=decay, fused=fused)


def _weights(flow: Couplings) -> list[Tensor]:
    return [weight.detach().clone() for weight in flow.parameters()]


def _restore(flow: Couplings, weights: list[Tensor]) -> None:
    with torch.no_grad():
        for weight, value in zip(flow.parameters(), weights, strict=True):
            weight.copy_(value)
