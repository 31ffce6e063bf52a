"""What a detector has fitted: one object, replaced in one step."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torch import Tensor

from ..abilities import require
from ..extract import Features, Reading, Unseen
from ..marginal import LabelSets
from ..model.tasks import Condition, MultiLabel
from ..notes import about, note
from ..precision import gradients
from ..uncertainty import LayerScores, Uncertainty
from .combination import Combination
from .errors import filled, unit_of
from .head import FittedTerm, Head
from .restore import restore
from .terms import Method

TO_LEARN = 1 / 3  # of unseen inputs: how terms are combined is learnt from these, thresholds from the others
FEWEST = 100  # of them
Calibrated = Literal["unseen", "holdout"]


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

    def learn(self, unseen: Unseen) -> tuple[Fitted, Unseen]:
        """The same with a combination that has learnt from a part of data that nothing was fitted to, and the rest.

        The part is chosen by content. The rest is for the calibration, which must not have been learnt from.
        """
        if not self.head.combination.tails or not isinstance(unseen, Features):
            return self, unseen
        part = unseen.share(TO_LEARN)
        if int(part.sum()) < FEWEST:
            note(
                f"{len(unseen):,} unseen inputs are too few to learn from how layers are combined: that is learnt from "
                "training data. Some hundred would do."
            )
            return self, unseen
        return replace(self, head=self.head.taught(unseen[part]).learnt(unseen[part], unseen=True)), unseen[~part]

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
        if head.combination.tails:
            parts = head.combination.parts({name: some.epistemic for name, some in found.items()})
            layers = {name: replace(some, part=parts[name]) for name, some in layers.items()}
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
            probabilities=leading.probabilities if leading.probabilities is not None else head.probabilities(reading),
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
    methods: Mapping[str, Method], features: Features, condition: Condition, combination: Combination, *, owner: object
) -> Fitted:
    """Fit copies of methods to features.

    Args:
        methods: of each term; they say what to fit and stay as they are.
        features: of training data.
        condition: what methods are conditioned on.
        combination: of the terms' scores.
        owner: the detector, for errors.
    """
    if len(features) == 0:
        raise ValueError("there is nothing to fit to: no input came, or all are in the holdout. Give more.")
    if not features.task.discrete and any(method.needs_classes for method in methods.values()):
        raise ValueError(
            f"{type(owner).__name__} needs classes, but the network predicts numbers. NearestNeighbours and "
            "KernelDensity(how='gaussian') need none."
        )
    y = features.condition(condition) if any(method.conditional for method in methods.values()) else None
    classes = y
    if isinstance(features.task, MultiLabel):
        require(owner, "labels")
        if y is not None and any(method.needs_classes for method in methods.values()):
            classes = LabelSets().fit(y).of(y)
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
                method.fit(z, (classes if method.needs_classes else y) if method.conditional else None, features)
        parts[name] = FittedTerm(features.reductions[name], method.to(z.device))
    return Fitted(Head(parts, combination).learnt(features, unseen=False), condition=condition)
