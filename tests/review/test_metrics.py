"""Metrics that cannot be misread."""

import pytest
import torch

from found import found
from hidden_uncertainty import metrics

try:
    from reproduction.studies.segmentation.stream import PixelDetection
except ImportError:  # version 0.1.0
    from hidden_uncertainty.metrics import PixelDetection


@found(
    "A21",
    "`metrics.auroc(labels, scores)`, in the order of scikit-learn",
    "another number, silently: 0.5 instead of 0.75",
    "an error with the call to write: metrics take the two groups of scores by name",
)
def test_scikit_learn_s_order():
    labels, scores = torch.tensor([0, 0, 1, 1]), torch.tensor([0.1, 0.4, 0.35, 0.8])
    with pytest.raises(TypeError):
        metrics.auroc(labels, scores)
    assert metrics.auroc(negative=scores[labels == 0], positive=scores[labels == 1]) == 0.75


@found(
    "C37",
    "metrics of a stream whose scores are near 1e-300",
    "AUROC 0.5 with bounds 0 and 1, where it is 0.75",
    "0.75: bins reach as far as float64 does",
)
def test_tiny_scores_in_a_stream():
    meter = PixelDetection(16)
    meter.update(1e-300 * torch.tensor([1, 4, 3, 8], dtype=torch.float64), torch.tensor([False, False, True, True]))
    assert float(meter.auroc) == 0.75
