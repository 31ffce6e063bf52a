"""Uncertainty from outputs alone: entropy, largest probability, energy and GEN of a classifier's one pass."""

from __future__ import annotations

from typing import Unpack

from torch import nn

from ..detector import Detector
from ..model.tasks import Classification, Task, TaskName, as_task, from_config
from ..scoring.outputs import EnergyMethod, EntropyMethod, GENMethod, OutputMethod, ProbabilityMethod
from ..scoring.terms import Term
from .base import Options, check_options


class OutputOptions(Options, total=False):
    """Arguments of all methods that look at outputs alone.

    Args:
        logits: classifiers return logits or log-probabilities; False when they return probabilities, as those that end
            in a softmax or a sigmoid do.
        task, output, pixels, unpack, progress: as for `Detector`.
    """

    logits: bool


class OutputDetector(Detector):
    """A detector that needs nothing but what a classifier returns; `fit` is needed for p-values and thresholds only.

    Args:
        model: any trained classifier, with one column per class, or with a single logit for two classes.
        method: scores the logits.
        options: see `OutputOptions`; the task is `"classification"`, which None stands for, or `"multi-label"`.
    """

    def __init__(self, model: nn.Module | None, method: OutputMethod, **options: Unpack[OutputOptions]) -> None:
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

    Where an input may have several labels, it is the sum of their entropies.

    Args:
        model, options: as for `OutputDetector`.

    Example:
        >>> u = SoftmaxEntropy(nn.Identity())(torch.tensor([[0.0, 0.0], [9.0, 0.0]]))
        >>> u.epistemic
        tensor([0.6931, 0.0012])
    """

    def __init__(self, model: nn.Module | None, **options: Unpack[OutputOptions]) -> None:
        super().__init__(model, EntropyMethod(), **options)


class MaxProbability(OutputDetector):
    """One minus the probability of the predicted class; of several labels, of the likeliest set of them.

    Args:
        model, options: as for `OutputDetector`.

    Example:
        >>> MaxProbability(nn.Identity())(torch.tensor([[0.0, 0.0], [2.0, 0.0]])).epistemic
        tensor([0.5000, 0.1192])
    """

    def __init__(self, model: nn.Module | None, **options: Unpack[OutputOptions]) -> None:
        super().__init__(model, ProbabilityMethod(), **options)


class Energy(OutputDetector):
    r"""Free energy of the logits.

    .. math:: E = -T \log \sum_c \exp(\text{logit}_c / T)

    Where an input may have several labels, it is :math:`-T \sum_l \log(1 + \exp(\text{logit}_l / T))` (Wang et al.,
    2021).

    Args:
        model: any trained classifier that returns logits. Probabilities and log-probabilities do not work: they have
            lost their sum, which is what the energy is. A single logit z counts as (-z/2, z/2).
        temperature: T.
        options: see `OutputOptions`, without `logits`.

    Example:
        >>> Energy(nn.Identity())(torch.tensor([[0.0, 0.0], [9.0, 0.0]])).epistemic
        tensor([-0.6931, -9.0001])
    """

    def __init__(self, model: nn.Module | None, *, temperature: float = 1.0, **options: Unpack[OutputOptions]) -> None:
        if "logits" in options:
            raise TypeError("Energy takes no argument 'logits': it is for networks that return logits.")
        super().__init__(model, EnergyMethod(temperature), **options)


class GEN(OutputDetector):
    r"""Generalised entropy of the predicted classes (Liu et al., 2023), which weighs small probabilities strongly.

    .. math:: G = \sum_{c} p_c^\gamma (1 - p_c)^\gamma

    over the largest probabilities; the aleatoric score is the entropy of all. Where an input may have several labels,
    the sum is over those that have most of it.

    Args:
        gamma: between 0 and 1.
        largest: how many classes count, at most.
        model, options: as for `OutputDetector`.

    Example:
        >>> import torch
        >>> GEN(nn.Identity())(torch.tensor([[0.0, 0.0], [9.0, 0.0]])).epistemic
        tensor([1.7411, 0.8131])
    """

    def __init__(
        self, model: nn.Module | None, *, gamma: float = 0.1, largest: int = 100, **options: Unpack[OutputOptions]
    ) -> None:
        super().__init__(model, GENMethod(gamma, largest), **options)


def read_as(task: TaskName | Task | None, output: int | str | None, logits: bool) -> Task | None:
    """The task as it was given; its scores are probabilities where the task or `logits=False` says so."""
    known = as_task(task, output)
    return known if logits or known is None or not known.discrete else from_config({**known.config(), "logits": False})
