"""`LatentDensity` on networks that predict numbers, from end to end."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from hidden_uncertainty import JointMixture, LatentDensity, Regression
from hidden_uncertainty.marginal import Gaussian, Histogram, Uniform


class Net(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(inputs, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
        self.out = nn.Linear(32, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.body(x))


def noise(x: Tensor) -> Tensor:
    """The deviation of y: four times larger on the right than on the left."""
    return torch.where(x[:, 0] > 0, 0.4, 0.1)


def draw(n: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = 4 * torch.rand(n, 2, generator=generator) - 2
    return x, torch.sin(2 * x[:, 0]) + x[:, 1] + noise(x) * torch.randn(n, generator=generator)


def batches(x: Tensor, *labels: Tensor) -> list[tuple[Tensor, ...]]:
    return list(zip(x.split(250), *(label.split(250) for label in labels), strict=True))


def trained(outputs: int, target: Tensor, x: Tensor) -> Net:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = Net(x.shape[1], outputs)
    optimiser = torch.optim.Adam(net.parameters(), lr=0.02)
    for _ in range(300):
        loss = (net(x) - target).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return net


@pytest.fixture(scope="module")
def net() -> Net:
    x, y = draw(2000, 0)
    return trained(1, y[:, None], x)


@pytest.fixture(scope="module")
def detector(net: Net) -> LatentDensity:
    return LatentDensity(net, "body", condition="label").fit(
        batches(*draw(2000, 0)), calibration=batches(*draw(1000, 1))
    )


def test_the_task_and_the_density_are_found(detector: LatentDensity) -> None:
    assert detector.reader.task.name == "regression"
    assert isinstance(detector.fitted_densities["body"], JointMixture)


def test_far_inputs_are_surprising(detector: LatentDensity) -> None:
    inside, far = detector(draw(500, 2)[0]), detector(torch.tensor([[8.0, -8.0], [-9.0, 9.0], [20.0, 20.0]]))
    assert far.epistemic.min() > inside.epistemic.max()
    assert far.p_value.max() < 0.01
    assert inside.prediction.shape == (500,) and inside.log_aleatoric is None


def test_labels_show_the_noise_of_the_data_and_predictions_do_not(net: Net, detector: LatentDensity) -> None:
    x, _ = draw(2000, 3)
    by_label, right = detector(x), x[:, 0] > 0.3
    left = x[:, 0] < -0.3
    error = by_label.expected_error
    assert error[right].median() == pytest.approx(0.4, rel=0.3) and error[left].median() == pytest.approx(0.1, rel=0.5)
    assert by_label.aleatoric[right].median() > by_label.aleatoric[left].median() + 0.7
    by_prediction = LatentDensity(net, "body", task="regression").fit(batches(draw(2000, 0)[0]))(x)
    assert by_prediction.expected_error is None and by_prediction.layers["body"].expected_error is None
    assert by_prediction.aleatoric[right].median() < by_label.aleatoric[right].median()


@pytest.mark.parametrize("coverage", [0.5, 0.9])
def test_intervals_cover_labels(detector: LatentDensity, coverage: float) -> None:
    x, y = draw(4000, 4)
    low, high = detector.interval(detector(x), coverage)
    covered = ((low <= y) & (y <= high)).float()
    # 4,000 draws and 1,000 calibration scores: deviation of the rate about 0.017 at a half, 0.011 at 0.9.
    assert covered.mean().item() == pytest.approx(coverage, abs=0.05)
    wide, narrow = (high - low)[x[:, 0] > 0.3].median(), (high - low)[x[:, 0] < -0.3].median()
    assert wide > 2 * narrow


def test_regions_follow_the_distribution(detector: LatentDensity) -> None:
    x, y = draw(2000, 5)
    found = detector.distribution(x)
    low, high, mass = found.outwards(0.6)
    assert (low <= found.prediction).all() and (found.prediction <= high).all()
    # Fitted to labels, it describes them: regions hold what they claim, where the density's blur (0.05 deviations of
    # y, here 0.07) is small beside the noise.
    noisy = x[:, 0] > 0.3
    held = ((low <= y) & (y <= high))[noisy].float().mean()
    assert held.item() == pytest.approx(mass[noisy].mean().item(), abs=0.05)


def test_saved_and_loaded_it_is_the_same(net: Net, detector: LatentDensity, tmp_path) -> None:
    detector.save(tmp_path / "detector.safetensors")
    again = LatentDensity.load(tmp_path / "detector.safetensors", net)
    x, _ = draw(100, 6)
    ours, theirs = detector(x), again(x)
    for name in ("prediction", "epistemic", "aleatoric", "expected_error", "p_value"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name)), name
    assert torch.equal(detector.interval(ours)[0], again.interval(theirs)[0])
    assert again.condition == "label"


def test_the_marginal_hardly_moves_the_evidence(net: Net) -> None:
    """p(z|ŷ) decides where the mass is; a marginal that is flat there only adds a constant."""
    x, _ = draw(300, 6)
    scores = [
        LatentDensity(net, "body", marginal=marginal, task="regression").fit(batches(draw(1000, 0)[0]))(x).epistemic
        for marginal in (Gaussian(), Histogram(), Uniform())
    ]
    for other in scores[1:]:
        assert torch.corrcoef(torch.stack([scores[0], other]))[0, 1] > 0.98


def test_several_outputs() -> None:
    x, y = draw(1000, 0)
    target = torch.stack([y, y - 2 * x[:, 1], x[:, 0] * x[:, 1]], dim=1)
    net = trained(3, target, x)
    new, label = draw(500, 1)
    truth = torch.stack([label, label - 2 * new[:, 1], new[:, 0] * new[:, 1]], dim=1)
    detector = LatentDensity(net, "body", condition="label").fit(batches(x, target), calibration=batches(new, truth))
    other, label = draw(500, 2)
    truth = torch.stack([label, label - 2 * other[:, 1], other[:, 0] * other[:, 1]], dim=1)
    u = detector(other)
    assert u.prediction.shape == (500, 3) and u.expected_error is not None and u.expected_error.shape == (500, 3)
    low, high = detector.interval(u, 0.9)
    together = ((low <= truth) & (truth <= high)).all(1).float().mean()
    assert together.item() == pytest.approx(0.9, abs=0.05)
    assert detector(torch.full((5, 2), 12.0)).epistemic.min() > u.epistemic.quantile(0.99)
    with pytest.raises(TypeError, match="one number per input"):
        detector.distribution(other)


def test_a_network_that_predicts_a_mean_and_a_variance(net: Net) -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([self.net(x), 2 * noise(x).log()[:, None]], dim=1)

    task = Regression(spread="columns", spread_is="log_variance")
    detector = LatentDensity(Both(), "net.body", task=task).fit(batches(draw(1000, 0)[0]))
    x, _ = draw(100, 2)
    u = detector(x)
    assert torch.allclose(u.prediction, net(x)[:, 0])
    assert torch.allclose(u.variance, noise(x).square())


def test_bad_targets(net: Net) -> None:
    x, y = draw(500, 0)
    y[3] = math.nan
    with pytest.raises(ValueError, match="1 of 500 labels are NaN or infinite"):
        LatentDensity(net, "body", condition="label").fit(batches(x, y))
    with pytest.raises(ValueError, match=r"labels of the predictions' shape, \(500,\), in the loader, but got none"):
        LatentDensity(net, "body", task="regression", condition="label").fit(batches(x))


def test_intervals_need_labels_and_numbers(net: Net) -> None:
    detector = LatentDensity(net, "body", task="regression").fit(batches(draw(500, 0)[0]))
    with pytest.raises(RuntimeError, match=r"with a loader that gives \(x, y\)"):
        detector.interval(detector(draw(10, 1)[0]))
    with pytest.raises(TypeError, match=r"interval takes what a detector returned, not Tensor: score inputs first"):
        detector.interval(draw(10, 1)[0])  # type: ignore[arg-type]


def test_an_interval_is_no_wider_than_its_coverage_asks(net: Net) -> None:
    """Of 99 calibration errors, 0.9 asks for the 90th."""
    x, y = draw(99, 1)
    detector = LatentDensity(net, "body").fit(batches(*draw(500, 0)), calibration=[(x, y)])
    u = detector(x)
    low, high = detector.interval(u, 0.9)
    assert int(((low <= y) & (y <= high)).sum()) == 90


@pytest.mark.parametrize("unit", [1e-30, 1e15])
def test_expected_errors_are_finite_and_follow_the_unit_of_labels(unit: float) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hidden = nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            return self.hidden(x)[:, 0] * unit

    generator = torch.Generator().manual_seed(0)
    x, noise = torch.randn(2000, 2, generator=generator), torch.randn(2000, generator=generator)
    batches = [(x, (x[:, 0] + 0.3 * noise) * unit)]
    detector = LatentDensity(Scaled(), "hidden", JointMixture(1), task="regression", condition="label").fit(batches)
    torch.testing.assert_close(detector(x).expected_error / unit, torch.full((2000,), 0.3), rtol=0.1, atol=0)
    assert detector(torch.tensor([[1e20, 0.0]])).expected_error.isfinite().all()
