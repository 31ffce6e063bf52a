"""What a detector has fitted: one object, replaced in one step; to files and back, also of earlier versions."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from os import PathLike
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .. import io
from ..abilities import require
from ..density import Moments
from ..extract import Features, NoNetwork, Pixels, Reading, Unseen
from ..extract.features import PART
from ..marginal import LabelSets
from ..model.capture import device_of, find
from ..model.identity import check_same, describe, weights
from ..model.tasks import Condition, MultiLabel, Task, from_config
from ..notes import about, note
from ..precision import gradients
from ..stored import Unallocated, restore, shapes_of
from ..team import team
from ..uncertainty import LayerScores, Uncertainty
from .combination import Combination, expect_numbers
from .decisions import filled, unit_of
from .head import FittedTerm, Head
from .terms import Method, Term

TO_LEARN = 1 / 3  # of unseen inputs: how terms are combined is learnt from these, thresholds from the others
FEWEST = 100  # of them
Calibrated = Literal["unseen", "holdout"]
OTHERS = {"Monitor": "Monitor", "state 1": "State"}  # what else files hold, by what their headers say
GRID = ("marginal.support", "marginal.log_weight", "marginal.log_volume")  # what version 0.1.0 had besides


@dataclass(frozen=True, eq=False)
class Fitted:
    """What was fitted."""

    head: Head  # reductions, methods and calibrations
    calibrated: Calibrated | None = None  # what kind of data the calibrations come from
    threshold: float | None = None  # of the combined score
    thresholds: Mapping[str, float] = field(default_factory=dict)  # of each term's own
    condition: Condition = "prediction"  # what methods were given: only labels tell what speaks of labels

    def learn(self, unseen: Unseen) -> tuple[Fitted, Unseen]:
        """The same with a combination that has learnt from a part of data that nothing was fitted to, and the rest.

        The part is chosen by content. The rest is for the calibration, which must not have been learnt from.
        """
        crew, own, rest = team(), None, unseen
        if isinstance(unseen, Features) and self.head.combination.tails:
            part = unseen.keys() < TO_LEARN
            own, rest = unseen[part], unseen[~part]
        if not self.head.combination.tails or (own is None and crew.size == 1):
            return self, unseen
        sizes = crew.all((0, 0) if own is None else (len(own), len(part)))
        if sum(size for size, _ in sizes) < FEWEST:
            note(
                f"{sum(size for _, size in sizes):,} unseen inputs are too few to learn from how layers are combined: "
                f"that is learnt from training data. About {round(FEWEST / TO_LEARN)} would do."
            )
            return self, unseen
        every = crew.to_first(None if own is None else own.plain())

        def teach() -> Fitted:
            whole = Features.received(every, self.head.reductions, self.head.device or "cpu")
            return replace(self, head=self.head.taught(whole).learnt(whole, unseen=True))

        return of_first(teach, self.head.device), rest

    def alarm(self, false_alarm: float, confidence: float | None) -> Fitted:
        """The same with thresholds at a false-alarm rate."""
        calibration = self.head.calibration
        if calibration is None:
            raise RuntimeError(
                "there is nothing to choose a threshold from: call fit(train, calibration=unseen) with data that the "
                "network was not trained on."
            )
        known = {name: term.calibration for name, term in self.head.terms.items() if term.calibration}
        each = {name: some.threshold(false_alarm, confidence) for name, some in known.items()}
        return replace(self, threshold=calibration.threshold(false_alarm, confidence), thresholds=each)

    def result(self, reading: Reading) -> Uncertainty:
        """Scores of a batch, of each term and together."""
        head = self.head
        layers: dict[str, LayerScores] = {}
        found = head.score(reading)
        each = {name: scores.epistemic for name, scores in found.items()}
        parts = head.combination.parts(each) if head.combination.tails else {}
        for name, scores in found.items():
            known = head.terms[name].calibration
            layers[name] = replace(
                scores,
                expected_error=scores.expected_error if self.condition == "label" else None,
                p_value=None if known is None else known.p_value(scores.epistemic),
                threshold=None if known is None else self.thresholds.get(name),
                part=parts.get(name),
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
            probabilities=leading.probabilities if leading.probabilities is not None else head.probabilities(reading),
        )

    def config(self) -> dict[str, Any]:
        """Everything but the tensors, as JSON."""
        return {**vars(self), "head": self.head.config(), "thresholds": dict(self.thresholds)}

    @classmethod
    def from_config(cls, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Fitted:
        """The inverse of `config`, with the tensors of the head."""
        head = restore(lambda: Head.from_config(config["head"]), tensors)
        return cls(**{part.name: config[part.name] for part in fields(cls)} | {"head": head})


def require_classes(task: Task, owner: str) -> None:
    """Raise where a network predicts numbers."""
    if not task.discrete:
        raise ValueError(f"{owner} needs classes, but the network predicts numbers. NearestNeighbours needs none.")


def of_first(make: Callable[[], Fitted], device: torch.device | str | None) -> Fitted:
    """What the first process makes, for all of a team, bit by bit; on a device."""
    crew = team()
    if crew.size == 1:
        return make()
    with crew.step():
        found = make() if crew.rank == 0 else None
        tensors = {} if found is None else {name: part.cpu() for name, part in found.head.state_dict().items()}
    config, tensors = crew.first((None if found is None else found.config(), tensors))
    if found is None:
        assert config is not None
        found = Fitted.from_config(config, tensors)
        found.head.to(device or "cpu")
    return found


@gradients(False, lasting=True)
def fit_terms(
    methods: Mapping[str, Method],
    features: Features,
    condition: Condition,
    combination: Combination,
    *,
    owner: object,
    moments: Mapping[str, Moments | Any],
) -> Fitted:
    """Fit copies of the methods of terms to features, for a detector, the `owner`.

    `moments` are sums over the rows of some terms, or their rows on disk: these terms are fitted to them instead.
    """
    if len(features) == 0 and not any(bool(part.count.any()) for part in moments.values()):
        raise ValueError("there is nothing to fit to: no input came, or all are in the holdout. Give more.")
    if any(method.needs_classes for method in methods.values()):
        require_classes(features.task, type(owner).__name__)
    conditional = any(method.conditional and name not in moments for name, method in methods.items())
    y = features.condition(condition) if conditional else None
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
            known = moments.get(name)
            same = all(bool((part == z[0]).all()) for part in z.split(PART)) if known is None else known.constant()
            if same:
                raise ValueError(
                    f"layer {name!r} gives the same activations for all inputs, so it says nothing about any. Choose "
                    "another layer."
                )
            with about(f"layer {name!r}"):
                if known is None:
                    method.fit(z, (classes if method.needs_classes else y) if method.conditional else None, features)
                else:
                    method.fit_gathered(known, features)
        parts[name] = FittedTerm(features.reductions[name], method.to(z.device))
    return Fitted(Head(parts, combination).learnt(features, unseen=False), condition=condition)


def save(detector: Any, fitted: Fitted, path: str | PathLike[str]) -> None:
    """Write a detector; the model is not in the file."""
    kinds = detector.kinds
    header = {
        **fitted.config(),
        "version": 2,  # of this header; 0.1.0 had none
        "kinds": [io.name_of(kinds, kind) for kind in type(detector).__mro__ if hasattr(kind, "kinds")],
        "model": describe(detector.model),
        "terms": [term.config() for term in detector.terms.values()],
        "task": None if detector.task is None else detector.task.config(),
        "output": detector.reader.output,
        "condition": detector.condition,
        "combine": detector.combine,
        "pixels": None if detector.pixels is None else detector.pixels.config(),
        "seed": detector.seed,
    }
    state = fitted.head.state_dict()
    try:
        with Unallocated(len(state)):
            again = type(fitted.head).from_config(header["head"]).config()
        io.expect(again == header["head"], "an argument of a class of your own is not the attribute of its name")
    except io.WRONG as error:
        raise ValueError(f"the detector cannot be saved, as it could not be loaded: {error}.") from error
    io.write(path, header, {**state, "weights": weights(detector.model)})


def load(
    cls: Any,
    base: Any,
    path: str | PathLike[str],
    model: nn.Module | None,
    device: torch.device | str | None,
    **options: Any,
) -> tuple[Any, Fitted]:
    """Read a detector of a class `cls`, as `Detector.load`, and what it had fitted; all are of the class `base`."""
    header, tensors = io.read(path)
    network = NoNetwork() if model is None else model
    find(network, [])  # raises unless it is a module
    with io.blaming(path):
        version = header.get("kind", header.get("version"))
        if version in OTHERS:
            raise io.Unusable(f"'{path}' holds a {OTHERS[version]}, not a detector: use {OTHERS[version]}.load.")
        if version is None:
            header, tensors = _from_0_1(header, tensors)
        elif version != 2:
            raise io.Unusable(f"the file's header is of version {version!r}; this version of the library reads 2.")
        check_same(network, header["model"], tensors.pop("weights"), path)
        known = next((base.kinds[name] for name in header["kinds"] if name in base.kinds), base)
        own = issubclass(cls, known) and not cls.__module__.startswith("hidden_uncertainty.")  # a class of the user's
        if not issubclass(known, cls) and not own:
            raise io.Unusable(f"'{path}' holds {known.__name__}, not {cls.__name__}: use {known.__name__}.load.")
        kind = known if issubclass(known, cls) else cls
        fitted, pixels, task = Fitted.from_config(header, tensors), header["pixels"], header["task"]
        detector = kind.__new__(kind)
        # Not the class's own __init__, which only builds terms: the file holds them.
        base.__init__(
            detector,
            model,
            _restore_terms(header, fitted.head),
            combine=header["combine"],
            condition=header["condition"],
            task=None if task is None else from_config(task),
            output=header["output"],
            pixels=None if pixels is None else Pixels.from_config(pixels),
            seed=header["seed"],
            **options,
        )
    fitted.head.to(device or device_of(network) or "cpu")
    return detector, fitted


def _restore_terms(header: Mapping[str, Any], head: Any) -> list[Term]:
    """The terms of a file, which say what to fit; a ValueError where its header contradicts itself or the head."""
    names = list(head.terms)
    numbers = [header["seed"], header["threshold"] or 0, *header["thresholds"].values()]
    io.expect([term["name"] for term in header["terms"]] == names, "terms were fitted that it does not have")
    io.expect(header["calibrated"] in (None, "unseen", "holdout"), f"calibrated={header['calibrated']!r} is not known")
    io.expect(header["thresholds"].keys() <= {*names}, "there is a threshold for a term that it does not have")
    combination = head.combination
    io.expect(combination.combine == header["combine"], "it combines terms in two ways")
    io.expect(not combination.learns or [*combination.learnt] == names, "it does not say how scores are combined")
    expect_numbers(numbers, "a seed or a threshold")
    combination.check()
    with Unallocated(len(names)):
        terms = [Term.from_config(term) for term in header["terms"]]
    for term in terms:
        fits = term.source.fits(head.reductions[term.name])
        io.expect(fits, f"term {term.name!r} was fitted to another layer, or to another part of it")
    return terms


def _from_0_1(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Version 0.1.0 saved `LatentDensity` alone: a density per layer, and one marginal beside them."""
    layers, combine = header["head"]["layers"], "last" if header["combine"] == "last" else {header["combine"]: 1.0}
    leading = layers[-1]["name"] if combine == "last" else header["combine"]
    threshold, marginal = header["threshold"], header["head"]["marginal"]
    if marginal.get("fitted"):  # of numbers, without the grid that it had: every input has its own now
        tensors = {key: tensor for key, tensor in tensors.items() if key not in GRID}

    def described(place: str, options: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """What was fitted: version 0.1.0 described it in other words, from which only options are taken."""
        own = {key.removeprefix(place): part for key, part in tensors.items() if key.startswith(place)}
        return None if options is None else {**options, "fitted": shapes_of(own) or None}

    if "fitted" not in marginal:  # of classes, without options
        marginal = {"kind": marginal["kind"]}
    fitted, terms = [], []
    for place, part in enumerate(layers):
        name, asked, start = part["name"], header["densities"].get(part["name"]), f"parts.{place}."
        method = {"kind": "DensityMethod", "spec": header["marginal"]}
        own = {"density": described(f"{start}density.", part["density"]), "marginal": described("marginal.", marginal)}
        known = {key: described(f"{start}{key}.", part[key] and {}) for key in ("calibration", "conformal")}
        fitted.append({"name": name, "reduction": part["reduction"], **known, "method": {**method, **own}})
        unfitted = {**method, "density": asked, "marginal": None}
        terms.append({"method": unfitted, "layer": name, "reduce": part["reduction"]["reduce"], "name": name})
    converted = {
        **{key: header[key] for key in ("model", "task", "condition", "seed", "calibrated", "threshold")},
        "kinds": ["LatentDensity"],
        "output": None,  # the task knows it
        "head": {"terms": fitted, "combination": {"combine": combine, "standard": {}}, "calibration": None},
        "terms": terms,
        "combine": combine,
        "pixels": header.get("pixels"),
        "thresholds": {} if threshold is None else {leading: threshold},
    }
    shared = {key: tensor for key, tensor in tensors.items() if key.startswith("marginal.")}
    renamed = {key.replace(".density.", ".method.density.", 1): tensors[key] for key in tensors if key not in shared}
    for number in range(len(layers)):
        renamed |= {f"parts.{number}.method.prior.{key}": tensor for key, tensor in shared.items()}
    return converted, renamed
