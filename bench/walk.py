"""How far one batch walks: the files and functions of the library that a call and a fit of a classifier pass.

Run as `python -m bench.walk`; `--list` names them in the order in which they are first entered.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

import hidden_uncertainty
from hidden_uncertainty import LatentDensity

PACKAGE = str(Path(hidden_uncertainty.__file__).parent)


def walk(step: Callable[[], Any]) -> list[tuple[str, str]]:
    """The functions of the library that a step enters, each once: its file and its qualified name."""
    seen: dict[tuple[str, str], None] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE) and not code.co_name.startswith("<"):
            seen.setdefault((str(Path(code.co_filename).relative_to(PACKAGE)), code.co_qualname))

    sys.setprofile(note)
    try:
        step()
    finally:
        sys.setprofile(None)
    return list(seen)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="name the functions")
    asked = parser.parse_args()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)).eval()
    x = torch.randn(600, 8)
    detector = LatentDensity(model, "1")
    steps: dict[str, Callable[[], Any]] = {
        "fit": lambda: detector.fit(x[:400].split(100), calibration=x[400:].split(100)),
        "call": lambda: detector(x[:4]),
    }
    for name, step in steps.items():
        passed = walk(step)
        print(f"{name}: {len({file for file, _ in passed})} files, {len(passed)} functions")
        if asked.list:
            print("\n".join(f"  {file}: {function}" for file, function in passed))


if __name__ == "__main__":
    main()
