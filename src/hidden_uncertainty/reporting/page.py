"""`report`: one page about a fitted detector, with what was fitted and which inputs to look at."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from matplotlib.colors import to_rgb
from torch import Tensor

from ..baselines.base import AsRead
from ..detector import Detector
from ..extract import Extractor, Features
from ..io import replacing
from ..plots.pixels import CLASS_COLOURS
from ..plots.style import COLOURS
from ..progress import bars
from ..scoring.bayes import DensityMethod
from ..version import __version__
from . import numbers
from .markup import Block, Html, fill, joined, left_out, number, percent, picture, table, tag
from .scored import KINDS, Example, Scored, find_nearest

DARK = ("#5AB4F0", "#FF8F45", "#2FC99B", "#E7A2CC", "#9AD3F5", "#F2B632", "#E8E8E8")  # COLOURS on a dark page
KNOWN = "in distribution"
TURNING = dict.fromkeys([*range(0x202A, 0x202F), *range(0x2066, 0x206A)], "\ufffd")  # the direction of text
ROOM = 1_000_000  # bytes of all pictures, before they are compressed
SHOWN = 8  # numbers of a row
WORDS = {
    "last": "It is the score of the last layer alone.",
    "mean": "It is the mean of all scores, each in deviations from its mean on training data.",
    "fisher": "It adds up how rare the score of each is among familiar inputs, −log p, times its weight. The weight "
    "says how far the classes that a layer alone would tell agree with the network’s: 1 is always, 0 is by chance. "
    "Half the square of what exceeds the rarest 5 % is added.",
}
TITLES = {
    "surprising": ("Most surprising", "Look at these first: they are rare, damaged, mislabelled, or out of place."),
    "ambiguous": ("Most ambiguous", "Several answers fit them, as far as the network can tell."),
    "familiar": ("Most familiar", "What the training data are full of."),
}


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
    called = {KNOWN: names} if isinstance(names, Sequence) else names or {}
    with replacing(path) as file, bars(detector.progress):
        loaders = ((KNOWN, loader), *(outliers or {}).items())
        sets = [Scored(str(name), detector, called.get(name)).read(some) for name, some in loaders]
        what = "inputs" if detector.pixels is None else "images"
        found, charts, threshold = numbers.views(detector, sets), dict[str, Any](), fitted.threshold
        blocks: dict[str, Block] = {
            "thresholds": numbers.thresholds(found[0], sets, threshold, what),
            "outliers": numbers.telling(found[0], sets),
            "layers": numbers.layers(found, sets, _weights(detector)),
            **numbers.errors(sets[0], what, charts),
            "p": numbers.p_values(sets[0], found[0].samples, what, charts),
        }
        values = {
            "title": f"{type(detector).__name__} on {type(detector.model).__name__}" if title is None else title,
            "about": ", ".join(f"{s.count:,} {what} “{s.name}”" for s in sets),
            "what": what,
            "key": _key(found[0], sets, threshold, what),
            "fitted": _about(detector, what),
            "inputs": _inputs(sets, classes, train),
            "version": __version__,
            "date": datetime.now(UTC).strftime("%Y-%m-%d, %H:%M UTC"),
        }
        data = {**numbers.interactive(found, sets, threshold), "charts": charts, "unit": what}
        # Names may be no UTF-8, or turn round what stands after them, numbers included.
        file.write(_page(values, blocks, data).translate(TURNING).encode(errors="replace"))
    return Path(path)


def _key(view: numbers.View, sets: list[Scored], threshold: float | None, what: str) -> Html:
    first, cards, rates = sets[0], list[tuple[str, str]](), view.rates(numbers.RATES)
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
    unusable = sum(int((~s["score"].isfinite()).sum()) for s in sets)
    if unusable:
        text = f"{what}: the network gave NaN or infinity for them, which counts as surprising"
        cards.append((f"{unusable:,}", text))
    return tag("ul", *(tag("li", tag("strong", value), tag("span", text)) for value, text in cards), class_="key")


def _page(values: Mapping[str, Any], blocks: Mapping[str, Block], data: Mapping[str, Any]) -> str:
    template = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    # No other script than this one may run, whatever a name in the page holds.
    script = template.rpartition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    shades = enumerate(zip(COLOURS, DARK, strict=True))
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    own = {
        "hash": f"sha256-{digest}",
        "colours": " ".join(f"--c{i}: light-dark({light}, {dark});" for i, (light, dark) in shades),
        "data": Html(text.replace("<", "\\u003c")),
    }
    return fill(template, {**values, **own}, blocks)


def _weights(detector: Detector) -> dict[str, float]:
    """What each term's word weighs in the detector's score."""
    combination = detector._fitted().head.combination
    if combination.tails:
        return {name: learnt[-1] for name, learnt in combination.learnt.items()}
    if isinstance(combination.combine, dict):
        return combination.combine
    names = [combination.leading] if combination.single else combination.names
    return dict.fromkeys(names, 1 / len(names))


def _about(detector: Detector, what: str) -> Html:
    state, task = detector._fitted(), detector.task
    head, rows = state.head, list[list[str]]()
    for name, term in head.terms.items():
        asked, method = detector.terms[name], term.method
        read = "the network’s outputs" if asked.layer is None else f"the {asked.reduce.read} of {asked.layer}"
        scorer = method.fitted if isinstance(method, DensityMethod) else method
        kind = type(detector if isinstance(method, AsRead) else scorer).__name__.removesuffix("Method")
        by = kind + f" ({scorer.extra_repr()})" * bool(scorer.extra_repr())
        weight = f"{_weights(detector).get(name, 0.0):.2f}"
        rows.append([name, read, _reduced(term.reduction, asked), by, weight])
    n = 0 if head.calibration is None else len(head.calibration.scores)
    calibrations = {
        "unseen": f"{n:,} {what} that the network has not seen. False-alarm rates hold, on average over such sets.",
        "holdout": f"{n:,} {what} of the training data, set apart. The network has seen them: nothing is guaranteed.",
        None: "None: there are no p-values and no thresholds.",
    }
    combine, at = head.combination.combine, state.threshold
    how = "It is the weighted sum of the scores as they are." if isinstance(combine, Mapping) else WORDS[combine]
    how = f"Of {len(rows)} terms. {how}" if len(rows) > 1 else ""
    if detector.pixels is not None:
        how += f" That of an image is the one that {percent(detector.pixels.share)} of its pixels exceed."
    facts = {
        "detector": type(detector).__name__,
        "network": type(detector.model).__name__,
        "task": "unknown" if task is None else task.name + (", per pixel" if detector.pixels is not None else ""),
        "fitted given": "the network’s own predictions" if detector.condition == "prediction" else "the labels",
        "score": f"In {detector.unit}. {how}",
        "calibration": calibrations[detector.calibrated],
        "threshold": "None is set: detector.threshold(false_alarm=0.05) sets one."
        if at is None
        else f"{number(at)} {detector.unit}: what scores above is called surprising.",
        "versions": f"hidden-uncertainty {__version__}, torch {torch.__version__}",
    }
    head_of = ["term", "what is read", "how it becomes a vector", "scored by", "weight"]
    about = table("What this report is about", [], facts.items())
    return joined(about, table("What is read of the network, and by what it is scored", head_of, rows))


def _reduced(reduction: Any, term: Any) -> str:
    if term.layer is None:
        return "as they are"
    pool, shape = term.reduce.pool, "×".join(map(str, reduction.shape))
    taken = {"moments": "mean and deviation"}.get(pool, pool)
    words = {"flatten": "all numbers", "channels": f"{taken} over places", "tokens": f"{taken} over tokens"}
    if len(reduction.shape) == 1:  # there are no places
        words = dict.fromkeys(words, "all numbers")
    how = words.get(term.reduce.how, "one token" if term.reduce.how == "token" else "random projection")
    kept = "" if reduction.kept is None else f", {reduction.kept} principal components"
    return f"{shape}: {how}{', brought to length one' if term.reduce.normalise else ''}{kept}"


def _inputs(sets: Sequence[Scored], classes: Sequence[str] | None, train: Any) -> Html:
    """The inputs at the ends of the scores; of outliers, those that look most familiar."""
    first, detector = sets[0], sets[0].detector
    groups = [(first, kind, *TITLES[kind]) for kind in KINDS if first.examples[kind]]
    missed = "They resemble the training data most. Those whose score is below the threshold are missed."
    groups += [(one, "familiar", f"Outliers that are hardest to notice: {one.name}", missed) for one in sets[1:]]
    shown = [example for scored, kind, *_ in groups for example in scored.examples[kind]]
    parts: list[Html] = []
    if not first.examples["ambiguous"]:
        parts.append(left_out("This method tells no aleatoric score, so there are no most ambiguous inputs."))
    if train is not None and (detector.pixels is not None or not isinstance(detector.reader, Extractor)):
        parts.append(left_out("Nearest training inputs are told for whole inputs only, by methods that read vectors."))
    elif train is not None:
        layer = ([name for name, term in detector.terms.items() if term.layer is not None] or detector.layers)[-1]
        find_nearest(detector, train, layer, shown)
        text = f"The nearest training inputs are those whose vectors of “{layer}” are closest, by Euclidean distance."
        parts.append(tag("p", text, " Numbers count training inputs from 0, in their order."))
    panels = 1 if detector.pixels is None and not any(example.near for example in shown) else 4
    side = int(math.sqrt(ROOM / 3 / max(1, len(shown) * panels)))
    side = min(160 if detector.pixels is not None else 64, max(24, side))
    for scored, kind, title, text in groups:
        parts += [tag("h3", title), tag("p", text)]
        parts.append(_examples(scored, kind, classes, side, title + f" ({first.name})" * (scored is first)))
    return joined(*parts)


def _examples(scored: Scored, kind: str, classes: Sequence[str] | None, side: int, title: str) -> Html:
    detector, examples, names = scored.detector, scored.examples[kind], scored.names
    pictures = all(example.shown is not None and example.shown.dim() == 4 for example in examples)
    rows, items = [], []
    for example in examples:
        called = f"number {example.place:,}" if names is None else str(names[example.place])
        facts, x = _facts(scored, example, classes), None if example.shown is None else example.shown[0]
        if example.near:
            facts["nearest in training"] = ", ".join(f"number {i:,} ({number(d)} away)" for d, i, _ in example.near)
        if not pictures or x is None:
            rest = "" if x is None or len(x) <= SHOWN else f", … ({len(x):,} in all)"
            facts |= {} if x is None else {"values": ", ".join(map(number, x[:SHOWN].tolist())) + rest}
            rows.append([called, *facts.values()])
            continue
        image = picture(x, side, f"{title}: {called}")
        image = image if detector.pixels is None else _maps(detector, example.u, image, side, called)
        lines = [joined(tag("br"), f"{name}: {value}") for name, value in facts.items()]
        few = [picture(x, side, f"training input {i:,}, {number(d)} away") for d, i, x in example.near if x is not None]
        items.append(tag("li", image, tag("strong", called), *lines, tag("div", *few, class_="near")))
    if pictures:
        return tag("ul", *items, class_="pictures" if detector.pixels is None else "pictures maps")
    return table(title, ["input", *facts], rows)


def _facts(scored: Scored, example: Example, classes: Sequence[str] | None) -> dict[str, str]:
    detector, u, found = scored.detector, example.u, dict[str, str]()
    whole = detector.pixels is None
    if whole:
        found["predicted"] = _value(u.prediction[0], classes)
        if scored.labelled and example.label is not None:
            found["label"] = _value(example.label, classes)
    found["score"] = f"{number(float(scored['score'][example.place]))}\u00a0{detector.unit}"
    if "p_value" in scored:
        found["p-value"] = f"{scored['p_value'][example.place]:.3f}"
    if whole and u.aleatoric is not None:
        found["aleatoric"] = f"{number(float(u.aleatoric[0]))}\u00a0nats"
    if whole and any(some.part is not None for some in u.layers.values()):
        name = u.why()[0]
        found["mostly due to"] = name if detector.terms[name].layer is None else f"layer {name}"
    return found


def _value(value: Tensor, classes: Sequence[str] | None) -> str:
    if classes and value.numel() == 1 and not value.is_floating_point() and 0 <= int(value) < len(classes):
        return classes[int(value)]
    return ", ".join(map(number, value.reshape(-1)[:SHOWN].tolist()))


def _maps(detector: Detector, u: Any, image: Html, side: int, called: str) -> Html:
    """The image beside its prediction and its scores, from dark, which is low, to bright."""
    maps = {"prediction": u.prediction, f"epistemic, in {detector.unit}": u.epistemic}
    maps |= {} if u.aleatoric is None else {"aleatoric, in nats": u.aleatoric}
    panels = [tag("figure", image, tag("figcaption", "input"))]
    palette = torch.tensor([to_rgb(shade) for shade in CLASS_COLOURS], device="cpu")
    for name, values in maps.items():
        if not values.is_floating_point():
            shown, text = picture(palette[values[0] % len(palette)].movedim(-1, 0), side, f"{name} of {called}"), name
        else:
            known = values[values.isfinite()].sort().values
            few = len(known) // 100  # extreme pixels would darken all others
            limits = (float(known[few]), float(known[-1 - few])) if len(known) else (0.0, 1.0)
            values = values.nan_to_num(limits[1], limits[1], limits[0])
            shown = picture(values, side, f"{name} of {called}", limits)
            text = f"{name}: {number(limits[0])} to {number(limits[1])}"
        panels.append(tag("figure", shown, tag("figcaption", text)))
    return tag("div", *panels, class_="panels")
