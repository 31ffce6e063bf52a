import pytest
import torch
from torch import nn

from hidden_uncertainty.baselines.adapter import PytorchOOD, PytorchOODFeatures
from hidden_uncertainty.baselines.mahalanobis import Mahalanobis, RelativeMahalanobis
from hidden_uncertainty.baselines.neighbours import NearestNeighbours


class Rude:
    """Has the interface of pytorch-ood's detectors, and their habits: takes gradients, leaves them, switches modes."""

    def __init__(self, model):
        self.model, self.modes = model, []

    def fit(self, loader):
        self.right = sum(int((self.model(x).argmax(1) == y).sum()) for x, y in loader)
        self.count = sum(len(y) for _, y in loader)  # a second pass
        return self

    def predict(self, x):
        self.modes.append(self.model.training)
        energy = -self.model(x).logsumexp(1)
        energy.sum().backward()
        self.model.train()
        return energy


def test_a_detector_s_scores_are_passed_on_and_the_model_is_left_alone(trained, data):
    detector = Rude(trained)
    method = PytorchOOD(detector, trained).fit(data["train"])
    assert detector.count == 600 and detector.right > 570
    trained.body.eval()
    kept = torch.ones_like(trained.out.weight)
    trained.out.weight.grad = kept
    modes = [module.training for module in trained.modules()]
    x = data["test"][0][0]
    u = method(x)
    assert detector.modes == [False]
    assert [module.training for module in trained.modules()] == modes
    assert trained.out.weight.grad is kept and bool((kept == 1).all())
    assert trained.hidden.weight.grad is None
    assert not u.epistemic.requires_grad
    trained.eval()
    assert torch.allclose(u.epistemic, -trained(x).logsumexp(1).detach())
    assert torch.equal(u.prediction, trained(x).argmax(1))
    assert torch.equal(method.predict(data["test"])[:100].epistemic, u.epistemic)


def test_the_model_is_left_alone_when_the_detector_raises(trained, data):
    class Broken(Rude):
        def predict(self, x):
            super().predict(x)
            raise KeyError("broken")

    with pytest.raises(KeyError):
        PytorchOOD(Broken(trained), trained)(data["far"])
    assert all(module.training for module in trained.modules())
    assert all(parameter.grad is None for parameter in trained.parameters())


def test_what_is_set_apart_is_not_fitted_to(trained, data):
    detector = Rude(trained)
    with pytest.warns(UserWarning, match="come without their guarantee"):
        method = PytorchOOD(detector, trained).fit(data["train"], holdout=0.3)
    assert detector.count == 600 - len(method.head.calibration.scores) < 480


def test_a_function_is_a_detector_with_nothing_to_fit(trained, data):
    method = PytorchOOD(lambda x: x.norm(dim=1), trained).fit(data["train"])
    assert torch.equal(method(data["far"]).epistemic, data["far"].norm(dim=1))


def test_errors_say_what_is_missing(trained, data):
    with pytest.raises(TypeError, match=r"object has no predict\(x\), and cannot be called.*pytorch-ood"):
        PytorchOOD(object(), trained)
    with pytest.raises(TypeError, match="Rude has no fit_features"):
        PytorchOODFeatures(Rude(trained), trained, "hidden")
    with pytest.raises(ValueError, match="labels, but the loader gives none"):
        PytorchOOD(Rude(trained), trained).fit([x for x, _ in data["train"]])
    with pytest.raises(ValueError, match=r"scores of shape \(5, 2\) for 5 inputs; expected \(5,\)"):
        PytorchOOD(lambda x: x, trained)(data["far"])
    with pytest.raises(TypeError, match="gave list"):
        PytorchOOD(lambda x: x.tolist(), trained)(data["far"])
    two = nn.Bilinear(2, 2, 3)
    with pytest.raises(TypeError, match="detectors take one tensor, not 2"):
        PytorchOOD(lambda x: x, two, task="classification")(data["far"], data["far"])


class Centre:
    def fit_features(self, z, y):
        self.mean, self.classes = z.mean(0), y.unique()
        return self

    def predict_features(self, z):
        assert z.dtype == self.mean.dtype
        return (z - self.mean).norm(dim=1)


def test_features_of_any_layer(trained, data):
    detector = Centre()
    method = PytorchOODFeatures(detector, trained, ["body.0", "hidden"], combine="last").fit(data["train"])
    assert not hasattr(detector, "mean")  # copies are fitted
    assert method.head.terms["hidden"].method.detector.classes.tolist() == [0, 1, 2]
    u = method(data["far"])
    trained.eval()
    z, far = (trained.hidden(trained.body(x)).detach() for x in (torch.cat([x for x, _ in data["train"]]), data["far"]))
    assert torch.allclose(u.epistemic, (far - z.mean(0)).norm(dim=1), rtol=1e-4)


@pytest.fixture
def detectors():
    try:
        import pytorch_ood.detector
    except Exception as error:  # beside a torchvision that does not fit torch it raises RuntimeError
        pytest.skip(f"pytorch-ood cannot be imported: {error}")
    return pytorch_ood.detector


def test_pytorch_ood_s_own_numbers(detectors):
    generator = torch.Generator().manual_seed(0)
    model, y = nn.Sequential(nn.Identity(), nn.Linear(8, 3)), torch.arange(600) % 3
    z = torch.randn(600, 8, generator=generator) + 4 * torch.eye(3, 8)[y]  # their float32 inverse needs it as round
    options = {"condition": "label", "shrinkage": None, "ridge": 0.0}
    pairs = [  # their covariance is a sum, not a mean, and their distance is half of the square
        (detectors.Mahalanobis(None), Mahalanobis(model, "0", **options), 2 * 600),
        (detectors.RMD(None), RelativeMahalanobis(model, "0", **options), 600),
        (detectors.KNN(None, k=5), NearestNeighbours(model, "0", k=5), 1),
    ]
    new = torch.randn(50, 8, generator=generator)
    for theirs, ours, factor in pairs:
        reference = PytorchOODFeatures(theirs, model, "0").fit([(z, y)])(new)
        assert torch.allclose(ours.fit([(z, y)])(new).epistemic, factor * reference.epistemic, rtol=1e-4, atol=1e-4)


def test_pytorch_ood_s_energy(trained, data, detectors):
    u = PytorchOOD(detectors.EnergyBased(trained), trained).fit(data["train"]).predict(data["test"])
    trained.eval()
    logits = trained(torch.cat([x for x, _ in data["test"]]))
    assert torch.allclose(u.epistemic, -logits.logsumexp(1).detach(), atol=1e-5)
