"""The head of a detector: reductions, methods and calibrations as one module."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from ..extract import AsIs, Features, Reading
from ..model.tasks import Condition, match_labels, whole_labels
from ..notes import note, warn
from ..precision import gradients, without_autocast
from ..reduce import Reduction
from ..team import team
from ..uncertainty import LayerScores
from .calibration import Calibration
from .combination import Combination
from .decisions import Selection, Spread, both_scores, filled, surprisals, unit_of
from .terms import Method, build, with_kind

SAMPLE = 4096  # training rows, at most, that scores are standardised by
MANY = 1e-3  # of a score: a margin of ties that the user should know of
Key = tuple[Literal["surprise", "error", "label", "row"], str]  # what is calibrated: of a term, or of all together, ""


class FittedTerm(nn.Module):
    """What was fitted to what one term reads; errors on unseen labelled data are in units of `spread`."""

    def __init__(
        self,
        reduction: Reduction,
        method: Method,
        calibration: Calibration | None = None,
        conformal: Calibration | None = None,
        spread: Spread | None = None,
    ) -> None:
        super().__init__()
        self.reduction, self.method = reduction, method
        self.calibration, self.conformal, self.spread = calibration, conformal, spread

    def config(self) -> dict[str, Any]:
        """Everything but the tensors, as JSON."""
        return {
            "reduction": None if isinstance(self.reduction, AsIs) else self.reduction.config(),
            "method": with_kind(self.method),
            "calibration": self.calibration and self.calibration.config(),
            "conformal": self.conformal and self.conformal.config(),
            "spread": self.spread,
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """The term that `config` describes, its tensors zero until they are loaded."""
        reduction = config["reduction"]
        return cls(
            AsIs() if reduction is None else Reduction.from_config(reduction),
            build(Method.kinds, config["method"], "method"),
            config["calibration"] and Calibration.from_config(config["calibration"]),
            config["conformal"] and Calibration.from_config(config["conformal"]),
            config.get("spread", "expected_error"),  # the only one of version 0.1.0
        )


class Head(nn.Module):
    """The fitted part of a detector: its terms, and unseen scores of their combination where that is no single term's.

    It has no reference to the model. `selection` is there where labels of unseen inputs are known.
    """

    def __init__(
        self,
        terms: Mapping[str, FittedTerm],
        combination: Combination,
        calibration: Calibration | None = None,
        selection: Selection | None = None,
    ) -> None:
        super().__init__()
        self.terms = dict(terms)  # which registers no modules; the list does, as a ModuleDict takes no dots
        self.parts = nn.ModuleList(terms.values())
        self.combination, self.combined, self.selection = combination, calibration, selection
        self.leading = combination.leading  # the term that tells what is not combined
        self.reductions = {name: term.reduction for name, term in self.terms.items()}  # from what each reads to z

    @property
    def calibration(self) -> Calibration | None:
        """Unseen scores of the combination."""
        return self.terms[self.leading].calibration if self.combination.single else self.combined

    @property
    def device(self) -> torch.device | None:
        """Where the fitted tensors are; None where there are none."""
        return next((tensor.device for tensor in self.buffers()), None)

    @gradients(False)
    def score(self, reading: Reading) -> dict[str, LayerScores]:
        """Scores of each term, in the shape of the predictions; inf where the reading is unusable."""
        if reading.scores is not None:
            scores = dict(reading.scores)
        else:
            device = self.device
            with without_autocast(device or reading.prediction.value.device):
                scores = {name: _score(term.method, reading, name, device) for name, term in self.terms.items()}
        wrong = reading.unusable
        if wrong is None:
            return scores
        for name, some in scores.items():
            surprise = filled(some.epistemic, wrong, math.inf)  # nothing else is known
            scores[name] = some._map(lambda values: filled(values, wrong, math.nan), epistemic=surprise)
        return scores

    def combine(self, scores: Mapping[str, LayerScores], reading: Reading) -> Tensor:
        """One epistemic score from those of all terms."""
        together = self.combination({name: some.epistemic for name, some in scores.items()})
        return filled(together, reading.unusable, math.inf)  # whatever the signs of weights

    @gradients(False)
    def probabilities(self, reading: Reading) -> Tensor | None:
        """Of each class or label, (n, C), where the leading term tells them and inputs are one row each."""
        if reading.scores is not None or reading.prediction.value.dim() == 3:
            return reading.prediction.probabilities
        method, device = self.terms[self.leading].method, self.device
        parts = [method.probabilities(z.to(device), prediction) for z, _, prediction in reading.rows(self.leading)]
        found = [part for part in parts if part is not None]
        return filled(torch.cat(found), reading.unusable, math.nan) if found else None

    def taught(self, features: Features) -> Head:
        """The head whose methods know what labels of data that nothing was fitted to teach them."""
        label = _classes(features.label, features.prediction, features.classes)
        if label is None:
            return self
        terms = {
            name: FittedTerm(term.reduction, term.method.taught(features.z[name], label.to(features.z[name].device)))
            for name, term in self.terms.items()
        }
        return Head(terms, self.combination, self.combined)

    @gradients(False)
    def learnt(self, features: Features, *, unseen: bool) -> Head:
        """The head whose combination knows the scores of training data, or of unseen data, where it needs them."""
        if not self.combination.learns:
            return self
        sample, device = features.lowest(SAMPLE), self.device
        prediction, scores, weights = sample.prediction.to(device), {}, {}
        with without_autocast(device or prediction.device):
            for name, term in self.terms.items():
                z = sample.z[name].to(device)
                scores[name] = term.method.score(z, prediction, seen=not unseen).epistemic
                weights[name] = term.method.agreement(z, prediction) ** 4 if self.combination.tails else 1.0
        return Head(self.terms, self.combination.learn(scores, weights, unseen=unseen), self.combined)

    def calibrated(
        self, unseen: Iterable[Reading], again: Iterable[tuple[Reading, Iterable[Reading]]], condition: Condition
    ) -> Head:
        """The head with calibrations from data that nothing was fitted to.

        `again` are some of the inputs, together and each alone, read when all of `unseen` are: their scores differ by
        rounding, which ties must not be lost to.
        """
        spreads: dict[str, Spread | None] = {}
        pairs: dict[Key, list[Tensor]] = {}
        with team().step():
            known = self._gathered(unseen, condition, spreads)
            for whole, parts in again:
                together, alone = (self._gathered(some, condition, {}) for some in ([whole], parts))
                for key in known.keys() & together.keys():
                    pairs.setdefault(key, []).append(torch.stack([together[key], alone[key]], 1))
        known, twice = self._of_all(known), self._of_all({key: torch.cat(parts) for key, parts in pairs.items()})
        spreads = {name: spread for some in team().all(spreads) for name, spread in some.items()}
        if not known or not len(known["surprise", ""]):
            raise ValueError(
                "there is nothing to calibrate with: no input came, none is in the holdout, or no pixel counts. Give "
                "more, or check the labels of pixels."
            )
        # Where not all inputs have the label of a class, nothing is promised of labels.
        inputs = len(known["surprise", ""])
        known = {key: some for key, some in known.items() if key[0] not in ("label", "row") or len(some) == inputs}
        rows = known.pop(("row", ""), None)
        fitted = {key: _fitted(key, scores, twice.get(key)) for key, scores in known.items()}
        worst = max(calibration.margin for calibration in fitted.values())
        if worst > MANY:
            note(
                "scores depend on the batch that an input comes in, as with dynamic quantisation: p-values and "
                f"thresholds leave {100 * worst:.2g} % of a score for that, so that alarms are rarer than asked for."
            )
        terms = {}
        for name, term in self.terms.items():
            surprise, conformal = fitted["surprise", name], fitted.get(("error", name), fitted.get(("label", name)))
            terms[name] = FittedTerm(term.reduction, term.method, surprise, conformal, spreads.get(name))
        combined = None if self.combination.single else fitted["surprise", ""]
        selection = None if rows is None else Selection().fit(rows[:, :-1], rows[:, -1])
        return Head(terms, self.combination, combined, selection)

    def _gathered(
        self, readings: Iterable[Reading], condition: Condition, spreads: dict[str, Spread | None]
    ) -> dict[Key, Tensor]:
        """All that is calibrated, one number per input; what errors are in units of is noted in `spreads`."""
        found: dict[Key, list[Tensor]] = {}
        for reading in readings:
            wrong, value = reading.unusable, reading.prediction.value
            if wrong is not None and bool(wrong.any()):
                raise ValueError(f"{_unusable(int(wrong.sum()), _rows(reading), reading)} to calibrate with: {_HELP}")
            scores, label = self.score(reading), reading.label
            numbers = value.is_floating_point() and label is not None and label.numel() == value.numel()
            amounts: dict[Key, Tensor] = {("surprise", ""): self.combine(scores, reading)}
            for name, some in scores.items():
                amounts["surprise", name] = some.epistemic
                if numbers:
                    spreads[name] = _spread(reading, some, condition)
                    amounts["error", name] = _error(reading, unit_of(spreads[name], reading, some))
            classes = _classes(label, value, reading.prediction.classes) if value.dim() == 1 else None
            probabilities, leading = self.probabilities(reading), scores[self.leading]
            if classes is not None and probabilities is not None:
                amounts["label", self.leading] = surprisals(probabilities).gather(1, classes[:, None])[:, 0]
            if classes is not None or (numbers and value.dim() != 3):
                mistake = _error(reading, None) if classes is None else classes != value
                spread = unit_of(spreads.get(self.leading), reading, leading)
                both = both_scores(leading, amounts["surprise", ""], spread)
                amounts["row", ""] = torch.cat([both, mistake[:, None].to(both)], 1)
            for key, values in amounts.items():
                found.setdefault(key, []).append(reading.of_inputs(values))
        return {key: torch.cat(parts) for key, parts in found.items()}

    def _of_all(self, own: Mapping[Key, Tensor]) -> dict[Key, Tensor]:
        """What was gathered from the shards of all processes, where the scores of this one are."""
        device = next((values.device for values in own.values()), self.device or "cpu")
        parts = team().all({key: values.cpu() for key, values in own.items()})
        keys = dict.fromkeys(chain(*parts))
        return {key: torch.cat([part[key] for part in parts if key in part]).to(device) for key in keys}

    def config(self) -> dict[str, Any]:
        """Everything but the tensors, as JSON."""
        return {
            "terms": [{"name": name, **term.config()} for name, term in self.terms.items()],
            "combination": self.combination.config(),
            "calibration": self.combined and self.combined.config(),
            "selection": self.selection and self.selection.config(),
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """The head that `config` describes, its tensors zero until they are loaded."""
        terms = {part["name"]: FittedTerm.from_config(part) for part in config["terms"]}
        combination = Combination.from_config(config["combination"], list(terms))
        calibration, selection = config["calibration"], config.get("selection")  # 0.1.0 has no selection
        calibration = calibration and Calibration.from_config(calibration)
        return cls(terms, combination, calibration, selection and Selection.from_config(selection))


def _score(method: Method, reading: Reading, name: str, device: torch.device | None) -> LayerScores:
    """Score all rows of a term, in the shape of the predictions."""
    lattice = reading.lattice(name) if method.interpolates else None
    if lattice is not None:
        prediction = reading.prediction.value.nan_to_num(0.0, 0.0, 0.0).flatten().to(device)
        scores = method.score(lattice if device is None else lattice.to(device), prediction)
        return reading.shaped(scores)
    parts = [
        replace(method.score(z.to(device), prediction.to(device)), residual=residual)
        for z, residual, prediction in reading.rows(name)
    ]
    return reading.shaped(LayerScores.cat(parts))


def _fitted(key: Key, scores: Tensor, twice: Tensor | None) -> Calibration:
    wrong = int((~scores.isfinite()).sum())
    if key[0] == "error" and wrong:
        raise ValueError(
            f"{wrong:,} of {len(scores):,} labels are NaN or infinite: leave those inputs out, or find out why."
        )
    return Calibration().fit(scores, None if twice is None else (twice[:, 0], twice[:, 1]))


def _spread(reading: Reading, scores: LayerScores, condition: Condition) -> Spread | None:
    """What tells best how far off a prediction is: the network itself, then a density that was given labels.

    A density that was given predictions says nothing about errors, but has a unit for each of several outputs.
    """
    if reading.prediction.variance is not None:
        return "variance"
    several = scores.expected_error is not None and scores.expected_error.dim() == 2
    return "expected_error" if scores.expected_error is not None and (several or condition == "label") else None


def _error(reading: Reading, unit: Tensor | None) -> Tensor:
    """How far off predictions are, in units; the largest of several outputs. NaN where the label is not finite."""
    value = reading.prediction.value
    label, limits = match_labels(reading.label, value), torch.finfo(value.dtype)
    error = (label - value).abs()
    if unit is not None:
        error = error / unit.to(error)
    error = torch.where(label.isfinite(), error.clamp(max=limits.max), math.nan)
    return error.amax(1) if error.dim() == 2 else error


def _classes(label: Tensor | None, prediction: Tensor, classes: int | None) -> Tensor | None:
    """The labels of inputs, where each is of a class that the network can predict."""
    whole = whole_labels(label, prediction)
    return None if whole is None or bool(((whole < 0) | (whole >= (classes or 0))).any()) else whole


def counted(readings: Iterable[Reading]) -> Iterator[Reading]:
    """The readings as they come, and one warning after all of them if the network gave NaN or infinity for some."""
    wrong = total = 0
    for reading in readings:
        wrong += 0 if reading.unusable is None else int(reading.unusable.sum())
        total += _rows(reading)
        yield reading
    if wrong:
        warn(f"{_unusable(wrong, total, reading)}, which counts as surprising: {_HELP}")


_HELP = "look for it in the inputs, or for an overflow in the network's precision."


def _rows(reading: Reading) -> int:
    value = reading.prediction.value
    return value.numel() if value.dim() == 3 else len(value)


def _unusable(wrong: int, total: int, reading: Reading) -> str:
    rows = "pixels" if reading.prediction.value.dim() == 3 else "inputs"
    return f"the network gave NaN or infinity for {wrong:,} of {total:,} {rows}"
