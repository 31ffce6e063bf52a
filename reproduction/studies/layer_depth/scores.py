"""Scores of layers, softmax, MC dropout and ensembles for images that move away from the data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from hidden_uncertainty import Uncertainty
from hidden_uncertainty.baselines import SoftmaxEntropy
from hidden_uncertainty.detector import Detector

from ..table_1.cells import Asked
from ..table_1.scores import DENSITY, Densities, Inputs

SOFTMAX, MC_DROPOUT, ENSEMBLE = "softmax", "mc-dropout", "ensemble"


class Scores(NamedTuple):
    """Scores of one repetition of a method for the same n images at every step; the first changes nothing."""

    epistemic: Tensor  # (steps, n)
    right: Tensor  # whether predictions are right, (steps, n)
    aleatoric: Tensor  # log of the unchanged images', which ranks them where the entropy underflows, (n,)


Found = dict[str, list[Scores]]  # repetitions, by method


def read_layers(networks: Sequence[nn.Module], asked: Asked) -> tuple[Found, int]:
    """Scores of every layer's density, one repetition per network, and how many mixtures warned.

    Softmax entropy is measured for the unchanged images only.

    Args:
        networks: trained.
        asked: layers to read, images to fit to and inputs to score.
    """
    inputs = asked.inputs
    wrapped = [asked.wrap(network) for network in networks]
    densities = Densities(wrapped, asked.layers, asked.images, inputs, asked.batch, asked.max_dim)
    steps = [densities.known, *densities.unknown.values()]  # features, by step and network
    right = [
        torch.stack([step[i].prediction == inputs.labels.to(step[i].prediction) for step in steps])
        for i in range(len(networks))
    ]
    found: Found = {method: [] for method in asked.layers.values()}
    for i, method, score in densities.scores(DENSITY):
        each = [score(step[i]) for step in steps]
        assert each[0].log_entropy is not None
        epistemic = -torch.stack([posterior.log_evidence for posterior in each])
        found[method].append(Scores(epistemic, right[i], each[0].log_entropy))
    clean = Inputs(inputs.known, inputs.labels, {})
    found[SOFTMAX] = [read_outputs(SoftmaxEntropy(network, progress=False), clean, asked.batch) for network in networks]
    return found, densities.warned


def read_outputs(method: Detector, inputs: Inputs, batch: int) -> Scores:
    """Scores of a method that reads outputs only.

    Args:
        method: ready to score.
        inputs: to score.
        batch: images per batch.
    """
    steps = [
        Uncertainty.cat([method(part) for part in images.split(batch)])
        for images in (inputs.known, *inputs.unknown.values())
    ]
    right = torch.stack([step.prediction == inputs.labels.to(step.prediction) for step in steps])
    assert steps[0].log_aleatoric is not None
    return Scores(torch.stack([step.epistemic for step in steps]), right, steps[0].log_aleatoric)
