"""Options of a mixture, what is kept of it, and what it says when something is wrong."""

from __future__ import annotations

import copy
import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

from hidden_uncertainty.density import GaussianMixture
from mixture_draws import draw, every


def test_defaults_shrink_what_needs_it() -> None:
    z, y = draw((30, 30, 30), dim=20)
    for covariance, shrinkage in (("full", "ledoit-wolf"), ("tied", "ledoit-wolf"), ("diag", None)):
        auto, named = (
            GaussianMixture(2, covariance=covariance, shrinkage=s).fit(z, y)  # type: ignore[arg-type]
            for s in ("auto", shrinkage)
        )
        assert torch.equal(auto.factor, named.factor)
    kinds = [GaussianMixture(1, shrinkage=s).fit(z, y).factor for s in ("ledoit-wolf", "oas", None)]
    assert not torch.allclose(kinds[0], kinds[1])
    assert not torch.allclose(kinds[0], kinds[2])


def test_classes_that_never_came() -> None:
    z, y = draw()
    keep = y != 1
    density = GaussianMixture(2, max_iter=1000).fit(z[keep], y[keep])
    assert density.classes.tolist() == [0, 2]
    alone = every(density, z)
    torch.testing.assert_close(density.log_prob(z, torch.tensor([2, 0, 2])), alone[:, [1, 0, 1]])
    with pytest.raises(ValueError, match=r"no density was fitted for class \[1, 7\]; fitted: \[0, 2\]"):
        density.log_prob(z, torch.tensor([0, 1, 7]))


def test_one_class() -> None:
    z, _ = draw()
    density = GaussianMixture(3, max_iter=1000).fit(z, torch.full((len(z),), 5))
    assert every(density, z).shape == (len(z), 1)


def test_a_failed_fit_leaves_the_old_one() -> None:
    z, y = draw()
    density = GaussianMixture(1, shrinkage=None, ridge=0).fit(z, y)
    before = every(density, z)
    with pytest.raises(ValueError, match="singular"):
        density.fit(torch.ones_like(z), y)
    assert torch.equal(every(density, z), before)


def test_too_few_steps() -> None:
    z, y = draw()
    text = r"3 of 3 classes did not converge in max_iter=1 steps: raise max_iter or tol, or use fewer components"
    with pytest.warns(UserWarning, match=text) as caught:
        density = GaussianMixture(3, max_iter=1).fit(z, y)
    assert caught[0].filename == __file__
    assert every(density, z).isfinite().all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        GaussianMixture(3, max_iter=1000).fit(z, y)
        GaussianMixture(3, max_iter=2, tol=100).fit(z, y)


def test_keeps_the_configuration_it_was_given() -> None:
    options = {
        "components": 2,
        "covariance": "tied",
        "shrinkage": "oas",
        "ridge": 1e-5,
        "tol": 1e-4,
        "max_iter": 500,
        "min_samples": 5,
        "pooling": 0.0,
        "dtype": "float64",
    }
    density = GaussianMixture(**options)  # type: ignore[arg-type]
    assert density.config() == {**options, "fitted": None}
    z, y = draw()
    shapes = {"center": [4], "log_weight": [3, 2], "log_scale": [3, 2], "mean": [3, 2, 4], "bias": [3, 2, 4]}
    shapes = {name: ["float64", *shape] for name, shape in (shapes | {"factor": [3, 4, 4]}).items()}
    assert density.fit(z.float(), y).config() == {**options, "fitted": {"classes": ["int64", 3], **shapes}}
    assert density.float().config()["fitted"]["mean"] == ["float32", 3, 2, 4]
    assert str(density) == "GaussianMixture(components=2, covariance='tied', shrinkage='oas')"
    pooling = "GaussianMixture(components=1, covariance='full', shrinkage='auto', pooling=3)"
    assert str(GaussianMixture(pooling=3)) == pooling


@pytest.mark.parametrize("rows", [1, 100])
def test_packed_factors_follow_what_they_are_made_of(rows: int) -> None:
    z, y = draw()
    one, other = GaussianMixture(2, max_iter=1000).fit(z, y), GaussianMixture(2, max_iter=1000).fit(z + 1, y)
    assert {"packed", "wide"}.isdisjoint(one.state_dict())
    z = z[:rows]
    expected = every(one, z)
    for empty in (other, GaussianMixture.from_config(one.config())):
        empty.load_state_dict(one.state_dict())
        assert torch.equal(every(empty, z), expected)
    fine = copy.deepcopy(one)
    assert torch.equal(every(fine.float().double(), z), every(one.float().double(), z))
    assert every(one.float(), z).dtype == torch.float32
    torch.testing.assert_close(every(one, z).double(), expected, rtol=1e-4, atol=1e-4)
    assert torch.equal(every(copy.deepcopy(one), z), every(one, z))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"components": 0}, "components must be a whole number of at least 1, not 0"),
        ({"components": 2.0}, r"components must be a whole number of at least 1, not 2\.0"),
        ({"max_iter": 0}, "max_iter must be"),
        ({"min_samples": 0}, "min_samples must be"),
        ({"covariance": "pooled", "components": 2}, "components must be 1, not 2"),
        ({"pooling": 1.0, "components": 2}, "components must be 1, not 2"),
        ({"pooling": -1.0}, "pooling must be zero or more, and finite, not -1.0"),
        (
            {"covariance": "round"},
            r"covariance must be one of \('full', 'tied', 'diag', 'spherical', 'pooled'\), not 'round'",
        ),
        ({"shrinkage": "some"}, r"shrinkage must be 'auto', one of \('ledoit-wolf', 'oas'\) or None, not 'some'"),
        (
            {"shrinkage": "oas", "covariance": "diag"},
            "shrinkage='oas' is for full and tied covariances: with 'diag' use None",
        ),
        ({"dtype": "float16"}, "dtype must be 'float32', 'float64' or None, not 'float16'"),
        ({"ridge": -1.0}, r"ridge must be zero or more, and finite, not -1\.0"),
        ({"ridge": math.nan}, "ridge must be zero or more, and finite, not nan"),
        ({"ridge": math.inf}, "ridge must be zero or more, and finite, not inf"),
        ({"ridge": None}, "ridge must be zero or more, and finite, not None"),
        ({"pooling": "10"}, "pooling must be zero or more, and finite, not '10'"),
    ],
)
def test_bad_options(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        GaussianMixture(**options)


@pytest.mark.parametrize(
    ("z", "y", "error", "text"),
    [
        (
            torch.zeros(4),
            torch.zeros(4).long(),
            ValueError,
            r"expected z \(n, d\) and y \(n,\) .* not \(4,\) and \(4,\)",
        ),
        (torch.zeros(4, 2), torch.zeros(3).long(), ValueError, r"of the same length, not \(4, 2\) and \(3,\)"),
        (torch.zeros(4, 2), torch.zeros(4, 1).long(), ValueError, r"not \(4, 2\) and \(4, 1\)"),
        (torch.zeros(1, 2), torch.zeros(1).long(), ValueError, "at least 2 samples, not 1"),
        (torch.zeros(0, 2), torch.zeros(0).long(), ValueError, "at least 2 samples, not 0"),
        (torch.zeros(4, 2), torch.zeros(4), TypeError, r"expected classes as integers in y, not torch\.float32"),
        (torch.zeros(4, 2), torch.zeros(4).bool(), TypeError, r"not torch\.bool"),
        (
            torch.tensor([[0.0, 1], [torch.nan, 1], [1, 1], [torch.inf, -torch.inf]]),
            torch.zeros(4).long(),
            ValueError,
            "2 of 4 rows of z hold NaN or infinity",
        ),
    ],
)
def test_bad_data(z: Tensor, y: Tensor, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        GaussianMixture().fit(z, y)
