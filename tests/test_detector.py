"""`Detector`: terms on layers and on the outputs, combined, calibrated, saved; and fits that fail leave no trace."""

import copy
import logging
import os
import signal
import threading
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import hidden_uncertainty.detector as detector_module
import pixel_nets
from hidden_uncertainty import GaussianMixture, LatentDensity, Pixels, Reduce, io
from hidden_uncertainty.baselines import (
    Energy,
    Mahalanobis,
    MCDropout,
    NearestNeighbours,
    SoftmaxEntropy,
)
from hidden_uncertainty.baselines.neighbours import NeighbourDistance
from hidden_uncertainty.detector import Detector
from hidden_uncertainty.scoring.bayes import DensityMethod
from hidden_uncertainty.scoring.fitted import Fitted
from hidden_uncertainty.scoring.outputs import EnergyMethod, EntropyMethod
from hidden_uncertainty.scoring.terms import Term

FIELDS = ("prediction", "epistemic", "aleatoric", "log_aleatoric", "p_value", "surprising")


def terms() -> list[Term]:
    """Two on one layer, of which one is reduced, and one on the outputs."""
    return [
        Term(DensityMethod(GaussianMixture(2)), "body"),
        Term(NeighbourDistance(k=5), "body", Reduce(max_dim=3), "near"),
        Term(EnergyMethod()),
    ]


def alone(model):
    """Each of the terms as a detector of its own."""
    return {
        "body": LatentDensity(model, "body", GaussianMixture(2)),
        "near": NearestNeighbours(model, "body", k=5, max_dim=3),
        "outputs": Energy(model),
    }


@pytest.mark.parametrize("combine", ["last", "mean", {"body": 0.1, "near": 2.0}])
def test_terms_together_score_as_each_alone(trained, data, combine, tmp_path):
    detector = Detector(trained, terms(), combine=combine).fit(data["train"], calibration=data["unseen"])
    threshold = detector.threshold(0.1)
    u = detector.predict(data["test"])
    assert list(u.layers) == detector.layers == ["body", "near", "outputs"]
    for name, single in alone(trained).items():
        single.fit(data["train"], calibration=data["unseen"]).threshold(0.1)
        expected, found = single.predict(data["test"]), u.layers[name]
        torch.testing.assert_close(found.epistemic, expected.epistemic)
        assert torch.equal(found.p_value, expected.p_value) and torch.equal(found.surprising, expected.surprising)
    if combine == "last":
        assert torch.equal(u.epistemic, u.layers["outputs"].epistemic) and u.aleatoric is None
    elif combine != "mean":
        expected = 0.1 * u.layers["body"].epistemic + 2 * u.layers["near"].epistemic
        torch.testing.assert_close(u.epistemic, expected.to(u.epistemic.dtype))
    assert u.threshold == threshold and torch.equal(u.surprising, u.p_value <= 0.1)
    assert 0.03 < u.surprising.float().mean() < 0.2

    detector.save(tmp_path / "file")
    again = Detector.load(tmp_path / "file", copy.deepcopy(trained))
    v = again.predict(data["test"])
    assert type(again) is Detector and again.combine == detector.combine and again.unit == detector.unit
    for name in u.layers:
        assert torch.equal(v.layers[name].surprising, u.layers[name].surprising)
    for field in FIELDS:
        one, two = getattr(u, field), getattr(v, field)
        assert one is two is None or torch.equal(one, two), field
    assert torch.equal(again.fit(data["train"]).predict(data["test"]).epistemic, u.epistemic)
    with pytest.raises(ValueError, match=r"holds Detector, not LatentDensity: use Detector\.load"):
        LatentDensity.load(tmp_path / "file", trained)


def test_a_mean_of_outputs_alone_is_fitted_too(trained, data):
    """Neither method has anything to fit, but their mean needs the scores of training data."""
    detector = Detector(trained, [Term(EnergyMethod(), name="energy"), Term(EntropyMethod(), name="entropy")])
    assert torch.equal(detector(data["far"]).epistemic, detector(data["far"]).layers["entropy"].epistemic)
    detector = Detector(trained, list(detector.terms.values()), combine="mean")
    with pytest.raises(RuntimeError, match="not fitted"):
        detector(data["far"])
    u = detector.fit(data["train"]).predict(data["train"])
    assert float(u.epistemic.mean()) == pytest.approx(0, abs=1e-5)


def test_terms_of_pixels(tmp_path):
    net, x = pixel_nets.Net(), pixel_nets.images(6)
    options = {"pixels": Pixels(**pixel_nets.ALL), "task": "classification"}
    detector = Detector(
        net, [Term(DensityMethod(GaussianMixture(1)), "third"), Term(EnergyMethod())], combine="mean", **options
    )
    detector.fit([x], calibration=[pixel_nets.images(30, seed=1)]).threshold(0.2)
    u = detector(x)
    torch.testing.assert_close(u.layers["outputs"].epistemic, -net(x).detach().logsumexp(1))
    alone = LatentDensity(net, "third", GaussianMixture(1), **options).fit([x])(x)
    torch.testing.assert_close(u.layers["third"].epistemic, alone.epistemic)
    assert u.epistemic.shape == (6, 14, 19) and float(u.epistemic.mean()) == pytest.approx(0, abs=0.2)
    detector.save(tmp_path / "file")
    v = Detector.load(tmp_path / "file", net)(x)
    assert torch.equal(v.epistemic, u.epistemic) and torch.equal(v.surprising, u.surprising)


def test_what_is_read_of_a_batch(trained, data):
    detector = Detector(trained, terms()).fit(data["train"])
    x = data["test"][0][0]
    reading, features = detector.read(x), detector.extract([x])
    assert torch.equal(reading.prediction.value, detector(x).prediction) and reading.label is None
    for name, width in (("body", 12), ("near", 3), ("outputs", 3)):
        (row,) = reading.rows(name)
        assert row.z.shape == (100, width) and torch.equal(row.z, features.z[name])
    assert (next(reading.rows("near")).residual > 0).all()


def test_a_task_that_is_inferred_is_logged(trained, data, caplog):
    caplog.set_level(logging.INFO, logger="hidden_uncertainty")
    assert Detector(trained.eval(), terms()).fit(data["train"]).task.name == "classification"
    assert [record.message for record in caplog.records] == [
        "task: classification, 3 classes. Pass task= to say otherwise."
    ]


@pytest.mark.parametrize("use", ["fit", "calibration", "extract", "fit_features"])
def test_a_task_guessed_in_a_fit_that_failed_is_not_kept(trained, data, use):
    detector = LatentDensity(trained, "hidden", GaussianMixture(1))
    spoilt = [*data["train"], (torch.full((1, 2), torch.nan), torch.zeros(1, dtype=torch.long))]
    features = LatentDensity(trained, "hidden").extract(data["train"])
    features.z["hidden"][0] = torch.nan
    with pytest.raises(ValueError, match="NaN"):
        {
            "fit": lambda: detector.fit(spoilt),
            "calibration": lambda: detector.fit(data["train"], calibration=spoilt),
            "extract": lambda: detector.extract(spoilt),
            "fit_features": lambda: detector.fit_features(features),
        }[use]()
    assert detector.task is None and detector.head is None
    assert detector.extract([(x, trained(x).detach()) for x, _ in data["train"]]).task.name == "regression"


def test_a_file_knows_which_output_before_the_task_is_known(tmp_path):
    pair = nn.Module()
    pair.forward = lambda x: (x[:, :2], x)
    detector = Detector(pair, [Term(EnergyMethod())], output=1)
    detector.save(tmp_path / "file")
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(Detector.load(tmp_path / "file", pair)(x).epistemic, -x.logsumexp(1))


def test_the_model_is_left_out_of_files_and_moves(trained, data, tmp_path):
    detector = Detector(trained, terms()).fit(data["train"])
    detector.save(tmp_path / "file")
    _, tensors = io.read(tmp_path / "file")
    assert not any(torch.equal(tensor, p) for tensor in tensors.values() for p in trained.parameters())
    again = Detector.load(tmp_path / "file", trained, unpack=lambda batch: (batch["other"], None))
    assert torch.equal(again.predict([{"other": data["far"]}]).epistemic, detector(data["far"]).epistemic)
    head = detector.head
    detector.to("meta")
    assert {buffer.device.type for buffer in head.buffers()} == {"cpu"}  # another thread may be scoring with it
    assert all(parameter.device.type == "cpu" for parameter in trained.parameters())
    assert {buffer.device.type for buffer in detector.head.buffers()} == {"meta"}


@pytest.mark.parametrize(
    ("terms", "options", "error", "message"),
    [
        ([], {}, ValueError, r"at least one term, each with a name of its own; got \[\]"),
        (["body", "body"], {}, ValueError, r"each with a name of its own; got \['body', 'body'\]"),
        (["bdy"], {}, ValueError, "layer 'bdy' is not in the model; nearest names: 'body'"),
        (["body"], {"condition": "y"}, ValueError, "condition must be 'prediction' or 'label', not 'y'"),
        (["body"], {"task": "ranking"}, ValueError, "task must be one of"),
        (["body"], {"combine": "first"}, ValueError, "combine must be 'last', 'mean', 'fisher' or weights"),
        (["body"], {"pixels": True}, TypeError, r"pixels must be Pixels\(...\) or None, not True"),
        ([None], {"pixels": Pixels("latent")}, ValueError, "resolution='latent' is the grid of a layer"),
    ],
)
def test_wrong_arguments(trained, terms, options, error, message):
    with pytest.raises(error, match=message):
        Detector(trained, [Term(DensityMethod(), layer) for layer in terms], **options)


def test_calibration_comes_from_one_place(trained, data):
    detector = Detector(trained, terms())
    with pytest.raises(ValueError, match="not both"):
        detector.fit(data["train"], calibration=data["unseen"], holdout=0.1)
    with pytest.raises(ValueError, match="holdout is a share"):
        detector.fit(data["train"], holdout=1.5)


def test_what_is_given_once_is_fitted_to_each_term_by_itself(trained, data):
    """One density for two layers, one method for two terms: neither fit is the other's."""
    one = GaussianMixture(1)
    given = LatentDensity(trained, ["body.0", "body"], dict.fromkeys(["body.0", "body"], one)).fit(data["train"])
    copied = LatentDensity(trained, ["body.0", "body"], one).fit(data["train"])
    method = DensityMethod(one)
    shared = Detector(trained, [Term(method, "body.0"), Term(method, "body")]).fit(data["train"])
    for detector in (given, shared):
        for name, scores in detector.predict(data["test"]).layers.items():
            assert torch.equal(scores.epistemic, copied.predict(data["test"]).layers[name].epistemic)


def test_features_of_another_output_do_not_choose_it():
    x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.z, self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 3), nn.Linear(4, 5)

        def forward(self, x):
            z = self.z(x)
            return self.a(z), self.b(z)

    model = Two()
    features = LatentDensity(model, "z", output=0).extract([x])
    detector = NearestNeighbours(model, "z", k=1, output=1).fit_features(features)
    assert torch.equal(detector(x).prediction, model(x)[1].argmax(1))


def test_methods_on_outputs_take_inputs_that_are_no_tensors():
    class Words(nn.Module):
        def forward(self, texts):
            return torch.tensor([[len(text), 5.0] for text in texts])

    assert SoftmaxEntropy(Words())(["to", "sentence"]).prediction.tolist() == [1, 0]


def test_classes_of_ones_own(trained, data, tmp_path):
    class Mine(LatentDensity):
        pass

    LatentDensity(trained, "body").fit(data["train"]).save(tmp_path / "theirs")
    Mine(trained, "body").fit(data["train"]).save(tmp_path / "mine")
    assert type(Mine.load(tmp_path / "theirs", trained)) is Mine
    assert type(LatentDensity.load(tmp_path / "mine", trained)) is Mine
    del Detector.kinds["Mine"]  # as where it is not imported
    assert type(Detector.load(tmp_path / "mine", trained)) is LatentDensity

    Energy(trained).fit(data["train"]).save(tmp_path / "energy")
    hiding = type("Energy", (LatentDensity,), {})
    assert type(Detector.load(tmp_path / "energy", trained)) is Energy and hiding in Detector.kinds.values()
    with pytest.raises(ValueError, match=r"holds LatentDensity, not Mahalanobis"):
        Mahalanobis.load(tmp_path / "theirs", trained)


def test_unseen_data_are_read_before_the_fit(trained, data, monkeypatch):
    monkeypatch.setattr(GaussianMixture, "_fit", None)  # which a fit would call
    with pytest.raises(ValueError, match="the loader gave no batches"):
        LatentDensity(trained, "body", GaussianMixture(1)).fit(data["train"], calibration=[])


def test_a_threshold_does_not_put_an_older_calibration_back(trained, data, monkeypatch):
    detector = LatentDensity(trained, "body", GaussianMixture(2)).fit(data["train"], calibration=data["unseen"])
    wider, before, alarm = [(2 * x, y) for x, y in data["unseen"]], detector.head, Fitted.alarm
    other = threading.Thread(target=detector.calibrate, args=[wider])

    def slow(fitted, *args):
        other.start()  # another thread calibrates, and would be done first
        other.join(1)
        return alarm(fitted, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Fitted, "alarm", slow)
        threshold = detector.threshold(0.1)
    assert threshold == before.calibration.threshold(0.1)
    other.join(20)
    expected = LatentDensity(trained, "body", GaussianMixture(2)).fit(data["train"], calibration=wider)
    torch.testing.assert_close(detector.head.calibration.scores, expected.head.calibration.scores)
    assert detector.threshold(0.1) == pytest.approx(expected.threshold(0.1)) and detector.threshold(0.1) > threshold


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_threshold_in_a_fork_made_while_another_thread_keeps_a_state(trained, data):
    detector = Energy(trained).fit(data["train"], calibration=data["unseen"])
    with detector_module._lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of forks beside threads
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            detector.threshold(0.1)
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8])
def test_seeds_of_numpy_are_those_of_python(trained, data, kind, tmp_path):
    project = Reduce("project", max_dim=3)
    build = {
        "project": lambda seed: LatentDensity(trained, "body", reduce=project, seed=seed).fit(data["train"]),
        "dropout": lambda seed: MCDropout(nn.Sequential(nn.Dropout(), trained).eval(), kind(4), seed=seed),
    }
    for name, make in build.items():
        expected, found = make(3), make(kind(3))
        assert type(found.seed) is int
        assert torch.equal(found(data["far"]).epistemic, expected(data["far"]).epistemic), name
    build["project"](kind(3)).save(tmp_path / "file")
    assert LatentDensity.load(tmp_path / "file", trained).seed == 3
