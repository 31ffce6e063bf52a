"""What two processes do in tests/test_team.py: each runs all scenarios with its own shard, and says what came of it."""

from __future__ import annotations

import datetime
import os
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from hidden_uncertainty import Detector, GaussianMixture, JointMixture, LatentDensity, Reduce, team
from hidden_uncertainty.baselines import DeepEnsemble, Energy, Mahalanobis, NearestNeighbours
from reproduction.rivals.process import GaussianProcess

Pairs = list[tuple[Tensor, Tensor]]


def network(outputs: int = 3, width: int = 12) -> nn.Module:
    random = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(5, width), nn.Tanh(), nn.Linear(width, 8), nn.Tanh(), nn.Linear(8, outputs)).eval()
    for layer in (model[0], model[2], model[4]):
        layer.weight.data.copy_(torch.randn(layer.weight.shape, generator=random) / layer.in_features**0.5)
        layer.bias.data.zero_()
    return model


def data(n: int, seed: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 5, generator=random)
    return x, torch.randint(3, (n,), generator=random)


def shard(x: Tensor, y: Tensor, which: str, rank: int) -> Pairs:
    """The part of a process: of one, all. Uneven, by predicted class, or nothing for the second."""
    if rank < 0:
        mine = torch.ones(len(x), dtype=torch.bool)
    elif which == "uneven":
        mine = (torch.arange(len(x)) % 5 == 0) == (rank == 1)
    elif which == "classes":
        mine = (network()(x).argmax(1) == 2) == (rank == 1)
    else:
        mine = torch.full((len(x),), rank == 0)
    return list(zip(x[mine].split(64), y[mine].split(64), strict=True))


def fitted(build: Callable[[], Detector], which: str, rank: int, numbers: bool = False, **options: Any) -> Detector:
    (x, y), (unseen, labels) = data(600, 1), data(400, 2)
    if numbers:
        y, labels = x[:, 0] + 0.1 * y, unseen[:, 0] + 0.1 * labels
    options.setdefault("calibration", shard(unseen, labels, which, rank))
    return build().fit(shard(x, y, which, rank), **options)


def gathered(rank: int) -> Detector:
    detector = LatentDensity(network(), "1", GaussianMixture(1), reduce=Reduce(max_dim=4))
    parts = [data(300, 1), data(200, 5)]
    states = [detector.gather(shard(x, y, "uneven", rank)) for x, y in parts]
    return detector.fit_state(sum(states), calibration=shard(*data(400, 2), "classes", rank))


def continued(rank: int, components: int = 1) -> Detector:
    detector = LatentDensity(network(), "1", GaussianMixture(components, min_samples=5))
    for seed in (1, 5):
        detector.partial_fit(shard(*data(300, seed), "empty", rank), calibration=shard(*data(200, 2), "uneven", rank))
    return detector


def latent(*args: Any, **options: Any) -> Callable[[], Detector]:
    return lambda: LatentDensity(network(), *args, **options)


SAME: dict[str, Callable[[int], Detector]] = {
    "default, uneven": lambda rank: fitted(latent(), "uneven", rank),
    "default, a class in one process alone": lambda rank: fitted(latent(), "classes", rank),
    "default, an empty shard": lambda rank: fitted(latent(), "empty", rank),
    "labels": lambda rank: fitted(latent("1", GaussianMixture(pooling=2), condition="label"), "classes", rank),
    "principal components": lambda rank: fitted(
        latent("1", GaussianMixture(1), reduce=Reduce(max_dim=4, residual=True)), "empty", rank
    ),
    "sketched": lambda rank: fitted(
        lambda: LatentDensity(network(3, 2100), "1", GaussianMixture(1), max_dim=4), "uneven", rank
    ),
    "distances": lambda rank: fitted(lambda: Mahalanobis(network(), ["1", "3"]), "classes", rank),
    "mixtures": lambda rank: fitted(latent("3", GaussianMixture(2, min_samples=5)), "classes", rank),
    "neighbours": lambda rank: fitted(lambda: NearestNeighbours(network(), "1"), "empty", rank),
    "numbers": lambda rank: fitted(
        lambda: LatentDensity(network(1), "1", JointMixture(2), condition="label"), "empty", rank, numbers=True
    ),
    "networks": lambda rank: fitted(
        lambda: DeepEnsemble([network(), network(3, 20)], task="classification"), "classes", rank
    ),
    "outputs alone": lambda rank: fitted(lambda: Energy(network(), task="classification"), "uneven", rank),
    "added": gathered,
    "continued": continued,
    "rows, continued": lambda rank: continued(rank, 2),
}
BROKEN: dict[str, Callable[[int], Any]] = {
    "a loader raises": lambda rank: latent("1", GaussianMixture(1))().fit(_raising(rank)),
    "NaN": lambda rank: latent("1", GaussianMixture(1))().fit([torch.full((20, 5), float("nan") if rank else 1.0)]),
    "calibration in one": lambda rank: fitted(
        latent("1", GaussianMixture(1)), "uneven", rank, calibration=shard(*data(99, 2), "", -1) if rank else None
    ),
    "another density": lambda rank: latent("1", GaussianMixture(1 + rank))().fit([data(200, 1)]),
    "another condition": lambda rank: latent(
        "1", GaussianMixture(1), condition="label" if rank else "prediction"
    )().fit([data(200, 1)]),
    "another model": lambda rank: LatentDensity(network(3, 12 + rank), "1", GaussianMixture(1)).fit([data(50, 1)]),
    "no inputs at all": lambda rank: latent("1", GaussianMixture(1))().fit([]),
    "too few to calibrate": lambda rank: latent("1", GaussianMixture(1))().fit([data(200, 1)], calibration=[]),
    "a warning that is an error": lambda rank: latent("1", GaussianMixture(covariance="pooled"))().fit(_padded()),
    "a process that cannot": lambda rank: GaussianProcess().fit([data(50, 1)]),
}


def _padded() -> DataLoader[Any]:
    dataset = TensorDataset(*data(101, 1))
    return DataLoader(dataset, 16, sampler=DistributedSampler(dataset, shuffle=False))


def _raising(rank: int) -> Iterator[Tensor]:
    yield data(100, 1)[0]
    if rank == 1:
        raise OSError("the disk of this shard is gone")


def report(detector: Detector) -> dict[str, Any]:
    """What a detector says of inputs, and all that it holds."""
    u = detector(data(100, 9)[0])
    said = {"epistemic": u.epistemic, "p_value": u.p_value, "aleatoric": u.aleatoric}
    if u.prediction.is_floating_point():
        said["low"], said["high"] = detector.interval(u, 0.9)
    assert detector.head is not None and detector.head.calibration is not None
    margin = detector.head.calibration.margin
    return {"said": said, "state": detector.head.state_dict(), "repr": repr(detector), "margin": margin}


def run(rank: int, folder: str) -> None:
    """One of two processes."""
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    team.MEET = datetime.timedelta(seconds=3)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    found: dict[str, Any] = {}
    try:
        _same(rank, found)
        _broken(rank, found)
        torch.save(found, Path(folder) / f"{rank}.pt")
        _killed(rank, found)
    except BaseException:
        found["traceback"] = traceback.format_exc()
    torch.save(found, Path(folder) / f"{rank}.pt")
    os._exit(0)  # without waiting for the other, which is gone


def _same(rank: int, found: dict[str, Any]) -> None:
    for name, make in SAME.items():
        found[name] = report(make(rank))
    group = distributed.new_group([0, 1])
    found["a group"] = report(fitted(latent("1", GaussianMixture(1)), "uneven", rank, process_group=group))
    if rank == 0:  # the other one does not call
        found["alone"] = report(fitted(latent("1", GaussianMixture(1)), "uneven", -1, process_group=False))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        detector = latent("1", GaussianMixture(covariance="pooled"))().fit(_padded(), calibration=_padded())
        detector.calibrate(_padded())
    found["padded"] = [str(warning.message) for warning in caught]


def _broken(rank: int, found: dict[str, Any]) -> None:
    for name, make in BROKEN.items():
        try:
            make(rank)
            found[name] = "nothing"
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"


def _killed(rank: int, found: dict[str, Any]) -> None:
    def loader() -> Iterator[Tensor]:
        yield data(100, 1)[0]
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    start = time.monotonic()
    for name in ("killed", "never called"):  # of the second fit, the other process does not know any more
        try:
            latent("1", GaussianMixture(1))().fit(loader())
        except RuntimeError as error:
            found[name] = str(error)
        found.setdefault("seconds", time.monotonic() - start)
