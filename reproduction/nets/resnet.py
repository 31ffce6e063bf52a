"""The paper's residual network for small colour images; layers are named by the paper's numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor, nn

from hidden_uncertainty.demo.training import built

from .fcnet import Initialisation
from .reconstruction import begin


class Add(nn.Module):
    """The sum of two branches, as a layer that can be read."""

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        """Both branches, of one shape."""
        return one + other


class ResNet(nn.Module):
    """Three residual blocks for 32×32 images, numbered as in the paper's appendix, where it is called ResNet18.

    ====================  ===============================  =====================
    layer                 what                             output
    ====================  ===============================  =====================
    `1` to `3`            convolution, norm, rectifier     (n, 64, 32, 32)
    `4` to `9`            block: `9` is its addition       (n, 64, 32, 32)
    `12` to `19`          block, half the size: `19`       (n, 128, 16, 16)
    `22` to `29`          block, half the size: `29`       (n, 256, 8, 8)
    `32`, `33`            mean over the image, flatten     (n, 256)
    `34`                  full: the logits                 (n, classes)
    ====================  ===============================  =====================

    After each addition come dropout (`10`, `20`, `30`; only for MC dropout) and a rectifier (`11`, `21`, `31`). The
    paper does not give the widths: 64, 128 and 256 are those of ResNet18's first three stages. Its last layer, a
    softmax, is left out.

    Args:
        widths: channels of the three blocks.
        classes: how many there are.
        dropout: share of numbers dropped after every block, in training mode.
        initialisation: `"torch"`, or `"glorot"` as in Keras; see `FCNet`.
        seed: of the initial weights, and of the order of batches in `train_many`.

    Example:
        >>> import torch
        >>> network = ResNet((4, 8, 16))
        >>> network(torch.zeros(3, 3, 32, 32)).shape, ResNet.measured
        (torch.Size([3, 10]), ('1', '9', '19', '34'))
    """

    measured: ClassVar[tuple[str, ...]] = ("1", "9", "19", "34")  # the layers in the paper's table

    def __init__(
        self,
        widths: Sequence[int] = (64, 128, 256),
        classes: int = 10,
        *,
        dropout: float = 0.0,
        initialisation: Initialisation = "torch",
        seed: int = 0,
    ) -> None:
        super().__init__()
        if len(widths) != 3 or min(*widths, classes) < 1:
            raise ValueError(f"expected three widths and classes of at least 1, got {tuple(widths)} and {classes}.")
        first, second, third = widths
        with built(seed):
            self._place(1, _convolution(3, first), nn.BatchNorm2d(first), nn.ReLU())
            self._place(4, _convolution(first, first), nn.BatchNorm2d(first), nn.ReLU())
            self._place(7, _convolution(first, first), nn.BatchNorm2d(first), Add(), nn.Dropout(dropout), nn.ReLU())
            for start, before, after in ((12, first, second), (22, second, third)):
                self._place(start, _convolution(before, after, stride=2), nn.BatchNorm2d(after), nn.ReLU())
                shortcut = nn.Conv2d(before, after, 1, stride=2, bias=False)
                self._place(start + 3, _convolution(after, after), shortcut)
                self._place(start + 5, nn.BatchNorm2d(after), nn.BatchNorm2d(after), Add())
                self._place(start + 8, nn.Dropout(dropout), nn.ReLU())
            self._place(32, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(third, classes))
        self.dropout, self.initialisation, self.seed = dropout, initialisation, seed
        if initialisation == "glorot":
            begin(self, seed)

    def forward(self, images: Tensor) -> Tensor:
        """The logit of each class (n, classes), for images (n, 3, H, W)."""
        x = self._run(images, 1, 2, 3)
        x = self._run(self._modules["9"](self._run(x, 4, 5, 6, 7, 8), x), 10, 11)  # type: ignore[misc]
        for s in (12, 22):
            main, shortcut = self._run(x, s, s + 1, s + 2, s + 3, s + 5), self._run(x, s + 4, s + 6)
            x = self._run(self._modules[str(s + 7)](main, shortcut), s + 8, s + 9)  # type: ignore[misc]
        return self._run(x, 32, 33, 34)

    def _place(self, start: int, *modules: nn.Module) -> None:
        for number, module in enumerate(modules, start):
            self.add_module(str(number), module)

    def _run(self, x: Tensor, *numbers: int) -> Tensor:
        for number in numbers:
            x = self._modules[str(number)](x)  # type: ignore[misc]
        return x


def _convolution(before: int, after: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
