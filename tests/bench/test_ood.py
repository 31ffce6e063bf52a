"""pytorch-ood is imported where torchvision cannot describe its operators, and is missed where it is not there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PEER = """
import torch, torchvision
class GMM: pass
"""
VISION = """
import torch
try:
    torch.ops.torchvision.nms, torch.ops.torchvision.qnms
except AttributeError:
    raise RuntimeError({what!r}) from None
"""
ASK = "from bench.ood import detectors\ntry: print(detectors().GMM.__name__)\nexcept ImportError as error: print(error)"


def printed(folder: Path) -> str:
    """In a process of its own: operators stay for as long as a process does."""
    path = {"PYTHONPATH": f"{folder}:{ROOT}"}
    done = subprocess.run([sys.executable, "-c", ASK], env=path, capture_output=True, text=True, check=True, cwd=folder)
    return done.stdout.strip()


def install(folder: Path, what: str) -> None:
    for name, text in (("torchvision", VISION.format(what=what)), ("pytorch_ood", ""), ("pytorch_ood/detector", PEER)):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(text)


def test_without_the_operators_that_nobody_uses(tmp_path: Path) -> None:
    install(tmp_path, "operator torchvision::nms does not exist")
    assert printed(tmp_path) == "GMM"


def test_what_is_wrong_otherwise_is_printed(tmp_path: Path) -> None:
    assert printed(tmp_path) == "No module named 'pytorch_ood'"
    install(tmp_path, "made for another torch")
    assert printed(tmp_path) == "pytorch-ood cannot be imported: made for another torch"
