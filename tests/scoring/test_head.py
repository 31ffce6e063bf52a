"""What was fitted scores without a trace; what intervals are as wide as, and what is said of unusable numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import pixel_nets
from hidden_uncertainty import GaussianMixture, JointMixture, LatentDensity, Pixels, Regression
from hidden_uncertainty.baselines import DeepEnsemble, Energy, NearestNeighbours, PytorchOOD
from hidden_uncertainty.detector import Detector
from hidden_uncertainty.scoring import bayes
from hidden_uncertainty.scoring.bayes import DensityMethod
from hidden_uncertainty.scoring.terms import Term


class Failing(nn.Module):
    """Where an input's first number is above 9, its layer, its outputs or both are NaN, or infinite."""

    def __init__(self, outputs: int = 3) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.first, self.second, self.out = nn.Linear(4, 8), nn.Linear(8, 6), nn.Linear(6, outputs)
        self.where, self.what = "", torch.nan

    def spoil(self, values: Tensor, x: Tensor, where: str) -> Tensor:
        return values.masked_fill(x[:, :1] > 9, self.what) if where in self.where else values

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.second(torch.tanh(self.first(self.spoil(x.clamp(-3, 3), x, "layer")))))
        return self.spoil(self.out(hidden.nan_to_num()), x, "output")


def draw(n: int, wrong: int = 0, seed: int = 0) -> Tensor:
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(seed))
    x[:wrong, 0] = 10.0
    return x


def check(u, wrong: Tensor, calibrated: int) -> None:
    """Only what is wrong is told so."""
    for scores in (u, *u.layers.values()):
        assert torch.equal(scores.epistemic.isposinf(), wrong) and scores.epistemic[~wrong].isfinite().all()
        assert (scores.p_value[wrong] == 1 / (calibrated + 1)).all() and scores.surprising[wrong].all()
        assert not scores.surprising[~wrong].all()
        for other in (scores.aleatoric, scores.log_aleatoric, scores.expected_error):
            assert other is None or torch.equal(other.isnan().reshape(*wrong.shape, -1).any(-1), wrong)


BUILD: dict[str, Callable[[nn.Module], Detector]] = {
    "density": lambda model: LatentDensity(model, ["first", "second"], GaussianMixture(1), task="classification"),
    "reduced": lambda model: LatentDensity(model, "first", max_dim=3, task="classification"),
    "weights": lambda model: Detector(
        model,
        [Term(DensityMethod(GaussianMixture(1)), "first"), Term(DensityMethod(GaussianMixture(1)), "second")],
        combine={"first": 1.0, "second": -0.5},
        task="classification",
    ),
    "mean": lambda model: LatentDensity(
        model, ["first", "second"], GaussianMixture(1), combine="mean", task="classification"
    ),
    "neighbours": lambda model: NearestNeighbours(model, "second", k=3, task="classification"),
    "energy": lambda model: Energy(model, task="classification"),
    "ensemble": lambda model: DeepEnsemble([model, Failing().eval()], task="classification"),
    "other": lambda model: PytorchOOD(lambda x: x[:, 1].abs(), model, task="classification"),
}


@pytest.mark.parametrize("name", BUILD)
@pytest.mark.parametrize(
    ("where", "what"), [("layer", math.nan), ("output", math.nan), ("output", math.inf), ("layer output", math.nan)]
)
def test_inputs_without_numbers_are_surprising(name: str, where: str, what: float) -> None:
    model = Failing().eval()
    detector = BUILD[name](model).fit([draw(400, seed=1)], calibration=[draw(99, seed=2)])
    detector.threshold(0.05)
    clean = detector(draw(20, seed=3))
    model.where, model.what = where, what
    x = draw(20, 4, seed=3)
    if where == "layer" and name in ("energy", "ensemble", "other"):  # which do not see the layer
        detector(x)
        return
    with pytest.warns(UserWarning, match="NaN or infinity for 4 of 20 inputs, which counts as surprising") as caught:
        u = detector(x)
    assert len(caught) == 1 and caught[0].filename == __file__
    check(u, torch.arange(20) < 4, 99)
    torch.testing.assert_close(u.epistemic[4:], clean.epistemic[4:])
    with pytest.warns(UserWarning, match="NaN or infinity for 4 of 60 inputs") as caught:
        assert len(detector.predict([draw(40), x])) == 60
    assert len(caught) == 1
    with pytest.raises(ValueError, match=r"NaN or infini.* for 4 of 20 inputs"):
        detector.calibrate([draw(40), x])
    assert detector.threshold(0.05) == clean.threshold


def test_pixels_without_numbers_are_surprising() -> None:
    net = pixel_nets.Net().eval()
    for build in (
        lambda **options: LatentDensity(net, "third", GaussianMixture(1), **options),
        lambda **options: DeepEnsemble([net, pixel_nets.Net(seed=3).eval()], **options),
    ):
        detector = build(task="classification", pixels=Pixels(share=0.2))
        detector.fit([pixel_nets.images(6)], calibration=[pixel_nets.images(19, seed=1)]).threshold(0.1)
        forward, wrong = net.forward, torch.zeros(2, 14, 19, dtype=torch.bool)
        wrong[1, 3:5, 7] = True
        net.forward = lambda x: forward(x).masked_fill(wrong[:, None], torch.nan)  # noqa: B023
        with pytest.warns(UserWarning, match="NaN or infinity for 2 of 532 pixels"):
            u = detector(pixel_nets.images(2, seed=2))
        net.forward = forward
        check(u, wrong, 19)


@pytest.mark.parametrize("outputs", [1, 2])
def test_numbers_without_numbers(outputs: int) -> None:
    model = Failing(outputs).eval()
    x = draw(400, seed=1)
    pairs = [(x, model(x).detach() + 0.1 * torch.randn(400, outputs, generator=torch.Generator().manual_seed(0)))]
    detector = LatentDensity(model, "second", JointMixture(1), task="regression", condition="label")
    detector.fit(pairs, calibration=pairs).threshold(0.05)
    model.where = "output"
    with pytest.warns(UserWarning, match="for 3 of 10 inputs"):
        u = detector(draw(10, 3, seed=4))
    wrong = torch.arange(10) < 3
    check(u, wrong, 400)
    assert u.expected_error is not None
    for bound in detector.interval(u):
        assert torch.equal(bound.isnan().reshape(10, -1).any(1), wrong)


def noisy(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """y = x + noise that grows tenfold where x is positive."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 1, generator=generator)
    return x, x + torch.where(x > 0, 1.0, 0.1) * torch.randn(n, 1, generator=generator)


class Spread(nn.Module):
    """Knows the mean and, if it may tell, the noise."""

    def __init__(self, told: float | None) -> None:
        super().__init__()
        self.same, self.told = nn.Identity(), told

    def forward(self, x: Tensor) -> Tensor:
        mean = self.same(x) + 0.0
        return mean if self.told is None else torch.cat([mean, self.told * torch.where(x > 0, 1.0, 0.1)], 1)


@pytest.mark.parametrize(
    ("told", "condition", "unit"),
    [
        (1.0, "prediction", "variance"),
        (7.0, "label", "variance"),
        (None, "label", "expected_error"),
        (None, "prediction", None),
    ],
)
def test_intervals_are_as_wide_as_what_is_known(told, condition, unit, tmp_path) -> None:
    model = Spread(told).eval()
    task = "regression" if told is None else Regression(spread="columns", spread_is="deviation")
    detector = LatentDensity(
        model, "same", JointMixture(4 if unit == "expected_error" else 1), task=task, condition=condition
    )
    detector.fit([noisy(2000, 0)], calibration=[noisy(1999, 1)])
    x, y = noisy(2000, 2)
    u = detector(x)
    assert (u.expected_error is None) == (condition == "prediction")
    assert detector.head.terms["same"].spread == unit and (u.spread is None) == (unit is None)
    low, high = detector.interval(u, 0.9)
    width, inside, many = high - low, (low <= y[:, 0]) & (y[:, 0] <= high), x[:, 0] > 0
    assert inside.float().mean() == pytest.approx(0.9, abs=3 * (0.09 / 2000 + 0.09 / 2000) ** 0.5)
    if unit is None:
        torch.testing.assert_close(width, width[:1].expand(2000), rtol=1e-5, atol=0)
    else:
        # Twice 1.645 deviations, where the deviation is known; a mixture knows it roughly.
        exact = {"rel": 0.06} if unit == "variance" else {"rel": 0.5}
        assert width[many].median().item() == pytest.approx(2 * 1.645, **exact)
        assert width[~many].median().item() == pytest.approx(0.2 * 1.645, **exact)
        assert unit != "variance" or inside[many].float().mean() == pytest.approx(0.9, abs=0.05)
    detector.save(tmp_path / "file")
    again = Detector.load(tmp_path / "file", model)
    for one, two in zip((low, high), again.interval(again(x), 0.9), strict=True):
        assert torch.equal(one, two)


def test_methods_without_a_density_have_intervals_too() -> None:
    model = Spread(None).eval()
    detector = NearestNeighbours(model, "same", k=3, task="regression").fit(
        [noisy(500, 0)], calibration=[noisy(499, 1)]
    )
    x, y = noisy(500, 2)
    low, high = detector.interval(detector(x), 0.8)
    assert ((low <= y[:, 0]) & (y[:, 0] <= high)).float().mean() == pytest.approx(0.8, abs=0.08)


def test_a_predicted_variance_of_zero() -> None:
    model = Spread(0.0).eval()
    task = Regression(spread="columns", spread_is="deviation")
    detector = LatentDensity(model, "same", JointMixture(1), task=task)
    x = noisy(500, 0)[0]
    detector.fit([(x, x)], calibration=[(x, x)])  # and no error at all
    low, high = detector.interval(detector(x))
    assert (low <= x[:, 0]).all() and (x[:, 0] <= high).all() and (high - low).max() < 1e-5
    detector.calibrate([noisy(500, 1)])
    low, high = detector.interval(detector(x))
    assert not low.isnan().any() and (high >= low).all()


def test_intervals_that_cannot_be() -> None:
    model, x = Failing().eval(), draw(200)
    classes = LatentDensity(model, "first", GaussianMixture(1), task="classification")
    classes.fit([x], calibration=[(x, torch.zeros(200, dtype=torch.long))])
    with pytest.raises(
        RuntimeError, match="intervals are for networks that predict numbers; this one predicts classes"
    ):
        classes.interval(classes(x))
    numbers = LatentDensity(Spread(1.0).eval(), "same", JointMixture(1), task=Regression(spread="columns"))
    pair = noisy(200, 0)
    numbers.fit([pair], calibration=[(pair[0], torch.zeros(200, 7))])  # labels of something else
    before = numbers(pair[0])
    with pytest.raises(RuntimeError, match=r"intervals need labelled data .* y of the predictions' shape"):
        numbers.interval(before)
    numbers.calibrate([pair])
    with pytest.raises(RuntimeError, match=r"older than the calibration.*Score the inputs again"):
        numbers.interval(before)
    with pytest.raises(ValueError, match=r"a coverage of 0\.999 needs at least 999"):
        numbers.interval(numbers(pair[0]), 0.999)
    pair[1][3] = math.nan
    with pytest.raises(ValueError, match="1 of 200 labels are NaN or infinite"):
        numbers.calibrate([pair])


@pytest.fixture(scope="module")
def detector() -> LatentDensity:
    x = torch.randn(500, 2, generator=torch.Generator().manual_seed(0))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
    return LatentDensity(net, "1", task="regression").fit([x[:400]], calibration=[(x[400:], x[400:, 0])])


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("autocast", [True, False])
def test_an_interrupted_call_leaves_gradients_and_autocast_alone(
    detector: LatentDensity, monkeypatch: pytest.MonkeyPatch, grad: bool, autocast: bool
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bayes, "_expected_error", interrupted)
    with (
        pytest.raises(KeyboardInterrupt) as error,  # which keeps every frame, as a notebook does
        torch.set_grad_enabled(grad),
        torch.autocast("cpu", enabled=autocast),
    ):
        detector(torch.zeros(3, 2))
    assert torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")
    del error
    assert torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")


def test_intervals_are_where_the_predictions_are(detector: LatentDensity) -> None:
    """What was fitted may be on another device than the model."""
    u = detector(torch.zeros(3, 2))
    elsewhere = replace(u, prediction=u.prediction.to("meta"))
    assert all(bound.device.type == "meta" for bound in detector.interval(elsewhere))
