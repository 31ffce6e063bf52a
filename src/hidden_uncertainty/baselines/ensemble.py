"""Deep ensembles: networks trained apart, and how far they disagree."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state
from torch.utils._pytree import tree_map

from ..extract import Pixels
from ..model.batches import Adapter, Batch
from ..model.capture import device_of, run
from ..model.tasks import Prediction, Task, TaskName
from ..precision import gradients
from ..uncertainty import LayerScores
from .voting import VotingDetector, VotingReader


class DeepEnsemble(VotingDetector):
    r"""Several networks trained apart from different beginnings (Lakshminarayanan et al., 2017).

    For classes the prediction is that of the mean probability, the aleatoric uncertainty the mean entropy of the
    members, and the epistemic one the mutual information of class and member, in nats (paper, appendix). For numbers
    they are the mean, the mean of the variances that the members predict (None where they predict none), and the
    variance of the members' means, in squared units of the output, summed over outputs.

    Members are run one after the other, each as `LatentDensity` runs a model; they may be on several devices. The
    result is where the first is. Members of one architecture can be run as one (`together`), by `torch.vmap` over
    their stacked weights. That is worth it for a few images at a time on a GPU; for large batches, and on a CPU, it is
    usually slower than the loop.

    Args:
        models: at least two trained networks that predict the same; they may differ in architecture.
        together: run members as one. Their weights are copied now: what is changed later is not seen.
        logits: False when classifiers return probabilities.
        task: what they predict; None infers it where the outputs leave no doubt, and logs it.
        output: which tensor, when they return a tuple (its position) or a dict (its key).
        pixels: for networks that predict for every pixel, as for `LatentDensity`.
        unpack: see `Detector`.
        progress: see `Detector`.

    Example:
        >>> ensemble = DeepEnsemble([nn.Linear(4, 3) for _ in range(5)], task="classification")
        >>> u = ensemble(torch.randn(8, 4))
        >>> u.epistemic.shape, bool((u.epistemic > 0).all())
        (torch.Size([8]), True)
    """

    def __init__(
        self,
        models: Iterable[nn.Module],
        *,
        together: bool = False,
        logits: bool = True,
        task: TaskName | Task | None = None,
        output: int | str | None = None,
        pixels: Pixels | None = None,
        unpack: Adapter | None = None,
        progress: bool | None = None,
    ) -> None:
        self.models = _checked(models)
        options: dict[str, Any] = {"task": task, "output": output, "logits": logits, "pixels": pixels, "unpack": unpack}
        super().__init__(EnsembleReader(self.models, together=together, **options), progress=progress)


class EnsembleReader(VotingReader):
    """Runs the members on each batch.

    Args:
        models: the members.
        together: run them as one.
        options: those of `VotingReader`.
    """

    def __init__(self, models: tuple[nn.Module, ...], *, together: bool, **options: Any) -> None:
        super().__init__(models[0], **options)
        self.models = models
        self._stacked = _Stacked(models) if together else None

    def parts(self, batch: Batch) -> tuple[Prediction, LayerScores]:
        """What the members say together."""
        samples: list[Prediction] = []
        for position, output in enumerate(self._outputs(batch)):
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

    def _outputs(self, batch: Batch) -> Iterator[Any]:
        if self._stacked is not None:
            yield from self._stacked(batch)
            return
        for member in self.models:
            device = device_of(member)
            inputs = batch if device is None else batch.to(device)
            yield run(member, {}, inputs.args, inputs.kwargs)[0]


class _Stacked:
    """Copies of members of one architecture, their weights stacked, run as one."""

    def __init__(self, models: tuple[nn.Module, ...]) -> None:
        twins = [copy.deepcopy(model).eval().requires_grad_(False) for model in models]
        try:
            self.state = stack_module_state(twins)
        except RuntimeError as error:
            raise ValueError(
                f"together=True needs members of one architecture on one device ({error}): leave it out."
            ) from error
        self.model, self.count = twins[0], len(twins)

    @gradients(False)
    def __call__(self, batch: Batch) -> list[Any]:
        """What each member returns."""

        def member(weights: dict[str, Tensor], buffers: dict[str, Tensor]) -> Any:
            return functional_call(self.model, (weights, buffers), batch.args, batch.kwargs)

        outputs = torch.vmap(member)(*self.state)
        return [tree_map(lambda output, i=i: output[i], outputs) for i in range(self.count)]


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
