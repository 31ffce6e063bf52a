from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from scipy.integrate import simpson
from scipy.special import entr
from scipy.stats import multivariate_normal

from reproduction.render import render
from reproduction.studies import load
from reproduction.studies.truth.joint import EIGENVALUES, PRIOR
from reproduction.studies.truth.study import known


def density_at(mixture, point):
    parts = zip(*(part.tolist() for part in mixture), strict=True)
    return sum(weight * multivariate_normal(mean, covariance).pdf(point) for weight, mean, covariance in parts)


@pytest.mark.parametrize("data", ["Gaussian classes, d = 2", "classes of 3 Gaussians, d = 8"])
def test_the_truth_of_classes_is_that_of_scipy(data) -> None:
    joint = known(data, 3)
    z, y = joint.draw(20, torch.Generator().manual_seed(0))
    surprise, entropy = joint.truth(z)
    for i in range(len(z)):
        parts = [prior * density_at(given, z[i].tolist()) for prior, given in zip(PRIOR, joint.given, strict=True)]
        share = [part / sum(parts) for part in parts]
        assert float(surprise[i]) == pytest.approx(-math.log(sum(parts)), rel=1e-9)
        assert float(entropy[i]) == pytest.approx(-sum(p * math.log(p) for p in share), rel=1e-6, abs=1e-9)
    assert set(y.tolist()) == {0, 1, 2}


def test_the_truth_of_numbers_is_that_of_quadrature() -> None:
    joint = known("numbers, d = 2", 3)
    z, _ = joint.draw(5, torch.Generator().manual_seed(0))
    y = np.linspace(-15, 15, 3001)
    for row, surprise, entropy in zip(z, *joint.truth(z), strict=True):
        values = density_at(joint.joint, np.column_stack([np.tile(row.numpy(), (len(y), 1)), y]))
        evidence = simpson(values, x=y)
        assert float(surprise) == pytest.approx(-math.log(evidence), abs=1e-6)
        assert float(entropy) == pytest.approx(simpson(entr(values / evidence), x=y), abs=1e-6)


def test_draws_are_those_of_the_known_mixture() -> None:
    mixture = known("numbers, d = 2", 0).joint
    drawn = mixture.draw(50_000, torch.Generator().manual_seed(0))
    mean = mixture.weight @ mixture.mean
    away = mixture.mean - mean
    covariance = torch.einsum("k,kij->ij", mixture.weight, mixture.covariance + away[:, :, None] * away[:, None])
    torch.testing.assert_close(drawn.mean(0), mean, rtol=0, atol=0.06)  # five deviations of the mean
    torch.testing.assert_close(drawn.mT.cov(), covariance, rtol=0, atol=0.2)
    values = torch.linalg.eigvalsh(mixture.covariance)
    assert EIGENVALUES[0] * 0.999 < float(values.min()) < float(values.max()) < EIGENVALUES[1] * 1.001


def test_the_study_comes_nearer_to_the_truth_when_quick(tmp_path) -> None:
    study = load("truth")(quick=True)
    found = {(row["data"], row["method"], row["metric"], row.get("samples")): row["mean"] for row in study.rows}
    one, three = "Gaussian classes, d = 2", "classes of 3 Gaussians, d = 2"
    for metric in ("epistemic error", "aleatoric error"):
        for data, method in ((one, "GaussianMixture(1, shrinkage=None)"), (three, "GaussianMixture(3)")):
            assert found[data, method, metric, 3000] < 0.6 * found[data, method, metric, 300]
        assert found[three, "GaussianMixture(1)", metric, 3000] > 2 * found[three, "GaussianMixture(3)", metric, 3000]
    few, many = (found["numbers, d = 2", "JointMixture(3)", "epistemic error", n] for n in (300, 3000))
    slope = found["numbers, d = 2", "JointMixture(3)", "epistemic slope", None]
    assert slope == pytest.approx(math.log(many / few) / math.log(10), abs=1e-3)
    path = study.write(tmp_path, "a command")
    assert (tmp_path / "truth.png").stat().st_size > 10_000
    table = render(json.loads(path.read_text(encoding="utf-8")))
    assert f"| {few:.4f} | {many:.4f} | {slope:.2f} ± 0.00 |" in table
    assert "| classes of 3 Gaussians, d = 2 | GaussianMixture(3, tol=1e-1) |" in table
