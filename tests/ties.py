"""How far p-values may differ where scores differ in their last digits, which other processors round otherwise."""

from __future__ import annotations

from torch import Tensor

from hidden_uncertainty.scoring.calibration import Calibration


def near_ties(scores: Tensor, calibration: Calibration, rtol: float, atol: float, other: float = 0.0) -> Tensor:
    """How many known scores are no farther away than scores may differ, and known ones reach.

    Args:
        scores: new ones, (n,).
        calibration: what they are compared with.
        rtol, atol: how far scores may differ.
        other: the margin that was measured in another run, where other batches were compared.
    """
    usual, scores = calibration.scores.abs().median(), scores[:, None]
    off = rtol * scores.abs() + atol + 2 * max(calibration.margin, other) * scores.abs().maximum(usual)
    return ((calibration.scores - scores).abs() <= off).sum(1)
