"""How much of a GPU's matrix products training makes use of."""

from __future__ import annotations

import time

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


def step_operations(network: nn.Module, shape: tuple[int, ...], batch: int) -> int:
    """Floating-point operations of products in one step of training, forward and backward.

    Args:
        network: its gradients are dropped.
        shape: of one image.
        batch: images per step.

    Example:
        >>> step_operations(nn.Linear(3, 5), (3,), 2)  # 2 · 2 · 3 · 5, and as many for the weights' gradient
        120
    """
    images = torch.zeros(batch, *shape, device=next(network.parameters()).device)
    with FlopCounterMode(display=False) as counter:
        network(images).sum().backward()
    network.zero_grad(set_to_none=True)
    return counter.get_total_flops()


def matrix_peak(device: torch.device, dtype: torch.dtype = torch.bfloat16, size: int = 8192) -> float:
    """Operations per second of one large matrix product, the best of ten.

    Args:
        device: to measure.
        dtype: of the matrices.
        size: rows and columns.
    """
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    best = float("inf")
    for _ in range(10):
        wait(device)
        start = time.perf_counter()
        left @ right
        wait(device)
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best


def wait(device: torch.device) -> None:
    """Wait until the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
