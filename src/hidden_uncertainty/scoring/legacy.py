"""Files of earlier versions, as this version would have written them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ..io import Unusable

GRID = ("support", "log_weight", "log_volume")
Content = tuple[dict[str, Any], dict[str, Tensor]]


def convert(header: dict[str, Any], tensors: dict[str, Tensor]) -> Content:
    """The header and tensors of a file of any version in the form of this one."""
    if "version" not in header:
        return _from_0_1(header, tensors)
    if header["version"] != 2:
        raise Unusable(f"the file's header is of version {header['version']!r}; this version of the library reads 2.")
    return header, tensors


def _from_0_1(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Content:
    """Version 0.1.0 saved `LatentDensity` alone: a density per layer, and one marginal beside them."""
    layers, (marginal, tensors) = header["head"]["layers"], _without_grid(header["head"]["marginal"], tensors)
    combine = header["combine"] if header["combine"] == "last" else {header["combine"]: 1.0}
    leading = layers[-1]["name"] if combine == "last" else header["combine"]
    threshold = header["threshold"]
    fitted, terms = [], []
    for part in layers:
        name, asked = part["name"], header["densities"].get(part["name"])
        facts = {key: part[key] for key in ("name", "reduction", "calibration", "conformal")}
        method = {"kind": "DensityMethod", "spec": header["marginal"]}
        fitted.append({**facts, "method": {**method, "density": part["density"], "marginal": marginal}})
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
            place, _, rest = key.partition(".density.")
            renamed[f"{place}.method.density.{rest}" if rest else key] = tensor
    return converted, renamed


def _without_grid(
    marginal: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> tuple[Mapping[str, Any], Mapping[str, Tensor]]:
    """The marginal of numbers without the grid that it had: every input has its own now."""
    if not marginal.get("fitted"):
        return marginal, tensors
    fitted = marginal["fitted"]
    shapes = {name: shape for name, shape in fitted["shapes"].items() if name not in GRID}
    kept = {key: tensor for key, tensor in tensors.items() if key not in {f"marginal.{name}" for name in GRID}}
    return {**marginal, "fitted": {**fitted, "shapes": shapes}}, kept
