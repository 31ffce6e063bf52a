import os

# Most tests are small: one thread a process is faster than two that wait for each other. Tests of threads ask for two.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch


@pytest.fixture(autouse=True)
def _names_in_examples(doctest_namespace):
    doctest_namespace["torch"] = torch
