"""A small stand-in for Lightning: what a short run on one device calls, in the order in which Lightning does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn


class LightningModule(nn.Module):
    _trainer: Any = None

    def log(self, name: str, value: Any) -> None:
        if not self._trainer.may_log:
            raise RuntimeError(f"You can't `self.log()` here: {name}.")  # Lightning refuses it in on_train_end too


class Callback:
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None: ...


class Logger:
    def __init__(self) -> None:
        self.metrics: list[tuple[dict[str, float], int | None]] = []

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        self.metrics.append((dict(metrics), step))


class Trainer:
    def __init__(self, *, max_epochs: int, callbacks: Iterable[Callback] = (), **kwargs: Any) -> None:
        self.max_epochs, self.callbacks, self.loggers, self.global_step = max_epochs, list(callbacks), [Logger()], 0
        self.train_dataloader: Any = None
        self.val_dataloaders: Any = None
        self.may_log = False

    @property
    def logger(self) -> Logger:
        return self.loggers[0]

    def fit(self, model: LightningModule, train_dataloaders: Any = None, val_dataloaders: Any = None) -> None:
        self.train_dataloader, self.val_dataloaders = train_dataloaders, val_dataloaders
        model._trainer = self
        optimiser = model.configure_optimizers()
        self.may_log = True
        for _ in range(self.max_epochs):
            model.train()
            for index, batch in enumerate(train_dataloaders):
                optimiser.zero_grad()
                loss: Tensor = model.training_step(batch, index)
                loss.backward()
                optimiser.step()
                self.global_step += 1
            model.eval()
            with torch.no_grad():
                for index, batch in enumerate(val_dataloaders or ()):
                    model.validation_step(batch, index)
        model.train()
        self.may_log = False
        for callback in self.callbacks:
            callback.on_train_end(self, model)
