"""Published results that show whether a rival is implemented right."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
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
from .effort import Effort, describe
from .measure import accuracy
from .records import Record, Records

AWAY = 0.5  # how far a point is from all training points to be one that a network cannot know
LONG = "DUQ CNN"
CHECKS = ("DUQ two moons", "SNGP two moons", "DDU ambiguous", "VIB", LONG)


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
    whole: Grey,
    seeds: Sequence[int],
    effort: Effort,
    *,
    quick: bool,
    names: Sequence[str],
    made: Mapping[str, Any],
) -> list[Record]:
    """Checks, per seed; on a processor, the one that takes long has one seed only.

    Args:
        records: where they are kept.
        data: of the study; the checks are run where they are.
        whole: with all training images.
        seeds: of the networks.
        effort: how much is trained.
        quick: small networks and few epochs.
        names: which checks.
        made: commit and hardware.
    """
    device = data.train["MNIST"][0].device
    checks: dict[str, Callable[[int, bool], Record]] = {
        "DUQ two moons": partial(_duq_moons, device),
        "SNGP two moons": partial(_sngp_moons, device),
        "DDU ambiguous": partial(_ambiguous, data),
        "VIB": partial(_bottleneck, data, effort),
        LONG: partial(_cnn, whole, effort),
    }
    found = []
    for name in CHECKS:
        if name in names:
            settings = describe(effort)[name]
            own = records.of(settings=settings, vib=asdict(effort.vib), cnn=asdict(effort.cnn))
            for seed in seeds if effort.every or name != LONG else seeds[:1]:

                def make(name: str = name, seed: int = seed, settings: str = settings) -> Record:
                    start = time.perf_counter()
                    values = checks[name](seed, quick)
                    spent = round(time.perf_counter() - start, 1)
                    about = {"check": name, "seed": seed, "effort": effort.name, "settings": settings}
                    return {**about, **values, **made, "seconds": spent}

                found.append(own.find(f"check-{name}-{seed}".lower().replace(" ", "-"), make))
    return found


def _known(x: Tensor, y: Tensor) -> Known:
    return Known(x, y, x, y)


def _judge(score: Callable[[Tensor], Tensor], x: Tensor, test: Tensor) -> dict[str, Any]:
    """How a score rises away from the training points: far points of the plane beside test points."""
    where = plane().to(x)
    distance = torch.cdist(where, x).amin(1).cpu()
    values = score(where)
    return {
        "auroc far": round(auroc(negative=score(test), positive=values[distance > AWAY]), 5),
        "rank with distance": round(rank_correlation(values, distance), 5),
    }


def _detector(rival: Rival) -> Callable[[Tensor], Tensor]:
    """Scores on the CPU."""
    _, detector = next(rival.detectors())
    return lambda x: detector(x).epistemic.cpu()


def _drawn(device: torch.device, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Moons on a device, the same on each."""
    x, y = moons(count, seed)
    return x.to(device), y.to(device)


def _duq_moons(device: torch.device, seed: int, quick: bool) -> Record:
    x, y = _drawn(device, 1500, seed)
    test, labels = _drawn(device, 1000, seed + 1000)
    schedule = Schedule(3 if quick else 30, 64, 0.01, 1e-4, 0.9)
    found: Record = {"results": {}, "drawn": {}}
    for name, penalty in {"DUQ": 1.0, "DUQ without penalty": 0.0}.items():
        with built(seed):
            body = nn.Sequential(nn.Linear(2, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 20))
        options: dict[str, Any] = {"embedding": 10, "length_scale": 0.3, "momentum": 0.99, "count": 20, "spread": 1.0}
        rival = DUQ(body, 20, 2, penalty=penalty, seed=seed, **options).to(device)
        train(rival, x, y, schedule)
        score = _detector(rival)
        found["results"][name] = {"accuracy": accuracy(rival, test, labels), **_judge(score, x, test)}
        found["drawn"][name] = _rounded((-score(plane().to(device))).exp())
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


def _sngp_moons(device: torch.device, seed: int, quick: bool) -> Record:
    x, y = _drawn(device, 1000, seed)
    test, labels = _drawn(device, 1000, seed + 1000)
    schedule = Schedule(3 if quick else 100, 128, 1e-4, 0.0)
    hidden = 16 if quick else 128
    body = ResidualPerceptron(2, hidden, depth=6, bound=0.9, seed=seed)
    options: dict[str, Any] = {"length_scale": 1.0, "factor": math.pi / 8, "scaled": True}
    rival = SNGP(body, hidden, 2, features=64 if quick else 1024, seed=seed, **options).to(device)
    plain = _Small(seed, hidden).to(device)

    @torch.no_grad()
    def variance(points: Tensor) -> Tensor:
        return rival.variance(rival.features(points)).cpu()

    found: Record = {"results": {}, "drawn": {}}
    for each in (rival, plain):
        train(each, x, y, schedule)
    scores = {"SNGP": _detector(rival), "SNGP's variance": variance, "softmax entropy": _detector(plain)}
    for name, score in scores.items():
        network = plain if name == "softmax entropy" else rival
        found["results"][name] = {"accuracy": accuracy(network, test, labels), **_judge(score, x, test)}
        found["drawn"][name] = _rounded(score(plane().to(device)))
    return found


def blend(images: Tensor, labels: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Means of two images of different classes, each with the label of one of them at random."""
    random = torch.Generator("cpu").manual_seed(seed)
    other = torch.randperm(len(images), generator=random, device="cpu").to(images.device)
    rows = (labels != labels[other]).nonzero()[:, 0]
    first = (torch.rand(len(rows), generator=random, device="cpu") < 0.5).to(images.device)
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
        train(rival.to(images.device), known.x, known.y, Schedule(1 if quick else 20))
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


def _bottleneck(data: Grey, effort: Effort, seed: int, quick: bool) -> Record:
    images, labels = data.train["MNIST"]
    rival = Bottleneck(hidden=16 if quick else 1024, depth=2, seed=seed).to(images.device)
    schedule = replace(effort.vib, epochs=1) if quick else effort.vib
    train(rival, images[: effort.images], labels[: effort.images], schedule)
    return {"results": {"VIB": {"accuracy": accuracy(rival, *data.test["MNIST"])}}}


def _cnn(data: Grey, effort: Effort, seed: int, quick: bool) -> Record:
    """FashionMNIST and MNIST."""
    images, labels = data.train["FashionMNIST"]
    body = SmallCNN((2, 4, 4), 16, seed=seed) if quick else SmallCNN(effort.channels, seed=seed)
    rival = DUQ(body, 16 if quick else 256, pixels=PIXELS["FashionMNIST"], seed=seed).to(images.device)
    schedule = replace(effort.cnn, epochs=1, batch_size=64) if quick else effort.cnn
    train(rival, images, labels, schedule)
    score = _detector(rival)
    inside, outside = (
        torch.cat([score(part) for part in data.test[name][0].split(BATCH)]) for name in ("FashionMNIST", "MNIST")
    )
    found = {"accuracy": accuracy(rival, *data.test["FashionMNIST"])}
    return {"results": {"DUQ": {**found, "auroc MNIST": round(auroc(negative=inside, positive=outside), 5)}}}


def _rounded(values: Tensor) -> list[float]:
    return [float(f"{value:.4g}") for value in values.double().tolist()]
