import os

# Most tests are small: one thread a process is faster than two that wait for each other. Tests of threads ask for two.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from importlib.util import find_spec

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before it is imported: kernels run as Python
collect_ignore = [] if find_spec("triton") else ["reproduction/training/fused_norm.py"]


@pytest.fixture(autouse=True)
def _examples(doctest_namespace, request):
    """Examples in docstrings know torch, and those that draw a network draw the same one each time."""
    doctest_namespace["torch"] = torch
    if type(request.node).__name__ == "DoctestItem":
        torch.manual_seed(0)
