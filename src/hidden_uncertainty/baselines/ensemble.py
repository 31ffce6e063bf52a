"""Deep ensembles, and all methods that ask several predictions how far they disagree."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Unpack

import torch
from torch import Tensor, nn

from ..abilities import require
from ..detector import Detector
from ..model.batches import Batch
from ..model.capture import device_of, run
from ..model.outputs import select
from ..model.tasks import Classification, MultiLabel, Prediction, Task, TaskName
from ..scoring.bayes import infer
from ..scoring.outputs import warn_of_probabilities
from ..scoring.terms import Term
from ..uncertainty import LayerScores
from .base import AsRead, ScoringReader, check_options
from .outputs import OutputOptions, read_as

CELLS, CELLS_ON_GPU = 1 << 18, 1 << 26  # members times inputs times classes at a time


class VotingDetector(Detector):
    """A detector by how far several predictions disagree; a reader runs the networks."""

    def __init__(self, reader: VotingReader, *, seed: int = 0, progress: bool | None = None) -> None:
        if isinstance(reader.task, MultiLabel):
            require(self, "labels")
        terms = [Term(AsRead())]
        super().__init__(reader.model, terms, pixels=reader.pixels, seed=seed, progress=progress, reader=reader)

    @property
    def unit(self) -> str:
        """The unit of the epistemic score, which depends on what is predicted."""
        return "nats" if self.task is None or self.task.discrete else "squared units of the output"


class VotingReader(ScoringReader):
    """Several passes over a batch, and how far they disagree; what they are is said by `OutputOptions`."""

    def __init__(
        self,
        model: nn.Module,
        *,
        logits: bool = True,
        task: TaskName | Task | None = None,
        output: int | str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(model, task=read_as(task, output, logits), output=output, **options)
        self.logits, self._looked = logits, False

    def known_task(self, output: Any, batch: Batch) -> Task:
        """The task, with what its scores are where it is inferred."""
        if self.task is None and isinstance(super().known_task(output, batch), Classification):
            self.task = Classification(self.output, logits=self.logits)
        return super().known_task(output, batch)

    def sample(self, output: Any, task: Task) -> Prediction:
        """What one pass says, as rows: logits of all classes (m, C), or numbers; m counts inputs, or their pixels."""
        if not isinstance(task, Classification):
            if self.pixels is None:
                return task.predict(output)
            value, classes, variance, _ = task.predict_pixels(output)
            return Prediction(value.flatten(), classes, None if variance is None else variance.flatten())
        if self.pixels is None:
            task.predict(output)  # which sees whether these are scores of classes
            scores = task.scores(output)
        else:
            maps = task.scores(output, maps=True).permute(0, 2, 3, 1)
            scores = maps.clone(memory_format=torch.contiguous_format).flatten(0, 2)  # the network's memory is not ours
        if task.logits and not self._looked and len(scores):
            self._looked = True
            warn_of_probabilities(scores)
        return Prediction(scores, scores.shape[1])

    def vote(self, task: Task, samples: Sequence[Prediction], output: Any) -> tuple[Prediction, LayerScores]:
        """What several passes say together, whose tensors are (passes, m, ...); any output, for the shape of maps."""
        value = torch.cat([sample.value for sample in samples])
        wrong = ~value.amax(-1).isfinite() if task.discrete else ~value.isfinite()  # a class may be ruled out by -inf
        if task.discrete:
            parts = decompose_classes(value)
        else:
            variances = [sample.variance for sample in samples if sample.variance is not None]
            parts = decompose_numbers(value, torch.cat(variances) if variances else None)
            wrong = wrong.any(-1) if wrong.dim() == 3 else wrong
        parts = parts._replace(epistemic=parts.epistemic.masked_fill(wrong.any(0), math.nan))
        if self.pixels is not None:
            shape = select(output, task.output, "the network", "output").shape[-2:]
            parts = Parts(*(None if part is None else part.reshape(-1, *shape) for part in parts))  # type: ignore[arg-type]
        scores = LayerScores(**{name: found for name, found in parts._asdict().items() if name != "prediction"})
        if not task.discrete:
            return Prediction(parts.prediction), scores
        probabilities = value.softmax(-1).mean(0) if self.pixels is None else None  # (n, C)
        return Prediction(parts.prediction, samples[0].classes, probabilities=probabilities), scores


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
        check_options(self, options, OutputOptions)
        self.models, progress = _checked(models), options.pop("progress", None)
        super().__init__(EnsembleReader(self.models, **options), progress=progress)


class EnsembleReader(VotingReader):
    """Runs the members of a `DeepEnsemble` on each batch."""

    def __init__(self, models: tuple[nn.Module, ...], **options: Any) -> None:
        super().__init__(models[0], **options)
        self.models = models

    def parts(self, batch: Batch) -> tuple[Prediction, LayerScores]:
        """What the members say together."""
        samples: list[Prediction] = []
        for position, member in enumerate(self.models):
            device = device_of(member)
            inputs = batch if device is None else batch.to(device)
            output, _ = run(member, {}, inputs.args, inputs.kwargs)
            task = self.known_task(output, batch)
            sample = self.sample(output, task)
            if samples and sample.value.shape != samples[0].value.shape[1:]:
                raise ValueError(
                    f"members must predict the same, but member {position} gave {tuple(sample.value.shape)} and "
                    f"member 0 {tuple(samples[0].value.shape[1:])} for {len(batch)} inputs."
                )
            home = samples[0].value.device if samples else sample.value.device
            variance = None if sample.variance is None else sample.variance.to(home)[None]
            samples.append(Prediction(sample.value.to(home)[None], sample.classes, variance))
        return self.vote(task, samples, output)


class Parts(NamedTuple):
    """A prediction for n inputs and the two kinds of uncertainty, in the order of `Uncertainty`."""

    prediction: Tensor  # (n,) classes, or (n,) or (n, q) numbers
    epistemic: Tensor  # (n,)
    aleatoric: Tensor | None = None  # (n,)
    log_aleatoric: Tensor | None = None  # (n,)


def decompose_classes(scores: Tensor) -> Parts:
    r"""Mean entropy and mutual information of K predicted distributions over classes, from logits (K, n, C), in nats.

    .. math::
        \text{aleatoric} = \frac1K \sum_k H(p_k), \qquad
        \text{epistemic} = H(\bar p) - \frac1K \sum_k H(p_k)
            = \frac1K \sum_k \sum_c p_{kc} \left(e^{t_{kc}} - 1 - t_{kc}\right), \quad
        t_{kc} = \log \bar p_c - \log p_{kc}

    with p̄ the mean of the p_k, and the prediction its largest class. (The paper's appendix prints both entropies
    without their minus signs; these are the quantities it names.) The last form has terms that are never negative: it
    keeps its digits where the two entropies agree in all of theirs, and is exactly zero where all members are equal.
    """
    # Some inputs at a time: for maps, all intermediate values would take gigabytes, and on a CPU no cache holds them.
    cells = CELLS if scores.device.type == "cpu" else CELLS_ON_GPU
    rows = max(1, cells // (scores.shape[0] * scores.shape[2]))
    parts = [_decompose(part) for part in scores.split(rows, dim=1)]
    return parts[0] if len(parts) == 1 else Parts(*(torch.cat(values) for values in zip(*parts, strict=True)))


def decompose_numbers(value: Tensor, variance: Tensor | None = None) -> Parts:
    r"""Mean variance and variance of the means of K predictions (K, n) or (K, n, q), summed over outputs.

    .. math::
        \text{aleatoric} = \frac1K \sum_k \sigma_k^2, \qquad
        \text{epistemic} = \frac1K \sum_k (\mu_k - \bar\mu)^2

    Their sum is the variance of the mixture of the K predictions.
    """
    mean = (value / len(value)).sum(0)  # the sum of undivided ones may overflow
    spread = (value - mean).square().mean(0)
    return Parts(mean, _total(spread), None if variance is None else _total(variance.mean(0)))


def _checked(models: Iterable[nn.Module]) -> tuple[nn.Module, ...]:
    if isinstance(models, nn.Module) and not isinstance(models, nn.ModuleList):
        raise TypeError(f"an ensemble is a list of networks, but one {type(models).__name__} came: pass [model, ...].")
    members = tuple(models)
    for position, member in enumerate(members):
        if not isinstance(member, nn.Module):
            raise TypeError(f"member {position} must be a torch.nn.Module, not {type(member).__name__}.")
        first = next(i for i, other in enumerate(members) if other is member)
        if first != position:
            raise ValueError(
                f"members {first} and {position} are one and the same network, which can only agree with itself: pass "
                "networks that were trained apart."
            )
    if len(members) < 2:
        raise ValueError(f"an ensemble needs at least 2 networks to disagree, not {len(members)}.")
    return members


def _decompose(scores: Tensor) -> Parts:
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
    one = t.new_ones(())
    series = one
    for k in range(9, 2, -1):
        series = torch.addcmul(one, t, series, value=1 / k)  # 1 + t / k · series
    far = log_mean.exp() - p - p * t  # never p · e^t: e^t overflows where p is zero
    information = torch.where(small, p * t.square() / 2 * series, far).sum(-1).mean(0)
    return Parts(
        log_mean.argmax(-1),
        information.clamp(0.0, math.log(min(members, classes))),
        posterior.entropy.view(members, n).mean(0),
        posterior.log_entropy.view(members, n).logsumexp(0) - math.log(members),
    )


def _total(variance: Tensor) -> Tensor:
    """One number per input, saturated where the dtype ends."""
    total = variance if variance.dim() == 1 else variance.sum(-1)
    return total.clamp(max=torch.finfo(total.dtype).max)
