"""Training of all rivals: same seed, same network; each learns; what is fitted after the training."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from scipy.stats import multivariate_normal

from reproduction.rivals import DDU, DUQ, SNGP, Bottleneck, Distance, Rival, Schedule, train
from reproduction.rivals.base import perceptron

random = torch.Generator().manual_seed(0)
y = torch.arange(400) % 4
x = torch.nn.functional.one_hot(y, 6) * 3.0 + torch.randn(400, 6, generator=random)
BUILD: dict[str, Callable[[int], Rival]] = {
    "VIB": lambda seed: Bottleneck(6, 16, 4, code=8, seed=seed),
    "DUQ": lambda seed: DUQ(
        perceptron(6, 16, seed=seed), 16, 4, embedding=8, length_scale=0.5, momentum=0.9, spread=0.3, seed=seed
    ),
    "VIB, learnt marginal": lambda seed: Bottleneck(6, 16, 4, code=3, components=20, seed=seed),
    "SNGP": lambda seed: SNGP(torch.nn.Linear(6, 16, bias=False), 16, 4, features=128, length_scale=2.0, seed=seed),
    "DDU": lambda seed: DDU(6, 16, 4, seed=seed),
    "distance": lambda seed: Distance(6, 16, 4, seed=seed),
}


@pytest.mark.parametrize("name", BUILD)
def test_every_rival_learns_and_is_what_its_seed_says(name: str) -> None:
    schedule = Schedule(20, 40, 0.01, weight_decay=0.0)
    found = []
    for _ in range(2):
        torch.manual_seed(7)  # the body of SNGP above
        rival = BUILD[name](0)
        train(rival, x, y, schedule)
        assert not rival.training
        found.append(rival)
    assert float((found[0](x).argmax(1) == y).float().mean()) > 0.85
    for one, other in zip(found[0].state_dict().values(), found[1].state_dict().values(), strict=True):
        assert torch.equal(one, other)


def test_the_score_of_ddu_is_the_density_of_labelled_classes() -> None:
    rival = DDU(6, 3, 4)
    train(rival, x, y, Schedule(2, 40, 0.01))
    ((_, detector),) = rival.detectors()
    u = detector.fit([(x, y)])(x[:10])
    with torch.no_grad():
        z = rival.body(x).double()
    density = torch.zeros(10).double()
    for c in range(4):
        own = z[y == c]
        covariance = torch.cov(own.T, correction=0)
        density += 0.25 * torch.from_numpy(multivariate_normal(own.mean(0), covariance).pdf(z[:10]))
    torch.testing.assert_close(u.epistemic.double(), -density.log(), rtol=1e-3, atol=1e-2)


def test_divergence_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="diverged"):
        train(DDU(6, 3, 4), x * torch.nan, y, Schedule(1, 40))


@pytest.mark.parametrize("name", BUILD)
def test_a_step_happens_where_the_inputs_are(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Tensors without numbers stand for those of a GPU: an operation that also gets one of the CPU fails.
    monkeypatch.setattr(Rival, "noise", lambda self, like: torch.empty_like(like))
    rival, inputs, labels = BUILD[name](0).to("meta"), x.to("meta"), y.to("meta")
    rival.loss(inputs, labels).backward()
    with torch.no_grad():
        rival.after_step(inputs, labels)
        rival.eval().finish([(inputs, labels)])
        assert rival(inputs).device.type == "meta"
    assert {tensor.device.type for tensor in rival.state_dict().values()} == {"meta"}
