"""Everything that was fitted, as one module: reductions, densities, the marginal, calibrations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn

from .calibration import Calibration
from .density import KINDS, Density
from .inference import infer
from .marginal import Categorical
from .reduce import Reduction
from .uncertainty import LayerScores

ROWS = 4096  # scored at a time, which bounds the memory of every density


class LayerHead(nn.Module):
    """What was fitted to one layer.

    Args:
        reduction: from the layer's output to z.
        density: p(z | ŷ).
        calibration: unseen scores, or None.
    """

    def __init__(self, reduction: Reduction, density: Density, calibration: Calibration | None = None) -> None:
        super().__init__()
        self.reduction, self.density, self.calibration = reduction, density, calibration

    def forward(self, z: Tensor, marginal: Categorical, residual: Tensor | None = None) -> LayerScores:
        """Scores of reduced activations z (n, d), by Bayes over the marginal's support (paper, eq. 5 and 6)."""
        with torch.no_grad(), torch.autocast(z.device.type, enabled=False):
            parts = [
                infer(self.density.log_prob(rows, marginal.support), marginal.log_weight) for rows in z.split(ROWS)
            ]
            evidence, _, entropy, log_entropy = (torch.cat(values) for values in zip(*parts, strict=True))
        p_value = None if self.calibration is None else self.calibration.p_value(-evidence)
        return LayerScores(-evidence, entropy, log_entropy, residual, p_value)


class Head(nn.Module):
    """The fitted part of a detector; it has no reference to the model.

    Args:
        layers: what was fitted to each layer.
        marginal: p(ŷ), the same for all layers.
    """

    def __init__(self, layers: Mapping[str, LayerHead], marginal: Categorical) -> None:
        super().__init__()
        self.names = list(layers)  # a ModuleDict takes no dots
        self.parts = nn.ModuleList(layers.values())
        self.marginal = marginal

    @property
    def layers(self) -> dict[str, LayerHead]:
        """What was fitted to each layer, by name."""
        return {name: part for name, part in zip(self.names, self.parts, strict=True) if isinstance(part, LayerHead)}

    @property
    def reductions(self) -> dict[str, Reduction]:
        """From each layer's output to z."""
        return {name: part.reduction for name, part in self.layers.items()}

    @property
    def device(self) -> torch.device:
        """Where the fitted tensors are."""
        return self.marginal.log_weight.device

    def score(self, reduced: Mapping[str, tuple[Tensor, Tensor | None]]) -> dict[str, LayerScores]:
        """Scores of each layer from its reduced activations and residuals."""
        return {name: self.layers[name](z.to(self.device), self.marginal, rest) for name, (z, rest) in reduced.items()}

    def config(self) -> dict[str, Any]:
        """Everything but the tensors, as JSON."""
        layers = [
            {
                "name": name,
                "reduction": part.reduction.config(),
                "density": {"kind": type(part.density).__name__, **part.density.config()},
                "calibration": None if part.calibration is None else part.calibration.config(),
            }
            for name, part in self.layers.items()
        ]
        return {"layers": layers, "marginal": self.marginal.config()}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """The head that `config` describes, its tensors zero until they are loaded."""
        layers = {}
        for part in config["layers"]:
            options = dict(part["density"])
            kind = options.pop("kind")
            if kind not in KINDS:
                raise ValueError(f"the file holds a density of kind {kind!r}; this version knows {', '.join(KINDS)}.")
            calibration = None if part["calibration"] is None else Calibration.from_config(part["calibration"])
            reduction = Reduction.from_config(part["reduction"])
            layers[part["name"]] = LayerHead(reduction, KINDS[kind].from_config(options), calibration)
        return cls(layers, Categorical.from_config(config["marginal"]))
