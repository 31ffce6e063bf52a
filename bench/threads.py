"""How much faster threads score one model in evaluation mode than one thread does, on this machine's cores.

Run as `python -m bench.threads`. Each thread has one thread of torch. A plain forward pass of the same network, by as
many threads, is beside it: what that gains is the most that could be gained.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any

import torch

from hidden_uncertainty import GaussianMixture, LatentDensity

from .resnet import resnet18
from .timing import alternate, use_threads

LAYER = "pool"


def gains(threads: int, batch: int, width: int, calls: int, rounds: int) -> dict[str, float]:
    """Time of one thread divided by that of several, for the same calls: of the network alone, and of a detector."""
    model = resnet18(width).eval()
    random = torch.Generator().manual_seed(0)
    images = torch.randn(batch, 3, 32, 32, generator=random)
    # Labels that are drawn, as the network, which is not trained, gives all images one class.
    train = [(torch.randn(200, 3, 32, 32, generator=random), torch.arange(200) % 10) for _ in range(10)]
    options: dict[str, Any] = {"condition": "label", "task": "classification", "progress": False}
    detector = LatentDensity(model, LAYER, GaussianMixture(1), **options).fit(train)

    @torch.no_grad()
    def forward(x: torch.Tensor) -> Any:
        return model(x)

    def by(pool: ThreadPoolExecutor, call: Callable[[torch.Tensor], Any]) -> Callable[[], Any]:
        return lambda: list(pool.map(call, [images] * calls))

    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(threads) as several, use_threads(1):
        sides = {
            "forward, one": by(one, forward),
            "forward, several": by(several, forward),
            "detector, one": by(one, detector),
            "detector, several": by(several, detector),
        }
        seconds = {name: median(values) for name, values in alternate(sides, rounds).items()}
    return {name: seconds[f"{name}, one"] / seconds[f"{name}, several"] for name in ("forward", "detector")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--width", type=int, default=32, help="of the first layer of a ResNet18")
    parser.add_argument("--calls", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    found = gains(**vars(asked))
    print(f"{asked.threads} threads beside one, on {len(os.sched_getaffinity(0))} cores, batch {asked.batch}:")
    print(f"  the network alone {found['forward']:.2f} ×, a detector {found['detector']:.2f} ×")


if __name__ == "__main__":
    main()
