"""The study `rivals` as tables in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from hidden_uncertainty.metrics import rank_correlation

from ...markdown import spread, table

Row = Mapping[str, Any]
DEFAULT = "library's default"
NEAR = ("rank correlation", "raulc")
KINDS = ("rotation", "noise")
NAMED = [f"{metric}, {kind}" for metric in ("rank correlation", "rAULC") for kind in KINDS]
PAIRS = {  # one score, on the plain network and on another
    "density of layer 10, by reconstruction": ("latent density, layer 10", "reconstruction, layer 10"),
    "library's default, by reconstruction": (DEFAULT, "reconstruction, library's default"),
    "softmax entropy, by the loss of distances": ("softmax entropy", "distance, softmax entropy"),
}
WORDS = {
    "auroc far": "AUROC of points far from the data",
    "rank with distance": "rank correlation with the distance from the data",
    "auroc MNIST": "AUROC of MNIST",
    "entropy: ambiguous": "AUROC of ambiguous digits beside others, by entropy",
    "entropy: clothes": "AUROC of clothes beside all digits, by entropy",
    "density: clothes": "AUROC of clothes beside all digits, by density",
}


def render(result: Mapping[str, Any]) -> str:
    """What training buys, the rows of table 1, what is near the data, costs, and published results.

    Args:
        result: of the study, as its file has it.
    """
    rows, settings = result["rows"], result["settings"]
    own = [row for row in rows if row["variant"] == "default"]
    parts = [_state(result), "**What the training buys, and what it costs.**", _difference(own)]
    parts += ["**Does tuning for detection spoil calibration near the data?**", _pairs(own), _spoilt(own)]
    for train in _sets(own):
        parts += [f"**Rows of table 1: AUROC, trained on {train}.**", _areas(own, train)]
    parts += ["**Near the data, images changed step by step.**", _near(own)]
    parts += ["**Costs.**", _costs(own, settings.get("timed", "of the processor, with one thread"))]
    parts += ["**Published results.**", _published(rows, settings)]
    return "\n\n".join(part for part in parts if part)


def _state(result: Mapping[str, Any]) -> str:
    """What was run, and what is missing."""
    settings = result["settings"]
    there = {(each["train"], each["rival"], each["seed"]) for each in settings["records"]}
    asked = [
        (train, rival, seed)
        for train in ("MNIST", "FashionMNIST")
        for rival in settings["rivals"]
        for seed in result["seeds"]
    ]
    missing = [f"{rival} on {train}, seed {seed}" for train, rival, seed in asked if (train, rival, seed) not in there]
    checked = {each["check"] for each in settings["sanity"]}
    missing += [f"check {name!r}" for name in settings["checks"] if name not in checked]
    how = settings["schedule"]["all others"]
    words = [f"- {name}: {each['about']}" for name, each in settings["rivals"].items()]
    return (
        f"{len(there)} networks, {how['epochs']} epochs each in batches of {how['batch_size']}, by Adam with rate "
        f"{how['learning_rate']:g} and weight decay {how['weight_decay']:g} but for DUQ, trained on "
        f"{settings['trained on']}. Detectors judge {settings['judged']}. "
        f"Missing: {', '.join(missing) or 'nothing'}.{_commits(result)}{_machines(result)}\n\n" + "\n".join(words)
    )


def _machines(result: Mapping[str, Any]) -> str:
    """What was measured on other machines than most networks."""
    settings = result["settings"]
    others: dict[str, dict[str, None]] = {}
    for each in [*settings["records"], *settings["sanity"]]:
        name = f"check {each['check']!r}" if "check" in each else each["rival"]
        others.setdefault(each["hardware"], {})[name] = None
    others.pop(result["hardware"], None)
    return "".join(f" On {machine}: {', '.join(names)}." for machine, names in others.items())


def _commits(result: Mapping[str, Any]) -> str:
    """Which rivals were measured at which commit, where that is not the result's."""
    at: dict[str, dict[str, None]] = {}
    for each in result["settings"]["records"]:
        at.setdefault(each["commit"][:10] if each["commit"] else "no commit", {})[each["rival"]] = None
    if len(at) == 1:
        (only,) = at
        return "" if (result["commit"] or "no commit").startswith(only) else f" Networks were measured at {only}."
    told = "; ".join(f"{', '.join(names)} at {commit}" for commit, names in at.items())
    return f" Measured apart: {told}." if at else ""


def _difference(rows: Sequence[Row]) -> str:
    """Each method beside the library's default on plain networks, in points; seconds as a ratio."""
    head = ["method", "trained on", "accuracy", "mean AUROC", "rAULC, rotation", "rAULC, noise", "training", "scoring"]
    lines = []
    for method in _methods(rows):
        for train in _sets(rows):
            rival = _network(rows, train, method)
            own, plain = (_find(rows, train, name, "training seconds") for name in (rival, "plain"))
            ratio = f"× {own['mean'] / plain['mean']:.1f}" if own and plain and plain["mean"] else ""
            cells = [_points(rows, train, (rival, "plain"), "accuracy")]
            cells.append(_points(rows, train, (method, DEFAULT), "mean auroc"))
            cells += [_points(rows, train, (method, DEFAULT), "raulc", kind) for kind in KINDS]
            passes = _find(rows, train, method, "passes")
            lines.append([method, train, *cells, ratio, "" if passes is None else f"{passes['mean']:.0f}"])
    return (
        table(head, lines)
        + "\n\nIn points, above or below the library's default on the network that was trained for its classes alone. "
        "Training is a multiple of that network's; scoring is in passes of the method's own network."
    )


def _pairs(rows: Sequence[Row]) -> str:
    """One score on a network as it is and on one that was trained otherwise."""
    columns = [
        ("mean auroc", None),
        *((metric, kind) for metric in NEAR for kind in KINDS),
        ("auroc of mistakes", None),
    ]
    lines = []
    for score, methods in PAIRS.items():
        for train in _sets(rows):
            pairs = [[_find(rows, train, method, metric, kind) for method in methods] for metric, kind in columns]
            if None not in pairs[0]:
                cells = [" → ".join("" if row is None else f"{row['mean']:.3f}" for row in pair) for pair in pairs]
                lines.append([score, train, *cells])
    note = "Each score on the network that was trained for its classes alone → on the one that was trained otherwise."
    head = ["score, and what is trained", "trained on", "mean AUROC", *NAMED, "AUROC of mistakes"]
    return f"{table(head, lines)}\n\n{note}" if lines else ""


def _points(rows: Sequence[Row], train: str, names: tuple[str, str], metric: str, ood: str | None = None) -> str:
    here, there = (_find(rows, train, name, metric, ood) for name in names)
    return "" if here is None or there is None else f"{100 * (here['mean'] - there['mean']):+.1f}"


def _spoilt(rows: Sequence[Row]) -> str:
    """Whether methods that detect better follow accuracy worse."""
    lines = []
    for train in _sets(rows):
        for kind in KINDS:
            pairs = []
            for method in _methods(rows):
                area, lift = _find(rows, train, method, "mean auroc"), _find(rows, train, method, "raulc", kind)
                if area is not None and lift is not None:
                    pairs.append((area["mean"], lift["mean"]))
            if len(pairs) > 2 and min(len(set(values)) for values in zip(*pairs, strict=True)) > 1:
                rank = rank_correlation(*(list(values) for values in zip(*pairs, strict=True)))
                lines.append(f"{rank:+.2f} ({train}, {kind})")
    if not lines:
        return ""
    return (
        "Over the methods, the rank correlation of mean AUROC with rAULC near the data is "
        + ", ".join(lines)
        + ". Negative: those that detect unknown sets better follow the accuracy of perturbed images worse."
    )


def _areas(rows: Sequence[Row], train: str) -> str:
    found = [row for row in rows if row["train"] == train and row["metric"] == "auroc"]
    oods = list(dict.fromkeys(row["ood"] for row in found))
    best = {ood: max(row["mean"] for row in found if row["ood"] == ood) for ood in oods}
    lines = []
    for method in _methods(rows):
        cells = []
        for ood in oods:
            row = _find(rows, train, method, "auroc", ood)
            text = "" if row is None else spread(row)
            cells.append(f"**{text}**" if row is not None and row["mean"] == best[ood] else text)
        mean, right = (
            _find(rows, train, method, "mean auroc"),
            _find(rows, train, _network(rows, train, method), "accuracy"),
        )
        lines.append([method, *cells, *("" if row is None else spread(row) for row in (mean, right))])
    return table(["method", *oods, "mean", "accuracy"], lines)


def _near(rows: Sequence[Row]) -> str:
    lines = []
    for train in _sets(rows):
        for method in _methods(rows):
            cells = [_cell(_find(rows, train, method, metric, kind)) for metric in NEAR for kind in KINDS]
            lines.append([train, method, *cells, _cell(_find(rows, train, method, "auroc of mistakes"))])
    return (
        table(["trained on", "method", *NAMED, "AUROC of mistakes"], lines)
        + "\n\nThe rank correlation is that of the mean score with accuracy over the steps, -1 at best. rAULC is of "
        "all steps together, 1 at best. Mistakes are those on unchanged test images."
    )


def _costs(rows: Sequence[Row], timed: str) -> str:
    lines = []
    for method in _methods(rows):
        networks = [(train, _network(rows, train, method)) for train in _sets(rows)]
        cells = [_mean(rows, networks, "accuracy", 4), _mean(rows, networks, "training seconds", 1)]
        own = [(train, method) for train in _sets(rows)]
        lines.append([method, *cells, _mean(rows, own, "fit seconds", 1), _mean(rows, own, "passes", 1)])
    return (
        table(["method", "accuracy", "training (s)", "fit (s)", "scoring (passes of its network)"], lines)
        + f"\n\nMeans over both sets. Seconds are {timed}. A pass is the network's own time for the same images."
    )


def _published(rows: Sequence[Row], settings: Mapping[str, Any]) -> str:
    found = [row for row in rows if row["variant"] == "published result"]
    lines = []
    for row in found:
        paper = "" if row["paper_mean"] is None else f"{row['paper_mean']:.3f}"
        here = spread(row) if row["n"] > 1 else f"{row['mean']:.3f}"  # one seed has no spread
        lines.append([row["train"], row["method"], WORDS.get(row["metric"], row["metric"]), here, paper, str(row["n"])])
    notes = "; ".join(f"{name}: {text}" for name, text in settings["checks"].items())
    return table(["check", "method", "what", "measured", "published", "seeds"], lines) + f"\n\n{notes}."


def _sets(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["train"] for row in rows))


def _methods(rows: Sequence[Row]) -> list[str]:
    """All detectors."""
    return list(dict.fromkeys(row["method"] for row in rows if row["metric"] == "mean auroc"))


def _network(rows: Sequence[Row], train: str, method: str) -> str:
    """The network that a detector scores by."""
    return next((r["rival"] for r in rows if (r["train"], r["method"]) == (train, method)), "")


def _find(rows: Sequence[Row], train: str, method: str, metric: str, ood: str | None = None) -> Row | None:
    wanted = (train, method, metric, ood)
    return next((r for r in rows if (r["train"], r["method"], r["metric"], r["ood"]) == wanted), None)


def _mean(rows: Sequence[Row], names: Sequence[tuple[str, str]], metric: str, digits: int) -> str:
    found = [row for train, method in names if (row := _find(rows, train, method, metric)) is not None]
    return f"{fmean(row['mean'] for row in found):.{digits}f}" if found else ""


def _cell(row: Row | None, digits: int = 3) -> str:
    return "" if row is None else f"{row['mean']:.{digits}f} ± {row['std']:.{digits}f}"
