"""Training networks that predict a class or a number per pixel; finished networks are loaded."""

from __future__ import annotations

import copy
import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hidden_uncertainty import io
from hidden_uncertainty.progress import Bar, bars, progress_bar

from .augment import IGNORE
from .lane import DenseLane, DenseRecipe, Loss

__all__ = ["DenseRecipe", "DenseTrained", "class_loss", "depth_loss", "train_dense"]

_VARIANCE = 0.5  # of the common factor of all depths (Eigen et al. 2014)


@dataclass(frozen=True, eq=False)
class DenseTrained:
    """The result of one training.

    Args:
        network: in evaluation mode.
        losses: mean of each epoch.
        seconds: of training, also for a network that was loaded.
    """

    network: Any
    losses: list[float]
    seconds: float


def class_loss(logits: Tensor, classes: Tensor) -> Tensor:
    """Mean cross-entropy of the pixels that have a class; 0 if none has.

    Args:
        logits: (n, classes, h, w).
        classes: (n, h, w), 255 where there is none.

    Example:
        >>> class_loss(torch.zeros(1, 4, 1, 2), torch.tensor([[[3, 255]]]))
        tensor(1.3863)
    """
    total = F.cross_entropy(logits, classes.long(), ignore_index=IGNORE, reduction="sum")
    return total / (classes != IGNORE).sum().clamp(min=1)


def depth_loss(depth: Tensor, target: Tensor) -> Tensor:
    r"""Error of log depth over pixels that have one; half of an image's common factor is forgiven (Eigen et al. 2014).

    .. math:: \sqrt{\overline{g^2} - \tfrac12\, \bar g^2}, \qquad g = \log \hat d - \log d

    Args:
        depth: (n, 1, h, w) or (n, h, w), above zero.
        target: (n, h, w), NaN where there is no value.

    Example:
        >>> depth_loss(torch.full((1, 2, 2), 2.0), torch.full((1, 2, 2), 1.0))  # log 2 / √2
        tensor(0.4901)
    """
    depth = depth.reshape(target.shape)
    known = ~target.isnan()
    gap = depth.clamp(min=1e-3).log() - torch.where(known, target, 1.0).log()
    gap = torch.where(known, gap, 0.0).flatten(1)  # (n, pixels)
    count = known.flatten(1).sum(1).clamp(min=1)
    variance = gap.square().sum(1) / count - _VARIANCE * (gap.sum(1) / count).square()
    return (variance + 1e-8).sqrt().mean()


def train_dense(
    networks: Sequence[nn.Module],
    images: Tensor,
    targets: Tensor,
    loss: Loss,
    recipe: DenseRecipe | None = None,
    *,
    name: str = "dense",
    about: Mapping[str, str] | None = None,
    device: torch.device | str | None = None,
    folder: str | os.PathLike[str] | None = None,
    record: bool = True,
) -> list[DenseTrained]:
    """Train networks one after the other, on images that are on the device as bytes.

    A network's seed decides its batches, augmentation and dropout. On a GPU, convolutions are in bfloat16 and a step is
    one recorded graph; sums there have no fixed order, so that two trainings agree closely, but not in every bit.

    Args:
        networks: untrained, each with its own `seed`; copied, not changed.
        images: (n, 3, H, W), bytes, or floating point in [0, 1].
        targets: (n, h, w): classes as uint8, 255 where there is none; or numbers, NaN where there is none. Outputs are
            resized to them.
        loss: of outputs (n, channels, h, w) and targets (n, h, w): `class_loss`, `depth_loss` or one of your own.
        recipe: how; None takes the defaults.
        name: of the networks, in the names of their files.
        about: what else must be equal for finished networks to be loaded, such as a digest of the data.
        device: where; None takes a GPU if there is one.
        folder: for weights, one file per network: networks found there are loaded, not trained.
        record: record steps as graphs on a GPU; not for networks or losses that synchronise with the host.

    Example:
        >>> from reproduction.nets.deeplab import DeepLab
        >>> from reproduction.nets.efficientnet import EfficientNetLite0
        >>> images = torch.randint(256, (4, 3, 32, 32), dtype=torch.uint8)
        >>> network = DeepLab(2, encoder=EfficientNetLite0(dilated=True, width=0.1), width=8)
        >>> recipe = DenseRecipe(epochs=1, batch_size=2)
        >>> trained = train_dense([network], images, (images[:, 0] > 127).byte(), class_loss, recipe, device="cpu")
        >>> len(trained[0].losses), trained[0].network.training
        (1, False)
    """
    recipe = recipe or DenseRecipe()
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    _check(networks, images, targets)
    store = None if folder is None else Path(folder)
    headers = [_header(network, loss, recipe, about or {}) for network in networks]
    paths = [None if store is None else store / f"{name}-{network.seed}.safetensors" for network in networks]
    found = [
        _load(path, network, header) for path, network, header in zip(paths, networks, headers, strict=True)
    ]  # first of all: a file that does not fit is an error
    missing = sum(one is None for one in found)
    if missing:
        images, targets = images.to(device), targets.to(device)
    quiet = nullcontext() if missing else bars(False)
    with quiet, progress_bar(f"training {missing} networks", missing * recipe.epochs) as bar:
        for i, (network, path, header) in enumerate(zip(networks, paths, headers, strict=True)):
            one = found[i]
            if one is None:
                one = found[i] = _train(network, images, targets, loss, recipe, record, bar)
                if path is not None:
                    _save(path, one, header)
            one.network.to(device)
    return [one for one in found if one is not None]


def _train(
    network: nn.Module, images: Tensor, targets: Tensor, loss: Loss, recipe: DenseRecipe, record: bool, bar: Bar
) -> DenseTrained:
    start, losses = time.monotonic(), []
    lane = DenseLane(network, images, targets, loss, recipe, record=record)
    for epoch in range(1, recipe.epochs + 1):
        losses.append(lane.epoch())
        if not math.isfinite(losses[-1]):
            raise RuntimeError(
                f"the loss of network {network.seed} became {losses[-1]} in epoch {epoch}: lower learning_rate "
                f"(={recipe.learning_rate}), or look for infinite targets, or depths of 0 (NaN means no value)."
            )
        bar.advance(network=f"{network.seed}", loss=losses[-1])
    return DenseTrained(_filled(network, lane.state()), losses, time.monotonic() - start)


def _filled(network: nn.Module, state: Mapping[str, Tensor]) -> nn.Module:
    """A copy with these weights, in evaluation mode."""
    trained = copy.deepcopy(network).cpu()
    trained.load_state_dict(state)
    return trained.eval()


def _check(networks: Sequence[nn.Module], images: Tensor, targets: Tensor) -> None:
    if images.dim() != 4 or targets.dim() != 3 or len(images) != len(targets) or not len(images):
        raise ValueError(
            f"expected images (n, 3, H, W) and targets (n, h, w), got {tuple(images.shape)} and {tuple(targets.shape)}."
        )
    if not targets.is_floating_point() and targets.dtype != torch.uint8:
        raise ValueError(f"expected targets of uint8 (classes) or floating point (numbers), got {targets.dtype}.")
    seeds = [getattr(network, "seed", None) for network in networks]
    if not seeds or None in seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"expected networks with different seeds in their attribute `seed`, got {seeds}.")


def _header(network: nn.Module, loss: Loss, recipe: DenseRecipe, about: Mapping[str, str]) -> dict[str, Any]:
    """What must be equal for a finished network to be loaded."""
    config = getattr(network, "config", dict)
    header = {
        "network": type(network).__name__,
        "config": config(),
        "seed": network.seed,
        "loss": getattr(loss, "__name__", type(loss).__name__),
        "recipe": asdict(recipe),
        "about": dict(about),
    }
    return json.loads(json.dumps(header))  # tuples become lists, as they come back from a file


def _save(path: Path, trained: DenseTrained, header: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    course = {"losses": trained.losses, "seconds": trained.seconds}
    io.write(path, {**header, **course}, trained.network.state_dict())


def _load(path: Path | None, network: nn.Module, expected: dict[str, Any]) -> DenseTrained | None:
    if path is None or not path.exists():
        return None
    header, tensors = io.read(path)
    losses, seconds = header.pop("losses", []), header.pop("seconds", math.nan)
    if header != expected:
        raise ValueError(
            f"{str(path)!r} holds a network trained differently ({header}): choose another folder, or remove it."
        )
    return DenseTrained(_filled(network, tensors), losses, seconds)
