"""A result is a file: numbers, and everything needed to make them again."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from .. import plots

PACKAGES = ("torch", "numpy", "scipy", "scikit-learn")


@dataclass
class Study:
    """What a study found.

    Args:
        name: of the study, and of its file.
        rows: flat objects: what each is about, `method`, `metric`, `mean`, `std`, `n`.
        seeds: of the repetitions.
        data: a digest of each data set used.
        seconds: how long it took.
        settings: choices that were fixed before anything was measured.
        curves: numbers that were drawn, by name, for those who want to draw them otherwise.
        pictures: figures by what follows the study's name in theirs: `""` is NAME.png, `"fit"` NAME-fit.png.
    """

    name: str
    rows: list[dict[str, Any]]
    seeds: Sequence[int]
    data: Mapping[str, str]
    seconds: float
    settings: Mapping[str, Any] = field(default_factory=dict)
    curves: Mapping[str, Any] = field(default_factory=dict)
    pictures: Mapping[str, Figure] = field(default_factory=dict)

    def write(self, folder: str | os.PathLike[str], command: str) -> Path:
        """Write `NAME.json`, whole or not at all, with the commit, hardware and versions it was made with.

        Pictures go beside it.
        """
        content = {
            "name": self.name,
            "command": command,
            "commit": _commit(),
            "hardware": hardware(),
            "versions": versions(),
            "data": dict(self.data),
            "seeds": list(self.seeds),
            "seconds": round(self.seconds, 1),
            "settings": dict(self.settings),
            "rows": self.rows,
        }
        if self.curves:
            content["curves"] = dict(self.curves)
        path = Path(folder) / f"{self.name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        for suffix, figure in self.pictures.items():
            plots.save(figure, path.with_name(f"{self.name}{'-' * bool(suffix)}{suffix}.png"))
        partial = path.with_suffix(".partial")
        text = json.dumps(content, indent=2, ensure_ascii=False)
        # Numbers of a curve go in one line, not in one each.
        text = re.sub(r"\[\s+(-?[\d.]+(?:e-?\d+)?(?:,\s+-?[\d.]+(?:e-?\d+)?)*)\s+\]", _one_line, text)
        partial.write_text(text + "\n", encoding="utf-8")
        partial.replace(path)
        return path


def _one_line(numbers: re.Match[str]) -> str:
    return f"[{', '.join(numbers[1].split())}]".replace(",,", ",")


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch work with one thread: small matrices gain nothing by more, and sums then have one order everywhere.

    Example:
        >>> with one_thread():
        ...     torch.get_num_threads()
        1
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def summarise(values: Sequence[float], **about: Any) -> dict[str, Any]:
    """A row: mean and deviation over repetitions.

    Example:
        >>> summarise([0.9, 1.0], method="mixture", metric="auroc")
        {'method': 'mixture', 'metric': 'auroc', 'mean': 0.95, 'std': 0.0707, 'n': 2}
    """
    spread = stdev(values) if len(values) > 1 else 0.0
    return {**about, "mean": round(fmean(values), 4), "std": round(spread, 4), "n": len(values)}


def digest(*tensors: Tensor) -> str:
    """sha256 of the bytes of tensors.

    Example:
        >>> digest(torch.zeros(3))[:8]
        '15ec7bf0'
    """
    total = sha256()
    for tensor in tensors:
        total.update(tensor.contiguous().numpy().tobytes())
    return total.hexdigest()


def versions() -> dict[str, str]:
    """Versions of Python, of this package and of those whose numbers it builds on."""
    from hidden_uncertainty import __version__

    own = {"python": platform.python_version(), "hidden-uncertainty": __version__}
    return own | {name: version(name) for name in PACKAGES}


def hardware() -> str:
    """The machine, in words: processor, cores, and the GPU where there is one."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        models = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line]
        name = models[0] if models else name
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return f"{name}, {os.cpu_count()} cores{gpu}"


def _commit() -> str | None:
    """The commit that the package's working tree is at, read from its .git; None when it is installed elsewhere."""
    git = Path(__file__).resolve().parents[3] / ".git"
    if not (git / "HEAD").is_file():
        return None
    text = (git / "HEAD").read_text().strip()
    if not text.startswith("ref: "):
        return text
    name = text.removeprefix("ref: ")
    if (git / name).is_file():
        return (git / name).read_text().strip()
    packed = git / "packed-refs"  # where git gc puts them
    lines = packed.read_text().splitlines() if packed.is_file() else []
    return next((line.split()[0] for line in lines if line.endswith(f" {name}")), None)
