"""What a detector has fitted: reductions, methods and calibrations as one module, replaced in one step."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from ..extract import AsIs, Features, Reading
from ..model.tasks import Condition
from ..notes import about, note
from ..precision import gradients, without_autocast
from ..reduce import Reduction
from ..uncertainty import LayerScores, Uncertainty
from .calibration import Calibration
from .errors import Spread, error_of, filled, has_errors, refuse_unusable, spread_of, unit_of, without
from .restore import restore
from .terms import Combination, Method, build, with_kind

SAMPLE = 4096  # training rows, at most, that scores are standardised by
MANY = 1e-3  # of a score: a margin of ties that the user should know of
Calibrated = Literal["unseen", "holdout"]
Key = tuple[Literal["surprise", "error"], str]  # what is calibrated: of a term, or of all together, ""


class FittedTerm(nn.Module):
    """What was fitted to what one term reads.

    Args:
        reduction: from what is read to z.
        method: scores z.
        calibration: unseen scores, or None.
        conformal: errors on unseen labelled data, or None.
        spread: what these errors are in units of; None are the output's own.
    """

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
            "calibration": _config(self.calibration),
            "conformal": _config(self.conformal),
            "spread": self.spread,
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """The term that `config` describes, its tensors zero until they are loaded."""
        reduction = config["reduction"]
        return cls(
            AsIs() if reduction is None else Reduction.from_config(reduction),
            build(Method.kinds, config["method"], "method"),
            _calibration(config["calibration"]),
            _calibration(config["conformal"]),
            config.get("spread", "expected_error"),  # the only one of version 0.1.0
        )


class Head(nn.Module):
    """The fitted part of a detector; it has no reference to the model.

    Args:
        terms: what was fitted for each term, by its name.
        combination: of their scores.
        calibration: unseen scores of the combination, where it is not a single term's.
    """

    def __init__(
        self, terms: Mapping[str, FittedTerm], combination: Combination, calibration: Calibration | None = None
    ) -> None:
        super().__init__()
        self.terms = dict(terms)  # which registers no modules; the list does, as a ModuleDict takes no dots
        self.parts = nn.ModuleList(terms.values())
        self.combination, self.combined = combination, calibration
        self.leading = combination.leading  # the term that tells what is not combined
        self.reductions = {name: term.reduction for name, term in self.terms.items()}  # from what each reads to z
        buffers = (
            (part, name) for part in self.modules() for name, tensor in part._buffers.items() if tensor is not None
        )
        self._first = next(buffers, None)  # whose device is that of all

    @property
    def calibration(self) -> Calibration | None:
        """Unseen scores of the combination."""
        return self.terms[self.leading].calibration if self.combination.single else self.combined

    @property
    def device(self) -> torch.device | None:
        """Where the fitted tensors are; None where there are none."""
        return None if self._first is None else getattr(*self._first).device

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
        return scores if wrong is None else {name: without(some, wrong) for name, some in scores.items()}

    def combine(self, scores: Mapping[str, LayerScores], reading: Reading) -> Tensor:
        """One epistemic score from those of all terms."""
        together = self.combination({name: some.epistemic for name, some in scores.items()})
        return filled(together, reading.unusable, math.inf)  # whatever the signs of weights

    @gradients(False)
    def standardised(self, features: Features) -> Head:
        """The head whose combination knows the scores of training data, where it needs them."""
        if not self.combination.learns:
            return self
        order = features.z[self.leading].double().sum(1).argsort()  # by content: loaders shuffle
        sample, device = features[order[:: -(-len(features) // SAMPLE)]], self.device
        with without_autocast(device or sample.prediction.device):
            scores = {
                name: term.method.score(sample.z[name].to(device), sample.prediction.to(device), seen=True).epistemic
                for name, term in self.terms.items()
            }
        return Head(self.terms, self.combination.learn(scores), self.combined)

    def calibrated(
        self, unseen: Iterable[Reading], again: Iterable[tuple[Reading, Iterable[Reading]]], condition: Condition
    ) -> Head:
        """The head with calibrations from data that nothing was fitted to.

        Args:
            unseen: readings of the data.
            again: some of the inputs, together and each alone, read when all of `unseen` are: their scores differ by
                rounding, which ties must not be lost to.
            condition: what methods were given.
        """
        spreads: dict[str, Spread | None] = {}
        known = self._gathered(unseen, condition, spreads)
        if not known or not len(known["surprise", ""]):
            raise ValueError(
                "there is nothing to calibrate with: no input came, none is in the holdout, or no pixel counts. Give "
                "more, or check the labels of pixels."
            )
        twice: dict[Key, list[tuple[Tensor, Tensor]]] = {key: [] for key in known}
        for whole, parts in again:
            together, alone = (self._gathered(some, condition, {}) for some in ([whole], parts))
            for key in known.keys() & together.keys():
                twice[key].append((together[key], alone[key]))
        fitted = {key: _fitted(key, scores, twice[key]) for key, scores in known.items()}
        worst = max(calibration.margin for calibration in fitted.values())
        if worst > MANY:
            note(
                "scores depend on the batch that an input comes in, as with dynamic quantisation: p-values and "
                f"thresholds leave {100 * worst:.2g} % of a score for that, so that alarms are rarer than asked for."
            )
        terms = {
            name: FittedTerm(
                term.reduction, term.method, fitted["surprise", name], fitted.get(("error", name)), spreads.get(name)
            )
            for name, term in self.terms.items()
        }
        return Head(terms, self.combination, None if self.combination.single else fitted["surprise", ""])

    def _gathered(
        self, readings: Iterable[Reading], condition: Condition, spreads: dict[str, Spread | None]
    ) -> dict[Key, Tensor]:
        """All that is calibrated, one number per input; what errors are in units of is noted in `spreads`."""
        found: dict[Key, list[Tensor]] = {}
        for reading in readings:
            refuse_unusable(reading)
            scores = self.score(reading)
            amounts: dict[Key, Tensor] = {("surprise", ""): self.combine(scores, reading)}
            for name, some in scores.items():
                amounts["surprise", name] = some.epistemic
                if has_errors(reading):
                    spreads[name] = spread_of(reading, some, condition)
                    amounts["error", name] = error_of(reading, unit_of(spreads[name], reading, some))
            for key, values in amounts.items():
                found.setdefault(key, []).append(reading.of_inputs(values))
        return {key: torch.cat(parts) for key, parts in found.items()}

    def config(self) -> dict[str, Any]:
        """Everything but the tensors, as JSON."""
        return {
            "terms": [{"name": name, **term.config()} for name, term in self.terms.items()],
            "combination": self.combination.config(),
            "calibration": _config(self.combined),
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """The head that `config` describes, its tensors zero until they are loaded."""
        terms = {part["name"]: FittedTerm.from_config(part) for part in config["terms"]}
        combination = Combination.from_config(config["combination"], list(terms))
        return cls(terms, combination, _calibration(config["calibration"]))


@dataclass(frozen=True, eq=False)
class Fitted:
    """What was fitted.

    Args:
        head: reductions, methods and calibrations.
        calibrated: what kind of data the calibrations come from.
        threshold: of the combined score.
        thresholds: of each term's own.
        condition: what methods were given: only labels tell what speaks of labels.
    """

    head: Head
    calibrated: Calibrated | None = None
    threshold: float | None = None
    thresholds: Mapping[str, float] = field(default_factory=dict)
    condition: Condition = "prediction"

    def calibrate(
        self,
        unseen: Iterable[Reading],
        calibrated: Calibrated,
        again: Iterable[tuple[Reading, Iterable[Reading]]] = (),
    ) -> Fitted:
        """The same with calibrations from data that nothing was fitted to, and without a threshold."""
        return Fitted(self.head.calibrated(unseen, again, self.condition), calibrated, condition=self.condition)

    def alarm(self, false_alarm: float, confidence: float | None) -> Fitted:
        """The same with thresholds at a false-alarm rate."""
        calibration = self.head.calibration
        if calibration is None:
            raise RuntimeError(
                "there is nothing to choose a threshold from: call fit(train, calibration=unseen) with data that the "
                "network was not trained on."
            )
        known = {name: term.calibration for name, term in self.head.terms.items()}
        return replace(
            self,
            threshold=calibration.threshold(false_alarm, confidence),
            thresholds={name: some.threshold(false_alarm, confidence) for name, some in known.items() if some},
        )

    def interval(self, u: Uncertainty, coverage: float) -> tuple[Tensor, Tensor]:
        """Bounds around the predictions, as wide as unseen errors say."""
        if not isinstance(u, Uncertainty):
            raise TypeError(
                f"interval takes what a detector returned, not {type(u).__name__}: score inputs first, with "
                "detector.interval(detector(x), coverage)."
            )
        term, value = self.head.terms[self.head.leading], u.prediction
        if not value.is_floating_point():
            raise RuntimeError(
                "intervals are for networks that predict numbers; this one predicts classes, whose uncertainty is in "
                "u.aleatoric and u.p_value."
            )
        if term.conformal is None:
            raise RuntimeError(
                "intervals need labelled data that the network was not trained on: call fit(train, calibration=unseen) "
                "with a loader that gives (x, y), y of the predictions' shape."
            )
        if term.spread is not None and u.spread is None:
            raise RuntimeError(
                "these scores do not tell how wide intervals are: they are older than the calibration, or of another "
                "detector. Score the inputs again."
            )
        unit = torch.ones_like(value) if term.spread is None or u.spread is None else u.spread.to(value.device)
        half = filled(term.conformal.covering(coverage) * unit, u.epistemic.isposinf(), math.nan)
        # A label on the boundary must not be rounded out.
        half = half + 4 * torch.finfo(value.dtype).eps * (value.abs() + half)
        return value - half, value + half

    def result(self, reading: Reading) -> Uncertainty:
        """Scores of a batch, of each term and together."""
        head = self.head
        layers: dict[str, LayerScores] = {}
        found = head.score(reading)
        for name, scores in found.items():
            known = head.terms[name].calibration
            layers[name] = replace(
                scores,
                expected_error=scores.expected_error if self.condition == "label" else None,
                p_value=None if known is None else known.p_value(scores.epistemic),
                threshold=None if known is None else self.thresholds.get(name),
            )
        leading, term = layers[head.leading], head.terms[head.leading]
        epistemic, p_value = leading.epistemic, leading.p_value
        if not head.combination.single:
            epistemic = head.combine(layers, reading)
            p_value = None if head.combined is None else head.combined.p_value(epistemic)
        spread = None if term.conformal is None else unit_of(term.spread, reading, found[head.leading])
        return Uncertainty(
            prediction=reading.prediction.value,
            epistemic=epistemic,
            aleatoric=leading.aleatoric,
            log_aleatoric=leading.log_aleatoric,
            p_value=p_value,
            layers=layers,
            threshold=self.threshold,
            expected_error=leading.expected_error,
            variance=reading.prediction.variance,
            spread=None if spread is None else filled(spread, reading.unusable, math.nan),
        )

    def config(self) -> dict[str, Any]:
        """Everything but the tensors, as JSON."""
        return {
            "head": self.head.config(),
            "calibrated": self.calibrated,
            "threshold": self.threshold,
            "thresholds": dict(self.thresholds),
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Fitted:
        """The inverse of `config`, with the tensors of the head."""
        head = restore(lambda: Head.from_config(config["head"]), tensors)
        return cls(head, config["calibrated"], config["threshold"], config["thresholds"], config["condition"])


@gradients(False, lasting=True)
def fit_terms(
    methods: Mapping[str, Method], features: Features, condition: Condition, combination: Combination, *, owner: str
) -> Fitted:
    """Fit copies of methods to features.

    Args:
        methods: of each term; they say what to fit and stay as they are.
        features: of training data.
        condition: what methods are conditioned on.
        combination: of the terms' scores.
        owner: the name of the detector, for errors.
    """
    if len(features) == 0:
        raise ValueError("there is nothing to fit to: no input came, or all are in the holdout. Give more.")
    if not features.task.discrete and any(method.needs_classes for method in methods.values()):
        raise ValueError(
            f"{owner} needs classes, but the network predicts numbers. NearestNeighbours and "
            "KernelDensity(how='gaussian') need none."
        )
    y = features.condition(condition) if any(method.conditional for method in methods.values()) else None
    parts, shared = {}, dict[int, Any]()
    for name, asked in methods.items():
        memo = dict(shared)
        method, z = copy.deepcopy(asked, memo), features.z[name]
        shared |= {id(part): memo[id(part)] for part in asked.shared}
        if method.fits:
            if bool((z == z[0]).all()):
                raise ValueError(
                    f"layer {name!r} gives the same activations for all {len(z):,} inputs, so it says nothing about "
                    "any. Choose another layer."
                )
            with about(f"layer {name!r}"):
                method.fit(z, y if method.conditional else None, features)
        parts[name] = FittedTerm(features.reductions[name], method.to(z.device))
    return Fitted(Head(parts, combination).standardised(features), condition=condition)


def _score(method: Method, reading: Reading, name: str, device: torch.device | None) -> LayerScores:
    """Score all rows of a term, in the shape of the predictions."""
    lattice = reading.lattice(name) if method.interpolates else None
    if lattice is not None:
        prediction = reading.prediction.value.nan_to_num(0.0, 0.0, 0.0).flatten().to(device)
        scores = method.score(lattice if device is None else lattice.to(device), prediction)
        return reading.shaped(LayerScores(**scores._asdict()))
    parts = [
        LayerScores(**method.score(z.to(device), prediction.to(device))._asdict(), residual=residual)
        for z, residual, prediction in reading.rows(name)
    ]
    return reading.shaped(LayerScores.cat(parts))


def _config(calibration: Calibration | None) -> dict[str, Any] | None:
    return None if calibration is None else calibration.config()


def _calibration(config: Mapping[str, Any] | None) -> Calibration | None:
    return None if config is None else Calibration.from_config(config)


def _fitted(key: Key, scores: Tensor, twice: list[tuple[Tensor, Tensor]]) -> Calibration:
    wrong = int((~scores.isfinite()).sum())
    if key[0] == "error" and wrong:
        raise ValueError(
            f"{wrong:,} of {len(scores):,} labels are NaN or infinite: leave those inputs out, or find out why."
        )
    together, alone = (torch.cat(parts) for parts in zip(*twice, strict=True)) if twice else (scores[:0],) * 2
    return Calibration().fit(scores, (together, alone))
