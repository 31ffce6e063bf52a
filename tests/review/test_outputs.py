"""Outputs and labels that were misread."""

import warnings

import pytest
import torch
from torch import Tensor, nn

from found import found
from hidden_uncertainty import GaussianMixture, JointMixture, LatentDensity, Regression

PLAIN, NUMBERS = GaussianMixture(components=1), JointMixture(components=1)


class Rooted(nn.Module):
    """A finite layer, and outputs that are NaN where the first input is below -5."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.hidden(x)
        return torch.stack([hidden[:, 0], hidden[:, 1], (hidden[:, 0] + 5).sqrt() - 2], 1)


class Heads(nn.Module):
    """Returns a mean and a variance."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Identity()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.hidden(x)
        return hidden.sum(1, keepdim=True), hidden[:, :1].exp()


class Texts(nn.Module):
    """Embeds tokens, and classifies their mean without padding."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.embed, self.out = nn.Embedding(20, 8), nn.Linear(8, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        mask = attention_mask[:, :, None].float()
        return self.out((self.embed(input_ids) * mask).sum(1) / mask.sum(1))


def _draw(n: int) -> Tensor:
    return torch.randn(n, 2, generator=torch.Generator().manual_seed(0)).clamp(-4, 4)


@found(
    "A7",
    "inputs for which the outputs are NaN, but the layer is finite",
    "class 0, not surprising, p up to 0.96",
    "surprising, with the smallest p-value, and a warning",
)
def test_outputs_that_are_not_numbers():
    x = _draw(600)
    detector = LatentDensity(Rooted(), "hidden", PLAIN, task="classification")
    detector.fit(x[:400].split(100), calibration=[x[400:]])
    bad = torch.tensor([[0.0, 0.0], [-6.0, 0.0]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        u = detector(bad)
    assert float(u.epistemic[1]) == torch.inf and bool(u.epistemic[0].isfinite())
    assert float(u.p_value[1]) == pytest.approx(1 / 201)


@found(
    "A7",
    "training data for which outputs are NaN",
    "fitted as class 0",
    "an error says for how many inputs of which batch",
)
def test_outputs_that_are_not_numbers_in_a_fit():
    x = _draw(300)
    x[250] = -6
    with pytest.raises(ValueError, match=r"outputs for 1 of 100 inputs in batch 2"):
        LatentDensity(Rooted(), "hidden", PLAIN, task="classification").fit(x.split(100))


@found(
    "A15",
    "a mean over tokens, and texts that are padded to the longest of their batch",
    "padding counts: the false-alarm rate depends on the batches (5 % becomes 26 %)",
    "the mean is over real tokens: a text scores the same in any batch",
)
def test_a_mean_over_padding():
    ids = torch.randint(20, (300, 6), generator=torch.Generator().manual_seed(0))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    detector = LatentDensity(Texts(), "embed", PLAIN, reduce="tokens", task="classification").fit([batch])
    mask = torch.ones_like(ids)
    mask[1, 4:] = 0
    alone = detector(input_ids=ids[1:2, :4], attention_mask=mask[1:2, :4])
    u = detector(input_ids=ids, attention_mask=mask)
    assert float(u.epistemic[1]) == pytest.approx(float(alone.epistemic), rel=1e-5)
    assert bool(u.prediction[1] == alone.prediction)


@found(
    "A17",
    "labels with several ones per input, `task='classification'` or none",
    "fitted as the class of the largest output, which the error for no task suggests",
    "an error names `task='multi-label'`, which is for them",
)
@pytest.mark.parametrize("task", ["classification", None])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_several_labels_per_input(task, dtype):
    x = _draw(200)
    label = torch.stack([x[:, 0] > 0, x[:, 1] > 0, x.sum(1) > 0], 1).to(dtype)
    with pytest.raises(ValueError, match="may have several labels, pass task='multi-label'"):
        LatentDensity(nn.Sequential(nn.Linear(2, 8), nn.Linear(8, 3)), "0", task=task).fit([(x, label)])


@found(
    "A22",
    "a network that returns a plain (mean, variance)",
    "the variance is dropped silently",
    "a warning says so, and how to use it",
)
def test_a_variance_that_is_not_read():
    x = _draw(400)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        LatentDensity(Heads(), "hidden", NUMBERS, task="regression").fit(x.split(100))
    told = [str(warning.message) for warning in caught if "tensors" in str(warning.message)]
    assert len(told) == 1 and "task=Regression(output=0, spread=1)" in told[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LatentDensity(Heads(), "hidden", NUMBERS, task="regression", output=0).fit(x.split(100))
        LatentDensity(Heads(), "hidden", NUMBERS, task=Regression(output=0, spread=1)).fit(x.split(100))


@found(
    "C33",
    "a first batch without inputs; a network that returns True and False",
    "errors of torch",
    "such a batch is left out; an error says what a network should return",
)
def test_batches_and_outputs_that_say_nothing():
    x = _draw(200)
    torch.manual_seed(0)
    network, told = nn.Sequential(nn.Identity(), nn.Linear(2, 3)), []
    y = torch.arange(200) % 3
    for model, loader in ((network, [(x[:0], y[:0]), (x, y)]), (nn.Sequential(*network, Above()), [(x, y)])):
        try:
            LatentDensity(model, "0", PLAIN).fit(loader)
            told.append("fitted")
        except (ValueError, TypeError, RuntimeError, IndexError) as error:
            told.append(str(error).partition(":")[0])
    assert told == ["fitted", "a network's output is real numbers, but the network gave torch.bool"]


class Above(nn.Module):
    """Whether a number is positive."""

    def forward(self, x: Tensor) -> Tensor:
        return x > 0
