"""What every method that is compared with offers: the interface of `LatentDensity`, and its result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Self

from torch import nn

from ..batches import Adapter, Batch, batches, count
from ..capture import device_of
from ..progress import say, task
from ..tasks import Task, TaskName, as_task, infer_task
from ..uncertainty import Uncertainty


class Baseline(ABC):
    """A method that scores inputs as `LatentDensity` does: `fit(loader)`, `method(x)`, `predict(loader)`.

    Args:
        model: any trained `nn.Module`; it is referenced, never changed.
        task: what the network predicts; None infers it where the outputs leave no doubt, and says so.
        output: which tensor, when the network returns a tuple (its position) or a dict (its key).
        unpack: turns what a loader gives into `(inputs, label)`, when it gives neither `x`, `(x, y)` nor a dict.
        progress: show progress bars; None shows them on a terminal.
    """

    unit = "nats"  # of the epistemic score

    def __init__(
        self,
        model: nn.Module,
        *,
        task: TaskName | Task | None = None,
        output: int | str | None = None,
        unpack: Adapter | None = None,
        progress: bool | None = None,
    ) -> None:
        self.model, self.output, self.unpack, self.progress = model, output, unpack, progress
        self.task = as_task(task, output)

    def fit(self, loader: Iterable[Any]) -> Self:
        """Fit to training data; methods that look at outputs alone have nothing to fit."""
        return self

    @abstractmethod
    def score(self, batch: Batch) -> Uncertainty:
        """Score one batch, which is where the model is."""

    def __call__(self, *args: Any, **kwargs: Any) -> Uncertainty:
        """Score inputs, given as the model takes them."""
        batch = Batch(args, kwargs, None)
        device = device_of(self.model)
        return self.score(batch if device is None else batch.to(device))

    def predict(self, loader: Iterable[Any]) -> Uncertainty:
        """Score all of a loader; the result is on the CPU."""
        results = []
        with task("scoring", count(loader), enabled=self.progress) as bar:
            for batch in batches(loader, self.unpack, device_of(self.model)):
                results.append(self.score(batch).cpu())
                bar.advance()
        return Uncertainty.cat(results)

    def known_task(self, output: Any, batch: Batch) -> Task:
        """The task, inferred from the first output when it was not given."""
        if self.task is None:
            self.task = infer_task(output, batch.label, self.output)
            say(f"task: {self.task.describe(self.task.predict(output))}. Pass task= to say otherwise.")
        return self.task
