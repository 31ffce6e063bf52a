"""Security."""

import ast
import os
import subprocess
import sys
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


# In a process of its own, whose memory is limited to what it has and 300 MB.
FUZZED = """
import copy, os, random, resource, sys, warnings
from pathlib import Path
import torch
from fixtures.networks import network
from hidden_uncertainty import LatentDensity, io
from hidden_uncertainty.baselines import Mahalanobis, NearestNeighbours
from hidden_uncertainty.detector import Detector

os.fsync = lambda file: None
warnings.simplefilter("ignore")
torch.set_num_threads(1)
random, target = random.Random(0), Path(sys.argv[2])
cases = []
for case in ("classes-full", "classes-flow", "classes-pca-residual", "number-joint", "number-histogram", "vector-flow"):
    model = network(case)
    old = LatentDensity.load(Path(sys.argv[1]) / f"{case}.safetensors", model)
    old.save(target)
    cases += [(model, *io.read(Path(sys.argv[1]) / f"{case}.safetensors")), (model, *io.read(target))]
model = network("classes")
for kind in (Mahalanobis, NearestNeighbours):
    kind(model, ["hidden", "out"], task="classification").fit([torch.randn(200, 1, 6, 6)]).save(target)
    cases.append((model, *io.read(target)))

OTHERS = [None, True, -1, 0, 2, 7, 1 << 20, 1 << 40, 1 << 62, 10**30, 0.5, -1e300, "", "float64", [], [1 << 40], {}]

def places(part, at=()):
    for key, value in part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ():
        yield (*at, key)
        yield from places(value, (*at, key))

def change(header):
    *at, key = random.choice(list(places(header)))
    part = header
    for step in at:
        part = part[step]
    value = part[key]
    if random.random() < 0.3:
        del part[key]
    elif isinstance(value, int) and random.random() < 0.5:
        part[key] = random.choice([value * 10**6, value * 10**12, -value, value + 1])
    else:
        part[key] = copy.deepcopy(random.choice(OTHERS))

size = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
resource.setrlimit(resource.RLIMIT_AS, (size + (300 << 20),) * 2)
refused = 0
for _ in range(250):
    model, header, tensors = random.choice(cases)
    header = copy.deepcopy(header)
    for _ in range(random.choice((1, 1, 3))):
        change(header)
    io.write(target, header, tensors)
    try:
        Detector.load(target, model)
    except ValueError as error:
        refused += 1
        assert len(str(error)) > 20, error
print(refused)
"""


@tried(
    "250 files whose header was changed at random, with sizes up to 10^30 and a right digest",
    "each loads, or a clear error; at most 300 MB are allocated",
)
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc and limits of memory")
def test_changed_headers(tmp_path):
    tests = Path(__file__).parents[1]
    command = [sys.executable, "-c", FUZZED, str(tests / "fixtures" / "0.1.0"), str(tmp_path / "detector.safetensors")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tests), str(tests.parent / "src")]),
        "OMP_NUM_THREADS": "1",
    }
    result = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, env=environment)
    assert result.returncode == 0, result.stderr[-2000:]
    assert int(result.stdout) > 150
