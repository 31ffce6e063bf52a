"""How the house is built: what `make lint` does not check."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = [*sorted((ROOT / "src").rglob("*.py")), *sorted((ROOT / "reproduction").rglob("*.py"))]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_private_modules_stay_in_their_folder(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level != 1:
            private = [part for part in (node.module or "").split(".") if part.startswith("_") and part != "__future__"]
            ours = node.level > 1 or (node.module or "").startswith(("hidden_uncertainty", "reproduction"))
            tested = "tests" in path.parts  # a test may look into the module that it tests
            assert not (private and ours) or tested, f"{path}:{node.lineno} imports {node.module}"


def test_folders_and_modules_are_small() -> None:
    long = {str(path.relative_to(ROOT)): lines for path in MODULES if (lines := _lines(path)) > 400}
    assert not long
    counts = {folder: len(list(folder.glob("*.py"))) for folder in {path.parent for path in MODULES}}
    crowded = {str(folder.relative_to(ROOT)): count for folder, count in counts.items() if count > 14}
    assert not crowded


def test_import_loads_what_scoring_needs_alone() -> None:
    others = {"scipy", "sklearn", "rich", "matplotlib", "pandas"}
    code = f"import sys, hidden_uncertainty; print({others} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    assert found.stdout.strip() == "set()"


def _lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())
