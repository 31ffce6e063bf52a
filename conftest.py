import os

# Most tests are small: one thread a process is faster than two that wait for each other. Tests of threads ask for two.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch


@pytest.fixture(autouse=True)
def _examples(doctest_namespace, request):
    """Examples in docstrings know torch, and those that draw a network draw the same one each time."""
    doctest_namespace["torch"] = torch
    if type(request.node).__name__ == "DoctestItem":
        torch.manual_seed(0)
