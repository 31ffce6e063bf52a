"""Other ways to an uncertainty for the same network, each from images to scores and predictions."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal

from hidden_uncertainty.baselines import DeepEnsemble, MCDropout, insert_dropout

from . import ood
from .data import CLASSES, clusters
from .resnet import Block

MEMBERS = 10


def methods(model: nn.Sequential, rows: int) -> dict[str, Callable[[Tensor], Any]]:
    """An ensemble and MC dropout of ten, and one Gaussian a class at the last hidden layer by three other hands."""
    body, last = model[:-1], model[-1]
    assert isinstance(last, nn.Linear)
    z, y = clusters(rows, last.in_features)
    members = [copy.deepcopy(model) for _ in range(MEMBERS)]
    return {
        "ensemble": DeepEnsemble(members, task="classification"),
        "mc-dropout": MCDropout(insert_dropout(model, 0.1, after=Block), MEMBERS, task="classification"),
        "multivariate-normal": _gaussians(body, last, z, y),
        **_pytorch_ood(body, last, z, y),
    }


def _gaussians(body: nn.Module, last: nn.Linear, z: Tensor, y: Tensor) -> Callable[[Tensor], Any]:
    """One `MultivariateNormal` a class, as the code of deep deterministic uncertainty (DDU) has it."""
    covariance = torch.stack([torch.cov(z[y == c].T) for c in range(CLASSES)]) + 1e-3 * torch.eye(z.shape[1])
    mean = torch.stack([z[y == c].mean(0) for c in range(CLASSES)])
    normal = MultivariateNormal(mean, scale_tril=torch.linalg.cholesky(covariance))

    def score(images: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            hidden = body(images)
            return last(hidden).argmax(1), -normal.log_prob(hidden[:, None]).logsumexp(1)

    return score


def _pytorch_ood(body: nn.Module, last: nn.Linear, z: Tensor, y: Tensor) -> dict[str, Callable[[Tensor], Any]]:
    """Detectors of pytorch-ood, where it can be imported: it needs torchvision."""
    try:
        peer = ood.detectors()
    except ImportError:
        return {}

    def scorer(detector: Any) -> Callable[[Tensor], Any]:
        fitted = detector.fit_features(z, y)

        def score(images: Tensor) -> tuple[Tensor, Tensor]:
            with torch.no_grad():
                hidden = body(images)
                return last(hidden).argmax(1), fitted.predict_features(hidden)

        return score

    gaussians = {"pytorch-ood gmm": peer.GMM(None, reg=1e-3), "pytorch-ood mahalanobis": peer.Mahalanobis(None)}
    return {name: scorer(detector) for name, detector in gaussians.items()}
