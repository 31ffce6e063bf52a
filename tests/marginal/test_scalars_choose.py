from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from hidden_uncertainty.marginal import BetaPrime, Gaussian, Histogram, Uniform, by_name, choose


def sample(distribution: stats.rv_continuous, n: int = 1500) -> Tensor:
    return torch.as_tensor(distribution.rvs(size=n, random_state=np.random.default_rng(0))).float()


def two_peaks() -> Tensor:
    return torch.cat([sample(stats.norm(-4, 0.2), 700), sample(stats.norm(3, 0.5), 700)])


@pytest.mark.parametrize(
    ("draw", "kind"),
    [
        (lambda: sample(stats.norm(3, 5)), Gaussian),
        (lambda: sample(stats.norm(30, 1)), Gaussian),
        (lambda: sample(stats.uniform(-2, 9)), Histogram),  # the only one with tails that is flat
        (lambda: sample(stats.betaprime(31.76, 3.07)), BetaPrime),
        (lambda: 1e-9 * sample(stats.betaprime(31.76, 3.07)), BetaPrime),
        (two_peaks, Histogram),
    ],
)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_one_it_came_from(draw: Callable[[], Tensor], kind: type, seed: int) -> None:
    y = draw()
    marginal = choose(y, seed=seed)
    best = marginal.compared[marginal.name]
    assert best == max(marginal.compared.values())
    # Far from zero, beta primes are nearly Gaussian: what is chosen may differ by less than matters.
    assert type(marginal) is kind or best - marginal.compared[kind.name] < 0.01
    assert ("beta-prime" in marginal.compared) == bool((y > 0).all())
    assert marginal.tails


def test_fitted_to_all_values() -> None:
    y = two_peaks()
    marginal = choose(y)
    direct = Histogram().fit(y)
    assert marginal.config() == direct.config()
    assert all(torch.equal(value, direct.state_dict()[name]) for name, value in marginal.state_dict().items())
    assert "compared" not in marginal.config()
    assert direct.compared == {}


def test_likelihoods_are_of_the_holdout() -> None:
    """With twelve values the holdout is two that are not extreme: all pairs can be tried."""
    y = sample(stats.norm(0, 1), 12).double().sort().values
    possible = []
    for out in itertools.combinations(range(1, 11), 2):
        rest = y[[i for i in range(12) if i not in out]]
        possible.append(stats.norm.logpdf(y[list(out)], *stats.norm.fit(rest)).mean())
    assert np.isclose(possible, choose(y, seed=3).compared["gaussian"], rtol=1e-9).any()


def test_any_order_has_the_same_choice_and_the_global_state_is_left() -> None:
    y, before = two_peaks(), torch.get_rng_state()
    shuffled = y[torch.randperm(len(y), generator=torch.Generator().manual_seed(1))]
    assert choose(y, seed=1).compared == choose(shuffled, seed=1).compared
    assert choose(y, seed=1).compared != choose(y, seed=2).compared
    assert torch.equal(before, torch.get_rng_state())


def test_vectors() -> None:
    generator = torch.Generator().manual_seed(0)
    for y in (torch.randn(300, 2, generator=generator), torch.rand(300, 2, generator=generator)):
        assert isinstance(choose(y), Gaussian)  # a box has no tails


def test_few_values() -> None:
    with pytest.raises(ValueError, match="choosing needs at least 10 predictions, not 9: name a distribution instead"):
        choose(torch.arange(9.0))
    with pytest.raises(ValueError, match="choosing needs at least 20 predictions, not 19"):
        choose(torch.rand(19, 2, generator=torch.Generator().manual_seed(0)))
    with pytest.raises(ValueError, match=r"all 20 predictions are 0\.5"):
        choose(torch.full((20,), 0.5))
    nearly = torch.full((20,), 0.5)
    nearly[7] = 0.6
    assert math.isfinite(choose(nearly).compared["gaussian"])


def test_by_name() -> None:
    for name, kind in (
        ("uniform", Uniform),
        ("gaussian", Gaussian),
        ("beta-prime", BetaPrime),
        ("histogram", Histogram),
    ):
        assert type(by_name(name)) is kind
    with pytest.raises(ValueError, match="'uniform', 'gaussian', 'beta-prime', 'histogram' or 'auto', not 'normal'"):
        by_name("normal")
    with pytest.raises(ValueError, match=r"marginal='auto' depends on the predictions: use choose\(y\)"):
        by_name("auto")
