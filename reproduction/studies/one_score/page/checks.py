"""Tables of what must hold: all aims, false alarms, mistakes, probabilities, images near the data, and variants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scipy import stats

from ....markdown import spread, table
from ..measure import COVERED, ranges
from ..methods import DEFAULT, PAPERS, SOFTMAX
from ..near import IMAGES, mean_curves
from ..probabilities import MEASURES, PLAIN, SCALED, within
from ..rows import NEAR

Row = Mapping[str, Any]
Networks = Sequence[Mapping[str, Any]]
Found = tuple[bool, str] | None  # whether an aim is met, and by what number; None where there is nothing to tell it by
SLACK = 0.005  # of the AUROC of mistakes
ROUNDED = 5e-4  # what three decimals cannot tell apart


def alarms(rows: Sequence[Row], settings: Mapping[str, Any]) -> str:
    """False alarms with their ranges, and how well mistakes are found."""
    lines, inside = [], {"": 0, "wide_": 0}
    shares = 0
    for name, networks in settings["networks"].items():
        train, cells = settings["families"][name]["train"], []
        alarms = [row for row in select(rows, train) if row["metric"].startswith("false alarms")]
        for place, row in enumerate(alarms):
            each = [[*record["false alarms"].values()][place] for record in networks]
            shares += len(each)
            for kind in inside:
                inside[kind] += sum(row[f"{kind}low"] <= share <= row[f"{kind}high"] for share in each)
            cells.append(f"{', '.join(map(_percent, each))} ({_percent(row['low'])} – {_percent(row['high'])})")
        mistakes = {row["method"]: row for row in select(rows, train, metric="auroc of mistakes")}
        own = [spread(mistakes[m]) if m in mistakes else "–" for m in ("default's aleatoric", "softmax entropy")]
        lines.append([name, *cells, *own])
    asked = [row["metric"].removeprefix("false alarms ").replace("%", " %") for row in alarms]
    head = [
        "family",
        *(f"alarms {each}" for each in asked),
        "mistakes by the default's aleatoric",
        "by softmax entropy",
    ]
    text = "Alarms: the share of known inputs that are called surprising, per network; in brackets, where it lies with "
    text += (
        f"95 % probability if thresholds are exact. {inside['']} of {shares} shares lie there. Thresholds come from "
    )
    text += f"unseen data themselves, which widens the range; {inside['wide_']} of {shares} lie in the wider one "
    text += "(`wide_low` and `wide_high` in the file). Mistakes: AUROC of misclassified inputs among known ones."
    return f"{table(head, lines)}\n\n{text}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def believed(rows: Sequence[Row], settings: Mapping[str, Any]) -> str:
    """NLL and ECE of the default's probabilities beside those of the softmax, plain and at a temperature."""
    lines = []
    for name in settings["networks"]:
        own = {(row["method"], row["metric"]): row for row in select(rows, settings["families"][name]["train"])}
        cells = []
        for measure in MEASURES:
            cells += [spread(own[method, measure]) for method in (DEFAULT, SCALED, PLAIN)]
            apart = own[DEFAULT, f"{measure} above scaled softmax"]
            cells.append(f"{apart['within']} of {apart['n']}")
        lines.append([name, *cells])
    head = ["family"]
    for title in MEASURES.values():
        head += [f"{title}, default", "temperature-scaled", "softmax", "within or better"]
    text = (
        "Temperature scaling learns from the same unseen half, all of it; the default learns from a third. *Within or "
    )
    text += "better*: networks whose number is at most the upper end of the 95 % interval that a bootstrap over inputs "
    text += "gives for temperature scaling."
    return f"{table(head, lines)}\n\n{text}"


def near(rows: Sequence[Row], settings: Mapping[str, Any]) -> str:
    """How scores follow accuracy over the steps, and the curves themselves."""
    lines, curves = [], []
    for name, networks in settings["networks"].items():
        train = settings["families"][name]["train"]
        for kind, first in networks[0]["near"].items():
            cells, best = [], ""
            for metric in NEAR:
                found = {row["method"]: row for row in select(rows, train, kind) if row["metric"].startswith(metric)}
                papers = [row for method, row in found.items() if method.startswith(PAPERS)]
                if not papers:
                    cells += ["–"] * 3
                    continue
                top = (min if metric == NEAR[0] else max)(papers, key=lambda row: row["mean"])
                best = best or top["method"]
                place = top["method"].removeprefix(f"{PAPERS}, ")
                cells += [spread(found[DEFAULT]), f"{spread(top)} ({place})", spread(found[SOFTMAX])]
            lines.append([name, kind, *cells])
            steps = [f"{step}°" if kind == "rotation" else str(step) for step in first["steps"]]
            each = [record["near"][kind] for record in networks]
            drawn = {"accuracy": mean_curves([one["accuracy"] for one in each])}
            for method in [DEFAULT, SOFTMAX, *([best] if best else [])]:
                drawn[f"AUROC, {method}"] = mean_curves([[0.5, *one["auroc"][method]] for one in each])
            body = [[what, *(f"{value:.3f}" for value in values)] for what, values in drawn.items()]
            curves.append(table([f"{name}, {kind}", *steps], body))
    if not lines:
        return "No images are among the families that were run."
    titles = ("rank correlation with accuracy", "rAULC")
    head = ["family", "change"]
    for title in titles:
        head += [f"{title}, default", "paper's mixture at its best layer", "softmax"]
    text = "Rank correlation: between the mean score and accuracy, over the steps; -1 is best. rAULC: of all steps "
    text += "together, whether right predictions have the lower scores; 1 is best. The paper's best layer is chosen in "
    text += "hindsight, for each number. Rotations are in degrees, noise in deviations for pixels from 0 to 255. "
    text += f"At most {IMAGES:,} known images were changed."
    return "\n\n".join([table(head, lines), text, *curves])


def variants(rows: Sequence[Row]) -> str:
    """Variants of the default over all unknown sets of a split, the best first."""
    lines = []
    for row in select(rows, metric="mean auroc of variant"):
        regret, worst, below = (
            next(
                one["mean"]
                for one in rows
                if one["method"] == row["method"] and one["metric"] == f"{metric} of variant"
            )
            for metric in ("mean regret", "highest regret", "highest below softmax")
        )
        lines.append((regret, [row["method"], row["mean"], regret, worst, below]))
    own = [next(one["mean"] for one in rows if one["method"] == DEFAULT and one["metric"] == m) for m in _OF_DEFAULT]
    lines.append((own[1], [f"**{DEFAULT}**", *own]))
    lines.sort(key=lambda line: line[0])
    body = [[line[0], f"{line[1]:.3f}", f"{line[2]:.2f}", f"{line[3]:.1f}", f"{line[4]:+.1f}"] for _, line in lines]
    head = ["", "mean AUROC", "mean regret", "worst regret", "most below softmax"]
    text = "Below softmax: points on the worst set, negative where it is above on all. These are differences over few "
    text += "networks: tenths of a point are noise."
    return f"{table(head, body)}\n\n{text}"


_OF_DEFAULT = ("mean auroc", "mean regret", "highest regret", "highest below softmax")


def aims(rows: Sequence[Row], settings: Mapping[str, Any]) -> str:
    """A table of all aims.

    Args:
        rows: of the study.
        settings: of the study, with what each network showed.
    """
    splits = list(dict.fromkeys(row["split"] for row in rows))
    lines = []
    for aim, judge in AIMS.items():
        cells = []
        for split in splits:
            own = [row for row in rows if row["split"] == split]
            names = [name for name in settings["networks"] if settings["families"][name]["split"] == split]
            found = judge(own, [record for name in names for record in settings["networks"][name]])
            cells.append("–" if found is None else f"{'yes' if found[0] else '**no**'}: {found[1]}")
        lines.append([aim, *cells])
    return table(["aim", *splits], lines)


def _number(rows: Sequence[Row], metric: str) -> float:
    return next(row["mean"] for row in rows if row["method"] == DEFAULT and row["metric"] == metric)


def _mean_regret(rows: Sequence[Row], networks: Networks) -> Found:
    value = _number(rows, "mean regret")
    return value <= 2, f"{value:.1f}"


def _worst(rows: Sequence[Row], networks: Networks) -> Found:
    value = _number(rows, "highest regret")
    return value <= 6, f"{value:.1f} at most"


def _softmax(rows: Sequence[Row], networks: Networks) -> Found:
    value = _number(rows, "highest below softmax")
    return value <= 1, f"{abs(value):.1f} points {'below' if value > 0 else 'above'} on the worst set"


def _single(rows: Sequence[Row], networks: Networks) -> Found:
    others = [row for row in select(rows, metric="mean auroc") if row["method"] != DEFAULT]
    best, own = max(others, key=lambda row: row["mean"]), _number(rows, "mean auroc")
    return own > best["mean"], f"{own:.3f}, {best['method']} {best['mean']:.3f}"


def _mistakes(rows: Sequence[Row], networks: Networks) -> Found:
    pairs = [tuple(record["mistakes"].values()) for record in networks if record["mistakes"]]
    good = sum(own >= softmax - SLACK for own, softmax in pairs)
    return _all(good, len(pairs), "networks")


def _calibrated(measure: str) -> Callable[[Sequence[Row], Networks], Found]:
    def judge(rows: Sequence[Row], networks: Networks) -> Found:
        return _all(sum(within(record["probabilities"][measure]) for record in networks), len(networks), "networks")

    return judge


def _in_range(kind: str) -> Callable[[Sequence[Row], Networks], Found]:
    def judge(rows: Sequence[Row], networks: Networks) -> Found:
        good = total = 0
        for record in networks:
            for asked, share in record["false alarms"].items():
                limits = ranges(float(asked), record["known"], record["calibrated on"])
                good += limits[f"{kind}low"] <= share <= limits[f"{kind}high"]
                total += 1
        # Of ranges with 95 % probability, some shares are outside by chance.
        by_chance = stats.binom.ppf(COVERED, total, 1 - COVERED)
        return (total - good <= by_chance, f"{good} of {total} shares") if total else None

    return judge


def _follows(metric: str) -> Callable[[Sequence[Row], Networks], Found]:
    def judge(rows: Sequence[Row], networks: Networks) -> Found:
        good, total, sign = 0, 0, -1 if metric == NEAR[0] else 1  # a correlation is best at -1
        found = [row for row in rows if row["metric"].startswith(metric)]
        for row in (one for one in found if one["method"] == DEFAULT):
            beside = [one for one in found if (one["train"], one["ood"]) == (row["train"], row["ood"])]
            best = max(sign * one["mean"] for one in beside if one["method"].startswith(PAPERS))
            good, total = good + (sign * row["mean"] >= best - ROUNDED), total + 1
        return _all(good, total, "changes")

    return judge


def _all(good: int, total: int, what: str) -> Found:
    return (good == total, f"{good} of {total} {what}") if total else None


AIMS: dict[str, Callable[[Sequence[Row], Networks], Found]] = {
    "mean regret at most 2 points": _mean_regret,
    "no set's regret above 6": _worst,
    "mean AUROC above that of every single method with one setting": _single,
    "no set more than 1 point below softmax": _softmax,
    "mistakes: AUROC of aleatoric at least that of softmax entropy minus 0.005": _mistakes,
    **{
        f"{title} within the interval of temperature scaling, or better": _calibrated(m)
        for m, title in MEASURES.items()
    },
    "false alarms at 1 % and 5 % in their binomial range, but for as many as chance puts outside": _in_range(""),
    "the same, counting that thresholds are estimated": _in_range("wide_"),
    "near the data, rank correlation with accuracy as good as the paper's mixture at its best layer": _follows(NEAR[0]),
    "near the data, rAULC as good as that": _follows(NEAR[1]),
}


def select(rows: Sequence[Row], train: str | None = None, ood: str | None = None, *, metric: str = "") -> list[Row]:
    """The rows of a known set, an unknown set and a metric, or of all of them."""
    return [
        row
        for row in rows
        if (train is None or row["train"] == train)
        and (ood is None or row["ood"] == ood)
        and (not metric or row["metric"] == metric)
    ]
