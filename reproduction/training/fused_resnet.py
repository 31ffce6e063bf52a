"""The forward pass of the residual network in training on a GPU, with norms fused with what follows them."""

from __future__ import annotations

import warnings
from functools import cache, partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..nets.resnet import ResNet


def fuse(network: nn.Module) -> None:
    """Let a `ResNet` train with fused norms, if it can: its layers, their names and its evaluation do not change."""
    if type(network) is ResNet and find_spec("triton") is not None and _known(network):
        network.forward = partial(_forward, network)  # type: ignore[method-assign]


def _known(network: ResNet) -> bool:
    """Whether its layers are those that `_forward` knows, have no hooks, and kernels for them can be compiled."""
    from .fused_norm import COLUMNS

    norms = [m for m in network.children() if isinstance(m, nn.BatchNorm2d)]
    usual = all(m.affine and m.track_running_stats and m.momentum is not None for m in norms)
    fitting = network.dropout == 0 and all(m.num_features % COLUMNS.value == 0 for m in norms)
    watched = any(m._forward_hooks or m._forward_pre_hooks for m in network.children())  # some layers are not called
    return usual and fitting and not watched and _compiles(norms[0].weight.device)


@cache
def _compiles(device: torch.device) -> bool:
    """Try a norm: Triton does not support old GPUs, and needs a C compiler."""
    from .fused_norm import COLUMNS, normalised

    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    x = torch.zeros(1, COLUMNS.value, 2, 2, dtype=dtype, device=device)
    try:
        with torch.cuda.device_of(x):
            normalised(nn.BatchNorm2d(COLUMNS.value).to(device), x)
    except Exception as error:  # from a compiler, a driver or a loader
        warnings.warn(f"norms are not fused, and training is slower: {type(error).__name__}: {error}", stacklevel=2)
        return False
    return True


def _forward(network: ResNet, images: Tensor) -> Tensor:
    """What `ResNet.forward` computes."""
    height, width = images.shape[2:]
    if not network.training or height % 4 or width % 4:  # it halves them twice
        return ResNet.forward(network, images)
    from .fused_norm import normalised

    layers: Any = network._modules
    run = network._run
    x = normalised(layers["2"], run(images, 1))
    x, half = normalised(layers["8"], run(normalised(layers["5"], run(x, 4)), 7), add=x, half=True)
    for s in (12, 22):
        # With size one and stride two, the shortcut reads only every second row and column.
        shortcut = normalised(layers[str(s + 6)], F.conv2d(half, layers[str(s + 4)].weight), relu=False)
        inner = normalised(layers[str(s + 1)], run(x, s))
        out = normalised(layers[str(s + 5)], run(inner, s + 3), add=shortcut, half=s == 12)
        x, half = out if s == 12 else (out, None)
    return run(x.permute(0, 2, 3, 1).flatten(1, 2).mean(1), 34)  # so that its gradient is channels last
