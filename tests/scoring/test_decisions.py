"""What is promised of decisions, over hundreds of draws of the calibration data; and what they need."""

from __future__ import annotations

import math
from pathlib import Path

import pandas
import pytest
import torch
from safetensors.torch import load_file
from scipy.stats import binom
from torch import Tensor, nn

import pixel_nets
from fixtures.networks import network
from hidden_uncertainty import (
    Calibration,
    Features,
    GaussianMixture,
    JointMixture,
    LatentDensity,
    Pixels,
    Regression,
    Uncertainty,
    p_value_by_group,
)
from hidden_uncertainty.baselines import DeepEnsemble, Energy, Mahalanobis, SoftmaxEntropy
from hidden_uncertainty.scoring.decisions import Selection


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def blobs(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Three classes, noisier than those that the network of `conftest.py` was trained on."""
    y = torch.randint(3, (n,), generator=seeded(seed))
    centres = torch.tensor([[0.0, 2.0], [2.0, -1.0], [-2.0, -1.0]])
    return centres[y] + 0.7 * torch.randn(n, 2, generator=seeded(seed + 1000)), y


def at_most(times: int, chance: float) -> float:
    """How often something of this chance happens at most, in all but one of a thousand cases."""
    return binom.ppf(0.999, times, chance)


# How likely an answer is wrong, by how unfamiliar and how torn an input is; both are spread as Exp(1).
RISKS = {
    "torn": lambda e, a: 0.4 * (a > 1.5),
    "both": lambda e, a: torch.sigmoid(a + e - 6),
    "falls and rises": lambda e, a: torch.where(a < 0.3, 0.07, torch.where(a < 2, 0.01, 0.3)),
    "everywhere a little too often": lambda e, a: torch.full_like(e, 0.051),
}


@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("name", RISKS)
def test_the_error_of_answers_is_bounded(name: str, columns: int) -> None:
    """Of calibration sets, at most 5 % may give a threshold whose answers are wrong more often than in 5 % of cases."""
    generator, draws = seeded(0), 300
    population = -torch.rand(20_000, 2, generator=generator).log()
    risk = RISKS[name](*population.T)
    too_often, accepted = 0, []
    for _ in range(draws):
        scores = -torch.rand(500, 2, generator=generator).log()
        wrong = torch.rand(500, generator=generator) < RISKS[name](*scores.T)
        selection = Selection().fit(scores[:, -columns:], wrong)
        try:
            answered = ~selection.refuses(population[:, -columns:], 0.05, 0.95, 0.5)
        except ValueError:
            accepted.append(0.0)
            continue
        accepted.append(float(answered.float().mean()))
        too_often += float(risk[answered].mean()) > 0.05
    assert too_often <= at_most(draws, 0.05)
    promised, mean = sum(share > 0 for share in accepted), sum(accepted) / draws
    if name == "everywhere a little too often":
        assert promised >= binom.ppf(0.001, draws, 0.015)  # the bound is sharp: counts are whole, which costs some
    else:  # what could be answered at most is 0.86 of all for "torn", and nearly all for "both"
        assert mean > {"torn": 0.75, "both": 0.8 if columns == 2 else 0.5, "falls and rises": 0.05}[name]


@pytest.mark.parametrize(
    ("error", "confidence", "needed"), [(0.01, 0.95, 378), (0.05, 0.95, 75), (0.05, 0.99, 114), (0.3, 0.9, 50)]
)
def test_how_many_inputs_are_needed(error: float, confidence: float, needed: int) -> None:
    # (1 - error)^N ≤ 1 - confidence, of the 99 % that are accepted of the four fifths that certify.
    accepted = next(n for n in range(1, 1000) if (1 - error) ** n <= 1 - confidence)
    assert needed == max(50, math.ceil(accepted / 0.99 / 0.8))
    scores, few = torch.rand(needed, 2, generator=seeded(1)), needed - 1
    with pytest.raises(ValueError, match=f"needs at least {needed} labelled unseen inputs .* there are {few}"):
        Selection().fit(scores[:few], torch.zeros(few)).refuses(scores, error, confidence, 0.5)
    found = Selection().fit(scores.repeat(2, 1), torch.zeros(2 * needed))
    assert found.refuses(scores, error, confidence, 0.5).float().mean() < 0.2


def test_what_cannot_be_promised_is_said() -> None:
    scores = torch.rand(1000, 2, generator=seeded(2))
    selection = Selection().fit(scores, scores[:, 1] > 0.8)
    assert 0.2 < selection.refuses(scores, 0.02, 0.95, 0.5).float().mean() < 0.4
    shuffled = Selection().fit(scores, torch.rand(1000, generator=seeded(3)) < 0.1)
    with pytest.raises(ValueError, match=r"cannot be promised: \d+ answers to 1,000 .* About (0.1\d) can be") as caught:
        shuffled.refuses(scores, 0.02, 0.95, 0.5)
    possible = float(str(caught.value).split("About ")[1].split(" ")[0])
    shuffled.refuses(scores, possible + 0.01, 0.95, 0.5)
    with pytest.raises(ValueError, match=r"1,000 answers to 1,000 unseen inputs are wrong\. Ask"):
        Selection().fit(scores, torch.ones(1000)).refuses(scores, 0.02, 0.95, 0.5)


def test_the_order_of_inputs_does_not_matter() -> None:
    scores, wrong = torch.rand(400, 2, generator=seeded(4)), torch.rand(400, generator=seeded(5)) < 0.02
    order = torch.randperm(400, generator=seeded(6))
    one, other = Selection().fit(scores, wrong), Selection().fit(scores[order], wrong[order])
    assert torch.equal(one.refuses(scores, 0.1, 0.95, 0.5), other.refuses(scores, 0.1, 0.95, 0.5))
    assert torch.equal(one.scores, other.scores) and torch.equal(one.errors, other.errors)


def test_unfamiliar_and_torn_inputs_are_refused(trained, data, tmp_path) -> None:
    model = trained.eval()
    unseen = [blobs(800, seed=7)]
    detector = LatentDensity(model, "hidden", GaussianMixture(1)).fit(data["train"], calibration=unseen)
    x, y = blobs(4000, seed=8)
    u = detector(x)
    refused, wrong = detector.abstain(u, 0.02), u.prediction != y
    assert refused.dtype == torch.bool and refused.float().mean() < 0.15  # the network is good
    assert wrong[~refused].float().mean() < 0.02 and wrong[refused].float().mean() > 0.05
    assert detector.abstain(detector(data["far"]), 0.02).all()
    between = x[u.log_aleatoric.argsort()[-20:]]
    assert detector.abstain(detector(between), 0.02).all()

    detector.save(tmp_path / "file")
    again = LatentDensity.load(tmp_path / "file", model)
    assert torch.equal(again.abstain(again(x), 0.02), refused)
    features = detector.extract(data["train"]), detector.extract(unseen)
    other = LatentDensity(model, "hidden", GaussianMixture(1)).fit_features(features[0], calibration=features[1])
    assert torch.equal(other.abstain(other(x), 0.02), refused)
    assert torch.equal(detector.calibrate(unseen).abstain(detector(x), 0.02), refused)


def test_by_default(trained, data) -> None:
    """Layers are combined by what a third of the unseen data teach, and the other data certify."""
    model = trained.eval()
    detector = LatentDensity(model).fit(data["train"], calibration=[blobs(1200, seed=9)])
    assert 750 < len(detector.head.selection.errors) < 850
    x, y = blobs(4000, seed=10)
    u = detector(x)
    refused = detector.abstain(u, 0.02)
    assert refused.float().mean() < 0.15 and (u.prediction != y)[~refused].float().mean() < 0.02
    assert detector.abstain(detector(data["far"]), 0.02).all()
    classes = detector.prediction_set(u, 0.99)
    assert classes.gather(1, y[:, None]).float().mean() > 0.98 and classes.sum(1).float().mean() < 1.2


def test_nothing_is_known_of_what_the_network_gave_nan_for(trained) -> None:
    model = nn.Sequential(trained.eval())
    detector = SoftmaxEntropy(model).calibrate([blobs(400, seed=11)])
    x = torch.tensor([[0.0, 2.0], [math.nan, 0.0]])
    with pytest.warns(UserWarning, match="NaN or infinity for 1 of 2"):
        u = detector(x)
    assert detector.abstain(u, 0.05).tolist() == [False, True]
    assert detector.prediction_set(u).sum(1).tolist() == [1, 3]


@pytest.mark.parametrize("told", [False, True])
def test_numbers(told: bool, tmp_path) -> None:
    """Wrong is what is off by more than a tolerance; a deviation that the network tells is what doubt knows of it."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.same = nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([self.same(x), torch.where(x > 0, 1.0, 0.1)], 1) if told else self.same(x) + 0.0

    def noisy(n: int, seed: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(n, 1, generator=seeded(seed))
        return x, x + torch.where(x > 0, 1.0, 0.1) * torch.randn(n, 1, generator=seeded(seed + 1))

    model = Net().eval()
    task = Regression(spread="columns", spread_is="deviation") if told else "regression"
    detector = LatentDensity(model, "same", JointMixture(1), task=task).fit(
        [noisy(500, 0)], calibration=[noisy(1000, 2)]
    )
    x, y = noisy(2000, 4)
    u = detector(x)
    if not told:  # nothing tells where noise is: most must be wrong
        with pytest.raises(ValueError, match="cannot be promised"):
            detector.abstain(u, 0.05, tolerance=0.5)
        assert detector.abstain(u, 0.05, tolerance=4.0).float().mean() < 0.1
    else:
        refused = detector.abstain(u, 0.05, tolerance=0.5)
        assert refused[x[:, 0] > 0].float().mean() > 0.9 and refused[x[:, 0] < 0].float().mean() < 0.3
        assert ((y - x).abs()[~refused] > 0.5).float().mean() < 0.05
    with pytest.raises(ValueError, match=r"how far off is wrong.* predicts numbers, and tolerance is None"):
        detector.abstain(u)
    with pytest.raises(RuntimeError, match="sets are for networks that predict classes"):
        detector.prediction_set(u)
    detector.save(tmp_path / "file")
    again = LatentDensity.load(tmp_path / "file", model)
    assert torch.equal(again.abstain(again(x), 0.05, tolerance=4.0), detector.abstain(u, 0.05, tolerance=4.0))


@pytest.mark.parametrize("coverage", [0.8, 0.95])
def test_sets_hold_the_label(coverage: float) -> None:
    """Labels are drawn from what the network says, and from something else: sets hold both as often as asked."""
    generator, classes, draws, held, sizes = seeded(12), 5, 60, [], []
    for draw in range(draws):
        logits = 2 * torch.randn(1199, classes, generator=generator)
        truth = logits if draw % 2 else logits / 3  # of which the network is too sure
        label = torch.multinomial(truth.softmax(1), 1, generator=generator)[:, 0]
        features = Features.from_arrays({"outputs": logits}, logits.argmax(1), label)
        detector = SoftmaxEntropy(None).fit_features(features[1000:], calibration=features[1000:])
        among = detector.prediction_set(detector.predict_features(features[:1000]), coverage)
        assert among.shape == (1000, classes) and among.gather(1, logits[:1000].argmax(1, keepdim=True)).all()
        held.append(float(among.gather(1, label[:1000, None]).float().mean()))
        sizes.append(float(among.sum(1).float().mean()))
    # Over calibration sets of 199, coverage is spread as Beta(199 c + c, ...); 200 · c is whole, so that it is exact.
    margin = 4 * (coverage * (1 - coverage) * (1 / 200 + 1 / 1000) / draws) ** 0.5
    assert sum(held) / draws == pytest.approx(coverage, abs=margin)
    sure, unsure = sum(sizes[1::2]), sum(sizes[::2])
    assert sure < unsure < draws / 2 * (classes - 0.5)


def test_sets_of_a_good_network_have_one_class() -> None:
    label = torch.randint(4, (3000,), generator=seeded(13))
    logits = 12 * nn.functional.one_hot(label, 4) + torch.randn(3000, 4, generator=seeded(14))
    features = Features.from_arrays({"outputs": logits}, logits.argmax(1), label)
    detector = SoftmaxEntropy(None).fit_features(features[:1000], calibration=features[:1000])
    among = detector.prediction_set(detector.predict_features(features[1000:]), 0.99)
    assert (among.sum(1) == 1).all()


def test_sets_of_several_networks(trained, data) -> None:
    members = [trained.eval(), nn.Sequential(trained.body, trained.hidden, nn.Tanh(), trained.out).eval()]
    detector = DeepEnsemble(members).calibrate([blobs(400, seed=15)])
    x, y = blobs(1000, seed=16)
    u = detector(x)
    mean = torch.stack([member(x).softmax(1) for member in members]).mean(0)
    torch.testing.assert_close(u.probabilities, mean)
    assert detector.prediction_set(u, 0.9).gather(1, y[:, None]).float().mean() > 0.85


def test_false_alarms_within_groups() -> None:
    """Scores of the second group are higher: p-values of all alike alarm there too often, those of its own do not."""
    generator, draws, n = seeded(17), 200, 500
    alarms = torch.zeros(2, 2)  # by how, and by group
    for _ in range(draws):
        group = torch.rand(2 * n, generator=generator) < 0.3
        score = torch.randn(2 * n, generator=generator) + 2 * group
        parts = score[:n], group[:n], score[n:], group[n:]
        p = torch.stack([p_value_by_group(*parts), Calibration().fit(parts[0]).p_value(parts[2])])
        alarms += torch.stack([(p <= 0.05)[:, group[n:] == g].double().mean(1) for g in (False, True)], 1)
    shares = alarms / draws
    # Of m unseen scores, floor(0.05 (m + 1)) / (m + 1) is what is expected, at most 1 / m less than 0.05.
    spread = 3 * (0.0475 * (2 / (0.3 * n)) / draws) ** 0.5
    assert (shares[0] <= 0.05 + spread).all() and (shares[0] >= 0.05 - 1 / (0.3 * n) - spread).all()
    assert shares[1, 1] > 0.1


def test_groups_have_names_and_may_be_new() -> None:
    unseen, groups = torch.tensor([1.0, 2.0, 2.0, 7.0]), ["day", "day", "day", "night"]
    assert p_value_by_group(unseen.numpy(), groups, [2.0, 2.5, 8.0], ["day", "day", "night"]).tolist() == [
        0.75,
        0.25,
        0.5,
    ]
    with pytest.warns(UserWarning, match="no unseen score is of group 3, 4: p is 1 there"):
        p = p_value_by_group(unseen, torch.tensor([0, 0, 1, 1]), torch.full((3,), 99.0), torch.tensor([4, 0, 3]))
    assert p.tolist() == [1.0, 1 / 3, 1.0]
    late = pandas.DataFrame({"score": unseen.numpy(), "time": groups}, index=range(7, 11))  # a part of a frame
    assert p_value_by_group(late["score"], late["time"], late["score"], late["time"]).tolist() == [1.0, 0.75, 0.75, 1.0]
    with pytest.raises(ValueError, match=r"one score and one group per input; got \(4,\) and \(3,\)"):
        p_value_by_group(unseen, [0, 0, 1], unseen, [0, 0, 0, 0])


def test_what_is_needed(trained, data) -> None:
    model, x = trained.eval(), blobs(50, seed=18)[0]
    energy = Energy(model)
    with pytest.raises(
        TypeError, match=r"abstain takes what a detector returned, not Tensor: .*abstain\(detector\(x\)\)"
    ):
        energy.abstain(x)
    with pytest.raises(RuntimeError, match=r"^decisions to abstain need labelled data .* y one class per input, from"):
        energy.abstain(energy(x))
    with pytest.raises(RuntimeError, match=r"sets need labelled data .* y one class per input, from 0"):
        energy.prediction_set(energy(x))
    unseen, label = blobs(400, seed=19)
    for wrong in (None, label - 1, label + 0.5, nn.functional.one_hot(label)):
        energy.calibrate([unseen if wrong is None else (unseen, wrong)])
        with pytest.raises(RuntimeError, match="to abstain need labelled data"):
            energy.abstain(energy(x))
    energy.calibrate([(unseen[:200], label[:200]), (unseen[200:], label[200:] - 1)])  # some are unknown
    with pytest.raises(RuntimeError, match="sets need labelled data"):
        energy.prediction_set(energy(x))
    energy.calibrate([(unseen, label[:, None].float())])  # as for a loss that takes such
    energy.abstain(energy(x), 0.05)
    with pytest.raises(ValueError, match=r"without one\. This one predicts classes, and tolerance is 1"):
        energy.abstain(energy(x), tolerance=1)
    for wrong in (0, 1, -0.5):
        with pytest.raises(ValueError, match="error must lie between 0 and 1"):
            energy.abstain(energy(x), wrong)
    with pytest.raises(ValueError, match=r"a coverage of 0\.999 needs at least 999"):
        energy.prediction_set(energy(x), 0.999)
    distance = Mahalanobis(model, "hidden").fit(data["train"], calibration=data["unseen"])
    assert distance.abstain(distance(data["far"]), 0.05).all()  # by its only score
    with pytest.raises(RuntimeError, match="sets need the probability of each class"):
        distance.prediction_set(distance(x))
    both = LatentDensity(model, "hidden", GaussianMixture(1)).fit(data["train"], calibration=data["unseen"])
    with pytest.raises(RuntimeError, match="older than the calibration, or of another detector"):
        both.abstain(Uncertainty(prediction=torch.zeros(1, dtype=torch.long), epistemic=torch.zeros(1)), 0.05)


def test_several_labels_are_decided_one_by_one(trained) -> None:
    unseen, label = blobs(400, seed=20)
    energy = Energy(trained, task="multi-label").calibrate([(unseen, nn.functional.one_hot(label).float())])
    for decide in (energy.abstain, energy.prediction_set, energy.interval):
        with pytest.raises(RuntimeError, match=r"is not for several labels per input: .* u\.aleatoric_per_label"):
            decide(energy(unseen))


def test_pixels_are_not_answered_one_by_one() -> None:
    detector = SoftmaxEntropy(pixel_nets.Net().eval(), pixels=Pixels()).calibrate([pixel_nets.images(6)])
    u = detector(pixel_nets.images(2))
    with pytest.raises(RuntimeError, match=r"abstain is for whole inputs.* u\.surprising"):
        detector.abstain(u)
    with pytest.raises(RuntimeError, match="sets need the probability of each class for whole inputs"):
        detector.prediction_set(u)


def test_files_of_earlier_versions_must_be_calibrated_again() -> None:
    case = Path(__file__).parents[1] / "fixtures" / "0.1.0" / "classes-full.safetensors"
    expected, model = load_file(case.with_suffix(".expected.safetensors")), network("classes-full")
    weights = {name.removeprefix("weights."): part for name, part in expected.items() if name.startswith("weights.")}
    model.load_state_dict(weights)
    detector = LatentDensity.load(case, model)
    with pytest.raises(RuntimeError, match=r"that an earlier version saved needs calibrate\(unseen\) once more"):
        detector.abstain(detector(expected["x"]))
    x = torch.randn(200, *expected["x"].shape[1:], generator=seeded(20)).to(expected["x"])
    detector.calibrate([(x, model(x).argmax(1))])
    assert detector.abstain(detector(expected["x"]), 0.1).dtype == torch.bool
