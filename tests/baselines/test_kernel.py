import math

import pytest
import torch
from sklearn.neighbors import KernelDensity as Reference
from torch import nn

from hidden_uncertainty.baselines import neighbours
from hidden_uncertainty.baselines.kernel import GaussianKernels, KernelDensity, find_bandwidth


class Sign(nn.Module):
    """Negative numbers are class 0, others class 1."""

    def __init__(self):
        super().__init__()
        self.same = nn.Identity()

    def forward(self, x):
        x = self.same(x)
        return torch.cat([-x, x], 1)


def test_the_ratio_of_a_worked_example():
    train = [(torch.tensor([[-2.0], [-1.0], [1.0], [4.0]]), torch.tensor([0, 1, 1, 0]))]
    method = KernelDensity(Sign(), "same", k=3, condition="label", task="classification").fit(train)
    u = method(torch.tensor([[-0.5], [3.0]]))
    far = 1 / math.sqrt(5.25)  # a distance of 1, in deviations
    # -0.5 is called 0. Nearest: -1 (0.5 away, class 1), -2 and 1 (1.5 away, classes 0 and 1).
    first = 1 - math.exp(-1.5 * far) / (math.exp(-0.5 * far) + 2 * math.exp(-1.5 * far))
    # 3 is called 1. Nearest: 4 (1 away, class 0), 1 (2 away, class 1), -1 (4 away, class 1).
    second = math.exp(-far) / (math.exp(-far) + math.exp(-2 * far) + math.exp(-4 * far))
    assert u.epistemic.tolist() == pytest.approx([first, second], rel=1e-6)


def test_the_ratio_does_not_underflow():
    train = [(torch.tensor([[-2.0], [-1.0], [1.0], [4.0]]), torch.tensor([0, 0, 0, 1]))]
    method = KernelDensity(Sign(), "same", k=2, condition="label", task="classification").fit(train)
    share = 1 - 1 / (1 + math.exp(-3 / math.sqrt(5.25)))  # 4 is of the class predicted, 1 lies farther by 3
    assert method(torch.tensor([[5000.0]])).epistemic.item() == pytest.approx(share, rel=1e-6)


@pytest.mark.parametrize("bandwidth", [0.3, 2.0, "scott", "silverman"])
def test_the_gaussian_density_is_that_of_scikit_learn(trained, data, bandwidth):
    method = KernelDensity(trained, "hidden", how="gaussian", bandwidth=bandwidth).fit(data["train"])
    got = method.predict(data["test"]).epistemic
    trained.eval()
    train, test = (
        trained.hidden(trained.body(torch.cat([x for x, _ in data[part]]))).detach().double().numpy()
        for part in ("train", "test")
    )
    scale = math.sqrt(train.var(0).mean())  # their rules know nothing of the data's scale
    width = bandwidth if isinstance(bandwidth, float) else scale * Reference(bandwidth=bandwidth).fit(train).bandwidth_
    expected = -Reference(bandwidth=width).fit(train).score_samples(test)
    assert torch.allclose(got.double(), torch.from_numpy(expected), rtol=1e-4, atol=1e-4)
    assert method.unit == "nats"


def kernels(z, bandwidth):
    return GaussianKernels(bandwidth).fit(z, None, None)


def test_seen_rows_are_left_out_of_their_own_density():
    z = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    seen = kernels(z, 0.7).measure(z.double(), z, seen=True)
    rest = [-Reference(bandwidth=0.7).fit(torch.cat([z[:i], z[i + 1 :]])).score(z[i : i + 1]) for i in range(40)]
    assert torch.allclose(seen, torch.tensor(rest, dtype=torch.float64), atol=1e-5)


def test_blocks_do_not_show(monkeypatch):
    z = torch.randn(100, 3, generator=torch.Generator().manual_seed(0))
    whole = kernels(z, 0.5).measure(z.double(), z)
    monkeypatch.setattr(neighbours, "POINTS", 7)
    assert torch.allclose(kernels(z, 0.5).measure(z.double(), z), whole)


def test_numbers_need_the_gaussian(data):
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    loader = [(x, x[:, 0] * 1.5) for x, _ in data["train"]]
    assert KernelDensity(model, "0", how="gaussian").fit(loader)(data["far"]).epistemic.shape == (5,)
    with pytest.raises(ValueError, match=r"needs classes.*KernelDensity\(how='gaussian'\) need none"):
        KernelDensity(model, "0").fit(loader)


@pytest.mark.parametrize("bandwidth", [0.0, -1.0, float("nan"), float("inf"), "wide"])
def test_bandwidths_are_checked(trained, bandwidth):
    with pytest.raises(ValueError, match="bandwidth must be a positive number"):
        KernelDensity(trained, "hidden", how="gaussian", bandwidth=bandwidth)


def test_a_number_is_its_own_bandwidth():
    assert find_bandwidth(torch.zeros(3, 2), 2) == 2.0
    with pytest.raises(ValueError, match="how must be one of"):
        KernelDensity(Sign(), "same", how="uniform")
