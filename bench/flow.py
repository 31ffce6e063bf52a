"""A training step of a conditional flow, and its density on a grid, ours beside FrEIA's coupling blocks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from hidden_uncertainty.density._coupling import Couplings, log_likelihood, log_prob

from .timing import Seconds, alternate

try:
    from FrEIA.framework import SequenceINN
    from FrEIA.modules import GLOWCouplingBlock, PermuteRandom
except ImportError:
    SequenceINN = None

CHUNK = 2000  # rows that FrEIA's grid gets at a time, of 500 to 8,000 its fastest
# Its tutorials rectify; with tanh its perceptrons are the same as ours.
ACTIVATIONS = {"freia": nn.Tanh, "freia_relu": nn.ReLU}


class Flow:
    """Flows of GLOW blocks with random permutations, and what they are given.

    The perceptrons have two hidden layers. The condition goes through a perceptron of its own in ours, and into the
    first layer of every perceptron in FrEIA's.
    """

    def __init__(self, dim: int, rows: int, points: int, rounds: int, width: int = 100, blocks: int = 4) -> None:
        self.rows, self.points, self.rounds, self.width = rows, points, rounds, width
        random = torch.Generator().manual_seed(0)
        self.z, self.y = torch.randn(rows, dim, generator=random), torch.randn(rows, 1, generator=random)
        self.support = torch.linspace(-3, 3, points)[:, None]
        self.ours = Couplings(dim, 1, blocks=blocks, hidden=(width, width))
        self.ours.reset(random)
        for weight in self.ours.parameters():
            weight.data += 0.02 * torch.randn(weight.shape, generator=random)  # not the identity any more
        self.theirs: dict[str, nn.Module] = {}
        if SequenceINN is not None:
            self.theirs = {name: _freia(dim, blocks, width, kind) for name, kind in ACTIVATIONS.items()}

    def step(self) -> dict[str, Any]:
        """Forward, backward and Adam, all rows at once."""
        sample = (self.z.mT.contiguous(), self.y.mT.contiguous())
        sides = {"ours": _step(self.ours, partial(log_likelihood, self.ours, *sample))}
        sides |= {name: _step(flow, partial(_freia_likelihood, flow, self.z, self.y)) for name, flow in self._theirs()}
        alternate(sides, 1)
        entry = _compare(alternate(sides, self.rounds))
        # A layer has three products: forward, for its weights, and for its input, where that is not given.
        forward = sum(self._gflop(self.rows, self.rows, self.rows))
        given = 2e-9 * self.rows * self.width * self.ours.sizes[0]
        return entry | {"necessary_gflop": 3 * forward - given, **self._sizes()}

    @torch.no_grad()
    def grid(self) -> dict[str, Any]:
        """log p(z_i | y_j) for every row and support point; FrEIA is given every pair."""
        u, condition = self.z.mT.contiguous(), self.support.mT[:, None].contiguous()
        found: list[Tensor] = []

        def ours() -> None:
            found[:] = [log_prob(self.ours, u, condition)]

        def theirs(flow: nn.Module) -> None:
            for rows in self.z.split(max(1, CHUNK // self.points)):
                pairs = rows.repeat_interleave(self.points, dim=0)
                _freia_likelihood(flow, pairs, self.support.repeat(len(rows), 1))

        sides: dict[str, Callable[[], Any]] = {"ours": ours}
        sides |= {name: partial(theirs, flow) for name, flow in self._theirs()}
        entry = _compare(alternate(sides, max(1, self.rounds // 10)))
        expected = log_prob(self.ours.double(), u[:, :10].double(), condition.double())
        self.ours.float()
        error = (found[0][:10] - expected).abs() / expected.abs().clamp(min=len(u))  # log p may be 0
        gflop = sum(self._gflop(self.points, self.rows, self.rows * self.points))
        return entry | {"largest_relative_error": float(error.max()), "necessary_gflop": gflop, **self._sizes()}

    def _theirs(self) -> list[tuple[str, nn.Module]]:
        return list(self.theirs.items())

    def _gflop(self, conditions: int, first: int, others: int) -> tuple[float, float, float]:
        """Products for the condition, for the perceptron of the first coupling, and for those of the others."""
        own = [sum(weight.numel() for weight in step.coupling.weights) for step in self.ours.steps()]
        read = sum(step.coupling.condition.numel() for step in self.ours.steps())
        read += sum(weight.numel() for weight in self.ours.weights)
        return 2e-9 * conditions * read, 2e-9 * first * own[0], 2e-9 * others * sum(own[1:])

    def _sizes(self) -> dict[str, int]:
        return {"rows": self.rows, "points": self.points, "dim": self.z.shape[1], "width": self.width}


def _step(flow: nn.Module, likelihood: Callable[[], Tensor]) -> Callable[[], None]:
    optimiser = torch.optim.Adam(flow.parameters(), lr=1e-5, fused=True)

    def step() -> None:
        optimiser.zero_grad()
        (-likelihood().mean()).backward()
        optimiser.step()

    return step


def _freia(dim: int, blocks: int, width: int, activation: type[nn.Module]) -> nn.Module:
    def perceptron(inputs: int, outputs: int) -> nn.Module:
        hidden = nn.Linear(inputs, width), activation(), nn.Linear(width, width), activation()
        return nn.Sequential(*hidden, nn.Linear(width, outputs))

    flow = SequenceINN(dim)
    for block in range(blocks):
        flow.append(GLOWCouplingBlock, cond=0, cond_shape=(1,), subnet_constructor=perceptron)
        flow.append(PermuteRandom, seed=block)
    return flow


def _freia_likelihood(flow: nn.Module, z: Tensor, y: Tensor) -> Tensor:
    base, log_scale = flow(z, c=[y])
    return log_scale - 0.5 * base.square().sum(1)


def _compare(seconds: Seconds) -> dict[str, Any]:
    """The fields of an entry, each side at its median round; the ratio is to the same perceptrons in FrEIA."""
    middle = {name: median(values) for name, values in seconds.items()}
    ours = middle.pop("ours")
    entry: dict[str, Any] = {"seconds": ours, "seconds_rounds": seconds["ours"]}
    if not middle:
        return entry | {"value": 1e3 * ours, "unit": "ms", "beside": "FrEIA is not installed"}
    for name, value in middle.items():
        entry |= {f"{name}_seconds": value, f"{name}_seconds_rounds": seconds[name]}
    ratios = [their / own for their, own in zip(seconds["freia"], seconds["ours"], strict=True)]
    entry |= {"ratio": middle["freia"] / ours, "ratio_range": [min(ratios), max(ratios)]}
    return entry | {"ratio_to_their_best": min(middle.values()) / ours}
