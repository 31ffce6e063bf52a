import math
import pickle
import sys

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from reproduction.rivals.process import GaussianProcess


def noisy_sine(n: int = 60, seed: int = 0, noise: float = 0.2) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = 6 * torch.rand(n, 1, generator=generator, dtype=torch.float64) - 3
    return x, 5 + 3 * x.sin().squeeze(1) + noise * torch.randn(n, generator=generator, dtype=torch.float64)


def test_two_points_by_hand():
    kernel = ConstantKernel(2.0, "fixed") * RBF(1.5, "fixed") + WhiteKernel(0.3, "fixed")
    process = GaussianProcess(kernel, standardise=False)
    process.fit([(torch.tensor([[0.0], [1.0]]), torch.tensor([1.0, -1.0]))])
    u = process(torch.tensor([[0.5], [2.0]]))
    near = 2 * math.exp(-0.5 / 1.5**2)
    determinant = 2.3**2 - near**2
    for i, x in enumerate((0.5, 2.0)):
        a, b = (2 * math.exp(-0.5 * (x - t) ** 2 / 1.5**2) for t in (0.0, 1.0))
        mean = (a * (2.3 + near) - b * (2.3 + near)) / determinant  # kᵀ K⁻¹ (1, -1)
        variance = 2 - (2.3 * a * a - 2 * near * a * b + 2.3 * b * b) / determinant
        assert u.prediction[i].item() == pytest.approx(mean, abs=1e-6)
        assert u.epistemic[i].item() == pytest.approx(variance, abs=1e-6)
        assert u.aleatoric[i].item() == pytest.approx(0.3, abs=1e-6)


@pytest.mark.parametrize("standardise", [True, False])
def test_predictions_are_those_of_scikit_learn(standardise):
    x, y = noisy_sine()
    process = GaussianProcess(standardise=standardise).fit(list(zip(x.split(25), y.split(25), strict=True)))
    new = torch.linspace(-5, 5, 600, dtype=torch.float64)[:, None]
    u = process.predict(new.split(100))
    (shift, scale), (middle, spread) = [(v.mean(0), v.std(0, correction=0)) if standardise else (0, 1) for v in (x, y)]
    reference = GaussianProcessRegressor(ConstantKernel() * RBF() + WhiteKernel(), random_state=0)
    reference.fit(np.asarray((x - shift) / scale), np.asarray((y - middle) / spread))
    mean, deviation = reference.predict(np.asarray((new - shift) / scale), return_std=True)
    assert torch.allclose(u.prediction, torch.from_numpy(mean) * spread + middle)
    assert torch.allclose(u.epistemic + u.aleatoric, (torch.from_numpy(deviation) * spread).square(), rtol=1e-6)
    assert torch.allclose(u.aleatoric, u.aleatoric[0]) and 0.02 < u.aleatoric[0] < 0.08  # 0.2² is 0.04
    assert u.epistemic.argmax() in (0, 599) and u.epistemic.min() < 0.02


def test_no_noise_in_the_kernel_no_aleatoric():
    process = GaussianProcess(RBF(1.0, "fixed")).fit([(torch.tensor([[0.0], [1.0]]), torch.tensor([1.0, 2.0]))])
    u = process(torch.tensor([[0.0], [9.0]]))
    assert u.aleatoric is None
    assert u.prediction[0].item() == pytest.approx(1.0, abs=1e-5) and u.epistemic[0] < 1e-6 < u.epistemic[1]


def test_the_user_s_kernel_and_the_global_generator_are_left_alone():
    x, y = noisy_sine()
    kernel, state, numpy_state = (
        ConstantKernel() * RBF() + WhiteKernel(),
        torch.get_rng_state(),
        np.random.get_state()[1],
    )
    before = kernel.theta.copy()
    twice = [GaussianProcess(kernel, restarts=1).fit([(x, y)])(x).epistemic for _ in range(2)]
    assert torch.equal(*twice)
    assert (kernel.theta == before).all()
    assert torch.equal(torch.get_rng_state(), state) and (np.random.get_state()[1] == numpy_state).all()


def test_results_have_the_precision_of_targets_and_any_input_shape():
    x, y = noisy_sine(20)
    images = x.float().reshape(20, 1, 1).expand(20, 2, 3)
    u = GaussianProcess().fit([(images, y.half()[:, None])])(images)
    assert u.prediction.dtype == u.epistemic.dtype == torch.float32 and u.epistemic.shape == (20,)
    assert GaussianProcess().fit([(x[:, 0], y)])(x[:5, 0]).prediction.dtype == torch.float64


def test_a_constant_input_is_no_division_by_zero():
    x, y = noisy_sine(30)
    u = GaussianProcess().fit([(torch.cat([x, torch.ones_like(x)], 1), y)])(torch.tensor([[0.0, 1.0]]))
    assert u.epistemic.isfinite().all()


@pytest.mark.parametrize(
    ("loader", "text"),
    [
        ([torch.zeros(5, 1)], "one number per input in y, but got none"),
        ([(torch.zeros(5, 1), torch.zeros(5, 2))], r"but got \(5, 2\)"),
        ([(torch.zeros(1, 1), torch.zeros(1))], "at least 2 rows"),
        ([(torch.full((5, 1), torch.nan), torch.zeros(5))], "inputs hold NaN"),
        ([(torch.zeros(5, 1), torch.full((5,), torch.inf))], "targets hold NaN or infinity"),
        ([(torch.zeros(60, 1), torch.zeros(60))] * 2, "more than max_rows=100 rows"),
    ],
)
def test_bad_data_is_an_error(loader, text):
    with pytest.raises(ValueError, match=text):
        GaussianProcess(max_rows=100).fit(loader)


def test_what_is_set_apart_is_not_fitted_to():
    with pytest.warns(UserWarning, match="come without their guarantee"):
        process = GaussianProcess(RBF(1.0, "fixed"), max_rows=100).fit([noisy_sine(120)], holdout=0.4)
    apart = len(process.head.calibration.scores)
    assert 20 < apart < 80 and len(process.reader.learned.process.model.X_train_) == 120 - apart
    with pytest.raises(ValueError, match="at least 2 rows, not 0"):
        process.fit([noisy_sine(120)], holdout=1 - 1e-12)


def test_a_process_can_be_pickled_and_not_saved(tmp_path):
    x = torch.linspace(-1, 1, 20)[:, None]
    process = GaussianProcess(RBF(1.0, "fixed") + WhiteKernel(0.1, "fixed")).fit([(x, x[:, 0].sin())])
    assert torch.equal(pickle.loads(pickle.dumps(process))(x).epistemic, process(x).epistemic)
    with pytest.raises(NotImplementedError, match="GaussianProcess cannot be saved"):
        process.save(tmp_path / "file")


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8])
def test_seeds_of_numpy_are_those_of_python(kind):
    found = [GaussianProcess(restarts=1, seed=seed).fit([noisy_sine(30)]) for seed in (3, kind(3))]
    assert type(found[1].seed) is int
    x = noisy_sine(5)[0]
    assert torch.equal(found[0](x).epistemic, found[1](x).epistemic)


def test_calibrated_as_any_method():
    process = GaussianProcess(RBF(1.0, "fixed") + WhiteKernel(0.1, "fixed"))
    process.fit([noisy_sine(60)], calibration=[noisy_sine(200, seed=1)])
    process.threshold(0.1)
    far = torch.full((3, 1), 30.0)
    u = process.predict([noisy_sine(200, seed=2)])
    assert process.calibrated == "unseen" and u.surprising.double().mean() < 0.2
    assert process(far).surprising.all() and process(far).epistemic.min() > u.epistemic.max()
    assert process.abstain(process(far), 0.1, tolerance=0.9).all()


def test_other_errors(monkeypatch):
    with pytest.raises(ValueError, match="backend must be one of"):
        GaussianProcess(backend="scikit")
    process = GaussianProcess(RBF(1.0, "fixed")).fit([(torch.tensor([[0.0], [1.0]]), torch.tensor([1.0, 2.0]))])
    with pytest.raises(ValueError, match="expected inputs of 1 numbers, as fitted, not 2"):
        process(torch.zeros(3, 2))
    with pytest.raises(TypeError, match="takes one tensor"):
        process(torch.zeros(3, 1), torch.zeros(3, 1))
    monkeypatch.setitem(sys.modules, "gpytorch", None)
    with pytest.raises(ImportError, match=r"hidden-uncertainty\[gpytorch\]"):
        GaussianProcess(backend="gpytorch")


def test_both_libraries_agree():
    gpytorch = pytest.importorskip("gpytorch")
    x, y = noisy_sine(200)
    state = torch.get_rng_state()
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
    start = [p.detach().clone() for p in kernel.parameters()]
    new = torch.linspace(-5, 5, 50, dtype=torch.float64)[:, None]
    one, other = GaussianProcess().fit([(x, y)])(new), GaussianProcess(kernel).fit([(x, y)])(new)
    assert torch.allclose(one.prediction, other.prediction, atol=2e-2)
    assert torch.allclose(one.epistemic, other.epistemic, rtol=5e-2, atol=1e-3)
    assert torch.allclose(one.aleatoric, other.aleatoric, rtol=1e-2)
    assert all(torch.equal(a, b) for a, b in zip(start, kernel.parameters(), strict=True))
    assert torch.equal(torch.get_rng_state(), state)
