"""What a detector has fitted: reductions, methods and calibrations as one module, replaced in one step."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from ..extract import AsIs, Features, Reading
from ..model.tasks import Condition, match_labels
from ..notes import about
from ..precision import without_autocast
from ..reduce import Reduction
from ..uncertainty import LayerScores, Uncertainty
from .calibration import Calibration
from .terms import Combination, Method, build, with_kind

SAMPLE = 4096  # training rows, at most, that scores are standardised by
Calibrated = Literal["unseen", "holdout"]


class FittedTerm(nn.Module):
    """What was fitted to what one term reads.

    Args:
        reduction: from what is read to z.
        method: scores z.
        calibration: unseen scores, or None.
        conformal: errors on unseen labelled data in units of the expected error, or None.
    """

    def __init__(
        self,
        reduction: Reduction,
        method: Method,
        calibration: Calibration | None = None,
        conformal: Calibration | None = None,
    ) -> None:
        super().__init__()
        self.reduction, self.method = reduction, method
        self.calibration, self.conformal = calibration, conformal

    def config(self) -> dict[str, Any]:
        """Everything but the tensors, as JSON."""
        return {
            "reduction": None if isinstance(self.reduction, AsIs) else self.reduction.config(),
            "method": with_kind(self.method),
            "calibration": _config(self.calibration),
            "conformal": _config(self.conformal),
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

    @property
    def reductions(self) -> dict[str, Reduction]:
        """From what each term reads to z."""
        return {name: term.reduction for name, term in self.terms.items()}

    @property
    def calibration(self) -> Calibration | None:
        """Unseen scores of the combination."""
        return self.terms[self.leading].calibration if self.combination.single else self.combined

    @property
    def device(self) -> torch.device | None:
        """Where the fitted tensors are; None where there are none."""
        first = next(self.buffers(), None)
        return None if first is None else first.device

    def score(self, reading: Reading) -> dict[str, LayerScores]:
        """Scores of each term, in the shape of the predictions."""
        if reading.scores is not None:
            return dict(reading.scores)
        device = self.device
        with torch.no_grad(), without_autocast(device or reading.prediction.value.device):
            return {name: _score(term.method, reading, name, device) for name, term in self.terms.items()}

    def combine(self, scores: Mapping[str, LayerScores]) -> Tensor:
        """One epistemic score from those of all terms."""
        return self.combination({name: some.epistemic for name, some in scores.items()})

    def standardised(self, features: Features) -> Head:
        """The head whose combination knows the scores of training data, where it needs them."""
        if not self.combination.learns:
            return self
        sample, device = features[:: -(-len(features) // SAMPLE)], self.device
        with torch.no_grad(), without_autocast(device or sample.prediction.device):
            scores = {
                name: term.method.score(sample.z[name].to(device), sample.prediction.to(device), seen=True).epistemic
                for name, term in self.terms.items()
            }
        return Head(self.terms, self.combination.learn(scores), self.combined)

    def calibrated(self, unseen: Iterable[Reading]) -> Head:
        """The head with calibrations from data that nothing was fitted to.

        Each term gets its own, with errors in units of the expected one where labels of numbers are known.
        """
        surprise: dict[str, list[Tensor]] = {name: [] for name in self.terms}
        errors: dict[str, list[Tensor]] = {name: [] for name in self.terms}
        together: list[Tensor] = []
        for reading in unseen:
            scores = self.score(reading)
            together.append(reading.of_inputs(self.combine(scores)))
            for name, some in scores.items():
                surprise[name].append(reading.of_inputs(some.epistemic))
                if some.expected_error is not None and reading.label is not None:
                    prediction = reading.prediction.value.to(some.epistemic.device)
                    error = _in_units(match_labels(reading.label, prediction), prediction, some.expected_error)
                    errors[name].append(reading.of_inputs(error))
        terms = {
            name: FittedTerm(term.reduction, term.method, _fitted(surprise[name]), _conformal(errors[name]))
            for name, term in self.terms.items()
        }
        return Head(terms, self.combination, None if self.combination.single else _fitted(together))

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
    """

    head: Head
    calibrated: Calibrated | None = None
    threshold: float | None = None
    thresholds: Mapping[str, float] = field(default_factory=dict)

    def calibrate(self, unseen: Iterable[Reading], calibrated: Calibrated) -> Fitted:
        """The same with calibrations from data that nothing was fitted to, and without a threshold."""
        return Fitted(self.head.calibrated(unseen), calibrated)

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
        conformal = self.head.terms[self.head.leading].conformal
        if conformal is None or u.expected_error is None:
            raise RuntimeError(
                "intervals are for networks that predict numbers and need labelled data that the network was not "
                "trained on: call fit(train, calibration=unseen) with a loader that gives (x, y)."
            )
        half = conformal.covering(coverage) * u.expected_error.to(u.prediction.device)
        return u.prediction - half, u.prediction + half

    def result(self, reading: Reading) -> Uncertainty:
        """Scores of a batch, of each term and together."""
        head = self.head
        layers: dict[str, LayerScores] = {}
        for name, scores in head.score(reading).items():
            known = head.terms[name].calibration
            layers[name] = scores
            if known is not None:
                threshold = self.thresholds.get(name)
                layers[name] = replace(scores, p_value=known.p_value(scores.epistemic), threshold=threshold)
        leading = layers[head.leading]
        epistemic, p_value = leading.epistemic, leading.p_value
        if not head.combination.single:
            epistemic = head.combine(layers)
            p_value = None if head.combined is None else head.combined.p_value(epistemic)
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
        head = Head.from_config(config["head"])
        head.load_state_dict(tensors)
        return cls(head, config["calibrated"], config["threshold"], config["thresholds"])


@torch.inference_mode(False)
@torch.no_grad()
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
    return Fitted(Head(parts, combination).standardised(features))


def _score(method: Method, reading: Reading, name: str, device: torch.device | None) -> LayerScores:
    """Score all rows of a term, in the shape of the predictions."""
    lattice = reading.lattice(name) if method.interpolates else None
    if lattice is not None:
        prediction = reading.prediction.value.flatten().to(device)
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


def _fitted(scores: list[Tensor]) -> Calibration:
    known = torch.cat(scores) if scores else torch.zeros(0, device="cpu")
    if len(known) == 0:
        raise ValueError(
            "there is nothing to calibrate with: no input came, none is in the holdout, or no pixel counts. Give more, "
            "or check the labels of pixels."
        )
    return Calibration().fit(known)


def _conformal(errors: list[Tensor]) -> Calibration | None:
    if not errors:
        return None
    found = torch.cat(errors)
    wrong = int((~found.isfinite()).sum())
    if wrong:
        raise ValueError(
            f"{wrong:,} of {len(found):,} labels are NaN or infinite: leave those inputs out, or find out why."
        )
    return Calibration().fit(found)


def _in_units(label: Tensor, prediction: Tensor, expected: Tensor) -> Tensor:
    """The error in units of the expected one, the largest of several outputs."""
    error = (label - prediction).abs() / expected
    several = expected.dim() == 2  # (n, q)
    return error.amax(1) if several else error
