"""Mixtures of rows on disk are as likely as those of rows in memory, and nothing is left behind."""

from __future__ import annotations

import resource
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hidden_uncertainty import GaussianMixture, LatentDensity
from hidden_uncertainty.baselines import NearestNeighbours
from hidden_uncertainty.density.gaussian import _chunks


class Plain(nn.Module):
    """Gives its inputs as a layer's output, and the class that is their last number."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        self.hidden(x[:, :-1])
        return 9.0 * nn.functional.one_hot(x[:, -1].long(), 3)


def drawn(n: int, seed: int) -> Tensor:
    """Two large classes of three clusters each, and a small one."""
    random = torch.Generator().manual_seed(seed)
    y = (torch.rand(n, generator=random) * 2.02).long()
    middle = 4 * torch.randn(3, 3, 6, generator=torch.Generator().manual_seed(0))
    cluster = torch.randint(3, (n,), generator=random)
    spread = 0.5 + torch.rand(3, 3, 6, generator=torch.Generator().manual_seed(1))
    z = torch.randn(n, 6, generator=random) * spread[y, cluster] + middle[y, cluster]
    return torch.cat([z, y[:, None]], 1)


def fitted(x: Tensor, density: GaussianMixture | None, **options: Any) -> LatentDensity:
    detector = LatentDensity(Plain(), "hidden", density, task="classification")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the small class
        return detector.fit(x.split(200), **options)


@pytest.mark.parametrize("density", [None, GaussianMixture(3, covariance="tied"), GaussianMixture(4, shrinkage=None)])
@pytest.mark.parametrize("start", [600, 1 << 16])
def test_as_likely_as_in_memory(
    density: GaussianMixture | None, start: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_chunks, "START", start)
    monkeypatch.setattr(_chunks, "FEWEST", 1)
    x, unseen = drawn(6000, 1), drawn(2000, 2)
    expected = fitted(x, density)(unseen).epistemic
    found = fitted(x, density, spill=tmp_path)(unseen).epistemic
    assert abs(float((found - expected).mean())) < 0.01
    if start > len(x):  # all rows are in it
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)
    assert list(tmp_path.iterdir()) == []


def test_the_order_of_the_loader_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_chunks, "START", 600)
    monkeypatch.setattr(_chunks, "FEWEST", 1)
    x, unseen = drawn(6000, 1), drawn(2000, 2)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(3))
    one, other = (fitted(rows, GaussianMixture(3), spill=tmp_path)(unseen).epistemic for rows in (x, x[order]))
    assert float((one - other).abs().max()) < 0.01


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=(1 << 26) + 100_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(OSError, match=r"layer 'hidden' do not fit .* give spill= a larger disk"):
        fitted(drawn(20_000, 1), GaussianMixture(3), spill=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_limit_of_the_system_is_named(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(OSError, match=r"do not fit into .* rows \(File too large\): give spill="):
            fitted(drawn(20_000, 1), GaussianMixture(3), spill=tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


def test_errors_say_what_to_do(tmp_path: Path) -> None:
    x = drawn(500, 1)
    with pytest.raises(FileNotFoundError, match="is no folder: make it first"):
        fitted(x, None, spill=tmp_path / "missing")
    with pytest.raises(ValueError, match="spill= is for one process"):
        fitted(x, None, spill=tmp_path, holdout=0.1)
    with pytest.raises(
        NotImplementedError, match="NearestNeighbours of layer 'hidden' is neither summed nor kept in a file"
    ):
        NearestNeighbours(Plain(), "hidden", task="classification").fit(x.split(100), spill=tmp_path)
    for task in ("multi-label", "regression"):
        with pytest.raises(NotImplementedError, match=r"nor kept in a file: use fit\(loader\) alone"):
            LatentDensity(Plain(), "hidden", task=task).fit(x.split(100), spill=tmp_path)
    assert list(tmp_path.iterdir()) == []
