"""Scores depend on the batch in their last digits; what was promised of alarms and intervals does not."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from hidden_uncertainty import GaussianMixture, JointMixture, LatentDensity, Pixels
from hidden_uncertainty.baselines import DeepEnsemble, MCDropout, NearestNeighbours
from hidden_uncertainty.detector import Detector
from hidden_uncertainty.fitting import fit
from hidden_uncertainty.fitting.fit import Kept
from hidden_uncertainty.model.batches import Batch

SIZES = (1, 2, 3, 5, 7, 64)
FAR = torch.linspace(-5.1, 4.3, 8)  # what two in five inputs are


def draw(n: int, seed: int, repeated: float = 0.4) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 8, generator=generator)
    x[torch.rand(n, generator=generator) < repeated] = FAR
    return x


@pytest.fixture(scope="module")
def networks() -> dict[str, nn.Module]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        classes = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 3))
        numbers = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
        pixels = nn.Sequential(
            nn.Unflatten(1, (1, 2, 4)), nn.Conv2d(1, 16, 3, padding=1), nn.Tanh(), nn.Conv2d(16, 3, 1)
        )
    return {"classes": classes.eval(), "numbers": numbers.eval(), "pixels": pixels.eval()}


@contextmanager
def running(threads: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """With two, fewer inputs do: threads that wait for one another take their time on a busy machine."""
    if request.param == 2:
        monkeypatch.setattr(fit, "INPUTS", 5)
    return request.param


def parts(x: Tensor, threads: int) -> Iterator[tuple[Tensor, ...]]:
    """The same inputs in batches of several sizes."""
    return (x.split(size) for size in (SIZES if threads == 1 else (1, 64)))


def build(what: str, model: nn.Module) -> LatentDensity:
    density = JointMixture(1) if what == "numbers" else GaussianMixture(1)
    options = {"task": "regression" if what == "numbers" else "classification"}
    if what == "pixels":
        options["pixels"] = Pixels(share=0.0)
    return LatentDensity(model, "2" if what == "pixels" else "1", density, **options)


@pytest.mark.parametrize("what", ["classes", "numbers", "pixels"])
def test_repeated_inputs_alarm_as_often_as_asked(what: str, networks: dict[str, nn.Module], threads: int) -> None:
    detector, unseen, new = build(what, networks[what]), draw(500, 1), draw(105 if threads == 1 else 12, 2)
    detector.fit(draw(500, 0, 0.0).split(100))
    with running(threads):
        detector.calibrate(unseen.split(100)).threshold(0.05)
        scored = [detector.predict(batches) for batches in parts(new, threads)]
    same, known = (new == FAR).all(1), int((unseen == FAR).all(1).sum())
    for u in scored:
        surprising, p_value = u.surprising, u.p_value
        if what == "pixels":
            surprising, p_value = surprising.flatten(1).any(1), p_value.flatten(1).amin(1)
        assert surprising.double().mean() < 0.05 + 3 * (0.05 * 0.95 / len(new)) ** 0.5
        assert (p_value[same] >= (1 + known) / 501).all()  # as many ties as there are
        assert torch.equal(u.surprising, u.p_value <= 0.05)


def test_repeated_labels_are_covered_as_often_as_asked(networks: dict[str, nn.Module], threads: int) -> None:
    model = networks["numbers"]

    def labelled(x: Tensor, seed: int) -> Tensor:
        noise = 0.1 * torch.randn(len(x), generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            return model(x)[:, 0] + torch.where((x == FAR).all(1), 2.3, noise)

    detector, unseen, new = build("numbers", model), draw(500, 1), draw(105 if threads == 1 else 12, 2)
    pairs = zip(unseen.split(100), labelled(unseen, 1).split(100), strict=True)
    detector.fit([draw(500, 0, 0.0)])
    with running(threads):
        detector.calibrate(pairs)
        scored = [detector.predict(batches) for batches in parts(new, threads)]
    y, same = labelled(new, 2), (new == FAR).all(1)
    for u in scored:
        low, high = detector.interval(u, 0.8)
        inside = (low <= y) & (y <= high)
        assert inside[same].all()  # these are two in five, and three in five cannot be four in five
        assert inside.double().mean() > 0.8 - 3 * (0.16 / len(new)) ** 0.5
        assert (high - low).max() < 2 * 2.3 * 1.001


class Quantised(nn.Module):
    """Rounds its input to steps that depend on the batch, as dynamic quantisation does."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        step = x.abs().max() / 127
        return self.model((x / step).round() * step)


def test_scores_that_depend_on_the_batch_are_noted(
    networks: dict[str, nn.Module], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="hidden_uncertainty")
    detector = LatentDensity(
        Quantised(networks["classes"]).eval(), "model.1", GaussianMixture(1), task="classification"
    )
    detector.fit(draw(500, 0, 0.0).split(100), calibration=draw(500, 1).split(100)).threshold(0.05)
    (record,) = caplog.records
    assert "scores depend on the batch" in record.message and "alarms are rarer than asked for" in record.message
    assert detector.head.calibration.margin > 1e-3
    assert detector.predict(draw(200, 2).split(1)).surprising.float().mean() < 0.1


def test_a_network_that_takes_no_single_input(networks: dict[str, nn.Module], caplog: pytest.LogCaptureFixture) -> None:
    class Pairs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = networks["classes"]

        def forward(self, x: Tensor) -> Tensor:
            if len(x) < 2:
                raise ZeroDivisionError("one is none")
            return self.model(x)

    caplog.set_level(logging.INFO, logger="hidden_uncertainty")
    detector = LatentDensity(Pairs(), "model.1", GaussianMixture(1), task="classification")
    detector.fit([draw(500, 0)], calibration=[draw(500, 1)])
    assert "does not take a single input (ZeroDivisionError: one is none)" in caplog.text
    ensemble = DeepEnsemble([Pairs(), Pairs()], task="classification").fit([], calibration=[draw(500, 1)])
    assert ensemble.head.calibration.margin == 1e-6


def test_what_is_random_is_not_measured(trained: nn.Module, data: dict) -> None:
    assert MCDropout(trained).fit(data["train"], calibration=data["unseen"]).head.calibration.margin == 1e-6


@pytest.mark.parametrize("how", ["calibration", "calibrate", "holdout", "features"])
def test_ties_are_measured_however_it_is_calibrated(how: str, networks: dict[str, nn.Module]) -> None:
    model, train, unseen = Quantised(networks["classes"]).eval(), draw(500, 0).split(100), draw(500, 1).split(100)
    detector = NearestNeighbours(model, "model.1", k=3, task="classification")
    if how == "calibration":
        detector.fit(train, calibration=unseen)
    elif how == "calibrate":
        detector.fit(train).calibrate(iter(unseen))
    elif how == "features":
        detector.fit_features(detector.extract(train), detector.extract(unseen))
    else:
        with pytest.warns(UserWarning, match="without their guarantee"):
            detector.fit(train, holdout=0.5)
    assert (detector.head.calibration.margin > 1e-3) == (how != "features")


def test_the_margin_is_saved(networks: dict[str, nn.Module], tmp_path) -> None:
    model = Quantised(networks["classes"]).eval()
    detector = LatentDensity(model, ["model.0", "model.1"], GaussianMixture(1), combine="mean", task="classification")
    detector.fit([draw(500, 0)], calibration=[draw(500, 1)]).threshold(0.05)
    detector.save(tmp_path / "file")
    again = Detector.load(tmp_path / "file", model)
    x = draw(50, 2)
    for one, two in zip(
        (detector(x), *detector(x).layers.values()), (again(x), *again(x).layers.values()), strict=True
    ):
        assert torch.equal(one.p_value, two.p_value) and torch.equal(one.surprising, two.surprising)


def test_ties_count_where_inputs_that_round_more_come_last() -> None:
    model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 2)).eval()
    far = torch.full((32,), 1e4)
    with torch.no_grad():
        nn.init.orthogonal_(model[0].weight, generator=torch.Generator().manual_seed(0))
        model[0].bias.zero_()
        model[1].weight.zero_()[1] = far @ model[0].weight.T
        model[1].bias.copy_(torch.tensor([16e8, 0.0]))
    near, rare, unseen, last = (
        torch.randn(n, 32, generator=torch.Generator().manual_seed(seed))
        for seed, n in enumerate((20_000, 100, 300, 100))
    )
    strange = 3 * last[:1] + far
    detector = LatentDensity(model, "0", GaussianMixture(1), task="classification")
    detector.fit([near, rare + far], calibration=[*unseen.split(100), last + far, strange.expand(200, -1).clone()])
    for size in (1, 2, 5, 100):
        assert detector(strange.expand(size, -1)).p_value[0] >= 201 / 601


def test_inputs_of_all_batches_are_kept_as_copies_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = torch.zeros(60, 2)

    def loader(count: int) -> Iterator[tuple[Tensor, Tensor]]:
        for number in range(count):
            yield buffer.fill_(number), torch.full((60,), number)

    for count in (1, 2, 5, 14, 40, 1000):
        kept = Kept(loader(count))
        assert [len(batch) for batch in kept] == [60] * count
        assert 60 <= sum(map(len, kept.batches)) <= fit.INPUTS
        assert all(len(batch) > fit.TOGETHER // 2 for batch in kept.batches)
        places = [float(batch.args[0].max()) for batch in kept.batches]
        assert [set(batch.label.tolist()) for batch in kept.batches] == [{place} for place in places]
        steps = {int(after - before) for before, after in pairwise([*places, count])}
        assert len(steps) == 1 if count <= 14 else max(steps) <= count / 7
    whole = Kept([torch.arange(1000.0)[:, None]])
    assert len(list(whole)) == 1 and float(whole.batches[0].args[0].max()) > 980
    monkeypatch.setattr(fit, "BYTES", 8 * 40)  # of two float32 each
    assert sum(map(len, Kept(loader(5)).batches)) == 0
    few = Kept(loader(5))
    assert sum(1 for _ in few) == 5 and 20 <= sum(map(len, few.batches)) <= 40
    assert len(Kept([1, 2, 3])) == 3
    with pytest.raises(TypeError):
        len(Kept(iter([])))


def test_rows_of_a_batch() -> None:
    shared = torch.zeros(7)
    batch = Batch(
        (torch.arange(6).reshape(3, 2), [torch.arange(3), shared]), {"mask": torch.ones(3), "scale": 2.0}, None
    )
    some = batch[1:2]
    assert some.args[0].tolist() == [[2, 3]] and some.args[1][0].tolist() == [1] and some.args[1][1] is shared
    assert some.kwargs["mask"].shape == (1,) and some.kwargs["scale"] == 2.0 and len(some) == 1
