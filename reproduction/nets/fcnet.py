"""The paper's perceptron for small grey images; layers are named by the paper's numbers."""

from __future__ import annotations

from typing import ClassVar, Literal, get_args

from torch import nn

from hidden_uncertainty.demo.training import built

from .reconstruction import begin

Initialisation = Literal["torch", "glorot"]


class FCNet(nn.Sequential):
    """Five fully connected layers with ReLU and dropout between them, numbered as in the paper's appendix.

    ===========================  ==========================  ==============
    layer                        what                        output
    ===========================  ==========================  ==============
    `0`                          flatten                     (n, 784)
    `1`, `4`, `7`, `10`          full                        (n, 100)
    `2`, `5`, `8`, `11`          rectifier                   (n, 100)
    `3`, `6`, `9`, `12`          dropout, only for MC dropout  (n, 100)
    `13`                         full: the logits            (n, classes)
    ===========================  ==========================  ==============

    The paper's last layer, a softmax, is left out.

    Args:
        inputs: pixels per image.
        hidden: units of each of the four hidden layers.
        classes: how many there are.
        dropout: share of units dropped after every hidden layer, in training mode.
        initialisation: `"torch"`, uniform within ±1/√inputs, biases too; `"glorot"`, uniform within
            ±√(6 / (inputs + outputs)) with biases of zero, as in Keras.
        seed: of the initial weights, and of the order of batches in `train_many`.

    Example:
        >>> import torch
        >>> network = FCNet()
        >>> network(torch.zeros(3, 1, 28, 28)).shape, FCNet.measured
        (torch.Size([3, 10]), ('1', '4', '7', '10'))
    """

    measured: ClassVar[tuple[str, ...]] = ("1", "4", "7", "10")  # the layers in the paper's table

    def __init__(
        self,
        inputs: int = 784,
        hidden: int = 100,
        classes: int = 10,
        *,
        dropout: float = 0.0,
        initialisation: Initialisation = "torch",
        seed: int = 0,
    ) -> None:
        if min(inputs, hidden, classes) < 1:
            raise ValueError(f"inputs, hidden and classes must be at least 1, got {inputs}, {hidden} and {classes}.")
        if initialisation not in get_args(Initialisation):
            raise ValueError(f"initialisation must be one of {get_args(Initialisation)}, not {initialisation!r}.")
        modules: list[nn.Module] = [nn.Flatten()]
        with built(seed):
            for before in (inputs, hidden, hidden, hidden):
                modules += [nn.Linear(before, hidden), nn.ReLU(), nn.Dropout(dropout)]
            modules.append(nn.Linear(hidden, classes))
        super().__init__(*modules)
        self.dropout, self.initialisation, self.seed = dropout, initialisation, seed
        if initialisation == "glorot":
            begin(self, seed)

    @property
    def linear(self) -> list[nn.Linear]:
        """The five fully connected layers."""
        return [module for module in self if isinstance(module, nn.Linear)]
