"""Reading loaders: networks that write into their inputs, wide layers, tokens, and the holdout."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from sklearn.decomposition import PCA
from torch import Tensor, nn

from capture_nets import activations
from hidden_uncertainty import (
    Classification,
    Detector,
    GaussianMixture,
    JointMixture,
    LatentDensity,
    Pixels,
    Reduce,
    Regression,
)
from hidden_uncertainty.extract.reader import chosen
from hidden_uncertainty.model.batches import unpack
from hidden_uncertainty.scoring.outputs import EntropyMethod
from hidden_uncertainty.scoring.terms import Term

X = torch.randn(400, 2, generator=torch.Generator().manual_seed(0))
PLAIN = GaussianMixture(components=1)


class Normalising(nn.Module):
    """Normalises its inputs, in place or not; otherwise the same."""

    def __init__(self, *, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.hidden, self.out = nn.Linear(2, 8, bias=False), nn.Linear(8, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x.sub_(5.0).div_(2.0) if self.in_place else (x - 5.0) / 2.0
        return self.out(self.hidden(x).tanh())


class Maps(nn.Module):
    """The same for every pixel."""

    def __init__(self, *, in_place: bool) -> None:
        super().__init__()
        self.hidden = Normalising(in_place=in_place)

    def forward(self, x: Tensor) -> Tensor:
        return self.hidden(x.movedim(1, 3)).movedim(3, 1)


class Loader:
    """Gives new tensors in every pass, as a `DataLoader` does."""

    def __init__(self, x: Tensor = 3 * X + 5.0, size: int = 100) -> None:
        self.x, self.size = x, size

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.x.clone().split(self.size))


@pytest.mark.parametrize("max_dim", [None, 4])
@pytest.mark.parametrize("holdout", [None, 0.3])
@pytest.mark.parametrize("pixels", [None, Pixels()])
def test_a_network_that_writes_into_its_inputs(
    max_dim: int | None, holdout: float | None, pixels: Pixels | None
) -> None:
    loader, net = Loader(), Normalising
    if pixels is not None:
        loader, net = Loader((3 * X + 5.0).view(20, 4, 5, 2).movedim(3, 1).contiguous(), 5), Maps
    scores = []
    for in_place in (True, False):
        options = {"max_dim": max_dim, "task": "classification", "pixels": pixels}
        layer = "hidden" if pixels is None else ""
        detector = LatentDensity(net(in_place=in_place), layer, PLAIN, **options)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="calibrated on a part of the training data")
            detector.fit(loader, holdout=holdout)
        u = detector.predict(loader)
        scores.append(u.epistemic if holdout is None else u.p_value)
    assert torch.equal(*scores)


def test_nothing_to_fit_to_or_to_calibrate_with() -> None:
    detector = LatentDensity(Normalising(in_place=False), "hidden", PLAIN, task="classification")
    with pytest.raises(ValueError, match="nothing to fit to: no input came"):
        detector.fit([X[:0]])
    with pytest.raises(ValueError, match=r"nothing to fit to: .* all are in the holdout"):
        detector.fit([X[:20]], holdout=0.9999)
    with pytest.raises(ValueError, match="nothing to calibrate with: no input came"):
        detector.fit(Loader(), calibration=[X[:0]])


def test_wide_layers_are_reduced_as_by_pca(trained: nn.Module, data: dict) -> None:
    detector = LatentDensity(trained, "body", PLAIN, max_dim=4).fit(data["train"])
    z, _ = activations(trained, torch.cat([x for x, _ in data["train"]]), "body")
    pca = PCA(4).fit(z.numpy())
    mine = detector.extract(data["test"])
    test, _ = activations(trained, torch.cat([x for x, _ in data["test"]]), "body")
    theirs = torch.from_numpy(pca.transform(test.numpy()))
    torch.testing.assert_close(mine.z["body"].abs(), theirs.abs(), rtol=1e-3, atol=1e-3)
    lost = (test - torch.from_numpy(pca.inverse_transform(theirs.numpy()))).square().sum(1)
    torch.testing.assert_close(mine.residual["body"], lost, rtol=1e-3, atol=1e-3)


def test_the_holdout_is_apart_in_every_pass_and_is_marked(trained: nn.Module) -> None:
    """The loader shuffles anew in every pass; a row that the density was fitted to must never calibrate."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1000, 2, generator=generator)

    class Shuffling:
        def __iter__(self) -> Iterator[Tensor]:
            return iter(x[torch.randperm(1000, generator=generator)].split(50))

    detector = LatentDensity(trained, "body", max_dim=4, task="classification")
    with pytest.warns(UserWarning, match="without their guarantee"):
        detector.fit(Shuffling(), holdout=0.2)
    assert detector.calibrated == "holdout"
    held = len(detector.head.terms["body"].calibration.scores)
    assert 150 < held < 250
    mean = detector.head.terms["body"].reduction.mean
    z, _ = activations(trained, x, "body")
    apart = chosen(unpack(x), 0.2)
    assert int(apart.sum()) == held
    torch.testing.assert_close(mean, z[~apart].mean(0), rtol=1e-4, atol=1e-5)


class Tokens(nn.Module):
    """A transformer fed by keywords that returns a dictionary, as those of Hugging Face are and do."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, input_ids: Tensor) -> dict[str, Tensor]:
        hidden = self.encoder(self.embed(input_ids))
        return {"logits": self.head(hidden[:, 0]), "hidden": hidden}


@pytest.mark.parametrize(("reduce", "width"), [("tokens", 8), ("token", 8), ("flatten", 40)])
def test_token_outputs_and_dictionaries(reduce: str, width: int) -> None:
    torch.manual_seed(0)
    model = Tokens()
    ids = torch.randint(20, (600, 5), generator=torch.Generator().manual_seed(0))
    loader = [{"input_ids": part, "labels": part[:, 0] % 3} for part in ids.split(100)]
    detector = LatentDensity(model, "encoder", PLAIN, reduce=reduce, output="logits")
    detector.fit(loader)
    assert detector.extract(loader).z["encoder"].shape == (600, width)
    u = detector(input_ids=ids[:7])
    torch.testing.assert_close(u.epistemic, detector.predict(loader).epistemic[:7], rtol=1e-4, atol=1e-4)


class Padded(nn.Module):
    """Tokens, classified by the first; a layer without tokens, and one with tokens of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.pooler, self.image = nn.Embedding(20, 8), nn.Tanh(), nn.Identity()

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden = self.embed(input_ids)
        self.image(hidden[:, :4])
        self.pooler(hidden[:, 0])
        return nn.functional.one_hot(input_ids[:, 0] % 3, 3).float()


@pytest.mark.parametrize(
    ("layer", "options", "refused"),
    [
        ("embed", {"reduce": "tokens"}, None),
        (
            "embed",
            {"reduce": Reduce("token", token=-1)},
            r"'embed' is read at token -1, .* padding: .* the first",
        ),
        ("embed", {"reduce": "token"}, None),
        ("embed", {"reduce": "flatten"}, None),
        ("pooler", {"reduce": "tokens"}, None),
        ("image", {"reduce": "tokens"}, r"'image' gave tokens \(200, 4\), but the mask .* \(200, 5\)"),
        ("image", {"reduce": Reduce("tokens", mask=None)}, None),
    ],
)
def test_padding_is_never_read(layer: str, options: dict[str, Any], refused: str | None) -> None:
    ids = torch.randint(20, (200, 5), generator=torch.Generator().manual_seed(0))
    full, mask = torch.ones_like(ids), torch.ones_like(ids)
    mask[3, 3:] = 0
    detector = LatentDensity(Padded(), layer, PLAIN, task="classification", **options)
    detector.fit([{"input_ids": ids, "attention_mask": full}])
    if refused is None:
        assert bool(detector(input_ids=ids, attention_mask=mask).epistemic.isfinite().all())
        return
    with pytest.raises(ValueError, match=refused):
        detector(input_ids=ids, attention_mask=mask)
    with pytest.raises(ValueError, match=refused):
        detector.fit([{"input_ids": ids, "attention_mask": mask}])


def test_texts_of_other_lengths_are_not_steered_into_a_mean_that_counts_padding() -> None:
    ids = torch.randint(20, (200, 5), generator=torch.Generator().manual_seed(0))
    detector = LatentDensity(Padded(), "embed", PLAIN, task="classification")
    detector.fit([{"input_ids": ids, "attention_mask": torch.ones_like(ids)}])
    with pytest.raises(ValueError, match=r"take one token with reduce='token', or .* leaves out padding where a mask"):
        detector(input_ids=ids[:, :4], attention_mask=torch.ones(200, 4))


class Spoilt(nn.Module):
    """Numbers, with what an input says in place of one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.beside = nn.Identity(), nn.Identity()

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        mean, variance = self.hidden(x[:, :2])[:, 0] + x[:, 2], x[:, 0].square() + x[:, 3].abs()
        self.beside(x[:, :2] + x[:, 4:])
        return {"mean": mean, "variance": variance, "loss": mean.sum() * torch.nan}


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("column", [2, 3, 4])
def test_what_is_not_finite_is_marked_and_nothing_else_changes(bad: float, column: int) -> None:
    x = torch.cat([X, torch.zeros(400, 3)], 1)
    task = Regression("mean", spread="variance")
    detector = LatentDensity(Spoilt(), ["hidden", "beside"], JointMixture(1), task=task).fit([x])
    spoilt = x[:5].clone()
    spoilt[3, column] = bad
    clean, reading = detector.read(x[:5]), detector.read(spoilt)
    assert clean.unusable is None and reading.unusable.tolist() == [False, False, False, True, False]
    for name in ("hidden", "beside"):
        (one,), (two,) = clean.rows(name), reading.rows(name)
        assert bool(two.z.isfinite().all()) and bool(two.prediction.isfinite().all())
        assert torch.equal(one.z[[0, 1, 2, 4]], two.z[[0, 1, 2, 4]])
    # What the network said stays what it said.
    assert bool(reading.prediction.value[3].isfinite()) == (column != 2)
    what = {2: "the network gave NaN or infinite outputs", 3: "the network gave NaN or infinite outputs"}
    with pytest.raises(ValueError, match=what.get(column, "layer 'beside' gave NaN or infinite activations")):
        detector.calibrate([x, spoilt])


def test_a_class_may_be_ruled_out() -> None:
    """By -inf as its score; a network that rules out all classes says nothing."""
    x = torch.randn(300, 3, generator=torch.Generator().manual_seed(0))
    x[:150, 2] = -torch.inf
    model = nn.Sequential(nn.Identity(), nn.Identity())
    for task in ("classification", Classification(logits=True)):
        detector = Detector(model, [Term(EntropyMethod())], task=task).fit([x], calibration=[x])
        expected = torch.distributions.Categorical(logits=x).probs
        entropy = -(expected * expected.clamp(min=1e-30).log()).sum(1)
        torch.testing.assert_close(detector(x).epistemic, entropy, rtol=1e-4, atol=1e-5)
    reading = detector.read(torch.tensor([[0.0, -torch.inf, 1.0], [-torch.inf] * 3, [torch.inf, 0, 0]]))
    assert reading.unusable.tolist() == [False, True, True]
