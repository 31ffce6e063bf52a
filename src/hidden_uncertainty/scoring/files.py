"""Detectors to files and back: what is written, what is checked before it is used, and files of earlier versions."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn

from .. import io
from ..extract import NoNetwork, Pixels
from ..model.capture import device_of, find
from ..model.identity import check_same, describe, weights
from ..model.tasks import from_config
from ..stored import Unallocated, shapes_of
from .combination import expect_numbers
from .fitted import Fitted
from .terms import Term

GRID = ("marginal.support", "marginal.log_weight", "marginal.log_volume")  # what version 0.1.0 had besides
Content = tuple[dict[str, Any], dict[str, Tensor]]


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
        if "version" not in header:
            header, tensors = _from_0_1(header, tensors)
        elif header["version"] != 2:
            raise io.Unusable(
                f"the file's header is of version {header['version']!r}; this version of the library reads 2."
            )
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
            kind.restored(_restore_terms(header, fitted.head)),
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
    names, numbers = list(head.terms), [header["seed"], *header["thresholds"].values()]
    numbers += [] if header["threshold"] is None else [header["threshold"]]
    io.expect([term["name"] for term in header["terms"]] == names, "terms were fitted that it does not have")
    io.expect(header["calibrated"] in (None, "unseen", "holdout"), f"calibrated={header['calibrated']!r} is not known")
    io.expect(header["thresholds"].keys() <= {*names}, "there is a threshold for a term that it does not have")
    combination = head.combination
    io.expect(combination.combine == header["combine"], "it combines terms in two ways")
    io.expect(not combination.learns or [*combination.learnt] == names, "it does not say how scores are combined")
    expect_numbers(numbers, "a seed or a threshold")
    for learnt in combination.learnt.values():
        learnt.check()
    with Unallocated(len(names)):
        terms = [Term.from_config(term) for term in header["terms"]]
    for term in terms:
        fits = term.source.fits(head.reductions[term.name])
        io.expect(fits, f"term {term.name!r} was fitted to another layer, or to another part of it")
    return terms


def _from_0_1(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Content:
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
    renamed = {}
    for key, tensor in tensors.items():
        if key.startswith("marginal."):
            for number in range(len(layers)):
                renamed[f"parts.{number}.method.prior.{key}"] = tensor
        else:
            before, _, rest = key.partition(".density.")
            renamed[f"{before}.method.density.{rest}" if rest else key] = tensor
    return converted, renamed
