"""Bad input."""

import copy

import pytest
import torch
from torch import nn

from capture_nets import Returning
from hidden_uncertainty import GaussianMixture, LatentDensity
from tried import tried


class Beside(nn.Module):
    """A model, and a layer beside it that sees the same inputs."""

    def __init__(self, model, function):
        super().__init__()
        self.model, self.beside = model, Returning(function)

    def forward(self, x):
        self.beside(x)
        return self.model(x)


def spoilt(x):
    """NaN where an input is above 100, infinity where it is below -100."""
    return torch.where(x > 100, torch.nan, torch.where(x < -100, -torch.inf, x))


@tried("NaN activations while fitting", "an error names layer, batch and count; a fit made before stays as it was")
@pytest.mark.parametrize("value", [200.0, -200.0])
def test_not_finite_in_fit(trained, data, untouched, value):
    model = Beside(trained, spoilt)
    untouched(model)
    detector = LatentDensity(model, ["beside", "model.hidden"]).fit(data["train"])
    before = detector.predict(data["test"]).epistemic
    x, y = data["train"][2]
    batches = [*data["train"][:2], (torch.cat([x[:-3], torch.full((3, 2), value)]), y)]
    with pytest.raises(ValueError, match=r"layer 'beside' gave NaN or infinite .* 3 of 100 inputs in batch 2"):
        detector.fit(batches)
    assert torch.equal(detector.predict(data["test"]).epistemic, before)


@tried(
    "NaN activations while scoring",
    "such an input is surprising: epistemic inf, the smallest p-value, aleatoric NaN; one warning; others as ever",
)
@pytest.mark.parametrize("value", [200.0, -200.0])
def test_not_finite_in_use(trained, data, untouched, value):
    model = Beside(trained, spoilt)
    untouched(model)
    detector = LatentDensity(model, "beside", GaussianMixture(1)).fit(data["train"], calibration=data["unseen"])
    detector.threshold(0.1)
    bad = torch.tensor([[0.0, 0.0], [value, 0.0]])
    with pytest.warns(UserWarning, match="NaN or infin") as caught:
        u = detector.predict([torch.zeros(2, 2), bad, bad])
    assert len(caught) == 1
    wrong = torch.tensor([False, False, False, True, False, True])
    assert torch.equal(u.epistemic == torch.inf, wrong) and torch.equal(u.aleatoric.isnan(), wrong)
    assert bool(u.surprising[wrong].all()) and float(u.p_value[3]) == pytest.approx(1 / 501)
    torch.testing.assert_close(u.epistemic[~wrong], detector(torch.zeros(4, 2)).epistemic)
    assert torch.equal(u.prediction, copy.deepcopy(trained).eval()(torch.cat([torch.zeros(2, 2), bad, bad])).argmax(1))


@tried("an empty loader", "an error says so, and what may have happened")
def test_empty_loader(trained, data, untouched):
    untouched(trained)
    detector = LatentDensity(trained, "hidden")
    for use in (detector.fit, detector.extract):
        with pytest.raises(ValueError, match="the loader gave no batches"):
            use([])
    detector.fit(data["train"])
    for use in (lambda: detector.predict([]), lambda: detector.fit(data["train"], calibration=[])):
        with pytest.raises(ValueError, match="the loader gave no batches"):
            use()
    assert detector.head is not None and detector.calibrated is None


@tried("a generator as loader", "works where one pass is enough; otherwise an error before the second pass")
def test_generators(trained, data, untouched):
    untouched(trained)
    batches = (batch for batch in data["train"])
    LatentDensity(trained, "hidden").fit(batches)
    with pytest.raises(ValueError, match="a generator that was used before is empty"):
        LatentDensity(trained, "hidden").fit(batches)
    with pytest.raises(TypeError, match="can be read only once, but 2 passes are needed"):
        LatentDensity(trained, "body", max_dim=4).fit(batch for batch in data["train"])


@tried("a loader that gives fewer inputs in the next pass", "an error gives both counts")
def test_unsteady_loader(trained, data, untouched):
    untouched(trained)

    class Shrinking:
        left = 6

        def __iter__(self):
            self.left -= 1
            return iter(data["train"][: self.left])

    with pytest.raises(ValueError, match="the loader gave 500 inputs in one pass and 400 in the next"):
        LatentDensity(trained, "body", max_dim=4).fit(Shrinking())


@tried("a layer whose output does not have one row per input", "an error gives its shape and the number of inputs")
def test_scalar_layer(trained, data, untouched):
    model = Beside(trained, torch.mean)
    untouched(model)
    with pytest.raises(ValueError, match=r"layer 'beside' gave \(\) for 100 inputs; .* first dimension too: x\[None\]"):
        LatentDensity(model, "beside").fit(data["train"])


@tried("use before fit", "an error says what to call")
def test_unfitted(trained, data, untouched, tmp_path):
    untouched(trained)
    detector = LatentDensity(trained, "hidden")
    uses = (
        lambda: detector(data["far"]),
        lambda: detector.predict(data["test"]),
        lambda: detector.threshold(0.1),
        lambda: detector.save(tmp_path / "file"),
        lambda: detector.to("cpu"),
    )
    for use in uses:
        with pytest.raises(RuntimeError, match=r"not fitted: call fit\("):
            use()
    assert not list(tmp_path.iterdir())


@tried("no calibration at all", "an error asks for unseen data; `u.surprising` says to set a threshold")
def test_no_calibration(trained, data, untouched):
    untouched(trained)
    detector = LatentDensity(trained, "hidden").fit(data["train"])
    with pytest.raises(RuntimeError, match="nothing to choose a threshold from"):
        detector.threshold(0.1)
    with pytest.raises(RuntimeError, match="threshold"):
        _ = detector(data["far"]).surprising


@tried("a layer that gives the same for every input", "an error names it; single constant features do no harm")
@pytest.mark.parametrize("max_dim", [512, 2])
def test_constant(trained, data, untouched, max_dim):
    dead, half = Beside(trained, lambda x: x.new_ones(len(x), 5)), Beside(trained, lambda x: torch.cat([x, x * 0], 1))
    untouched(dead, half)
    with pytest.raises(ValueError, match=r"layer 'beside' .*(constant|same)"):
        LatentDensity(dead, "beside", GaussianMixture(1), max_dim=max_dim).fit(data["train"])
    detector = LatentDensity(half, "beside", GaussianMixture(1), max_dim=max_dim).fit(data["train"])
    assert float(detector(data["far"]).epistemic.min()) > float(detector.predict(data["test"]).epistemic.max())


@tried("an interrupt, or densities that fail, in the middle of a fit", "a detector fitted before stays as it was")
def test_interrupt(trained, data, untouched):
    untouched(trained)
    detector = LatentDensity(trained, "body", max_dim=4).fit(data["train"], calibration=data["unseen"])
    detector.threshold(0.1)
    before = detector.predict(data["test"])
    features = detector.extract(data["train"])
    features.z["body"][3, 0] = torch.nan

    class Interrupted:
        passes = 0

        def __iter__(self):
            self.passes += 1
            yield from data["train"][: 3 if self.passes > 1 else None]
            if self.passes > 1:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        detector.fit(Interrupted())
    with pytest.raises(ValueError, match="1 of 600 rows of z hold NaN or infinity"):
        detector.fit_features(features)
    after = detector.predict(data["test"])
    assert torch.equal(before.p_value, after.p_value) and before.threshold == after.threshold
