"""`compare`: fit, score and time several methods in one run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from inspect import signature
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..extract import Pixels
from ..model.batches import Adapter, batches, dtype_of, require_repeatable, unpack
from ..model.capture import device_of, lend
from ..progress import bars, progress_bar
from ..uncertainty import Uncertainty
from .measure import detection, errors, hardware, milliseconds, versions
from .table import FORWARD, Comparison

TIMED = 512  # inputs, or a few more: whole batches


class Comparable(Protocol):
    """Scores inputs, as `LatentDensity` and every baseline do; to be fitted here it needs `fit(loader)` too."""

    def predict(self, loader: Iterable[Any], /) -> Uncertainty:
        """Score all of a loader."""


def compare(
    methods: Mapping[str, Comparable],
    in_distribution: Iterable[Any],
    out_of_distribution: Iterable[Any] | Mapping[str, Iterable[Any]],
    *,
    train: Iterable[Any] | None = None,
    calibration: Iterable[Any] | None = None,
    model: nn.Module | None = None,
    rounds: int = 5,
    unpack: Adapter | None = None,
    progress: bool | None = None,
) -> Comparison:
    """Fit methods, score the same data with each, and tell how well it detects and what it costs.

    ====================  =============================================================================================
    metric                what it is
    ====================  =============================================================================================
    `auroc`               of the epistemic score, in-distribution inputs against the others; so are
                          `average precision` and `fpr95`
    `accuracy`            of predictions on the in-distribution inputs, where they have labels; `rmse` of numbers; for
                          pixels, without those that the method's `pixels.ignore` names
    `aurc epistemic`      risk-coverage area there, ranked by the epistemic score; `ause epistemic` of numbers
    `aurc aleatoric`      the same, ranked by the aleatoric score, of methods that have one
    `fit seconds`         of one call of `fit`, with the network's passes over the training data
    `ms per input`        of `predict`, forward passes included, on the first 512 in-distribution inputs in the
                          loader's batches, already in memory; the median of rounds in which methods take turns
    `times forward`       that, in plain forward passes of the network
    ====================  =============================================================================================

    Args:
        methods: what to compare, by name.
        in_distribution: inputs like the training data, but not from it.
        out_of_distribution: inputs to be detected: one loader, or several by name.
        train: what each method is fitted to; None if all are fitted already.
        calibration: data that the network was not trained on, given to the methods whose `fit` takes it.
        model: the network whose plain forward pass is timed; None is that of the first method that has one.
        rounds: of timing.
        unpack: as for the methods; each of them needs it too.
        progress: show a bar; None shows it on a terminal.

    Example:
        >>> from hidden_uncertainty import GaussianMixture, LatentDensity
        >>> model = nn.Sequential(nn.Tanh(), nn.Identity())    # of three numbers, which is the largest?
        >>> x = torch.randn(900, 3, generator=torch.Generator().manual_seed(0))
        >>> methods = {"density": LatentDensity(model, "0", GaussianMixture(components=1), task="classification")}
        >>> found = compare(methods, x[:300].split(100), {"far": [9 + x[:50]]}, train=x[300:].split(100))
        >>> found.value("density", "auroc", "far") > 0.99
        True
    """
    ood = dict(out_of_distribution) if isinstance(out_of_distribution, Mapping) else {"ood": out_of_distribution}
    _check(methods, ood, train, calibration, rounds)
    given = {"in_distribution": in_distribution, "train": train, "calibration": calibration}
    _check_loaders(given | {f"out_of_distribution {name!r}": loader for name, loader in ood.items()}, unpack)
    known = LabelledLoader(in_distribution, unpack)
    if model is None:
        networks = (getattr(method, "model", None) for method in methods.values())
        model = next((network for network in networks if isinstance(network, nn.Module)), None)

    rows: list[dict[str, Any]] = []

    def add(method: str, ood: str | None, found: Mapping[str, float]) -> None:
        rows.extend({"method": method, "ood": ood, "metric": metric, "value": value} for metric, value in found.items())

    counts: dict[str, int] = {}
    with bars(progress), progress_bar("comparing", len(methods)) as bar:
        for name, method in methods.items():
            try:
                if train is not None:
                    add(name, None, {"fit seconds": _fit(method, train, calibration)})
                inside = _uncertainty(method, known)
                pixels = getattr(method, "pixels", None)
                add(name, None, errors(inside, known.label(), pixels if isinstance(pixels, Pixels) else None))
                counts["in_distribution"] = len(inside)
                for what, loader in ood.items():
                    outside = _uncertainty(method, loader)
                    add(name, what, detection(inside, outside))
                    counts[what] = len(outside)
            except Exception as error:
                raise RuntimeError(f"method {name!r} failed: {type(error).__name__}: {error}") from error
            bar.advance(method=name)

    items, sizes = known.first(TIMED)
    sides: dict[str, Callable[[], Any]] = {name: partial(method.predict, items) for name, method in methods.items()}
    if model is not None:
        sides = {FORWARD: partial(_forward, model, items, unpack), **sides}
    with bars(False):  # drawing a bar may take longer than what is timed
        times = milliseconds(sides, rounds)
    for name, ms in times.items():
        add(name, None, {"ms per input": ms / sum(sizes)})
        if model is not None:
            add(name, None, {"times forward": ms / times[FORWARD]})
    rows.sort(key=lambda row: [FORWARD, *methods].index(row["method"]))
    device = None if model is None else device_of(model)
    about = {
        "inputs": counts,
        "timed inputs": sum(sizes),
        "batch": max(sizes),
        "rounds": rounds,
        "threads": torch.get_num_threads(),
        "device": str(device or "cpu"),
        "hardware": hardware(),
        "versions": versions(),
    }
    return Comparison(rows, about)


class LabelledLoader:
    """A loader that remembers the labels it gave, so that they are in the order of the scores even if it shuffles."""

    def __init__(self, loader: Iterable[Any], adapter: Adapter | None = None) -> None:
        self.loader, self.adapter = loader, adapter
        self.labels: list[Tensor | None] = []

    def __iter__(self) -> Iterator[Any]:
        self.labels = []
        for item in self.loader:
            label = unpack(item, self.adapter).label
            self.labels.append(None if label is None else label.clone())  # the loader may use its memory again
            yield item

    def label(self) -> Tensor | None:
        """All labels of the last pass, on the CPU; None when there were none."""
        found = [label.cpu() for label in self.labels if label is not None]
        if found and len(found) < len(self.labels):
            raise ValueError(f"only {len(found)} of {len(self.labels)} batches have labels: give all of them or none.")
        return torch.cat(found) if found else None

    def first(self, count: int) -> tuple[list[Any], list[int]]:
        """Batches of at least `count` inputs together, or all there are, as the loader gives them; and their sizes."""
        items, sizes = list[Any](), list[int]()
        for item in self.loader:
            items.append(item)
            sizes.append(len(unpack(item, self.adapter)))
            if sum(sizes) >= count:
                break
        return items, sizes


def _check(methods: Mapping[str, Any], ood: Mapping[str, Any], train: Any, calibration: Any, rounds: int) -> None:
    if not isinstance(methods, Mapping):
        raise TypeError(
            f"methods must be a mapping from names to methods, such as {{'energy': Energy(model)}}, not "
            f"{type(methods).__name__}."
        )
    if not methods or not ood:
        raise ValueError("there is nothing to compare: give at least one method and one out_of_distribution loader.")
    needed = ("predict",) if train is None else ("fit", "predict")
    for name, method in methods.items():
        missing = [call for call in needed if not callable(getattr(method, call, None))]
        if missing or isinstance(method, type):
            kind = f"the class {method.__name__}" if isinstance(method, type) else f"of type {type(method).__name__}"
            calls = " and ".join(f"{call}(loader)" for call in needed)
            raise TypeError(f"method {name!r} is {kind}: expected an object with {calls}.")
    if FORWARD in methods:
        raise ValueError(f"{FORWARD!r} is the name of the network's own row: give the method another.")
    if calibration is not None and train is None:
        raise ValueError("calibration is for fitting, but train is None: pass both, or neither.")
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, not {rounds}.")


def _check_loaders(loaders: Mapping[str, Iterable[Any] | None], adapter: Adapter | None) -> None:
    """Raise, with the name of the loader that cannot be read, can be read only once, or gives nothing."""
    for name, loader in loaders.items():
        if loader is not None:
            try:
                require_repeatable(loader, passes=2)
                next(batches(loader, adapter))
            except (TypeError, ValueError) as error:
                raise type(error)(f"{name}: {error}") from error


def _fit(method: Any, train: Iterable[Any], calibration: Iterable[Any] | None) -> float:
    takes = calibration is not None and "calibration" in signature(method.fit).parameters
    start = time.perf_counter()
    method.fit(train, **({"calibration": calibration} if takes else {}))
    return time.perf_counter() - start


def _uncertainty(method: Comparable, loader: Iterable[Any]) -> Uncertainty:
    u = method.predict(loader)
    if not isinstance(u, Uncertainty):
        raise TypeError(f"predict gave an object of type {type(u).__name__}; expected an Uncertainty.")
    return u.cpu()


def _forward(network: nn.Module, items: list[Any], adapter: Adapter | None) -> None:
    device = device_of(network)

    def work(inner: nn.Module) -> None:
        for batch in batches(items, adapter, device, dtype_of(network)):
            inner(*batch.args, **batch.kwargs)

    lend(network, {}, work)
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)
