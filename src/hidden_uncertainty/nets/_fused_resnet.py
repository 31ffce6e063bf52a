"""The residual network's forward pass in training on a GPU, its norms fused with what follows them."""

from __future__ import annotations

import warnings
from functools import cache, partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .resnet import ResNet


def fuse(network: nn.Module) -> None:
    """Let a `ResNet` train by fused norms, if it can: its layers, their names and its evaluation stay what they are."""
    if type(network) is ResNet and find_spec("triton") is not None and _known(network):
        network.forward = partial(_forward, network)  # type: ignore[method-assign]


def _known(network: ResNet) -> bool:
    """Whether its layers are those that `_forward` knows, unwatched, and kernels for them can be compiled."""
    from ._fused_norm import COLUMNS

    norms = [m for m in network.children() if isinstance(m, nn.BatchNorm2d)]
    usual = all(m.affine and m.track_running_stats and m.momentum is not None for m in norms)
    fitting = network.dropout == 0 and all(m.num_features % COLUMNS.value == 0 for m in norms)
    watched = any(m._forward_hooks or m._forward_pre_hooks for m in network.children())  # not all of them are called
    return usual and fitting and not watched and _compiles(norms[0].weight.device)


@cache
def _compiles(device: torch.device) -> bool:
    """Whether a norm can be tried out there: old GPUs are not known to Triton, and it needs a compiler for C."""
    from ._fused_norm import COLUMNS, normalised

    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    x = torch.zeros(1, COLUMNS.value, 2, 2, dtype=dtype, device=device)
    try:
        with torch.cuda.device_of(x):
            normalised(nn.BatchNorm2d(COLUMNS.value).to(device), x)
    except Exception as error:  # whatever a compiler, a driver or a loader may raise
        warnings.warn(f"norms are not fused, and training is slower: {type(error).__name__}: {error}", stacklevel=2)
        return False
    return True


def _forward(network: ResNet, images: Tensor) -> Tensor:
    """What `ResNet.forward` computes."""
    height, width = images.shape[2:]
    if not network.training or height % 4 or width % 4:  # it halves them twice
        return ResNet.forward(network, images)
    from ._fused_norm import normalised

    layers: Any = network._modules
    run = network._run
    x = normalised(layers["2"], run(images, 1))
    x, half = normalised(layers["8"], run(normalised(layers["5"], run(x, 4)), 7), add=x, half=True)
    for s in (12, 22):
        # Of size one and stride two, the shortcut reads every second row and column alone.
        shortcut = normalised(layers[str(s + 6)], F.conv2d(half, layers[str(s + 4)].weight), relu=False)
        inner = normalised(layers[str(s + 1)], run(x, s))
        out = normalised(layers[str(s + 5)], run(inner, s + 3), add=shortcut, half=s == 12)
        x, half = out if s == 12 else (out, None)
    return run(x.permute(0, 2, 3, 1).flatten(1, 2).mean(1), 34)  # so that its gradient lies channels last
