"""Methods that run networks in their own way: their readings come scored, by how far several predictions disagree."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from ..detector import Detector
from ..extract import OUTPUTS, Features, Grid, Lattice, Pixels, Reader, Rows, Unseen, label_maps
from ..extract.extractor import chosen
from ..model.batches import Batch, require_repeatable
from ..model.capture import select
from ..model.tasks import Classification, Prediction, Task, TaskName
from ..reduce import Reduction
from ..scoring.bayes import infer
from ..scoring.terms import Method, Scores, Term
from ..uncertainty import LayerScores
from .outputs import read_as, warn_of_probabilities

CELLS, CELLS_ON_GPU = 1 << 18, 1 << 26  # members times inputs times classes at a time


class AsRead(Method):
    """The scores that a reading comes with.

    Args:
        unit: of the epistemic score.
        fits: whether the reading step must be fitted first.
    """

    conditional = False

    def __init__(self, unit: str = "nats", *, fits: bool = False) -> None:
        super().__init__()
        self.unit, self.fits = unit, fits

    def fit(self, z: Tensor, y: Tensor | None, features: Features) -> Self:
        """Nothing to do: the reading step is fitted."""
        return self

    def score(self, z: Tensor | Lattice, prediction: Tensor, *, seen: bool = False) -> Scores:
        """Rows cannot be scored without their inputs."""
        raise NotImplementedError

    def config(self) -> dict[str, Any]:
        """Not saved."""
        raise NotImplementedError

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Not saved."""
        raise NotImplementedError


class ScoringReader(Reader):
    """Scores batches by itself; subclasses say with `parts` how.

    Args:
        model: the network whose predictions are judged.
        pixels: how pixels are treated, for networks that predict for each.
        options: those of `Reader`.
    """

    learns = False

    def __init__(self, model: nn.Module, *, pixels: Pixels | None = None, **options: Any) -> None:
        super().__init__(model, **options)
        if pixels is not None and pixels.resolution == "latent":
            raise ValueError("resolution='latent' is the grid of a layer; outputs have their own: leave it out.")
        self.pixels = pixels

    @abstractmethod
    def parts(self, batch: Batch) -> tuple[Prediction, LayerScores]:
        """Predictions and scores of a batch, per input or per pixel; NaN where the networks gave NaN or infinity."""

    def learn(self, loader: Iterable[Any], holdout: float) -> None:
        """Fit to training data, without the share that is set apart; nothing to do for most."""

    def fit(self, loader: Iterable[Any], *, holdout: float = 0.0) -> tuple[None, Unseen]:
        """Fit to training data; there are no features."""
        if holdout:
            require_repeatable(loader, 2)
        self.learn(loader, holdout)
        return None, _SetApart(self, loader, holdout)

    def unseen(self, loader: Iterable[Any], reductions: Mapping[str, Reduction]) -> Unseen:
        """All of a loader, scored later."""
        return _SetApart(self, loader)

    def reading(
        self, batch: Batch, reductions: Mapping[str, Reduction], index: int | None = None, *, labels: bool = False
    ) -> Rows | Grid:
        """Run the networks on one batch: predictions with their scores."""
        prediction, scores = self.parts(batch)
        wrong = scores.epistemic.isnan()
        options: dict[str, Any] = {"scores": {OUTPUTS: scores}, "unusable": wrong if bool(wrong.any()) else None}
        if self.pixels is None:
            return Rows(prediction, {}, batch.label if labels else None, **options)
        label = label_maps(batch.label, prediction.value) if labels else None
        return Grid(prediction, {}, self.pixels, label, **options)


class VotingDetector(Detector):
    """A detector by how far several predictions disagree.

    Args:
        reader: runs the networks.
        seed: of what the reader draws.
        progress: show progress bars; None shows them on a terminal.
    """

    def __init__(self, reader: VotingReader, *, seed: int = 0, progress: bool | None = None) -> None:
        super().__init__(
            reader.model, [Term(AsRead())], pixels=reader.pixels, seed=seed, progress=progress, reader=reader
        )

    @property
    def unit(self) -> str:
        """The unit of the epistemic score, which depends on what is predicted."""
        return "nats" if self.task is None or self.task.discrete else "squared units of the output"


class VotingReader(ScoringReader):
    """Several passes over a batch, and how far they disagree.

    Args:
        model: the network, or the first of several.
        logits: False when classifiers return probabilities.
        task: what is predicted; None infers it.
        output: which tensor, when the network returns several.
        options: those of `ScoringReader`.
    """

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
            value, classes, variance = task.predict_pixels(output)
            return Prediction(value.flatten(), classes, None if variance is None else variance.flatten())
        if self.pixels is None:
            task.predict(output)  # which sees whether these are scores of classes
            scores = task.scores(output)
        else:
            maps = task.score_maps(output).permute(0, 2, 3, 1)
            scores = maps.clone(memory_format=torch.contiguous_format).flatten(0, 2)  # the network's memory is not ours
        if task.logits and not self._looked and len(scores):
            self._looked = True
            warn_of_probabilities(scores)
        return Prediction(scores, scores.shape[1])

    def vote(self, task: Task, samples: Sequence[Prediction], output: Any) -> tuple[Prediction, LayerScores]:
        """What several passes say together.

        Args:
            task: what is predicted.
            samples: their tensors as (passes, m, ...).
            output: of any pass, for the shape of maps.
        """
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
        return Prediction(parts.prediction, samples[0].classes if task.discrete else None), scores


def fitted_to(batch: Batch, holdout: float) -> Tensor | slice:
    """Which inputs of a batch to fit to: those that are not set apart."""
    return ~chosen(batch, holdout) if holdout else slice(None)


class Parts(NamedTuple):
    """A prediction for n inputs and the two kinds of uncertainty, in the order of `Uncertainty`."""

    prediction: Tensor  # (n,) classes, or (n,) or (n, q) numbers
    epistemic: Tensor  # (n,)
    aleatoric: Tensor | None = None  # (n,)
    log_aleatoric: Tensor | None = None  # (n,)


def decompose_classes(scores: Tensor) -> Parts:
    r"""Mean entropy and mutual information of K predicted distributions over classes, in nats.

    .. math::
        \text{aleatoric} = \frac1K \sum_k H(p_k), \qquad
        \text{epistemic} = H(\bar p) - \frac1K \sum_k H(p_k)
            = \frac1K \sum_k \sum_c p_{kc} \left(e^{t_{kc}} - 1 - t_{kc}\right), \quad
        t_{kc} = \log \bar p_c - \log p_{kc}

    with p̄ the mean of the p_k, and the prediction its largest class. (The paper's appendix prints both entropies
    without their minus signs; these are the quantities it names.) The last form has terms that are never negative: it
    keeps its digits where the two entropies agree in all of theirs, and is exactly zero where all members are equal.

    Args:
        scores: logits or log-probabilities, (K, n, C).

    Example:
        >>> agree, differ = [[0.5, 0.5], [0.5, 0.5]], [[1.0, 0.0], [0.0, 1.0]]
        >>> parts = decompose_classes(torch.tensor([agree, differ]).log().transpose(0, 1))
        >>> parts.aleatoric, parts.epistemic
        (tensor([0.6931, 0.0000]), tensor([0.0000, 0.6931]))
    """
    # Some inputs at a time: for maps, all intermediate values would take gigabytes, and on a CPU no cache holds them.
    cells = CELLS if scores.device.type == "cpu" else CELLS_ON_GPU
    rows = max(1, cells // (scores.shape[0] * scores.shape[2]))
    parts = [_decompose(part) for part in scores.split(rows, dim=1)]
    return parts[0] if len(parts) == 1 else Parts(*(torch.cat(values) for values in zip(*parts, strict=True)))


def decompose_numbers(value: Tensor, variance: Tensor | None = None) -> Parts:
    r"""Mean variance and variance of the means of K predictions, in squared units of the output, summed over outputs.

    .. math::
        \text{aleatoric} = \frac1K \sum_k \sigma_k^2, \qquad
        \text{epistemic} = \frac1K \sum_k (\mu_k - \bar\mu)^2

    Their sum is the variance of the mixture of the K predictions.

    Args:
        value: predictions, (K, n) or (K, n, q).
        variance: the networks' own, of the same shape; without it there is no aleatoric uncertainty.

    Example:
        >>> decompose_numbers(torch.tensor([[1.0], [3.0]]), torch.tensor([[0.5], [1.5]]))[:3]
        (tensor([2.]), tensor([1.]), tensor([1.]))
    """
    mean = (value / len(value)).sum(0)  # the sum of undivided ones may overflow
    spread = (value - mean).square().mean(0)
    return Parts(mean, _total(spread), None if variance is None else _total(variance.mean(0)))


@dataclass(frozen=True, eq=False)
class _SetApart:
    """Inputs to calibrate with, scored when they are asked for: all of a loader's, or those that were set apart."""

    reader: ScoringReader
    loader: Iterable[Any]
    holdout: float | None = None

    def readings(self) -> Iterator[Rows | Grid]:
        """Their scores, batch by batch."""
        for batch in self.reader.batches(self.loader, "calibrating"):
            apart = None if self.holdout is None else chosen(batch, self.holdout)
            if apart is None or bool(apart.any()):
                reading = self.reader.reading(batch, {}, labels=True)
                yield reading if apart is None else _some(reading, apart)


def _some(reading: Rows | Grid, which: Tensor) -> Rows | Grid:
    """Some of the inputs of a reading, by a mask (n,)."""

    def rows(values: Tensor | None) -> Tensor | None:
        return None if values is None else values[which.to(values.device)]

    value, classes, variance = reading.prediction
    prediction = Prediction(value[which.to(value.device)], classes, rows(variance))
    assert reading.scores is not None
    scores = {name: some[which] for name, some in reading.scores.items()}
    unusable = rows(reading.unusable)
    return replace(reading, prediction=prediction, label=rows(reading.label), scores=scores, unusable=unusable)


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
