"""Bad input."""

import copy
import warnings

import pytest
import torch
from torch import nn

from hidden_uncertainty import GaussianMixture, LatentDensity, Reduce, layers
from tried import tried


class Spoilt(nn.Module):
    """Gives NaN where an input is above 100, infinity where it is below -100."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        x = torch.where(x > 100, torch.nan, x)
        return self.model(torch.where(x < -100, -torch.inf, x))


@tried("NaN activations while fitting", "error with layer, batch and count; a detector fitted before stays as it was")
@pytest.mark.parametrize("value", [200.0, -200.0])
def test_not_finite_in_fit(trained, data, untouched, value):
    model = Spoilt(trained)
    untouched(model)
    detector = LatentDensity(model, ["model.body.0", "model.hidden"]).fit(data["train"])
    before = detector.predict(data["test"]).epistemic
    x, y = data["train"][2]
    spoilt = [*data["train"][:2], (torch.cat([x[:-3], torch.full((3, 2), value)]), y)]
    with pytest.raises(ValueError, match=r"layer 'model.body.0' gave NaN or infinite .* 3 of 100 inputs in batch 2"):
        detector.fit(spoilt)
    assert torch.equal(detector.predict(data["test"]).epistemic, before)


@tried("NaN activations while scoring", "error with the layer and how many inputs; in a loader, which batch")
def test_not_finite_in_use(trained, data, untouched):
    model = Spoilt(trained)
    untouched(model)
    detector = LatentDensity(model, "model.hidden").fit(data["train"])
    bad = torch.tensor([[0.0, 0.0], [200.0, 0.0]])
    with pytest.raises(ValueError, match=r"layer 'model.hidden' gave NaN or infinite activations for 1 of 2 inputs: "):
        detector(bad)
    with pytest.raises(ValueError, match=r"1 of 2 inputs in batch 1"):
        detector.predict([torch.zeros(2, 2), bad])


@tried("an empty loader", "error that says so, and what may have happened")
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


@tried("a generator as loader", "works where one pass is enough; else an error before the second")
def test_generators(trained, data, untouched):
    untouched(trained)
    batches = (batch for batch in data["train"])
    LatentDensity(trained, "hidden").fit(batches)
    with pytest.raises(ValueError, match="a generator that was used before is empty"):
        LatentDensity(trained, "hidden").fit(batches)
    with pytest.raises(TypeError, match="can be read only once, but 2 passes are needed"):
        LatentDensity(trained, "body", max_dim=4).fit(batch for batch in data["train"])


@tried("a loader that gives fewer inputs in the next pass", "error with both counts")
def test_unsteady_loader(trained, data, untouched):
    untouched(trained)

    class Shrinking:
        left = 6

        def __iter__(self):
            self.left -= 1
            return iter(data["train"][: self.left])

    with pytest.raises(ValueError, match="the loader gave 500 inputs in one pass and 400 in the next"):
        LatentDensity(trained, "body", max_dim=4).fit(Shrinking())


@tried("a layer that is not there", "error with the nearest names")
def test_wrong_layer(trained, untouched):
    untouched(trained)
    with pytest.raises(ValueError, match="layer 'bdy' is not in the model; nearest names: 'body'"):
        LatentDensity(trained, "bdy")


@tried("a network whose output is a single number", "error that asks for one row an input")
def test_scalar_output(trained, data, untouched):
    class Total(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = trained

        def forward(self, x):
            return self.model(x).sum()

    model = Total()
    untouched(model)
    with pytest.raises(ValueError, match="the network gave a single number"):
        LatentDensity(model, "model.hidden", task="classification").fit(data["train"])


@tried("a layer that gives a single number, or one not a sample", "error with its shape and the number of inputs")
def test_scalar_layer(trained, data, untouched):
    class Mean(nn.Module):
        def forward(self, x):
            return x.mean()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.model, self.mean = trained, Mean()

        def forward(self, x):
            return self.model(x) + 0 * self.mean(x)

    model = Net()
    untouched(model)
    with pytest.raises(ValueError, match=r"layer 'mean' gave \(\) for 100 inputs"):
        LatentDensity(model, "mean").fit(data["train"])


@tried("a network that predicts one class only", "error with the class and what to check")
def test_one_class(trained, data, untouched):
    untouched(trained)
    with pytest.raises(ValueError, match=r"all 600 inputs have the prediction \d, so there is nothing to be torn"):
        LatentDensity(trained, "hidden").fit([(torch.full_like(x, 5.0), y) for x, y in data["train"]])


@tried("fewer samples than the network has classes", "error with both numbers")
def test_fewer_samples_than_classes(trained, data, untouched):
    model = nn.Sequential(trained, nn.Linear(3, 50))
    untouched(model)
    with pytest.raises(ValueError, match="20 inputs are fewer than the network's 50 classes"):
        LatentDensity(model, "0.hidden", task="classification").fit([data["train"][0][0][:20]])


@tried("inputs of another size than fitted", "error with both shapes and the layer; pooled layers take any size")
def test_changed_shapes(untouched):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    with torch.no_grad():
        model[3].bias.sub_(model(torch.zeros(1, 1, 8, 8))[0])
    untouched(model)
    x = (
        torch.randn(300, 1, 8, 8, generator=torch.Generator().manual_seed(0))
        * torch.arange(1, 4).repeat(100)[:, None, None, None]
    )
    detector = LatentDensity(model, "0", GaussianMixture(1), task="classification", max_dim=20).fit(x.split(50))
    with pytest.raises(ValueError, match=r"layer '0' gave \(n, 4, 8, 8\) when fitted and \(n, 4, 9, 9\) now"):
        detector(torch.randn(2, 1, 9, 9))
    pooled = LatentDensity(model, "0", GaussianMixture(1), task="classification", reduce="channels").fit(x.split(50))
    assert pooled(torch.randn(2, 1, 9, 9)).epistemic.isfinite().all()


@tried("whole numbers where the network wants fractions", "the network's own error; nothing is left behind")
def test_integers(trained, data, untouched):
    untouched(trained)
    detector = LatentDensity(trained, "hidden").fit(data["train"])
    with pytest.raises(RuntimeError, match=r"dtype|type"):
        detector(torch.ones(2, 2, dtype=torch.long))


@tried("text, arrays or a data set as loader", "error that says what came and what a loader gives")
def test_not_a_loader(trained, data, untouched):
    untouched(trained)
    detector = LatentDensity(trained, "hidden")
    for loader in ("data", [["a", "b"]], [data["far"].numpy()], torch.utils.data.TensorDataset(data["far"])):
        with pytest.raises(TypeError, match=r"gave|gives"):
            detector.fit(loader)


@tried("use before fit", "error that says what to call")
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


@tried("labels of another length than the inputs", "error with both")
def test_label_length(trained, data, untouched):
    untouched(trained)
    x, y = data["train"][0]
    with pytest.raises(ValueError, match=r"the batch has 100 samples, but its label is of shape \(99,\)"):
        LatentDensity(trained, "hidden").fit([(x, y[:-1])])


@tried("too few calibration scores for the asked rate", "error with how many are needed")
def test_small_calibration(trained, data, untouched):
    untouched(trained)
    detector = LatentDensity(trained, "hidden").fit(data["train"], calibration=data["unseen"])
    with pytest.raises(ValueError, match=r"0\.001 needs at least 999 calibration scores; there are 500"):
        detector.threshold(0.001)
    assert detector(data["far"]).threshold is None


@tried("no calibration at all", "error that asks for unseen data; `u.surprising` says to set a threshold")
def test_no_calibration(trained, data, untouched):
    untouched(trained)
    detector = LatentDensity(trained, "hidden").fit(data["train"])
    with pytest.raises(RuntimeError, match="nothing to choose a threshold from"):
        detector.threshold(0.1)
    with pytest.raises(RuntimeError, match="threshold"):
        _ = detector(data["far"]).surprising


@tried("more components than samples", "fewer components, with a warning that names the classes; scores are finite")
def test_more_components_than_data(trained, data, untouched):
    untouched(trained)
    with pytest.warns(UserWarning, match=r"class 0 came .* too few for 100 components"):
        detector = LatentDensity(trained, "hidden", GaussianMixture(100)).fit(data["train"][:1])
    assert detector.predict(data["test"]).epistemic.isfinite().all()


@tried(
    "singular data: copied columns, rank far below the dimensions",
    "finite and right way round, with and without shrinkage",
)
@pytest.mark.parametrize("shrinkage", ["auto", None])
def test_singular(trained, data, untouched, shrinkage):
    class Copies(nn.Module):
        def __init__(self):
            super().__init__()
            self.model, self.copies = trained, nn.Identity()

        def forward(self, x):
            wide = self.copies(x.repeat(1, 40))
            return self.model(wide[:, :2])

    model = Copies()
    untouched(model)
    detector = LatentDensity(model, "copies", GaussianMixture(2, shrinkage=shrinkage)).fit(data["train"])
    u, far = detector.predict(data["test"]), detector(data["far"])
    assert bool(u.epistemic.isfinite().all()) and float(far.epistemic.min()) > float(u.epistemic.max())


@tried("singular data and no regularisation at all", "error that names the classes and three remedies")
def test_singular_without_ridge(trained, data, untouched):
    untouched(trained)
    loader = [(x[:, :1].repeat(1, 2), y) for x, y in data["train"]]
    with pytest.raises(ValueError, match=r"singular .* ridge=0: raise ridge, set shrinkage"):
        LatentDensity(trained, "body.0", GaussianMixture(1, shrinkage=None, ridge=0.0)).fit(loader)


@tried("a layer that gives the same for every input", "error that names it; single constant features do no harm")
@pytest.mark.parametrize("max_dim", [512, 2])
def test_constant(trained, data, untouched, max_dim):
    class Dead(nn.Module):
        def forward(self, x):
            return x.new_ones(len(x), 5)

    class Half(nn.Module):
        def forward(self, x):
            return torch.cat([x, torch.ones_like(x)], 1)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.model, self.dead, self.some = trained, Dead(), Half()

        def forward(self, x):
            return self.model(x) + 0 * self.dead(x).sum() + 0 * self.some(x).sum()

    model = Net()
    untouched(model)
    with pytest.raises(ValueError, match=r"layer 'dead' .*(constant|same)"):
        LatentDensity(model, "dead", GaussianMixture(1), max_dim=max_dim).fit(data["train"])
    detector = LatentDensity(model, "some", GaussianMixture(1), max_dim=max_dim).fit(data["train"])
    assert float(detector(data["far"]).epistemic.min()) > float(detector.predict(data["test"]).epistemic.max())


@tried("a part of a tuple or dictionary that is not there", "error that lists what is")
def test_wrong_part(data, untouched):
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.out = nn.LSTM(2, 4, batch_first=True), nn.Linear(4, 3)

        def forward(self, x):
            return self.out(self.lstm(x[:, None])[0][:, 0])

    model = Pair()
    untouched(model)
    with pytest.raises(ValueError, match="no 'hidden' for select="):
        LatentDensity(model, {"lstm": Reduce(select="hidden")}, task="classification").fit(data["train"])
    assert layers(model, data["far"], show=False)["lstm"].calls == 1


@tried("an interrupt from the keyboard in the middle of a fit", "a detector fitted before stays as it was")
def test_interrupt(trained, data, untouched):
    untouched(trained)
    detector = LatentDensity(trained, "body", max_dim=4).fit(data["train"], calibration=data["unseen"])
    detector.threshold(0.1)
    before = detector.predict(data["test"])

    class Interrupted:
        passes = 0

        def __iter__(self):
            self.passes += 1
            yield from data["train"][: 3 if self.passes > 1 else None]
            if self.passes > 1:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        detector.fit(Interrupted())
    after = detector.predict(data["test"])
    assert torch.equal(before.p_value, after.p_value) and before.threshold == after.threshold


@tried("a fit whose densities fail after the network has run", "a detector fitted before stays as it was")
def test_failing_density(trained, data, untouched):
    untouched(trained)
    detector = LatentDensity(trained, "hidden").fit(data["train"])
    before = detector.predict(data["test"]).epistemic
    features = copy.copy(detector.extract(data["train"]))
    features.z["hidden"][3, 0] = torch.nan
    with pytest.raises(ValueError, match="1 of 600 rows of z hold NaN or infinity"):
        detector.fit_features(features)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(detector.predict(data["test"]).epistemic, before)
