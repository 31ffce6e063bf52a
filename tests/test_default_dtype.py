"""`torch.set_default_dtype` is the user's: what is fitted, saved and loaded is the same under every one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn

from hidden_uncertainty import GaussianMixture, LatentDensity, Reduce
from hidden_uncertainty._pca import Components, StreamingPCA


@contextmanager
def default(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("fitted", [torch.float32, torch.float64])
@pytest.mark.parametrize("loaded", [torch.float32, torch.float64])
@pytest.mark.parametrize("how", ["flatten", "project"])
def test_a_file_gives_the_same_scores_in_another_program(
    trained: nn.Module, data: dict, tmp_path: Path, how: str, fitted: torch.dtype, loaded: torch.dtype
) -> None:
    x, path = torch.cat([x for x, _ in data["test"]]), tmp_path / "detector"
    density, reduce = GaussianMixture(components=1), Reduce(how, max_dim=4, residual=True)
    with default(fitted):
        detector = LatentDensity(trained, "hidden", density, reduce=reduce).fit(data["train"])
        detector.save(path)
        before = detector(x)
    with default(loaded):
        after = LatentDensity.load(path, trained)(x)
    assert before.epistemic.dtype == torch.float32
    assert torch.equal(before.epistemic, after.epistemic)


def test_wide_components_are_the_same() -> None:
    x = torch.randn(200, 2500, generator=torch.Generator().manual_seed(0))

    def components() -> Components:
        pca = StreamingPCA(2500, 8)
        while not pca.done:
            pca.update(x)
            pca.end_pass()
        return pca.result()

    expected = components()
    with default(torch.float64):
        found = components()
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
