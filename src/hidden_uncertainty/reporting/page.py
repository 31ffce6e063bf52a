"""`report`: one page about a fitted detector."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Any

from ..detector import Detector
from ..extract import Features
from ..io import replacing
from ..plots.style import COLOURS
from ..progress import bars
from ..version import __version__
from . import alarms, sections
from .errors import errors
from .markup import Block, Html, fill, number, percent, tag
from .scored import Scored

KEEP, KEEP_MAPS = 6, 3  # inputs of each kind that are shown
DARK = ("#5AB4F0", "#FF8F45", "#2FC99B", "#E7A2CC", "#9AD3F5", "#F2B632", "#E8E8E8")  # COLOURS on a dark page
KNOWN = "in distribution"
TURNING = dict.fromkeys([*range(0x202A, 0x202F), *range(0x2066, 0x206A)], "\ufffd")  # the direction of text


def report(
    detector: Detector,
    loader: Iterable[Any],
    path: str | PathLike[str],
    *,
    outliers: Mapping[str, Iterable[Any]] | None = None,
    train: Features | Iterable[Any] | None = None,
    names: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    classes: Sequence[str] | None = None,
    title: str | None = None,
    progress: bool | None = None,
) -> Path:
    """Write one HTML page about a fitted detector, which needs no server and asks for nothing.

    It says what was fitted, how scores spread, what thresholds cost and catch, whether errors follow uncertainty, and
    which inputs to look at. What does not apply is left out with a sentence. Each loader is read once, batch by batch.

    Args:
        detector: fitted, and calibrated for thresholds and p-values.
        loader: inputs like the training data, but not from it; with labels for accuracy, probabilities and intervals.
        path: the file to write, in a folder that exists; it is replaced in one step.
        outliers: inputs that should be noticed, by name.
        train: training data, or features of them that `detector.extract` gave, to show the nearest of them. Pictures of
            them are then in the page.
        names: what to call the inputs of `loader`, in its order; or such names of any set, with those of `loader` under
            "in distribution".
        classes: what to call the classes, in the network's order.
        title: of the page.
        progress: show progress bars; None shows them on a terminal.

    Returns:
        The path.

    Example:
        >>> import tempfile, torch
        >>> from hidden_uncertainty.baselines import Energy
        >>> model = torch.nn.Linear(2, 3)
        >>> x = torch.randn(300, 2, generator=torch.Generator().manual_seed(0))
        >>> detector = Energy(model, task="classification").fit([], calibration=[x[:200]])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     report(detector, [x[200:]], f"{folder}/report.html", outliers={"far": [9 * x[:50]]}).name
        'report.html'
    """
    if not isinstance(detector, Detector):
        raise TypeError(
            f"report takes a fitted detector, such as LatentDensity(model).fit(...), not {type(detector).__name__}."
        )
    if outliers is not None and not isinstance(outliers, Mapping):
        raise TypeError(f"outliers takes loaders by name, such as {{'noise': loader}}, not {type(outliers).__name__}.")
    fitted = detector._fitted()
    pixels = detector.pixels is not None
    layers = [name for name, term in detector.terms.items() if term.layer is not None]
    near = None if pixels or train is None else (layers or detector.layers)[-1]
    if near is not None and isinstance(train, Features):
        train.require([near], {near: fitted.head.reductions[near]})
    called = {KNOWN: names} if isinstance(names, Sequence) else names or {}
    with replacing(path) as file, bars(detector.progress if progress is None else progress):
        keep = KEEP_MAPS if pixels else KEEP
        sets: list[Scored] = []
        for name, some in ((KNOWN, loader), *(outliers or {}).items()):
            sets.append(Scored(str(name), detector, keep, near).read(some))
            given, count = len(called.get(name, ())), sets[-1].count
            if name in called and given != count:
                raise ValueError(f"names has {given:,} entries, but the loader gave {count:,} inputs: give one each.")
        near = near if all(example.z is not None for example in sets[0].examples["surprising"]) else None
        what = "images" if pixels else "inputs"
        found, charts, threshold = alarms.views(detector, sets), dict[str, Any](), fitted.threshold
        blocks: dict[str, Block] = {
            "thresholds": alarms.thresholds(found[0], sets, threshold, what),
            "outliers": alarms.telling(found[0], sets),
            **alarms.layers(found, sets, sections.weights(detector)),
            **errors(sets[0], what, charts),
            "p": sections.p_values(sets[0], found[0].samples, what, charts),
        }
        values = {
            "title": f"{type(detector).__name__} on {type(detector.model).__name__}" if title is None else title,
            "about": ", ".join(f"{s.count:,} {what} “{s.name}”" for s in sets),
            "what": what,
            "key": _key(found[0], sets, threshold, what),
            "fitted": sections.fitted(detector, sets[0], what),
            "inputs": sections.inputs(detector, sets, called, classes, train, near),
            "version": __version__,
            "date": datetime.now(UTC).strftime("%Y-%m-%d, %H:%M UTC"),
        }
        data = {**alarms.interactive(found, sets, threshold), "charts": charts, "unit": what}
        # Names may be no UTF-8, or turn round what stands after them, numbers included.
        file.write(_page(values, blocks, data).translate(TURNING).encode(errors="replace"))
    return Path(path)


def _key(view: alarms.View, sets: list[Scored], threshold: float | None, what: str) -> Html:
    """The few numbers to remember."""
    first, cards, rates = sets[0], list[tuple[str, str]](), view.rates(alarms.RATES)
    if rates:
        rate, at = rates[view.start(threshold)]
        told = [f"like the training data raise a false alarm, where {percent(rate)} are accepted"]
        told += [f"“{s.name}” are caught at that rate" for s in sets[1:]]
        for s, count, text in zip(sets, view.above(at), told, strict=True):
            cards.append((percent(count / s.count), f"of {s.count:,} {what} {text}"))
    if "correct" in first:
        cards.append((percent(float(first["correct"].double().mean())), "of predictions are right"))
    if "error" in first:
        error = number(float(first["error"].square().mean().sqrt()))
        cards.append((error, "root mean squared error, in the output’s unit"))
    unusable = sum(int((~s["score "].isfinite()).sum()) for s in sets)
    if unusable:
        cards.append(
            (f"{unusable:,}", f"{what}: the network gave NaN or infinity for them, which counts as surprising")
        )
    return tag("ul", *(tag("li", tag("strong", value), tag("span", text)) for value, text in cards), class_="key")


def _page(values: Mapping[str, Any], blocks: Mapping[str, Block], data: Mapping[str, Any]) -> str:
    template = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    # No other script than this one may run, whatever a name in the page holds.
    script = template.rpartition("<script>")[2].partition("</script>")[0]
    own = {
        "hash": "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "colours": " ".join(
            f"--c{i}: light-dark({pair[0]}, {pair[1]});" for i, pair in enumerate(zip(COLOURS, DARK, strict=True))
        ),
        "data": Html(
            json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
        ),
    }
    return fill(template, {**values, **own}, blocks)
