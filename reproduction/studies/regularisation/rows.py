"""From networks of the regularisation study to rows, and the largest weight that costs no accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor

from hidden_uncertainty.metrics.regression import psnr
from reproduction.nets.reconstruction import Reconstruction

from ...nets.regularised import Regularised
from ...results import summarise
from ..layer_depth.data import Shift
from ..table_1.rows import DEFAULT
from ..table_1.scores import DENSITY, Densities

ACCURACY, VALIDATION, PSNR, AUROC = "accuracy", "validation accuracy", "psnr", "auroc"
MEAN = "mean auroc over steps"
RULE = (
    "the largest weight whose mean validation accuracy, of the weights that are read, is not below that of weight 0 by "
    "more than one deviation of the latter's trainings"
)
Found = dict[tuple[float, str | None, str], list[float]]  # by weight, unknown set and metric: one per training


def choose(accuracies: Mapping[float, Sequence[float]]) -> float:
    """The largest weight whose mean accuracy is not below that of weight 0 by more than one deviation of the latter.

    Args:
        accuracies: of every training, by weight.

    Example:
        >>> choose({0.0: [0.97, 0.98], 0.1: [0.98, 0.98], 1.0: [0.971, 0.971], 10.0: [0.93, 0.94]})
        1.0
    """
    plain = accuracies[0.0]
    least = fmean(plain) - (stdev(plain) if len(plain) > 1 else 0.0)
    return max(weight for weight, values in accuracies.items() if weight == 0 or fmean(values) >= least)


def measure(
    densities: Densities,
    weights: Sequence[float],
    labels: Tensor,
    test_labels: Tensor,
    held: Tensor,
    shift: Shift,
) -> Found:
    """Accuracy, validation accuracy and AUROC of every network, for unchanged images and after every step.

    Args:
        densities: of one layer of the networks.
        weights: of each network.
        labels: of the images that densities are fitted to.
        test_labels: of the known images, at every step.
        held: the rows of the images for early stopping.
        shift: the steps.
    """
    found: Found = {}

    def note(i: int, ood: str | None, metric: str, value: float) -> None:
        found.setdefault((weights[i], ood, metric), []).append(value)

    first, *steps = shift.names
    for i, areas in enumerate(densities.areas(DENSITY)):
        right = _share(densities.known[i].prediction, test_labels)
        note(i, None, ACCURACY, right)
        note(i, None, VALIDATION, _share(densities.train[i].prediction[held], labels[held]))
        note(i, first, ACCURACY, right)
        for name in steps:
            note(i, name, ACCURACY, _share(densities.unknown[name, DEFAULT][i].prediction, test_labels))
        for (name, _), layer in areas.items():
            note(i, name, AUROC, *layer.values())
        note(i, shift.kind, MEAN, fmean(value for name in steps for value in areas[name, DEFAULT].values()))
    return found


@torch.no_grad()
def quality(network: Regularised, images: Tensor, batch: int) -> float:
    """PSNR of images reconstructed from a network's layer.

    Args:
        network: trained, with its decoder.
        images: in [0, 1].
        batch: images per batch.
    """
    with Reconstruction(network.network, network.layer, network.decoder) as reconstruction:
        made = []
        for part in images.split(batch):
            network.network(part)
            made.append(reconstruction.reconstruct())
    return psnr(images, torch.cat(made))


def build_rows(train: str, found: Found) -> list[dict[str, Any]]:
    """One row per weight, metric and set; the paper draws these numbers and prints none.

    Example:
        >>> build_rows("MNIST", {(0.1, None, "psnr"): [20.0, 22.0]})[0]["method"]
        'weight 0.1'
    """
    return [
        {
            **summarise(values, train=train, ood=ood, method=f"weight {weight:g}", metric=metric),
            "paper_mean": None,
            "paper_std": None,
            "variant": DEFAULT,
        }
        for (weight, ood, metric), values in found.items()
    ]


def _share(prediction: Tensor, labels: Tensor) -> float:
    return float((prediction == labels.to(prediction.device)).double().mean())
