"""Uncertainty from outputs alone: entropy, largest probability and energy of a classifier's one pass."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..batches import Adapter, Batch
from ..capture import run, select
from ..inference import infer
from ..tasks import Prediction, Task, TaskName
from ..uncertainty import Uncertainty
from ._decompose import Parts, decompose_classes, decompose_numbers
from .base import Baseline


class OutputBaseline(Baseline):
    """A method that needs nothing but what the network returns, in one pass or in several.

    Args:
        model: any trained `nn.Module`; it is referenced, never changed.
        logits: a classifier returns logits or log-probabilities; False when it returns probabilities, as one that ends
            in a softmax or a sigmoid does.
        task: what the network predicts; None infers it where the outputs leave no doubt, and says so.
        output: which tensor, when the network returns a tuple (its position) or a dict (its key).
        unpack: turns what a loader gives into `(inputs, label)`, when it gives neither `x`, `(x, y)` nor a dict.
        progress: show progress bars; None shows them on a terminal.
    """

    classes_only = False

    def __init__(
        self,
        model: nn.Module,
        *,
        logits: bool = True,
        task: TaskName | Task | None = None,
        output: int | str | None = None,
        unpack: Adapter | None = None,
        progress: bool | None = None,
    ) -> None:
        if self.classes_only and task is None:
            task = "classification"
        super().__init__(model, task=task, output=output, unpack=unpack, progress=progress)
        if self.classes_only and self.task is not None and self.task.name != "classification":
            raise ValueError(
                f"{type(self).__name__} compares the scores of classes, and a {self.task.name} network has none. Use "
                "DeepEnsemble or MCDropout, or a method that looks at activations."
            )
        self.logits = logits
        self._looked = False

    def read(self, output: Any, task: Task) -> Prediction:
        """What one pass predicts; of classes, `value` holds the logits or log-probabilities of all, (n, C)."""
        prediction = task.predict(output)
        if task.name == "regression":
            return prediction
        scores = select(output, task.output, "the network", "output")
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        scores = scores[:, None] if scores.dim() == 1 else scores
        if not self.logits:
            return Prediction(_log_probabilities(scores), prediction.classes)
        if not self._looked and len(scores):
            self._looked = True
            self._look(scores)
        # Half of a single logit z for each of the two classes: the probabilities are those of (0, z), and the energy
        # is the same for z and -z.
        return Prediction(
            torch.cat([-scores / 2, scores / 2], 1) if scores.shape[1] == 1 else scores, prediction.classes
        )

    def combine(self, task: Task, samples: Sequence[Prediction]) -> Uncertainty:
        """What several passes say together, their tensors given as (passes, n, ...)."""
        value = torch.cat([sample.value for sample in samples])
        if task.name == "classification":
            parts = decompose_classes(value)
        else:
            self.unit = "squared units of the output"
            variances = [sample.variance for sample in samples if sample.variance is not None]
            parts = decompose_numbers(value, torch.cat(variances) if variances else None)
        return Uncertainty(*parts)

    def _look(self, scores: Tensor) -> None:
        if _like_probabilities(scores):
            warnings.warn(
                "the network's outputs look like probabilities, but are taken as logits. Pass logits=False to "
                f"{type(self).__name__}, or a model without its last softmax or sigmoid.",
                stacklevel=2,
            )


class _OnePass(OutputBaseline):
    """A score of the logits or log-probabilities of one pass."""

    classes_only = True

    @abstractmethod
    def measure(self, scores: Tensor) -> Parts:
        """Prediction and uncertainty for scores (n, C)."""

    def score(self, batch: Batch) -> Uncertainty:
        """Score one batch, which is where the model is."""
        output, _ = run(self.model, {}, batch.args, batch.kwargs)
        return Uncertainty(*self.measure(self.read(output, self.known_task(output, batch)).value))


class SoftmaxEntropy(_OnePass):
    r"""Entropy of the predicted classes, in nats: as aleatoric uncertainty, and, being all there is, as epistemic.

    .. math:: H = -\sum_c p_c \log p_c, \qquad p = \operatorname{softmax}(\text{logits})

    Args:
        model: any trained classifier, with one column a class, or with a single logit for two classes.
        logits: False when the network returns probabilities.
        task: `"classification"` or None.
        output: which tensor, when the network returns several.
        unpack: see `Baseline`.
        progress: see `Baseline`.

    Example:
        >>> u = SoftmaxEntropy(nn.Identity())(torch.tensor([[0.0, 0.0], [9.0, 0.0]]))
        >>> u.epistemic
        tensor([0.6931, 0.0012])
    """

    def measure(self, scores: Tensor) -> Parts:
        """Entropy, and its logarithm where it underflows."""
        posterior = infer(scores, scores.new_zeros(scores.shape[1]))
        assert posterior.log_entropy is not None
        return Parts(scores.argmax(1), posterior.entropy, posterior.entropy, posterior.log_entropy)


class MaxProbability(_OnePass):
    """One minus the probability of the predicted class.

    Args:
        model: any trained classifier, with one column a class, or with a single logit for two classes.
        logits: False when the network returns probabilities.
        task: `"classification"` or None.
        output: which tensor, when the network returns several.
        unpack: see `Baseline`.
        progress: see `Baseline`.

    Example:
        >>> MaxProbability(nn.Identity())(torch.tensor([[0.0, 0.0], [2.0, 0.0]])).epistemic
        tensor([0.5000, 0.1192])
    """

    unit = "probability"

    def measure(self, scores: Tensor) -> Parts:
        """1 - max p, with all its digits where p is almost 1."""
        log_p = infer(scores, scores.new_zeros(scores.shape[1])).log_posterior
        return Parts(scores.argmax(1), torch.expm1(log_p.amax(1)).abs())


class Energy(_OnePass):
    r"""Free energy of the logits.

    .. math:: E = -T \log \sum_c \exp(\text{logit}_c / T)

    Args:
        model: any trained classifier that returns logits. Probabilities and log-probabilities do not do: they have
            lost their sum, which is what the energy is. A single logit z counts as (-z/2, z/2).
        temperature: T.
        task: `"classification"` or None.
        output: which tensor, when the network returns several.
        unpack: see `Baseline`.
        progress: see `Baseline`.

    Example:
        >>> Energy(nn.Identity())(torch.tensor([[0.0, 0.0], [9.0, 0.0]])).epistemic
        tensor([-0.6931, -9.0001])
    """

    unit = "logits"

    def __init__(
        self,
        model: nn.Module,
        *,
        temperature: float = 1.0,
        task: TaskName | Task | None = None,
        output: int | str | None = None,
        unpack: Adapter | None = None,
        progress: bool | None = None,
    ) -> None:
        super().__init__(model, task=task, output=output, unpack=unpack, progress=progress)
        if not 0 < temperature < float("inf"):
            raise ValueError(f"temperature must be a positive number, not {temperature}.")
        self.temperature = temperature

    def measure(self, scores: Tensor) -> Parts:
        """The energy, saturated where the dtype ends."""
        top = scores.amax(1)
        above = ((scores - top[:, None]) / self.temperature).logsumexp(1)  # between 0 and log C
        limit = torch.finfo(scores.dtype).max
        return Parts(scores.argmax(1), (-top - self.temperature * above).clamp(-limit, limit))

    def _look(self, scores: Tensor) -> None:
        normal = scores.shape[1] > 1 and bool((scores.logsumexp(1).abs() < 1e-2).all())
        if normal or _like_probabilities(scores):
            warnings.warn(
                "the network's outputs look like probabilities or their logarithms, whose energy says little: their "
                "sum is always the same. Pass a model without its last softmax or sigmoid.",
                stacklevel=2,
            )


def _like_probabilities(scores: Tensor) -> bool:
    if scores.shape[1] == 1:  # logits of a few inputs may all lie there, of eight hardly
        return len(scores) >= 8 and bool(((scores >= 0) & (scores <= 1)).all())
    return bool((scores >= 0).all() and ((scores.sum(1) - 1).abs() < 1e-2).all())


def _log_probabilities(scores: Tensor) -> Tensor:
    """Logarithms of what a network that ends in a softmax or sigmoid returns, (n, C) with C at least 2."""
    if scores.shape[1] == 1:
        scores = torch.cat([1 - scores, scores], 1)
    if bool((scores < 0).any()) or not bool(((scores.sum(1) - 1).abs() < 2e-2).all()):
        raise ValueError(
            f"logits=False takes probabilities, none negative and each row's sum 1, but the network gave values from "
            f"{scores.min():.4g} to {scores.max():.4g} and sums from {scores.sum(1).min():.4g} to "
            f"{scores.sum(1).max():.4g}. Leave logits=True for logits and for log-probabilities."
        )
    return scores.log()
