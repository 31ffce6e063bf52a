"""What the library does, shown in under a minute on digits that come with scikit-learn."""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from .. import plots
from .measure import Settings, Study, measure
from .picture import draw
from .terminal import introduce, summarise

__all__ = ["Settings", "Study", "draw", "measure", "run"]


def run(out: str | os.PathLike[str], settings: Settings | None = None) -> dict[str, Any]:
    """Measure, print a summary, and write `demo.png` and `demo.json` to a folder; returns what the JSON holds.

    Args:
        out: the folder, made when it is not there.
        settings: what to measure.
    """
    start = time.perf_counter()
    settings = Settings() if settings is None else settings
    folder = Path(out)
    # Before the work, not after it: a folder that cannot be written to is found out at once.
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
    console = Console(highlight=False)
    introduce(console)
    study = measure(settings)
    before = time.perf_counter()
    plots.save(draw(study), folder / "demo.png")
    study.numbers["seconds"]["picture"] = time.perf_counter() - before
    study.numbers["seconds"]["total"] = time.perf_counter() - start
    numbers = _rounded(study.numbers)
    _write(json.dumps(numbers, indent=2, ensure_ascii=False) + "\n", folder / "demo.json")
    summarise(study, [folder / "demo.png", folder / "demo.json"], console)
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
