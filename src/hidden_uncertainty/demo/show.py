"""What the library does, shown in under a minute on digits that come with scikit-learn."""

from __future__ import annotations

import json
import os
import time
import warnings
from pathlib import Path
from typing import Any

from rich.console import Console

from .. import plots
from .measure import Demonstration, Settings, measure
from .picture import draw
from .terminal import introduce, summarise

__all__ = ["Demonstration", "Settings", "draw", "measure", "run"]


def run(out: str | os.PathLike[str], settings: Settings | None = None) -> dict[str, Any]:
    """Measure, print a summary, and write `demo.png` and `demo.json` to a folder; returns what the JSON holds.

    Args:
        out: the folder, created if needed.
        settings: what to measure.
    """
    start = time.perf_counter()
    folder, console = Path(out), Console(highlight=False)
    introduce(console)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = measure(Settings() if settings is None else settings)
    found.numbers["warnings"] = [str(warning.message) for warning in caught]
    before = time.perf_counter()
    plots.save(draw(found), folder / "demo.png")
    found.numbers["seconds"]["picture"] = time.perf_counter() - before
    found.numbers["seconds"]["total"] = time.perf_counter() - start
    numbers = _rounded(found.numbers)
    _write(json.dumps(numbers, indent=2, ensure_ascii=False) + "\n", folder / "demo.json")
    summarise(found, [folder / "demo.png", folder / "demo.json"], console)
    return numbers


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, dict):
        return {str(name): _rounded(item) for name, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list | tuple) else value


def _write(text: str, path: Path) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
