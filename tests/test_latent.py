"""`LatentDensity` on classifiers, against scikit-learn's mixtures and numpy's Bayes on activations read by hand."""

import copy

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from sklearn.mixture import GaussianMixture as Reference
from torch import nn

from capture_nets import activations, unchanged
from hidden_uncertainty import GaussianMixture, LatentDensity, Reduce
from hidden_uncertainty.metrics import auroc


def test_scores_are_the_papers_formulas(trained, data):
    detector = LatentDensity(trained, "hidden", GaussianMixture(1, shrinkage=None, dtype="float64")).fit(data["train"])
    z, prediction = activations(trained, torch.cat([x for x, _ in data["train"]]), "hidden")
    x = torch.cat([x for x, _ in data["test"]])
    u = detector(x)
    test, expected = activations(trained, x, "hidden")
    classes, counts = np.unique(prediction.numpy(), return_counts=True)
    around = torch.cat([z[prediction == c] - z[prediction == c].mean(0) for c in classes])
    ridge = 1e-6 * float(around.square().mean())  # a share of the variance around the means
    joint = np.stack(
        [
            Reference(1, reg_covar=ridge).fit(z[prediction == c].double().numpy()).score_samples(test.double().numpy())
            + np.log(n / len(z))
            for c, n in zip(classes, counts, strict=True)
        ],
        axis=1,
    )
    log_evidence = np.logaddexp.reduce(joint, axis=1)
    posterior = np.exp(joint - log_evidence[:, None])
    entropy = -(posterior * (joint - log_evidence[:, None])).sum(1)
    np.testing.assert_allclose(u.epistemic.numpy(), -log_evidence, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(u.aleatoric.numpy(), entropy, rtol=1e-3, atol=1e-6)
    plain = entropy > 1e-9  # below, the reference underflows
    np.testing.assert_allclose(u.log_aleatoric.numpy()[plain], np.log(entropy[plain]), atol=1e-3)
    assert torch.equal(u.prediction, expected)


def test_far_inputs_are_surprising_and_the_model_is_left_alone(trained, data):
    with unchanged(trained):
        detector = LatentDensity(trained, ["body", "hidden"]).fit(data["train"], calibration=data["unseen"])
        threshold = detector.threshold(false_alarm=0.02)
        u, far = detector.predict(data["test"]), detector(data["far"])
    assert auroc(negative=u.epistemic, positive=far.epistemic) == 1.0
    assert bool(far.surprising.all()) and float(far.p_value.max()) == pytest.approx(1 / 501)
    assert u.threshold == threshold and float(u.surprising.float().mean()) < 0.06
    assert torch.equal(u.surprising, u.p_value <= 0.02)


def test_p_values_of_unseen_inputs_are_uniform(trained, data):
    detector = LatentDensity(trained, "hidden").fit(data["train"], calibration=data["unseen"])
    assert kstest(detector.predict(data["test"]).p_value.numpy(), "uniform").pvalue > 0.01


def test_layers_together_score_as_each_alone(trained, data):
    together = LatentDensity(trained, ["body.0", "body", "hidden"]).fit(data["train"], calibration=data["unseen"])
    u = together.predict(data["test"])
    for name in together.layers:
        alone = LatentDensity(trained, name).fit(data["train"], calibration=data["unseen"]).predict(data["test"])
        for field in ("epistemic", "aleatoric", "log_aleatoric", "p_value"):
            torch.testing.assert_close(getattr(u.layers[name], field), getattr(alone, field))
    assert torch.equal(u.epistemic, u.layers["hidden"].epistemic)
    with pytest.warns(DeprecationWarning, match=r"use combine=\{'body.0': 1.0\}"):
        first = LatentDensity(trained, ["body.0", "hidden"], combine="body.0").fit(data["train"]).predict(data["test"])
    assert torch.equal(first.epistemic, first.layers["body.0"].epistemic)


def test_each_layer_may_have_its_own_density_and_reduction(trained, data):
    detector = LatentDensity(
        trained,
        {"body": Reduce(max_dim=3, residual=True), "hidden": Reduce()},
        {"body": GaussianMixture(2), "hidden": GaussianMixture(1, covariance="diag")},
    ).fit(data["train"])
    u = detector.predict(data["test"])
    assert detector.extract(data["test"]).z["body"].shape == (400, 4)
    assert u.layers["body"].residual.shape == (400,) and u.layers["hidden"].residual is None
    assert detector.fitted_densities["hidden"].covariance == "diag"


def test_given_labels_it_knows_the_noise_of_the_data(trained, data):
    """Where two classes overlap completely, labels leave p(y|z) torn; predictions, a function of z, do not."""
    generator = torch.Generator().manual_seed(0)
    noisy = [(x, torch.where(torch.rand(len(y), generator=generator) < 0.3, (y + 1) % 3, y)) for x, y in data["train"]]
    torn = LatentDensity(trained, "hidden", GaussianMixture(1), condition="label").fit(noisy).predict(data["test"])
    sure = LatentDensity(trained, "hidden", GaussianMixture(1)).fit(noisy).predict(data["test"])
    expected = -(0.7 * np.log(0.7) + 0.3 * np.log(0.3))
    assert float(torn.aleatoric.median()) == pytest.approx(expected, abs=0.15)
    assert float(sure.aleatoric.median()) < 0.05
    with pytest.raises(ValueError, match="condition='label' needs whole-numbered labels"):
        LatentDensity(trained, "hidden", condition="label", task="classification").fit([x for x, _ in data["train"]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "reduce",
    [Reduce(max_dim=None), Reduce(max_dim=3), Reduce(max_dim=3, residual=True), Reduce("project", max_dim=3)],
    ids=["whole", "components", "with residual", "projected"],
)
@pytest.mark.parametrize("covariance", ["full", "diag"])
@pytest.mark.filterwarnings("ignore:.*did not converge")
def test_one_input_scores_as_among_many(trained, data, covariance, reduce, dtype):
    """A few rows take other ways through reductions and densities than many."""
    cast = {name: [x.to(dtype) for x, _ in data[name]] for name in ("train", "unseen", "test")}
    density = GaussianMixture(2, covariance=covariance)
    detector = LatentDensity(trained.to(dtype), "body", density, reduce=reduce, task="classification")
    detector.fit(cast["train"], calibration=cast["unseen"])
    rows = torch.cat([cast["test"][0], 1e4 * cast["test"][1][:5]])
    together, single = detector(rows), [detector(row[None]) for row in rows[::7]]
    tolerance = 1e-9 if dtype == torch.float64 and reduce.max_dim is None else 1e-4  # projections are float32
    for name in ("prediction", "epistemic", "aleatoric", "log_aleatoric"):
        found = torch.cat([getattr(u, name) for u in single])
        torch.testing.assert_close(found, getattr(together, name)[::7], rtol=tolerance, atol=tolerance, msg=name)
    found = torch.cat([u.p_value for u in single])
    assert (found - together.p_value[::7]).abs().max() <= 1.01 / 501  # rounding may pass one calibration score
    residuals, wanted = [u.layers["body"].residual for u in single], together.layers["body"].residual
    assert (wanted is None) == (reduce.max_dim is None)
    if wanted is not None:
        torch.testing.assert_close(torch.cat(residuals), wanted[::7], rtol=tolerance, atol=tolerance)


def test_a_class_never_predicted_has_no_say(trained, data):
    wide = nn.Sequential(trained, nn.Linear(3, 10))
    with torch.no_grad():
        wide[1].weight.copy_(torch.eye(10, 3))
        wide[1].bias.copy_(torch.cat([torch.zeros(3), torch.full((7,), -1e3)]))
    detector = LatentDensity(wide, "0.hidden").fit([x for x, _ in data["train"]])
    u = detector.predict([x for x, _ in data["test"]])
    assert detector.fitted_marginal.log_prob.shape == (10,) and detector.fitted_marginal.support.tolist() == [0, 1, 2]
    assert bool(u.epistemic.isfinite().all() and u.aleatoric.isfinite().all())
    torch.testing.assert_close(
        u.epistemic, LatentDensity(trained, "hidden").fit(data["train"]).predict(data["test"]).epistemic
    )


def test_saved_and_loaded_it_is_the_same(trained, data, tmp_path):
    path = tmp_path / "detector.safetensors"
    detector = LatentDensity(trained, ["body", "hidden"], max_dim=4, combine={"body": 1.0}, condition="label", seed=3)
    detector.fit(data["train"], calibration=data["unseen"])
    detector.threshold(0.05)
    detector.save(path)
    loaded = LatentDensity.load(path, copy.deepcopy(trained))
    one, two = detector.predict(data["test"]), loaded.predict(data["test"])
    for field in ("prediction", "epistemic", "aleatoric", "log_aleatoric", "p_value", "surprising"):
        assert torch.equal(getattr(one, field), getattr(two, field))
    assert torch.equal(one.layers["body"].residual, two.layers["body"].residual)
    assert repr(loaded) == repr(detector) and loaded.combine == {"body": 1.0} and loaded.condition == "label"
    refitted = loaded.fit(data["train"], calibration=data["unseen"]).predict(data["test"])
    assert torch.equal(refitted.epistemic, one.epistemic)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"marginal": "normal"}, ValueError, "marginal must be 'auto', one of"),
        ({"density": {"body": GaussianMixture()}}, ValueError, "name the same ones"),
        ({"density": GaussianMixture}, TypeError, r"takes a density such as GaussianMixture\(\), .* not <class"),
        ({"density": "mixture"}, TypeError, r"takes a density such as .* not 'mixture'"),
        ({"density": {"hidden": GaussianMixture}}, TypeError, "takes a density such as"),
    ],
)
def test_wrong_arguments(trained, arguments, error, message):
    with pytest.raises(error, match=message):
        LatentDensity(trained, **{"layers": "hidden", **arguments})
