import pytest
import torch


@pytest.fixture(autouse=True)
def _names_in_examples(doctest_namespace):
    doctest_namespace["torch"] = torch
