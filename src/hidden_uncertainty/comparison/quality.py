"""How well scores detect unfamiliar inputs, and how well they rank errors on familiar ones."""

from __future__ import annotations

from torch import Tensor

from .. import metrics
from ..extract import Pixels
from ..uncertainty import Uncertainty


def detection(known: Uncertainty, unknown: Uncertainty) -> dict[str, float]:
    """How well the epistemic score tells unknown inputs from known ones.

    Example:
        >>> u = Uncertainty(prediction=torch.zeros(4), epistemic=torch.tensor([0.1, 0.2, 0.9, 0.3]))
        >>> detection(u[:2], u[2:])
        {'auroc': 1.0, 'average precision': 1.0, 'fpr95': 0.0}
    """
    scores = known.epistemic, unknown.epistemic
    return {
        "auroc": metrics.auroc(*scores),
        "average precision": metrics.average_precision(*scores),
        "fpr95": metrics.fpr_at_tpr(*scores, tpr=0.95),
    }


def errors(u: Uncertainty, label: Tensor | None, pixels: Pixels | None = None) -> dict[str, float]:
    """How large the errors are, and how well each score ranks them; nothing without labels.

    Args:
        u: predictions with their scores.
        label: what is true of each input: a class where classes are predicted, else numbers.
        pixels: says which labels of pixels to ignore.

    Example:
        >>> u = Uncertainty(prediction=torch.tensor([1, 1]), epistemic=torch.tensor([0.1, 0.2]))
        >>> errors(u, torch.tensor([1, 0]))
        {'accuracy': 0.5, 'aurc epistemic': 0.25}
    """
    if label is None:
        return {}
    prediction = u.prediction
    if label.numel() != prediction.numel() or label.is_floating_point() > prediction.is_floating_point():
        raise ValueError(
            f"predictions are of shape {tuple(prediction.shape)} and {prediction.dtype}, labels of "
            f"{tuple(label.shape)} and {label.dtype}: give labels like predictions, or none."
        )
    label = label.to(prediction.device).reshape(prediction.shape)
    # In the order of its logarithm the aleatoric score also ranks inputs whose entropy underflows.
    scores = {"epistemic": u.epistemic, "aleatoric": u.aleatoric if u.log_aleatoric is None else u.log_aleatoric}
    given = {name: score for name, score in scores.items() if score is not None}
    if pixels is not None:
        valid = pixels.valid(label)
        prediction, label = prediction[valid], label[valid]
        given = {name: score[valid] for name, score in given.items()}
    if prediction.is_floating_point():
        error = prediction.double() - label.double()
        if error.shape != given["epistemic"].shape:  # a vector per input
            error = error.flatten(1).norm(dim=1)
        return {
            "rmse": metrics.rmse(prediction, label),
            **{f"ause {name}": metrics.ause(score, error) for name, score in given.items()},
        }
    correct = prediction == label
    return {
        "accuracy": float(correct.double().mean()),
        **{f"aurc {name}": metrics.aurc(score, correct) for name, score in given.items()},
    }
