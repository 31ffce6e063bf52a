"""How good images are that were reconstructed from an activation."""

from __future__ import annotations

import math

from ._values import Values, as_scores


def psnr(x: Values, reconstruction: Values, peak: float = 1.0) -> float:
    r"""Peak signal-to-noise ratio in decibels, over all images together; infinite where nothing differs.

    .. math:: 10 \log_{10} \frac{\mathrm{peak}^2}{\mathrm{MSE}(x, \hat x)}

    Args:
        x: images of any shape.
        reconstruction: of the same shape.
        peak: the largest value that a pixel can have: 1 for images in [0, 1], 255 for bytes.

    Example:
        >>> psnr([0.0, 1.0], [0.1, 0.9])
        20.0
    """
    true, found = as_scores(x, "x"), as_scores(reconstruction, "reconstruction")
    if true.shape != found.shape:
        raise ValueError(
            f"x and reconstruction must have the same shape, not {tuple(true.shape)} and {tuple(found.shape)}."
        )
    if not (peak > 0 and math.isfinite(peak)):
        raise ValueError(f"peak must be positive and finite, got {peak}.")
    for name, values in (("x", true), ("reconstruction", found)):
        if not values.isfinite().all():
            raise ValueError(f"{name} must be finite, but holds NaN or infinity.")
    error = float((true - found.to(true.device)).div_(peak).square_().mean())
    return math.inf if error == 0 else -10 * math.log10(error)
