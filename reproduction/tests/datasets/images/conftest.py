"""Small data sets in the formats of the real ones, and what the reader logs about them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from hashlib import md5
from pathlib import Path

import numpy as np
import pytest

from reproduction.datasets.images import base, sources


@pytest.fixture(autouse=True)
def noted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is logged in a test; no folder of data sets is known but those that tests write."""
    lines: list[str] = []
    monkeypatch.setattr(base, "note", lines.append)
    monkeypatch.setattr(base, "_noted", set())
    monkeypatch.delenv("HIDDEN_UNCERTAINTY_DATA", raising=False)
    return lines


@pytest.fixture
def publish(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make contents the published ones: `publish("mnist", **{name of the file: its unpacked content})`."""

    def declare(name: str, contents: dict[str, bytes]) -> None:
        source = sources.SOURCES[name]
        downloads = tuple(
            replace(
                download,
                files=tuple(
                    replace(file, md5=md5(contents.get(file.path.rpartition("/")[2], b"?")).hexdigest())
                    for file in download.files
                ),
            )
            for download in source.downloads
        )
        monkeypatch.setitem(sources.SOURCES, name, replace(source, downloads=downloads))

    return declare


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, bytes], Path]:
    """Write a file below the folder of data sets, which is `tmp_path`."""

    def put(path: str, content: bytes) -> Path:
        full = tmp_path / path
        full.parent.mkdir(parents=True, exist_ok=True)
        full.write_bytes(content)
        return full

    return put


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(0)
