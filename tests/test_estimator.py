import copy
import json
import warnings

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from sklearn.decomposition import PCA
from sklearn.mixture import GaussianMixture as Reference
from torch import nn

from hidden_uncertainty import GaussianMixture, LatentDensity, Reduce
from hidden_uncertainty.batches import unpack
from hidden_uncertainty.extract import chosen
from hidden_uncertainty.metrics import auroc

PLAIN = {"components": 1, "shrinkage": None}


def snapshot(model):
    return (
        {name: value.clone() for name, value in model.state_dict().items()},
        [(m.training, len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()],
        [p.requires_grad for p in model.parameters()],
        [p.grad is None for p in model.parameters()],
    )


def same(before, after):
    assert before[1:] == after[1:]
    assert all(torch.equal(before[0][name], after[0][name]) for name in before[0])


def activations(model, x, layer):
    kept = []
    handle = dict(model.named_modules())[layer].register_forward_hook(lambda m, i, o: kept.append(o.clone()))
    twin = copy.deepcopy(model).eval()
    handle.remove()
    with torch.no_grad():
        output = twin(x)
    return kept[0], output.argmax(1)


def test_scores_are_the_papers_formulas(trained, data):
    """Against scikit-learn's mixtures and numpy's Bayes, on activations read by hand."""
    detector = LatentDensity(trained, "hidden", GaussianMixture(**PLAIN, dtype="float64")).fit(data["train"])
    z, prediction = activations(trained, torch.cat([x for x, _ in data["train"]]), "hidden")
    x = torch.cat([x for x, _ in data["test"]])
    u = detector(x)
    test, expected = activations(trained, x, "hidden")
    classes, counts = np.unique(prediction.numpy(), return_counts=True)
    joint = np.stack(
        [
            Reference(1).fit(z[prediction == c].double().numpy()).score_samples(test.double().numpy())
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
    before = snapshot(trained)
    detector = LatentDensity(trained, ["body", "hidden"]).fit(data["train"], calibration=data["unseen"])
    threshold = detector.threshold(false_alarm=0.02)
    u, far = detector.predict(data["test"]), detector(data["far"])
    same(before, snapshot(trained))
    assert auroc(u.epistemic, far.epistemic) == 1.0
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
    assert detector.head.layers["hidden"].density.covariance == "diag"


def test_wide_layers_are_reduced_as_by_pca(trained, data):
    detector = LatentDensity(trained, "body", GaussianMixture(**PLAIN), max_dim=4).fit(data["train"])
    z, _ = activations(trained, torch.cat([x for x, _ in data["train"]]), "body")
    pca = PCA(4).fit(z.numpy())
    mine = detector.extract(data["test"])
    test, _ = activations(trained, torch.cat([x for x, _ in data["test"]]), "body")
    theirs = torch.from_numpy(pca.transform(test.numpy()))
    torch.testing.assert_close(mine.z["body"].abs(), theirs.abs(), rtol=1e-3, atol=1e-3)
    lost = (test - torch.from_numpy(pca.inverse_transform(theirs.numpy()))).square().sum(1)
    torch.testing.assert_close(mine.residual["body"], lost, rtol=1e-3, atol=1e-3)


def test_given_labels_it_knows_the_noise_of_the_data(trained, data):
    """Where two classes overlap completely, labels leave p(y|z) torn; predictions, a function of z, do not."""
    generator = torch.Generator().manual_seed(0)
    noisy = [(x, torch.where(torch.rand(len(y), generator=generator) < 0.3, (y + 1) % 3, y)) for x, y in data["train"]]
    torn = LatentDensity(trained, "hidden", GaussianMixture(1), condition="label").fit(noisy).predict(data["test"])
    sure = LatentDensity(trained, "hidden", GaussianMixture(1)).fit(noisy).predict(data["test"])
    expected = -(0.7 * np.log(0.7) + 0.3 * np.log(0.3))
    assert float(torn.aleatoric.median()) == pytest.approx(expected, abs=0.15)
    assert float(sure.aleatoric.median()) < 0.05
    with pytest.raises(ValueError, match="condition='label' needs one whole-numbered label"):
        LatentDensity(trained, "hidden", condition="label", task="classification").fit([x for x, _ in data["train"]])


class Calls(nn.Module):
    """Counts how often it is called."""

    def __init__(self, model):
        super().__init__()
        self.model, self.count = model, 0

    def forward(self, x):
        self.count += 1
        return self.model(x)


def test_features_once_densities_many(trained, data):
    model = Calls(trained)
    detector = LatentDensity(model, ["model.body", "model.hidden"], max_dim=5)
    train = detector.extract(data["train"])
    detector.fit_features(train)
    unseen, test = detector.extract(data["unseen"]), detector.extract(data["test"])
    count = model.count
    for components in (1, 3):
        other = LatentDensity(model, ["model.body", "model.hidden"], GaussianMixture(components), task="classification")
        u = other.fit_features(train, calibration=unseen).predict_features(test)
        assert model.count == count
        torch.testing.assert_close(u.epistemic, other(torch.cat([x for x, _ in data["test"]])).epistemic)
        count = model.count
    whole = LatentDensity(model, ["model.body", "model.hidden"], GaussianMixture(3), max_dim=5)
    whole.fit(data["train"], calibration=data["unseen"])
    torch.testing.assert_close(whole.predict(data["test"]).p_value, u.p_value)
    with pytest.raises(ValueError, match="the features have no layer"):
        LatentDensity(model, "model.out").fit_features(train)


def test_features_reduced_differently_are_not_mixed(trained, data):
    detector = LatentDensity(trained, "body", GaussianMixture(1), max_dim=4)
    train, unseen = detector.extract(data["train"]), detector.extract(data["unseen"])
    assert train.reductions["body"].same_as(unseen.reductions["body"])
    detector.fit_features(train, calibration=unseen)
    foreign = LatentDensity(trained, "body", max_dim=4).extract(data["test"])
    for use in (
        lambda: detector.predict_features(foreign),
        lambda: LatentDensity(trained, "body").fit_features(train, calibration=foreign),
    ):
        with pytest.raises(ValueError, match=r"layer \['body'\] were reduced otherwise"):
            use()
    again = LatentDensity(trained, "body", max_dim=4).extract(data["train"])
    assert len(detector.predict_features(again)) == 600


def test_the_holdout_is_apart_in_every_pass_and_is_marked(trained):
    """The loader shuffles anew in every pass; a row that the density was fitted to must never calibrate."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1000, 2, generator=generator)

    class Shuffling:
        def __iter__(self):
            return iter(x[torch.randperm(1000, generator=generator)].split(50))

    detector = LatentDensity(trained, "body", max_dim=4, task="classification")
    with pytest.warns(UserWarning, match="without their guarantee"):
        detector.fit(Shuffling(), holdout=0.2)
    assert detector.calibrated == "holdout"
    held = len(detector.head.layers["body"].calibration.scores)
    assert 150 < held < 250
    mean = detector.head.layers["body"].reduction.mean
    z, _ = activations(trained, x, "body")
    apart = chosen(unpack(x), 0.2)
    assert int(apart.sum()) == held
    torch.testing.assert_close(mean, z[~apart].mean(0), rtol=1e-4, atol=1e-5)


def test_a_class_never_predicted_has_no_say(trained, data):
    wide = nn.Sequential(trained, nn.Linear(3, 10))
    with torch.no_grad():
        wide[1].weight.copy_(torch.eye(10, 3))
        wide[1].bias.copy_(torch.cat([torch.zeros(3), torch.full((7,), -1e3)]))
    detector = LatentDensity(wide, "0.hidden").fit([x for x, _ in data["train"]])
    u = detector.predict([x for x, _ in data["test"]])
    assert detector.head.marginal.log_prob.shape == (10,) and detector.head.marginal.support.tolist() == [0, 1, 2]
    assert bool(u.epistemic.isfinite().all() and u.aleatoric.isfinite().all())
    torch.testing.assert_close(
        u.epistemic, LatentDensity(trained, "hidden").fit(data["train"]).predict(data["test"]).epistemic
    )


class Tokens(nn.Module):
    """A transformer fed by keywords that returns a dictionary, as those of Hugging Face are and do."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, input_ids, attention_mask=None):
        hidden = self.encoder(self.embed(input_ids))
        return {"logits": self.head(hidden[:, 0]), "hidden": hidden}


@pytest.mark.parametrize(("reduce", "width"), [("tokens", 8), ("token", 8), ("flatten", 40)])
def test_token_outputs_and_dictionaries(reduce, width):
    torch.manual_seed(0)
    model = Tokens()
    ids = torch.randint(20, (600, 5), generator=torch.Generator().manual_seed(0))
    loader = [{"input_ids": part, "labels": part[:, 0] % 3} for part in ids.split(100)]
    detector = LatentDensity(model, "encoder", GaussianMixture(1), reduce=reduce, output="logits")
    detector.fit(loader)
    assert detector.extract(loader).z["encoder"].shape == (600, width)
    u = detector(input_ids=ids[:7])
    torch.testing.assert_close(u.epistemic, detector.predict(loader).epistemic[:7], rtol=1e-4, atol=1e-4)


def test_half_precision_and_autocast_models_get_single_precision_densities(trained, data):
    reference = LatentDensity(trained, "hidden").fit(data["train"]).predict(data["test"]).epistemic
    detector = LatentDensity(trained, "hidden")
    with torch.autocast("cpu", torch.bfloat16):
        u = detector.fit(data["train"]).predict(data["test"])
    assert detector.head.layers["hidden"].density.mean.dtype == torch.float32 == u.epistemic.dtype
    assert torch.corrcoef(torch.stack([u.epistemic, reference]))[0, 1] > 0.95
    half = copy.deepcopy(trained).bfloat16()
    u = LatentDensity(half, "hidden").fit([(x.bfloat16(), y) for x, y in data["train"]])(data["far"].bfloat16())
    assert u.epistemic.dtype == torch.float32 and bool((u.epistemic > reference.max()).all())


def test_same_seed_same_bits_and_any_batch_size(trained, data):
    first = LatentDensity(trained, "body", max_dim=4).fit(data["train"], calibration=data["unseen"])
    second = LatentDensity(trained, "body", max_dim=4).fit(data["train"], calibration=data["unseen"])
    one, two = first.predict(data["test"]), second.predict(data["test"])
    assert torch.equal(one.epistemic, two.epistemic) and torch.equal(one.p_value, two.p_value)
    x = torch.cat([x for x, _ in data["test"]])
    singles = torch.cat([first(row[None]).epistemic for row in x[:50]])
    torch.testing.assert_close(singles, one.epistemic[:50], rtol=1e-5, atol=1e-4)


def test_saved_and_loaded_it_is_the_same(trained, data, tmp_path):
    path = tmp_path / "detector.safetensors"
    detector = LatentDensity(trained, ["body", "hidden"], max_dim=4, combine="body", condition="label", seed=3)
    detector.fit(data["train"], calibration=data["unseen"])
    detector.threshold(0.05)
    detector.save(path)
    loaded = LatentDensity.load(path, copy.deepcopy(trained))
    one, two = detector.predict(data["test"]), loaded.predict(data["test"])
    for field in ("prediction", "epistemic", "aleatoric", "log_aleatoric", "p_value", "surprising"):
        assert torch.equal(getattr(one, field), getattr(two, field))
    assert torch.equal(one.layers["body"].residual, two.layers["body"].residual)
    assert repr(loaded) == repr(detector) and loaded.combine == "body" and loaded.condition == "label"
    refitted = loaded.fit(data["train"], calibration=data["unseen"]).predict(data["test"])
    assert torch.equal(refitted.epistemic, one.epistemic)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match="cut short"):
        LatentDensity.load(path, trained)


def test_a_file_is_for_one_model(trained, data, tmp_path):
    path = tmp_path / "detector.safetensors"
    LatentDensity(trained, "hidden").fit(data["train"]).save(path)
    other = copy.deepcopy(trained)
    other.hidden = nn.Linear(12, 7)
    with pytest.raises(ValueError, match=r"another model \(Net\): there, parameter 'hidden.weight' is \(6, 12\), here"):
        LatentDensity.load(path, other)
    for change in (lambda body: body[0].weight.data.mul_(1.5), lambda body: body[1].running_mean.add_(1)):
        other = copy.deepcopy(trained)
        change(other.body)
        with pytest.warns(UserWarning, match="weights are not those"):
            LatentDensity.load(path, other)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LatentDensity.load(path, torch.compile(copy.deepcopy(trained), backend="eager"))
        LatentDensity.load(path, nn.DataParallel(copy.deepcopy(trained)))


def test_the_detector_leaves_the_model_out_of_its_file_and_of_moves(trained, data, tmp_path):
    path = tmp_path / "detector.safetensors"
    detector = LatentDensity(trained, "hidden").fit(data["train"])
    detector.save(path)
    header = json.loads(path.read_bytes()[8 : 8 + int.from_bytes(path.read_bytes()[:8], "little")])
    assert not any("body" in name for name in header)
    detector.to("meta")
    assert all(parameter.device.type == "cpu" for parameter in trained.parameters())


class Bad(nn.Module):
    """Gives NaN for inputs above a bound."""

    def __init__(self):
        super().__init__()
        self.scale, self.out = nn.Linear(2, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.out(self.scale(torch.where(x > 100, torch.nan, x)))


def test_activations_that_are_not_finite_are_named(data):
    detector = LatentDensity(Bad(), "scale", GaussianMixture(1), task="classification")
    x = [x for x, _ in data["train"]]
    broken = [*x[:3], torch.cat([x[3][:-2], torch.full((2, 2), 200.0)])]
    with pytest.raises(
        ValueError, match=r"layer 'scale' gave NaN or infinite activations for 2 of 100 inputs in batch 3"
    ):
        detector.fit(broken)
    assert detector.head is None
    detector.fit(x)
    with pytest.raises(ValueError, match=r"layer 'scale' gave NaN or infinite activations for 1 of 1 inputs:"):
        detector(torch.full((1, 2), 200.0))


def test_a_fit_that_fails_changes_nothing(trained, data):
    detector = LatentDensity(trained, "hidden").fit(data["train"], calibration=data["unseen"])
    detector.threshold(0.05)
    before, model = detector.predict(data["test"]), snapshot(trained)

    def interrupted():
        yield data["train"][0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        detector.fit(interrupted())
    after = detector.predict(data["test"])
    same(model, snapshot(trained))
    assert torch.equal(before.epistemic, after.epistemic) and after.threshold == before.threshold


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"layers": "hiden"}, "layer 'hiden' is not in the model; nearest names: 'hidden'"),
        ({"layers": []}, "name at least one layer"),
        ({"layers": ["hidden", "hidden"]}, "named twice"),
        ({"combine": "body"}, "combine must be 'last' or one of the layers"),
        ({"task": "ranking"}, "task must be one of"),
        ({"marginal": "normal"}, "marginal must be 'auto', one of"),
        ({"condition": "y"}, "condition must be"),
        ({"density": {"body": GaussianMixture()}}, "name the same ones"),
    ],
)
def test_wrong_arguments(trained, arguments, message):
    with pytest.raises(ValueError, match=message):
        LatentDensity(trained, **{"layers": "hidden", **arguments})


def test_wrong_use(trained, data, tmp_path):
    detector = LatentDensity(trained, "hidden")
    for use in (lambda: detector(data["far"]), lambda: detector.save(tmp_path / "x"), lambda: detector.threshold(0.1)):
        with pytest.raises(RuntimeError, match="not fitted"):
            use()
    detector.fit(data["train"])
    with pytest.raises(RuntimeError, match="nothing to choose a threshold from"):
        detector.threshold(0.1)
    with pytest.raises(RuntimeError, match="threshold"):
        _ = detector(data["far"]).surprising
    with pytest.raises(ValueError, match="not both"):
        detector.fit(data["train"], calibration=data["unseen"], holdout=0.1)
    with pytest.raises(ValueError, match="holdout is a share"):
        detector.fit(data["train"], holdout=1.5)
    with pytest.raises(ValueError, match="needs at least 1,999 calibration scores; there are 500"):
        detector.fit(data["train"], calibration=data["unseen"]).threshold(0.0005)
    with pytest.raises(TypeError, match="can be read only once"):
        LatentDensity(trained, "body", max_dim=4).fit(iter(data["train"]))
    with pytest.raises(ValueError, match="no batches"):
        detector.fit([])
    with pytest.raises(ValueError, match="all 600 inputs have the prediction"):
        detector.fit([(torch.full_like(x, 3.0), y) for x, y in data["train"]])
    assert LatentDensity(trained, "body").fit(iter(data["train"])).head is not None
