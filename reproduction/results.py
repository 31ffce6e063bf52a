"""A result is a file: numbers, and everything needed to make them again."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from hidden_uncertainty import plots
from hidden_uncertainty.comparison.measure import hardware, versions
from hidden_uncertainty.io import replacing

LARGE = 500_000  # bytes of a picture


@dataclass
class Study:
    """What a study found.

    Args:
        name: of the study, and of its file.
        rows: flat objects: what each is about, and `method`, `metric`, `mean`, `std`, `n`.
        seeds: of the repetitions.
        data: a digest of each data set.
        seconds: how long it took.
        settings: choices, fixed before anything was measured, and how the run went.
        curves: the numbers of the pictures, by name.
        pictures: figures by the end of their name: `""` is NAME.png, `"fit"` is NAME-fit.png.
        hardware: what it was measured on; None is this machine.
        versions: what it was measured with; None are those that are installed.
    """

    name: str
    rows: list[dict[str, Any]]
    seeds: Sequence[int]
    data: Mapping[str, str]
    seconds: float
    settings: Mapping[str, Any] = field(default_factory=dict)
    curves: Mapping[str, Any] = field(default_factory=dict)
    pictures: Mapping[str, Figure] = field(default_factory=dict)
    hardware: str | None = None
    versions: Mapping[str, str] | None = None

    def write(self, folder: str | os.PathLike[str], command: str) -> Path:
        """Write `NAME.json`, whole or not at all, with commit, hardware and versions, and the pictures beside it."""
        content = {
            "name": self.name,
            "command": command,
            "commit": commit(),
            "hardware": self.hardware or hardware(),
            "versions": dict(self.versions or versions()),
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
            compact(plots.save(figure, path.with_name(f"{self.name}{'-' * bool(suffix)}{suffix}.png")))
        partial = path.with_suffix(".partial")
        text = json.dumps(content, indent=2, ensure_ascii=False)
        # The numbers of a curve go on one line.
        text = re.sub(r"\[\s+(-?[\d.]+(?:e-?\d+)?(?:,\s+-?[\d.]+(?:e-?\d+)?)*)\s+\]", _one_line, text)
        partial.write_text(text + "\n", encoding="utf-8")
        partial.replace(path)
        return path


def compact(picture: Path) -> None:
    """Write a picture again with 256 colours, as sharp as before, where it is large, as maps are."""
    if picture.stat().st_size > LARGE:
        with Image.open(picture) as whole:
            few = whole.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE)
        with replacing(picture) as file:
            few.save(file, format="PNG", optimize=True)


def _one_line(numbers: re.Match[str]) -> str:
    return f"[{', '.join(numbers[1].split())}]".replace(",,", ",")


def summarise(values: Sequence[float], **about: Any) -> dict[str, Any]:
    """A row: mean and standard deviation over repetitions.

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


def commit() -> str | None:
    """The commit of the clone or worktree that this file is in, read from its .git; None if there is none."""
    git = Path(__file__).resolve().parents[1] / ".git"
    if git.is_file():  # a worktree's says where its own HEAD is
        git = git.parent / git.read_text().removeprefix("gitdir: ").strip()
    if not (git / "HEAD").is_file():
        return None
    text = (git / "HEAD").read_text().strip()
    if not text.startswith("ref: "):
        return text
    name, shared = text.removeprefix("ref: "), git / "commondir"
    if shared.is_file():  # branches are kept where the first clone is
        git = git / shared.read_text().strip()
    if (git / name).is_file():
        return (git / name).read_text().strip()
    packed = git / "packed-refs"  # where git gc puts refs
    lines = packed.read_text().splitlines() if packed.is_file() else []
    return next((line.split()[0] for line in lines if line.endswith(f" {name}")), None)
