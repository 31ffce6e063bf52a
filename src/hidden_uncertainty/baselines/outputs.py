"""Uncertainty from outputs alone: entropy, largest probability and energy of a classifier's one pass."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Self, Unpack

import torch
from torch import Tensor, nn

from ..detector import Detector
from ..extract import Features, Lattice
from ..model.tasks import Classification, Task, TaskName, as_task
from ..notes import warn
from ..scoring.bayes import infer
from ..scoring.terms import Method, Scores, Term
from .base import Options, check_options


class OutputOptions(Options, total=False):
    """Arguments of all methods that look at outputs alone.

    Args:
        logits: classifiers return logits or log-probabilities; False when they return probabilities, as those that end
            in a softmax or a sigmoid do.
        task, output, pixels, unpack, progress: as for `Detector`.
    """

    logits: bool


class OutputMethod(Method):
    """A score of the logits or log-probabilities of one pass; there is nothing to fit."""

    fits = False
    conditional = False

    def __init__(self) -> None:
        super().__init__()
        self._looked = False

    def fit(self, z: Tensor, y: Tensor | None, features: Features) -> Self:
        """Nothing to do."""
        return self

    def score(self, z: Tensor | Lattice, prediction: Tensor, *, seen: bool = False) -> Scores:
        """Score logits or log-probabilities, (n, C)."""
        assert isinstance(z, Tensor)
        if not self._looked and len(z):
            self._looked = True
            self.look(z)
        return self.measure(z)

    @abstractmethod
    def measure(self, scores: Tensor) -> Scores:
        """The uncertainty of logits or log-probabilities (n, C)."""

    def look(self, scores: Tensor) -> None:
        """Warn, at the first batch, if outputs are not what they are taken for."""
        warn_of_probabilities(scores)

    def config(self) -> dict[str, Any]:
        """Nothing, but for methods with options."""
        return {}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """The method that `config` describes."""
        return cls(**config)


class EntropyMethod(OutputMethod):
    """Entropy of the softmax, as both scores."""

    def measure(self, scores: Tensor) -> Scores:
        """Entropy, and its logarithm where it underflows."""
        posterior = infer(scores, scores.new_zeros(scores.shape[1]))
        return Scores(posterior.entropy, posterior.entropy, posterior.log_entropy)


class ProbabilityMethod(OutputMethod):
    """One minus the largest probability."""

    unit = "probability"

    def measure(self, scores: Tensor) -> Scores:
        """1 - max p, with all its digits where p is almost 1."""
        log_p = infer(scores, scores.new_zeros(scores.shape[1])).log_posterior
        return Scores(torch.expm1(log_p.amax(1)).abs())


class EnergyMethod(OutputMethod):
    """Free energy of the logits."""

    unit = "logits"

    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__()
        if not 0 < temperature < float("inf"):
            raise ValueError(f"temperature must be a positive number, not {temperature}.")
        self.temperature = temperature

    def measure(self, scores: Tensor) -> Scores:
        """The energy, saturated where the dtype ends."""
        top = scores.amax(1)
        above = ((scores - top[:, None]) / self.temperature).logsumexp(1)  # between 0 and log C
        limit = torch.finfo(scores.dtype).max
        return Scores((-top - self.temperature * above).clamp(-limit, limit))

    def look(self, scores: Tensor) -> None:
        """Warn if outputs are probabilities or their logarithms."""
        single = _single_logit(scores) is not None
        normal = not single and bool((scores.logsumexp(1).abs() < 1e-2).all())
        if normal or like_probabilities(scores):
            warn(
                "the network's outputs look like probabilities or their logarithms, whose energy says little: their "
                "sum is always the same. Pass a model without its last softmax or sigmoid."
            )

    def config(self) -> dict[str, Any]:
        """The temperature."""
        return {"temperature": self.temperature}


class OutputDetector(Detector):
    """A detector that needs nothing but what a classifier returns; `fit` is needed for p-values and thresholds only.

    Args:
        model: any trained classifier, with one column per class, or with a single logit for two classes.
        method: scores the logits.
        options: see `OutputOptions`; the task is `"classification"` or None.
    """

    def __init__(self, model: nn.Module, method: OutputMethod, **options: Unpack[OutputOptions]) -> None:
        check_options(self, options, OutputOptions)
        task, output, logits = options.pop("task", None), options.pop("output", None), options.pop("logits", True)
        known = read_as(task, output, logits) or Classification(output, logits=logits)
        if not known.discrete:
            raise ValueError(
                f"{type(self).__name__} compares the scores of classes, and a {known.name} network has none. Use "
                "DeepEnsemble or MCDropout, or a method that looks at activations."
            )
        super().__init__(model, [Term(method)], task=known, **options)  # type: ignore[misc]


class SoftmaxEntropy(OutputDetector):
    r"""Entropy of the predicted classes, in nats: as aleatoric uncertainty, and, being all there is, as epistemic.

    .. math:: H = -\sum_c p_c \log p_c, \qquad p = \operatorname{softmax}(\text{logits})

    Args:
        model: any trained classifier, with one column per class, or with a single logit for two classes.
        options: see `OutputOptions`; `logits=False` when the network returns probabilities.

    Example:
        >>> u = SoftmaxEntropy(nn.Identity())(torch.tensor([[0.0, 0.0], [9.0, 0.0]]))
        >>> u.epistemic
        tensor([0.6931, 0.0012])
    """

    def __init__(self, model: nn.Module, **options: Unpack[OutputOptions]) -> None:
        super().__init__(model, EntropyMethod(), **options)


class MaxProbability(OutputDetector):
    """One minus the probability of the predicted class.

    Args:
        model: any trained classifier, with one column per class, or with a single logit for two classes.
        options: see `OutputOptions`; `logits=False` when the network returns probabilities.

    Example:
        >>> MaxProbability(nn.Identity())(torch.tensor([[0.0, 0.0], [2.0, 0.0]])).epistemic
        tensor([0.5000, 0.1192])
    """

    def __init__(self, model: nn.Module, **options: Unpack[OutputOptions]) -> None:
        super().__init__(model, ProbabilityMethod(), **options)


class Energy(OutputDetector):
    r"""Free energy of the logits.

    .. math:: E = -T \log \sum_c \exp(\text{logit}_c / T)

    Args:
        model: any trained classifier that returns logits. Probabilities and log-probabilities do not work: they have
            lost their sum, which is what the energy is. A single logit z counts as (-z/2, z/2).
        temperature: T.
        options: see `OutputOptions`, without `logits`.

    Example:
        >>> Energy(nn.Identity())(torch.tensor([[0.0, 0.0], [9.0, 0.0]])).epistemic
        tensor([-0.6931, -9.0001])
    """

    def __init__(self, model: nn.Module, *, temperature: float = 1.0, **options: Unpack[OutputOptions]) -> None:
        if "logits" in options:
            raise TypeError("Energy takes no argument 'logits': it is for networks that return logits.")
        super().__init__(model, EnergyMethod(temperature), **options)


def read_as(task: TaskName | Task | None, output: int | str | None, logits: bool) -> Task | None:
    """The task as it was given; its scores are probabilities where the task or `logits=False` says so."""
    known = as_task(task, output)
    return known if logits or not isinstance(known, Classification) else Classification(known.output, logits=False)


def warn_of_probabilities(scores: Tensor) -> None:
    """Warn where outputs (n, C) that are taken as logits are likely probabilities."""
    if like_probabilities(scores):
        warn(
            "the network's outputs look like probabilities, but are taken as logits. Pass logits=False, or a model "
            "without its last softmax or sigmoid."
        )


def like_probabilities(scores: Tensor) -> bool:
    """Whether logits (n, C) are likely probabilities: none negative, each row's sum 1."""
    single = _single_logit(scores)
    if single is not None:  # logits of a few inputs may all lie there, of eight hardly
        return len(single) >= 8 and bool(((single >= 0) & (single <= 1)).all())
    return bool((scores >= 0).all() and ((scores.sum(1) - 1).abs() < 1e-2).all())


def _single_logit(scores: Tensor) -> Tensor | None:
    """The single logit z that (-z/2, z/2) stand for; None where there are more."""
    single = scores.shape[1] == 2 and bool((scores[:, 0] == -scores[:, 1]).all())
    return 2 * scores[:, 1] if single else None
