"""Small data sets in the formats of the real ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

Draw = Callable[..., Path]


@pytest.fixture(autouse=True)
def _nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """No folder of data sets but those that tests write."""
    monkeypatch.delenv("HIDDEN_UNCERTAINTY_DATA", raising=False)


@pytest.fixture
def draw(tmp_path: Path) -> Draw:
    """Write numbers as a picture below the folder of data sets, which is `tmp_path`, in the format of its name."""
    image = pytest.importorskip("PIL.Image")

    def put(path: str, values: np.ndarray, *, palette: bool = False) -> Path:
        full = tmp_path / path
        full.parent.mkdir(parents=True, exist_ok=True)
        picture = image.fromarray(values)
        if palette:
            picture.putpalette(list(range(256)) * 3)
        picture.save(full, lossless=True) if full.suffix == ".webp" else picture.save(full)
        return full

    return put


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(0)
