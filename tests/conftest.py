import copy

import pytest
import torch
from torch import nn


class Net(nn.Module):
    """Two inputs, three classes of blobs, in training mode as a careless user would leave it."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 12), nn.BatchNorm1d(12), nn.ReLU(inplace=True), nn.Dropout(0.2))
        self.hidden = nn.Linear(12, 6)
        self.out = nn.Linear(6, 3)

    def forward(self, x):
        return self.out(torch.tanh(self.hidden(self.body(x))))


def blobs(n: int, seed: int, spread: float = 0.5) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(3, (n,), generator=generator)
    centres = torch.tensor([[0.0, 2.0], [2.0, -1.0], [-2.0, -1.0]])
    return centres[y] + spread * torch.randn(n, 2, generator=generator), y


@pytest.fixture
def trained(trained_once) -> nn.Module:
    """The network above, trained; a copy for each test."""
    return copy.deepcopy(trained_once)


@pytest.fixture(scope="session")
def trained_once() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = Net()
        x, y = blobs(600, seed=1)
        optimiser = torch.optim.Adam(net.parameters(), lr=0.02)
        for _ in range(150):
            optimiser.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimiser.step()
        optimiser.zero_grad()
    return net


@pytest.fixture
def data(data_once):
    """Loaders of training, unseen and test data, and inputs far from all of them; a copy for each test."""
    return copy.deepcopy(data_once)


@pytest.fixture(scope="session")
def data_once():
    def load(n: int, seed: int, batch: int = 100) -> list[tuple[torch.Tensor, torch.Tensor]]:
        x, y = blobs(n, seed)
        return list(zip(x.split(batch), y.split(batch), strict=True))

    return {"train": load(600, 1), "unseen": load(500, 2), "test": load(400, 3), "far": torch.full((5, 2), 40.0)}
