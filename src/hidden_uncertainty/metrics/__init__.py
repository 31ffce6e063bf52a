"""How well scores detect, rank errors and state confidence: pure functions of tensors that return Python floats.

Scores are higher when more uncertain. Inputs of any shape are flattened, so maps of pixels need no preparation, and
are compared in float64 on the device of the first argument. Scores of +inf and -inf are legal and ordered; NaN and
empty input raise a ValueError. Arguments that could be swapped unnoticed are taken by name.
"""

from .detection import (
    Values,
    accuracy_rejection,
    as_scores,
    aurc,
    auroc,
    average_precision,
    expected_calibration_error,
    fpr_at_tpr,
    raulc,
    roc_curve,
)
from .regression import ause, psnr, rank_correlation, rmse, sparsification, sparsification_oracle

__all__ = [
    "Values",
    "accuracy_rejection",
    "as_scores",
    "aurc",
    "auroc",
    "ause",
    "average_precision",
    "expected_calibration_error",
    "fpr_at_tpr",
    "psnr",
    "rank_correlation",
    "raulc",
    "rmse",
    "roc_curve",
    "sparsification",
    "sparsification_oracle",
]
