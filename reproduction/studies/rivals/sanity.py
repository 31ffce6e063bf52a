"""Published results that show whether a rival is implemented right."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hidden_uncertainty.baselines import SoftmaxEntropy, one_gaussian_per_class
from hidden_uncertainty.demo.training import built
from hidden_uncertainty.metrics import auroc, rank_correlation

from ...rivals import DDU, DUQ, SNGP, Bottleneck, Known, Plain, Rival, Schedule, train
from ...rivals.base import BATCH
from ...rivals.duq import PIXELS, SmallCNN
from ...rivals.spectral import ResidualPerceptron
from ..table_1_fcnet.data import Grey, split
from .measure import accuracy
from .records import Record, Records

IMAGES = 30_000  # for training, at most
AWAY = 0.5  # how far a point is from all training points to be one that a network cannot know
CNN = Schedule(epochs=15, learning_rate=0.05, momentum=0.9, milestones=(5, 10))
CHANNELS = (16, 32, 32)  # a quarter of the published ones, which take half a second per step on one core
LONG = "DUQ CNN"
SETTINGS = {
    "DUQ two moons": "the authors' notebook: 3 layers of 20, 10 per embedding, σ 0.3, γ 0.99, λ 1, SGD, 30 epochs",
    "SNGP two moons": "6 layers of 128, bound 0.9, 1024 features, ℓ 1, Adam 1e-4, batches of 128, 100 epochs",
    "DUQ CNN": f"the authors' settings; a quarter of their channels, {CNN.epochs} epochs of {IMAGES:,} images, not 30",
    "VIB": f"2 layers of 1024, K 256, β 1e-3, Adam, batches of 100, 8 epochs of {IMAGES:,} images, not 200 of all",
    "DDU ambiguous": "10,000 digits and about as many means of two digits with either label, not a VAE's",
}


def moons(count: int, seed: int, *, noise: float = 0.1) -> tuple[Tensor, Tensor]:
    """Two half circles with noise, and which one each point is of.

    Example:
        >>> x, y = moons(10, seed=0)
        >>> x.shape, y.tolist()
        (torch.Size([10, 2]), [0, 0, 0, 0, 0, 1, 1, 1, 1, 1])
    """
    random = torch.Generator("cpu").manual_seed(seed)
    angle = torch.linspace(0, torch.pi, count // 2, device="cpu")
    outer = torch.stack([angle.cos(), angle.sin()], 1)
    inner = torch.stack([1 - angle.cos(), 0.5 - angle.sin()], 1)
    x = torch.cat([outer, inner])
    y = torch.arange(2, device="cpu").repeat_interleave(count // 2)
    return x + noise * torch.randn(x.shape, generator=random, device="cpu"), y


def plane(side: int = 60) -> Tensor:
    """A lattice around the moons, (side², 2), row by row."""
    across, up = torch.linspace(-2.5, 3.5, side, device="cpu"), torch.linspace(-3, 3, side, device="cpu")
    return torch.cartesian_prod(up, across).flip(1)


def run(
    records: Records,
    data: Grey,
    seeds: Sequence[int],
    *,
    quick: bool,
    names: Sequence[str] | None,
    made: Mapping[str, Any],
) -> list[Record]:
    """Every check, per seed; the one that takes long has one seed only.

    Args:
        records: where they are kept.
        data: of the study.
        seeds: of the networks.
        quick: small networks and few epochs.
        names: which checks; None takes all.
        made: commit and hardware.
    """
    checks: dict[str, Callable[[int, bool], Record]] = {
        "DUQ two moons": _duq_moons,
        "SNGP two moons": _sngp_moons,
        "DDU ambiguous": partial(_ambiguous, data),
        "VIB": partial(_bottleneck, data),
        "DUQ CNN": partial(_cnn, data),
    }
    found = []
    for name, check in checks.items():
        if names is None or name in names:
            for seed in seeds[:1] if name == LONG else seeds:

                def make(name: str = name, check: Any = check, seed: int = seed) -> Record:
                    start = time.perf_counter()
                    values = check(seed, quick)
                    seconds = round(time.perf_counter() - start, 1)
                    return {"check": name, "seed": seed, **values, **made, "seconds": seconds}

                own = records.of(schedule=asdict(CNN), channels=CHANNELS) if name == "DUQ CNN" else records
                found.append(own.find(f"check-{name}-{seed}".lower().replace(" ", "-"), make))
    return found


def _known(x: Tensor, y: Tensor) -> Known:
    return Known(x, y, x, y)


def _judge(score: Callable[[Tensor], Tensor], x: Tensor, test: Tensor) -> dict[str, Any]:
    """How a score rises away from the training points: far points of the plane beside test points."""
    where = plane()
    distance = torch.cdist(where, x).amin(1)
    values = score(where)
    return {
        "auroc far": round(auroc(negative=score(test), positive=values[distance > AWAY]), 5),
        "rank with distance": round(rank_correlation(values, distance), 5),
    }


def _detector(rival: Rival) -> Callable[[Tensor], Tensor]:
    _, detector = next(rival.detectors())
    return lambda x: detector(x).epistemic


def _duq_moons(seed: int, quick: bool) -> Record:
    x, y = moons(1500, seed)
    test, labels = moons(1000, seed + 1000)
    schedule = Schedule(3 if quick else 30, 64, 0.01, 1e-4, 0.9)
    found: Record = {"results": {}, "drawn": {}}
    for name, penalty in {"DUQ": 1.0, "DUQ without penalty": 0.0}.items():
        with built(seed):
            body = nn.Sequential(nn.Linear(2, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 20))
        options: dict[str, Any] = {"embedding": 10, "length_scale": 0.3, "momentum": 0.99, "count": 20, "spread": 1.0}
        rival = DUQ(body, 20, 2, penalty=penalty, seed=seed, **options)
        train(rival, x, y, schedule)
        score = _detector(rival)
        found["results"][name] = {"accuracy": accuracy(rival, test, labels), **_judge(score, x, test)}
        found["drawn"][name] = _rounded((-score(plane())).exp())
    return found


class _Small(Rival):
    """As SNGP's network for the moons, with a plain last layer and without bounds."""

    def __init__(self, seed: int, hidden: int) -> None:
        super().__init__(seed)
        with built(seed):
            layers = [nn.Linear(2, hidden), *(nn.Linear(hidden, hidden) for _ in range(5))]
            self.network = nn.Sequential(*(m for layer in layers for m in (layer, nn.ReLU())), nn.Linear(hidden, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self(x), y)

    def detectors(self) -> Any:
        yield "softmax entropy", SoftmaxEntropy(self, progress=False)


def _sngp_moons(seed: int, quick: bool) -> Record:
    x, y = moons(1000, seed)
    test, labels = moons(1000, seed + 1000)
    schedule = Schedule(3 if quick else 100, 128, 1e-4, 0.0)
    hidden = 16 if quick else 128
    body = ResidualPerceptron(2, hidden, depth=6, bound=0.9, seed=seed)
    options: dict[str, Any] = {"length_scale": 1.0, "factor": math.pi / 8, "scaled": True}
    rival = SNGP(body, hidden, 2, features=64 if quick else 1024, seed=seed, **options)
    plain = _Small(seed, hidden)

    @torch.no_grad()
    def variance(points: Tensor) -> Tensor:
        return rival.variance(rival.features(points))

    found: Record = {"results": {}, "drawn": {}}
    for each in (rival, plain):
        train(each, x, y, schedule)
    scores = {"SNGP": _detector(rival), "SNGP's variance": variance, "softmax entropy": _detector(plain)}
    for name, score in scores.items():
        network = plain if name == "softmax entropy" else rival
        found["results"][name] = {"accuracy": accuracy(network, test, labels), **_judge(score, x, test)}
        found["drawn"][name] = _rounded(score(plane()))
    return found


def blend(images: Tensor, labels: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Means of two images of different classes, each with the label of one of them at random."""
    random = torch.Generator("cpu").manual_seed(seed)
    other = torch.randperm(len(images), generator=random, device="cpu")
    rows = (labels != labels[other]).nonzero()[:, 0]
    first = torch.rand(len(rows), generator=random, device="cpu") < 0.5
    other = other[rows]
    return (images[rows] + images[other]) / 2, torch.where(first, labels[rows], labels[other])


def _ambiguous(data: Grey, seed: int, quick: bool) -> Record:
    """Digits, ambiguous digits and clothes: a density tells the last from both, entropy only the first from both."""
    images, labels = data.train["MNIST"]
    rows = split(images)[0][:10_000]
    mixed, either = blend(images[rows], labels[rows], seed)
    known = _known(torch.cat([images[rows], mixed]), torch.cat([labels[rows], either]))
    clean, of_clean = (part[::5] for part in data.test["MNIST"])
    unclear, _ = blend(clean, of_clean, seed + 1)
    clothes = data.test["FashionMNIST"][0][::5]
    found: Record = {"results": {}, "drawn": {}}
    small = {"hidden": 12} if quick else {}
    for name, rival in {"DDU": DDU(seed=seed, **small), "plain perceptron": Plain(seed=seed, **small)}.items():
        train(rival, known.x, known.y, Schedule(1 if quick else 20))
        layer = "body" if isinstance(rival, DDU) else "network.12"
        options: dict[str, Any] = {"condition": "label", "task": "classification", "progress": False}
        density = one_gaussian_per_class(rival, layer, shrinkage=None, **options).fit(known.batches())
        entropy = SoftmaxEntropy(rival, progress=False)
        by = {
            what: [detector.predict(x.split(BATCH)).epistemic for x in (clean, unclear, clothes)]
            for what, detector in {"density": density, "entropy": entropy}.items()
        }
        found["results"][name] = {
            "accuracy": accuracy(rival, clean, of_clean),
            "entropy: ambiguous": round(auroc(negative=by["entropy"][0], positive=by["entropy"][1]), 5),
            "entropy: clothes": round(auroc(negative=torch.cat(by["entropy"][:2]), positive=by["entropy"][2]), 5),
            "density: clothes": round(auroc(negative=torch.cat(by["density"][:2]), positive=by["density"][2]), 5),
        }
        found["drawn"][name] = {what: [_rounded(each) for each in values] for what, values in by.items()}
    return found


def _bottleneck(data: Grey, seed: int, quick: bool) -> Record:
    rival = Bottleneck(hidden=16 if quick else 1024, depth=2, seed=seed)
    images, labels = data.train["MNIST"]
    train(rival, images[:IMAGES], labels[:IMAGES], Schedule(1 if quick else 8, 100, 1e-3, 0.0, milestones=(4, 6)))
    return {"results": {"VIB": {"accuracy": accuracy(rival, *data.test["MNIST"])}}}


def _cnn(data: Grey, seed: int, quick: bool) -> Record:
    """FashionMNIST and MNIST."""
    body = SmallCNN((2, 4, 4), 16, seed=seed) if quick else SmallCNN(CHANNELS, seed=seed)
    rival = DUQ(body, 16 if quick else 256, pixels=PIXELS["FashionMNIST"], seed=seed)
    schedule = Schedule(1, 64, 0.05, momentum=0.9) if quick else CNN
    images, labels = data.train["FashionMNIST"]
    train(rival, images[:IMAGES], labels[:IMAGES], schedule)
    score = _detector(rival)
    inside, outside = (
        torch.cat([score(part) for part in data.test[name][0].split(BATCH)]) for name in ("FashionMNIST", "MNIST")
    )
    found = {"accuracy": accuracy(rival, *data.test["FashionMNIST"])}
    return {"results": {"DUQ": {**found, "auroc MNIST": round(auroc(negative=inside, positive=outside), 5)}}}


def _rounded(values: Tensor) -> list[float]:
    return [float(f"{value:.4g}") for value in values.double().tolist()]
