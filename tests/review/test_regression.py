"""Numbers: what lies beyond the predictions that were fitted, and what a score says of labels."""

import math

import pytest
import torch
from torch import Tensor, nn

from found import found
from hidden_uncertainty import JointMixture, LatentDensity

OUT = torch.tensor([0.0, 1.0, 2.0, 3.0, 4.5, 6.0, 8.0, 12.0])


class Linear(nn.Module):
    """Numbers that are linear in a hidden layer; far out, they may jump."""

    def __init__(self, outputs: int, jump: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.hidden, self.out, self.jump = nn.Linear(outputs, 4), nn.Linear(4, outputs), jump

    def forward(self, x: Tensor) -> Tensor:
        far = (x.norm(dim=1, keepdim=True) > 7).float()
        return self.out(self.hidden(x)) + self.jump * far


def _scores(model: nn.Module, outputs: int) -> tuple[Tensor, Tensor]:
    """Of inputs ever farther out, from a layer whose noise is small beside what the inputs do."""
    x = torch.randn(4000, outputs, generator=torch.Generator().manual_seed(0))
    detector = LatentDensity(
        model.eval(), "hidden", JointMixture(1), task="regression", marginal="gaussian", progress=False
    ).fit(x.split(500))
    direction = torch.full((outputs,), outputs**-0.5)
    u = detector(OUT[:, None] * direction)
    return u.epistemic, u.aleatoric


@found(
    "A13",
    "a network that predicts a number, and inputs 0 to 12 deviations from the training data",
    "at 12 deviations -log p(z) grows by 6,352 nats instead of 72: the sum over ŷ ended with the data",
    "it grows by 73: the sum goes where the input's own p(ŷ|z) lies",
)
def test_surprise_beyond_the_predictions_that_were_fitted() -> None:
    epistemic, _ = _scores(Linear(1), 1)
    assert bool((epistemic.diff() > 0).all())
    torch.testing.assert_close(epistemic - epistemic[0], OUT.square() / 2, rtol=0.06, atol=0.1)


@found(
    "A13",
    "the aleatoric score of such inputs",
    "it falls to the width of one step: unfamiliar inputs look least ambiguous",
    "it is that of p(ŷ|z), the same for all inputs here",
)
def test_ambiguity_beyond_the_predictions_that_were_fitted() -> None:
    _, aleatoric = _scores(Linear(1), 1)
    torch.testing.assert_close(aleatoric, aleatoric[:1].expand(len(OUT)), rtol=0, atol=0.01)


@found(
    "A13",
    "two outputs, and inputs whose predictions lie far from their own p(ŷ|z)",
    "-log p(z) is wrong by thousands of nats: no sample reaches p(ŷ|z)",
    "right to a few hundredths of a nat: p(ŷ|z) is searched for, and samples are drawn there",
)
def test_two_outputs_far_out() -> None:
    epistemic, aleatoric = _scores(Linear(2, jump=20.0), 2)
    torch.testing.assert_close(epistemic - epistemic[0], OUT.square() / 2, rtol=0.06, atol=0.15)
    torch.testing.assert_close(aleatoric, aleatoric[:1].expand(len(OUT)), rtol=0, atol=0.1)


def _noisy(n: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 1, generator=generator)
    return x, 3 * x + 2 * torch.randn(n, 1, generator=generator)


@found(
    "A14",
    "`expected_error` of a detector fitted given predictions",
    "0.2 where the root mean squared error is 2: it is the width of the density, and says nothing of labels",
    'it is None; given `condition="label"` it is the expected error',
)
def test_an_expected_error_is_that_of_labels_or_none() -> None:
    x, y = _noisy(3000, 0)
    model = nn.Sequential(nn.Linear(1, 4), nn.Linear(4, 1))
    with torch.no_grad():  # trained, without noise of training
        model[0].weight.copy_(torch.ones(4, 1))
        model[1].weight.fill_(0.75)
        model[0].bias.zero_()
        model[1].bias.zero_()
    options = {"task": "regression", "progress": False}
    new, label = _noisy(3000, 1)
    error = math.sqrt(float((model(new).detach() - label).square().mean()))
    by_label = LatentDensity(model, "0", condition="label", **options).fit([(x, y)])(new)
    assert float(by_label.expected_error.median()) == pytest.approx(error, rel=0.1)
    by_prediction = LatentDensity(model, "0", **options).fit([(x, y)])(new)
    assert by_prediction.expected_error is None and by_prediction.layers["0"].expected_error is None
