"""Images drawn as files, and a network that knows three kinds of them, as `docs/command-line.md` has them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

PAGE = Path(__file__).parents[2] / "docs/command-line.md"
CLASSES = ("bar", "disc", "ring")


def draw(kind: str, random: np.random.Generator) -> np.ndarray:
    """One shape on a noisy ground, (16, 16)."""
    y, x = np.mgrid[:16, :16] - random.uniform(6, 9, size=(2, 1, 1))
    radius, away = random.uniform(3, 5), np.hypot(x, y)
    upright = (abs(x) < 1.5) & (abs(y) < radius + 1)
    stripes = (x + y) % 5 < 2.5
    shape = {"bar": upright, "disc": away < radius, "ring": abs(away - radius) < 1, "stripes": stripes}[kind]
    return (255 * np.clip(0.2 + 0.6 * shape + random.normal(scale=0.05, size=shape.shape), 0, 1)).astype(np.uint8)


def save(pixels: np.ndarray, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def make(folder: Path) -> None:
    """Write net.py, net.pt and the photos of the page into a folder."""
    code = re.search(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert code is not None
    (folder / "net.py").write_text(code[1], encoding="utf-8")
    random, train = np.random.default_rng(0), []
    for part, count in {"train": 120, "unseen": 120}.items():
        for i in range(count * 3):
            pixels = draw(CLASSES[i % 3], random)
            save(pixels, folder / "photos" / part / CLASSES[i % 3] / f"{i:04}.png")
            if part == "train":
                train.append(pixels)
    for i in range(200):
        save(draw("stripes" if i % 4 == 3 else CLASSES[i % 3], random), folder / "photos/new" / f"{i:04}.png")
    for i in range(60):
        save(draw(CLASSES[i % 3], random), folder / "photos/test" / CLASSES[i % 3] / f"{i:04}.png")
        save(draw("stripes", random), folder / "photos/odd" / f"{i:04}.png")
    names: dict[str, object] = {}
    exec(code[1], names)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: nn.Module = names["network"]()  # type: ignore[operator]
        x = (torch.from_numpy(np.stack(train))[:, None] / 255 - 0.5) / 0.5
        y = torch.arange(len(x)) % 3
        optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
        for _ in range(15):
            for rows in torch.randperm(len(x)).split(30):
                optimiser.zero_grad()
                nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
                optimiser.step()
    torch.save(model.state_dict(), folder / "net.pt")
