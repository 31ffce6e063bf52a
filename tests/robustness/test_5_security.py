"""Security."""

import ast
from pathlib import Path

import pytest

import hidden_uncertainty
from tried import tried

SOURCES = sorted(Path(hidden_uncertainty.__file__).parent.rglob("*.py"))
MODULES = {
    *("pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "subprocess", "pty", "ctypes"),
    *("socket", "ssl", "http", "urllib", "ftplib", "smtplib", "requests", "httpx", "aiohttp"),
}
CALLS = {"eval", "exec", "compile", "__import__", "system", "popen", "spawn", "execv", "hub.load", "allow_pickle"}


def findings(source: str) -> list[str]:
    """Names of forbidden modules and calls in Python source."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.split(".")[0] in MODULES]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in MODULES and not node.level:
            found.append(node.module or "")
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in CALLS or (name.startswith("os.") and name.split(".")[-1] in CALLS):
                found.append(name)
            if name in ("torch.load", "load") and ("torch" in name) and "weights_only=True" not in ast.unparse(node):
                found.append("torch.load without weights_only=True")
            found += [word.arg for word in node.keywords if word.arg in ("allow_pickle", "shell")]
    return found


@tried("pickle, eval, a shell or the network in the library", "none: every source file is scanned")
def test_sources():
    assert len(SOURCES) > 50
    assert not {path.name: found for path in SOURCES if (found := findings(path.read_text(encoding="utf-8")))}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from urllib.request import urlopen",
        "import os\nos.system('ls')",
        "eval('1')",
        "import numpy as np\nnp.load('x', allow_pickle=True)",
        "import torch\ntorch.load('x')",
        "run('ls', shell=True)",
    ],
)
def test_the_scan_finds_what_it_looks_for(source):
    assert findings(source)


def test_the_scan_leaves_the_rest_alone():
    assert findings("import re\nre.compile('x')\nmodel.eval()\nimport torch\ntorch.load('x', weights_only=True)") == []
