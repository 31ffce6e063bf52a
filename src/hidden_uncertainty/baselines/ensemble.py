"""Deep ensembles, and all methods that ask several predictions how far they disagree."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from ..abilities import require
from ..detector import Detector
from ..model.batches import Batch
from ..model.capture import device_of, run
from ..model.tasks import Classification, MultiLabel, Prediction, Task
from ..scoring.bayes import infer
from ..scoring.outputs import warn_of_probabilities
from ..scoring.terms import Term
from ..uncertainty import LayerScores
from .base import AsRead, ScoringReader, check_options
from .outputs import OutputOptions, read_as

CELLS, CELLS_ON_GPU = 1 << 18, 1 << 26  # members times inputs times classes at a time


class VotingDetector(Detector):
    """A detector by how far several passes disagree."""

    repeats = True  # whether an input is read alike each time, but for rounding

    def __init__(self, model: nn.Module, options: OutputOptions, *, seed: int = 0) -> None:
        check_options(self, options, OutputOptions)
        task, output, logits = options.pop("task", None), options.pop("output", None), options.pop("logits", True)
        known, progress = read_as(task, output, logits), options.pop("progress", None)
        if isinstance(known, MultiLabel):
            require(self, "labels")
        reader = VotingReader(self, model, logits=logits, task=known, output=output, **options)  # type: ignore[misc]
        super().__init__(model, [Term(AsRead())], pixels=reader.pixels, seed=seed, progress=progress, reader=reader)

    @abstractmethod
    def passes(self, batch: Batch, take: Callable[[Any], None]) -> None:
        """Run the networks on a batch, and give the output of each pass to `take`, which reads it at once."""

    @property
    def unit(self) -> str:
        """The unit of the epistemic score, which depends on what is predicted."""
        return "nats" if self.task is None or self.task.discrete else "squared units of the output"


class VotingReader(ScoringReader):
    """Reads how far the passes of a detector over a batch disagree."""

    def __init__(self, detector: VotingDetector, model: nn.Module, *, logits: bool, **options: Any) -> None:
        super().__init__(model, **options)
        self.detector, self.repeats, self.logits, self._looked = detector, detector.repeats, logits, False

    def known_task(self, output: Any, batch: Batch) -> Task:
        """The task, with what its scores are where it is inferred."""
        if self.task is None and isinstance(super().known_task(output, batch), Classification):
            self.task = Classification(self.output, logits=self.logits)
        return super().known_task(output, batch)

    def sample(self, output: Any, task: Task) -> Prediction:
        """What one pass says: numbers as they are predicted, and of classes all logits, (n, C) or (n, H, W, C)."""
        if not isinstance(task, Classification):
            return task.predict(output) if self.pixels is None else task.predict_pixels(output)
        if self.pixels is None:
            task.predict(output)  # which sees whether these are scores of classes
        scores = task.scores(output, maps=self.pixels is not None).movedim(1, -1)
        scores = scores.clone(memory_format=torch.contiguous_format)  # the network's memory is not ours
        if task.logits and not self._looked and len(scores):
            self._looked = True
            warn_of_probabilities(scores.flatten(0, -2))
        return Prediction(scores, scores.shape[-1])

    def parts(self, batch: Batch) -> tuple[Prediction, LayerScores]:
        """What all passes say together."""
        samples: list[Prediction] = []

        def take(output: Any) -> None:
            samples.append(self.sample(output, self.known_task(output, batch)))
            first, last = (tuple(sample.value.shape) for sample in (samples[0], samples[-1]))
            if last != first:
                raise ValueError(
                    f"members must predict the same, but member {len(samples) - 1} gave {last} and member 0 {first} "
                    f"for {len(batch)} inputs."
                )

        self.detector.passes(batch, take)
        home = samples[0].value.device
        value = torch.stack([sample.value.to(home) for sample in samples])
        if samples[0].classes:
            wrong = ~value.amax(-1).isfinite()  # a class may be ruled out by -inf
            shape = wrong.shape[1:]
            predicted, scores = decompose_classes(value.flatten(1, -2))
            probabilities = value.softmax(-1).mean(0) if self.pixels is None else None  # (n, C)
            prediction = Prediction(predicted.view(shape), value.shape[-1], probabilities=probabilities)
            scores = scores.reshape(shape)
        else:
            variances = [sample.variance.to(home) for sample in samples if sample.variance is not None]
            predicted, scores = decompose_numbers(value, torch.stack(variances) if variances else None)
            prediction = Prediction(predicted)
            wrong = ~value.isfinite()
            wrong = wrong.any(-1) if wrong.dim() == 3 else wrong
        return prediction, replace(scores, epistemic=scores.epistemic.masked_fill(wrong.any(0), math.nan))


class DeepEnsemble(VotingDetector):
    r"""Several networks trained apart from different beginnings (Lakshminarayanan et al., 2017).

    For classes the prediction is that of the mean probability, the aleatoric uncertainty the mean entropy of the
    members, and the epistemic one the mutual information of class and member, in nats (paper, appendix). For numbers
    they are the mean, the mean of the variances that the members predict (None where they predict none), and the
    variance of the members' means, in squared units of the output, summed over outputs.

    Members are run one after the other; they may be on several devices, and the result is where the first is.

    Args:
        models: at least two trained networks that predict the same; they may differ in architecture.
        options: `logits`, `task`, `output`, `pixels`, `unpack` and `progress`: see `OutputOptions`.

    Example:
        >>> ensemble = DeepEnsemble([nn.Linear(4, 3) for _ in range(5)], task="classification")
        >>> u = ensemble(torch.randn(8, 4))
        >>> u.epistemic.shape, bool((u.epistemic > 0).all())
        (torch.Size([8]), True)
    """

    def __init__(self, models: Iterable[nn.Module], **options: Unpack[OutputOptions]) -> None:
        self.models = _checked(models)
        super().__init__(self.models[0], options)

    def passes(self, batch: Batch, take: Callable[[Any], None]) -> None:
        """Run the members one after the other."""
        for member in self.models:
            device = device_of(member)
            inputs = batch if device is None else batch.to(device)
            take(run(member, {}, inputs.args, inputs.kwargs)[0])


def decompose_classes(scores: Tensor) -> tuple[Tensor, LayerScores]:
    r"""Mean entropy and mutual information of K predicted distributions over classes, from logits (K, n, C), in nats.

    .. math::
        \text{aleatoric} = \frac1K \sum_k H(p_k), \qquad
        \text{epistemic} = H(\bar p) - \frac1K \sum_k H(p_k)
            = \frac1K \sum_k \sum_c p_{kc} \left(e^{t_{kc}} - 1 - t_{kc}\right), \quad
        t_{kc} = \log \bar p_c - \log p_{kc}

    with p̄ the mean of the p_k, and the prediction its largest class. The last form has terms that are never negative:
    it keeps its digits where the two entropies agree in all of theirs, and is exactly zero where all members are equal.
    """
    # Some inputs at a time: for maps, all intermediate values would take gigabytes, and on a CPU no cache holds them.
    cells = CELLS if scores.device.type == "cpu" else CELLS_ON_GPU
    rows = max(1, cells // (scores.shape[0] * scores.shape[2]))
    predictions, parts = zip(*map(_decompose, scores.split(rows, dim=1)), strict=True)
    return torch.cat(predictions), LayerScores.cat(parts)


def decompose_numbers(value: Tensor, variance: Tensor | None = None) -> tuple[Tensor, LayerScores]:
    r"""Mean variance and variance of the means of K predictions (K, n), (K, n, H, W) or (K, n, q), summed over these q.

    .. math::
        \text{aleatoric} = \frac1K \sum_k \sigma_k^2, \qquad
        \text{epistemic} = \frac1K \sum_k (\mu_k - \bar\mu)^2

    Their sum is the variance of the mixture of the K predictions.
    """
    mean = (value / len(value)).sum(0)  # the sum of undivided ones may overflow
    spread = (value - mean).square().mean(0)
    aleatoric = None if variance is None else _total(variance.mean(0))
    return mean, LayerScores(epistemic=_total(spread), aleatoric=aleatoric)


def _checked(models: Iterable[nn.Module]) -> tuple[nn.Module, ...]:
    if isinstance(models, nn.Module) and not isinstance(models, nn.ModuleList):
        raise TypeError(f"an ensemble is a list of networks, but one {type(models).__name__} came: pass [model, ...].")
    members = tuple(models)
    for position, member in enumerate(members):
        if not isinstance(member, nn.Module):
            raise TypeError(f"member {position} must be a torch.nn.Module, not {type(member).__name__}.")
        first = members.index(member)
        if first != position:
            raise ValueError(
                f"members {first} and {position} are one and the same network, which can only agree with itself: pass "
                "networks that were trained apart."
            )
    if len(members) < 2:
        raise ValueError(f"an ensemble needs at least 2 networks to disagree, not {len(members)}.")
    return members


def _decompose(scores: Tensor) -> tuple[Tensor, LayerScores]:
    members, n, classes = scores.shape
    posterior = infer(scores.flatten(0, 1), scores.new_zeros(classes))
    assert posterior.log_entropy is not None
    log_p = posterior.log_posterior.view_as(scores)
    best = log_p.amax(0)  # (n, C)
    # log of the mean of the p_k, by log1p and expm1 so that members who nearly agree are not rounded to one another.
    log_mean = best + torch.expm1(log_p - best).mean(0).log1p()
    t = log_mean - log_p  # (K, n, C), at least -log K
    p = log_p.exp()
    small = t.abs() < 0.25  # there e^t - 1 - t loses digits, which its series keeps
    series = one = t.new_ones(())
    for k in range(9, 2, -1):
        series = torch.addcmul(one, t, series, value=1 / k)  # 1 + t / k · series
    far = log_mean.exp() - p - p * t  # never p · e^t: e^t overflows where p is zero
    information = torch.where(small, p * t.square() / 2 * series, far).sum(-1).mean(0)
    return log_mean.argmax(-1), LayerScores(
        epistemic=information.clamp(0.0, math.log(min(members, classes))),
        aleatoric=posterior.entropy.view(members, n).mean(0),
        log_aleatoric=posterior.log_entropy.view(members, n).logsumexp(0) - math.log(members),
    )


def _total(variance: Tensor) -> Tensor:
    """One number per input, saturated where the dtype ends."""
    total = variance.sum(-1) if variance.dim() == 2 else variance
    return total.clamp(max=torch.finfo(total.dtype).max)
