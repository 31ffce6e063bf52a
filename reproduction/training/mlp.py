"""Perceptrons that predict numbers, and their training, many at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import torch
from torch import Tensor, nn

from hidden_uncertainty.demo.training import built
from hidden_uncertainty.progress import progress_bar

from .stack import Data, Loss, Stack, StackOptions, subset

# Rows of activations per step that still fit a processor's cache. Measured on one core of an AMD EPYC, 100 units per
# layer: a stack of 20 × 100 rows takes half the time of one network after the other, 5 × 750 the same, 50 × 750 150 %.
_ROWS = 4000


class MLP(nn.Module):
    """Fully connected layers with ReLU, in blocks with names: `hidden1`, `hidden2`, …, `output`.

    By default the paper's network for regression. The last hidden block, after its ReLU, is the penultimate layer;
    `penultimate` is its name.

    Args:
        inputs: numbers per input.
        hidden: units of each hidden layer.
        outputs: numbers to predict; for a mean and a log-variance of each, twice as many.
        dropout: share of every hidden layer's units that is dropped in training mode.
        seed: of the initial weights, and of the batches and dropout in `train_mlps`.

    Example:
        >>> network = MLP(8, hidden=(50, 50))
        >>> network(torch.zeros(3, 8)).shape, network.penultimate
        (torch.Size([3, 1]), 'hidden2')
    """

    def __init__(
        self,
        inputs: int,
        hidden: Sequence[int] = (100, 100, 100, 100),
        outputs: int = 1,
        *,
        dropout: float = 0.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        widths = (inputs, *hidden, outputs)
        if len(widths) < 3 or min(widths) < 1:
            raise ValueError(
                f"expected at least one hidden layer and at least one unit per layer, got inputs={inputs}, "
                f"hidden={tuple(hidden)}, outputs={outputs}."
            )
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be a share, at least 0 and below 1, got {dropout}.")
        self.widths, self.dropout, self.seed = widths, dropout, seed
        self.penultimate = f"hidden{len(hidden)}"
        with built(seed):
            for i, (before, after) in enumerate(zip(widths, hidden, strict=False), start=1):
                block = nn.Sequential(nn.Linear(before, after), nn.ReLU())
                if dropout:
                    block.append(nn.Dropout(dropout))
                self.add_module(f"hidden{i}", block)
            self.output = nn.Linear(widths[-2], outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Predictions (n, outputs), for x (n, inputs)."""
        for block in self.children():
            x = block(x)
        return x


def train_mlps(
    networks: Sequence[MLP],
    x: Tensor,
    y: Tensor,
    *,
    validation: tuple[Tensor, Tensor] | None = None,
    loss: Loss = "squared",
    epochs: int = 400,
    batch_size: int | None = 100,
    learning_rate: float = 1e-3,
    weight_decay: float = 0.0,
    patience: int = 50,
) -> list[MLP]:
    r"""Train perceptrons of one architecture together on the CPU, with Adam, and leave them in evaluation mode.

    Each is trained as if alone: its seed decides the order of its batches and its dropout. They share their data, or
    each has its own of the same size, such as splits of a table.

    Args:
        networks: changed in place, and returned.
        x: (n, d) for all, or (networks, n, d).
        y: (n,) or (n, q) for all; (networks, n) or (networks, n, q) when each has its own x.
        validation: x and y likewise. A network whose loss there has not fallen for `patience` epochs stops; each ends
            with the weights of its best epoch.
        loss: `"squared"` error, or `"gaussian"`, the negative log-likelihood
            :math:`\tfrac12 (s + (y - \mu)^2 e^{-s})` for networks whose first half of outputs is the mean :math:`\mu`,
            the second the log-variance :math:`s`, which counts as log 1e-6 where it is lower.
        epochs: passes over the data, at most.
        batch_size: points per step; None takes all.
        learning_rate: at the start; it falls to 0 along half a cosine.
        weight_decay: w adds w/2 times the sum of squared weights to the loss.
        patience: epochs without improvement before a network stops.

    Example:
        >>> x = torch.linspace(-1, 1, 64)[:, None]
        >>> ensemble = train_mlps([MLP(1, (20,), seed=seed) for seed in range(5)], x, x[:, 0] ** 2, epochs=50)
        >>> len(ensemble), ensemble[0](x).shape
        (5, torch.Size([64, 1]))
    """
    _check(networks, loss, epochs=epochs, batch_size=batch_size or 1, patience=patience)
    data = _data(networks, x, y, loss, "x and y")
    held = None if validation is None else _data(networks, *validation, loss, "validation")
    size = min(batch_size or data[1].shape[1], data[1].shape[1])
    options = StackOptions(loss, epochs, batch_size, learning_rate, weight_decay, patience, networks[0].dropout)
    trained: list[list[Tensor]] = []
    groups = torch.arange(len(networks), device="cpu").split(max(1, _ROWS // size))
    with progress_bar(f"training {len(networks)} networks", len(groups) * epochs) as bar:
        for i, group in enumerate(groups, start=1):
            members = [networks[int(m)] for m in group]
            stack = Stack(_parameters(members), [network.seed for network in members], options)
            unseen = None if held is None else subset(held, group)
            parameters = stack.train(subset(data, group), unseen, lambda value: bar.advance(loss=value))
            bar.advance(i * epochs - bar.completed)  # of networks that stopped early
            trained += [list(member) for member in zip(*parameters, strict=True)]
    with torch.no_grad():
        for network, values in zip(networks, trained, strict=True):
            for parameter, value in zip(network.parameters(), values, strict=True):
                parameter.copy_(value.mT if parameter.dim() == 2 else value[0])
            network.eval()
    return list(networks)


def _parameters(networks: Sequence[MLP]) -> list[Tensor]:
    """Weights (networks, before, after) and biases (networks, 1, after) of each layer, in turn."""
    stacked = [torch.stack(same).detach() for same in zip(*(n.parameters() for n in networks), strict=True)]
    return [p.mT.contiguous() if p.dim() == 3 else p[:, None] for p in stacked]


def _check(networks: Sequence[MLP], loss: Loss, **counts: int) -> None:
    if not networks:
        raise ValueError("networks is empty: give at least one MLP.")
    kinds = {(network.widths, network.dropout, network.output.weight.dtype) for network in networks}
    if len(kinds) > 1:
        found = "; ".join(
            f"widths {widths}, dropout {dropout}, {dtype}" for widths, dropout, dtype in sorted(kinds, key=str)
        )
        raise ValueError(f"networks must have one architecture and precision to be trained together, got {found}.")
    if len({id(network) for network in networks}) < len(networks):
        raise ValueError("networks contains one network twice: build one per seed.")
    if loss not in get_args(Loss):
        raise ValueError(f"loss must be one of {get_args(Loss)}, not {loss!r}.")
    if loss == "gaussian" and networks[0].widths[-1] % 2:
        raise ValueError(
            f"loss='gaussian' needs a mean and a log-variance per number, got networks with "
            f"outputs={networks[0].widths[-1]}: pass outputs=2 to MLP for one number."
        )
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}.")


def _data(networks: Sequence[MLP], x: Tensor, y: Tensor, loss: Loss, name: str) -> Data:
    """x (networks, n, d) and y (networks, n, q)."""
    many, inputs = len(networks), networks[0].widths[0]
    numbers = networks[0].widths[-1] // (2 if loss == "gaussian" else 1)
    given = f"{name}: got x {tuple(x.shape)} of {x.dtype} and y {tuple(y.shape)} of {y.dtype}"
    if y.dim() == x.dim() - 1:
        y = y[..., None]
    if x.dim() == 2:
        x, y = x.expand(many, *x.shape), y.expand(many, *y.shape)
    if (
        x.shape != (many, *x.shape[1:-1], inputs)
        or y.shape != (*x.shape[:-1], numbers)
        or x.dim() != 3
        or not x.shape[1]
    ):
        raise ValueError(
            f"{given}; {many} networks of {inputs} inputs that predict {numbers} numbers need x (n, {inputs}) and y "
            f"(n, {numbers}) with n ≥ 1, or both with a first dimension of {many}; y may leave out a last one of 1."
        )
    weight = networks[0].output.weight
    if not x.dtype == y.dtype == weight.dtype:
        raise TypeError(
            f"{given}; the networks are of {weight.dtype}: convert the data, or the networks by .to(dtype)."
        )
    if {x.device.type, y.device.type, weight.device.type} != {"cpu"}:
        raise ValueError(
            f"{name}: networks and data must be on the CPU, where many small networks are trained at once."
        )
    if not (x.isfinite().all() and y.isfinite().all()):
        raise ValueError(f"{name}: all numbers must be finite.")
    return x, y
