"""Reading loaders: networks that write into their inputs, wide layers, tokens, and the holdout."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch
from sklearn.decomposition import PCA
from torch import Tensor, nn

from capture_nets import activations
from hidden_uncertainty import GaussianMixture, LatentDensity, Pixels
from hidden_uncertainty.extract.extractor import chosen
from hidden_uncertainty.model.batches import unpack

X = torch.randn(400, 2, generator=torch.Generator().manual_seed(0))
PLAIN = GaussianMixture(components=1)


class Normalising(nn.Module):
    """Normalises its inputs, in place or not; otherwise the same."""

    def __init__(self, *, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place
        with torch.random.fork_rng():
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
