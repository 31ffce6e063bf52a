"""What was fitted, how p-values spread, and which inputs to look at."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from matplotlib.colors import to_rgb
from torch import Tensor

from ..detector import Detector
from ..extract import Features
from ..model.choice import choose_layers
from ..plots.pixels import CLASS_COLOURS
from ..scoring.bayes import DensityMethod
from ..version import __version__
from .alarms import evenly, series
from .markup import Block, Html, joined, number, percent, picture, table, tag
from .scored import KINDS, Example, Near, Scored, nearest

ROOM = 1_000_000  # bytes of all pictures, before they are compressed
SHOWN = 8  # numbers of a row
WORDS = {
    "last": "It is the score of the last layer alone.",
    "mean": "It is the mean of all scores, each in deviations from its mean on training data.",
    "fisher": "It adds up how rare the score of each is among familiar inputs, −log p, times its weight. The weight "
    "says how far the classes that a layer alone would tell agree with the network’s: 1 is always, 0 is by chance.",
}
TITLES = {
    "surprising": ("Most surprising", "Look at these first: they are rare, damaged, mislabelled, or out of place."),
    "ambiguous": ("Most ambiguous", "Several answers fit them, as far as the network can tell."),
    "familiar": ("Most familiar", "What the training data are full of."),
}


def weights(detector: Detector) -> dict[str, float]:
    """What each term's word weighs in the detector's score."""
    combination = detector._fitted().head.combination
    if combination.tails:
        return {name: learnt[-1] for name, learnt in combination.learnt.items()}
    if isinstance(combination.combine, dict):
        return combination.combine
    names = [combination.leading] if combination.single else combination.names
    return dict.fromkeys(names, 1 / len(names))


def fitted(detector: Detector, scored: Scored, what: str) -> Html:
    """What was fitted and chosen, and why."""
    state, task = detector._fitted(), detector.task
    head, where, rows = state.head, _where(detector, scored), []
    for name, term in head.terms.items():
        asked, method = detector.terms[name], term.method
        read = "the network’s outputs" if asked.layer is None else f"the {asked.reduce.read} of {asked.layer}"
        scorer = method.fitted if isinstance(method, DensityMethod) else method
        by = type(scorer).__name__.removesuffix("Method") + f" ({scorer.extra_repr()})" * bool(scorer.extra_repr())
        weight = f"{weights(detector).get(name, 0.0):.2f}"
        place = where.get(
            (asked.layer, asked.reduce.read), "at the end" if asked.layer is None else "named by the user"
        )
        rows.append([name, read, _reduced(term.reduction, asked), by, weight, place])
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
    head_of = ["term", "what is read", "how it becomes a vector", "scored by", "weight", "where it lies"]
    return joined(
        table("What this report is about", [], facts.items()),
        table("What is read of the network, and by what it is scored", head_of, rows),
    )


def _where(detector: Detector, scored: Scored) -> dict[Any, str]:
    """Where layers lie in the network, for those that would be chosen: the reason for it."""
    if detector.pixels is not None or scored.first is None or all(t.layer is None for t in detector.terms.values()):
        return {}
    output = None if detector.task is None else detector.task.output
    try:
        found = choose_layers(detector.model, detector.reader.called(scored.first), output)
    except (RuntimeError, TypeError, ValueError):  # none can be chosen, and the layers were named
        return {}
    return {(choice.layer, choice.read): choice.reason for choice in found}


def _reduced(reduction: Any, term: Any) -> str:
    if term.layer is None:
        return "as they are"
    pool, shape = term.reduce.pool, "×".join(map(str, reduction.shape))
    words = {"flatten": "all numbers", "channels": "mean over places", "tokens": f"{pool} over tokens"}
    how = words.get(term.reduce.how, "one token" if term.reduce.how == "token" else "random projection")
    kept = "" if reduction.kept is None else f", {reduction.kept} principal components"
    return f"{shape}: {how}{', brought to length one' if term.reduce.normalise else ''}{kept}"


def p_values(scored: Scored, n: int, what: str, charts: dict[str, Any]) -> Block:
    """p-values in the order of the loader, and how evenly they spread."""
    if "p_value" not in scored:
        return "There are no p-values: the detector was not calibrated."
    p, some = scored["p_value"].double(), evenly(scored.count)
    charts["strip"] = {"series": [series("", "dots", some, p[some])]}
    edges = torch.linspace(0, 1, 21, dtype=torch.float64, device="cpu")
    found = series("found", "steps", edges, torch.histogram(p, edges).hist / len(p))
    charts["p"] = {"series": [found, series("even", "dashed", [0, 1], [0.05, 0.05])]}
    ordered, rank = p.sort().values, torch.arange(len(p) + 1, dtype=torch.float64, device="cpu") / len(p)
    gap = float(torch.maximum(rank[1:] - ordered, ordered - rank[:-1]).max())
    usual = 1.358 * math.sqrt(1 / len(p) + 1 / n)
    verdict = "these are as even as chance allows" if gap <= usual else f"these {what} differ from the calibration data"
    return {"gap": percent(gap), "usual": percent(usual), "verdict": verdict}


def inputs(
    detector: Detector,
    sets: Sequence[Scored],
    names: Mapping[str, Sequence[str]],
    classes: Sequence[str] | None,
    train: Any,
    near: str | None,
) -> Html:
    """The inputs at the ends of the scores; of outliers, those that look most familiar."""
    groups = [(sets[0], kind, *TITLES[kind]) for kind in KINDS if sets[0].examples[kind]]
    missed = "They resemble the training data most. Those whose score is below the threshold are missed."
    groups += [(one, "familiar", f"Outliers that are hardest to notice: {one.name}", missed) for one in sets[1:]]
    shown = [example for scored, kind, *_ in groups for example in scored.examples[kind]]
    close: dict[int, list[Near]] = {}
    parts: list[Html] = []
    if not sets[0].examples["ambiguous"]:
        parts.append(
            tag("p", "This method tells no aleatoric score, so there are no most ambiguous inputs.", class_="left-out")
        )
    if train is not None and near is not None:
        close = nearest(detector, train, near, shown)
        text = f"The nearest training inputs are those whose vectors of “{near}” are closest, by Euclidean distance."
        parts.append(tag("p", text, " Numbers count training inputs from 0, in their order."))
    elif train is not None:
        parts.append(
            tag(
                "p",
                "Nearest training inputs are told for whole inputs only, by methods that read vectors.",
                class_="left-out",
            )
        )
    panels = 4 if detector.pixels is not None else 4 if close and not isinstance(train, Features) else 1
    side = int(math.sqrt(ROOM / 3 / max(1, len(shown) * panels)))
    side = min(160 if detector.pixels is not None else 64, max(24, side))
    for scored, kind, title, text in groups:
        own, of = names.get(scored.name), f" ({scored.name})" * (scored is sets[0])
        parts += [tag("h3", title), tag("p", text)]
        parts.append(_examples(detector, scored.examples[kind], own, classes, close, side, title + of))
    return joined(*parts)


def _examples(
    detector: Detector,
    examples: list[Example],
    names: Sequence[str] | None,
    classes: Sequence[str] | None,
    close: dict[int, list[Near]],
    side: int,
    title: str,
) -> Html:
    """Inputs as pictures, or as rows of a table."""
    pictures = all(example.input is not None and example.input.dim() == 3 for example in examples)
    rows, items = [], []
    for example in examples:
        called = f"number {example.place:,}" if names is None else str(names[example.place])
        facts, nearby = _facts(detector, example, classes), close.get(id(example), [])
        x, small = example.input, [one for one in nearby if one[2] is not None and one[2].dim() == 3]
        if nearby:
            words = [f"number {i:,} ({number(d)} away)" for d, i, _ in nearby]
            facts["nearest in training"] = "" if small else ", ".join(words)
        if not pictures or x is None:
            rest = "" if x is None or len(x) <= SHOWN else f", … ({len(x):,} in all)"
            facts |= {} if x is None else {"values": ", ".join(map(number, x[:SHOWN].tolist())) + rest}
            rows.append([called, *facts.values()])
            continue
        image = picture(x, side, f"{title}: {called}")
        image = image if detector.pixels is None else _maps(detector, example.u, image, side, called)
        lines = [joined(tag("br"), f"{name}: {value}") for name, value in facts.items()]
        near = [picture(x, side, f"training input {i:,}, {number(d)} away") for d, i, x in small if x is not None]
        items.append(tag("li", image, tag("strong", called), *lines, tag("div", *near, class_="near")))
    if pictures:
        return tag("ul", *items, class_="pictures" if detector.pixels is None else "pictures maps")
    return table(title, ["input", *facts], rows)


def _facts(detector: Detector, example: Example, classes: Sequence[str] | None) -> dict[str, str]:
    """What is told of an input, in words."""
    u, found = example.u, dict[str, str]()
    if detector.pixels is None:
        found["predicted"] = _value(u.prediction[0], classes)
        if example.label is not None:
            found["label"] = _value(example.label, classes)
    found["score"] = f"{number(example.score)}\u00a0{detector.unit}"
    if example.p_value is not None:
        found["p-value"] = f"{example.p_value:.3f}"
    if detector.pixels is None and u.aleatoric is not None:
        found["aleatoric"] = f"{number(float(u.aleatoric[0]))}\u00a0nats"
    if detector.pixels is None and any(some.part is not None for some in u.layers.values()):
        name = u.why()[0]
        found["mostly due to"] = name if detector.terms[name].layer is None else f"layer {name}"
    return found


def _value(value: Tensor, classes: Sequence[str] | None) -> str:
    if classes and value.numel() == 1 and not value.is_floating_point() and 0 <= int(value) < len(classes):
        return classes[int(value)]
    return ", ".join(map(number, value.reshape(-1)[:SHOWN].tolist()))


def _maps(detector: Detector, u: Any, image: Html, side: int, called: str) -> Html:
    """The image beside its prediction and its scores, from dark, which is low, to bright."""
    maps = {
        "prediction": u.prediction,
        f"epistemic, in {detector.unit}": u.epistemic,
        "aleatoric, in nats": u.aleatoric,
    }
    panels = [tag("figure", image, tag("figcaption", "input"))]
    palette = torch.tensor([to_rgb(shade) for shade in CLASS_COLOURS], device="cpu")
    for name, values in maps.items():
        if values is None:
            continue
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
