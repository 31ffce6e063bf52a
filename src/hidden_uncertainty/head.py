"""Everything that was fitted, as one module: reductions, densities, the marginal, calibrations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn

from . import marginal as marginals
from ._precision import without_autocast
from ._reading import Reading
from .calibration import Calibration
from .density import KINDS, Density
from .density._lattice import Lattice
from .inference import Posterior, infer
from .marginal import Marginal, Nodes
from .reduce import Reduction
from .uncertainty import LayerScores

ROWS = 4096  # scored at a time at most, which bounds the memory of every density
ROWS_ON_GPU = 1 << 16  # which small pieces would leave idle
CELLS = 1 << 22  # rows times support points at a time

T = TypeVar("T")


class LayerHead(nn.Module):
    """What was fitted to one layer.

    Args:
        reduction: from the layer's output to z.
        density: p(z | ŷ).
        calibration: unseen scores, or None.
        conformal: errors on unseen labelled data in units of the expected error, or None.
    """

    def __init__(
        self,
        reduction: Reduction,
        density: Density,
        calibration: Calibration | None = None,
        conformal: Calibration | None = None,
    ) -> None:
        super().__init__()
        self.reduction, self.density = reduction, density
        self.calibration, self.conformal = calibration, conformal

    def forward(
        self, z: Tensor | Lattice, marginal: Marginal, prediction: Tensor, residual: Tensor | None = None
    ) -> LayerScores:
        """Scores of reduced activations z, by Bayes over the marginal's support (paper, eq. 5 and 6).

        Args:
            z: (n, d), or a lattice that n pixels lie between, for a density that `interpolates`.
            marginal: p(ŷ).
            prediction: (n,), or (n, q).
            residual: (n,), which is passed on.
        """
        parts = self.posteriors(
            z,
            marginal,
            prediction,
            lambda p, nodes, said: (p.log_evidence, p.entropy, p.log_entropy, _expected_error(p, nodes, said)),
        )
        evidence, entropy, log_entropy, error = map(_cat, zip(*parts, strict=True))
        assert evidence is not None
        epistemic = -evidence
        p_value = None if self.calibration is None else self.calibration.p_value(epistemic)
        return LayerScores(epistemic, entropy, log_entropy, residual, p_value, error)

    def posteriors(
        self,
        z: Tensor | Lattice,
        marginal: Marginal,
        prediction: Tensor,
        take: Callable[[Posterior, Nodes, Tensor], T],
    ) -> list[T]:
        """What `take` keeps of p(y | z) over the support, the support and the predictions, some rows at a time."""
        # Not in the generator: left half way by an error, it would switch gradients and autocast when it is collected.
        with torch.no_grad(), without_autocast(z.device):
            return [take(*part) for part in self._posteriors(z, marginal, prediction)]

    def _posteriors(
        self, z: Tensor | Lattice, marginal: Marginal, prediction: Tensor
    ) -> Iterator[tuple[Posterior, Nodes, Tensor]]:
        given = marginal.nodes(prediction[:1])
        if isinstance(z, Lattice):
            start = 0
            for log_prob in self.density.log_prob_between(z, given.points):
                said = prediction[start : start + len(log_prob)]
                start += len(said)
                nodes = marginal.nodes(said)
                yield infer(log_prob, *nodes[1:]), nodes, said
            return
        size = min(ROWS_ON_GPU if z.is_cuda else ROWS, max(1, CELLS // given.log_weight.shape[-1]))
        for rows, said in zip(z.split(size), prediction.split(size), strict=True):
            nodes = marginal.nodes(said)
            yield infer(self.density.log_prob(rows, nodes.points), *nodes[1:]), nodes, said


class Head(nn.Module):
    """The fitted part of a detector; it has no reference to the model.

    Args:
        layers: what was fitted to each layer.
        marginal: p(ŷ), the same for all layers.
    """

    def __init__(self, layers: Mapping[str, LayerHead], marginal: Marginal) -> None:
        super().__init__()
        self.names = list(layers)
        self.layers = dict(layers)  # which registers no modules; the list does, as a ModuleDict takes no dots
        self.parts = nn.ModuleList(layers.values())
        self.marginal = marginal

    @property
    def reductions(self) -> dict[str, Reduction]:
        """From each layer's output to z."""
        return {name: part.reduction for name, part in self.layers.items()}

    @property
    def device(self) -> torch.device:
        """Where the fitted tensors are."""
        return next(self.marginal.buffers()).device

    def score(self, reading: Reading) -> dict[str, LayerScores]:
        """Scores of each layer, in the shape of the predictions."""
        device, marginal, scores = self.device, self.marginal, {}
        for name, layer in self.layers.items():
            lattice = reading.lattice(name) if layer.density.interpolates else None
            if lattice is not None:
                parts = [layer(lattice.to(device), marginal, reading.prediction.value.flatten().to(device))]
            else:
                parts = [
                    layer(z.to(device), marginal, said.to(device), residual) for z, residual, said in reading.rows(name)
                ]
            scores[name] = reading.shaped(LayerScores.cat(parts))
        return scores

    def config(self) -> dict[str, Any]:
        """Everything but the tensors, as JSON."""
        layers = [
            {
                "name": name,
                "reduction": part.reduction.config(),
                "density": with_kind(part.density),
                "calibration": None if part.calibration is None else part.calibration.config(),
                "conformal": None if part.conformal is None else part.conformal.config(),
            }
            for name, part in self.layers.items()
        ]
        return {"layers": layers, "marginal": with_kind(self.marginal)}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """The head that `config` describes, its tensors zero until they are loaded."""
        layers = {}
        for part in config["layers"]:
            calibration, conformal = (
                None if part[name] is None else Calibration.from_config(part[name])
                for name in ("calibration", "conformal")
            )
            reduction = Reduction.from_config(part["reduction"])
            density = build(KINDS, part["density"], "density")
            layers[part["name"]] = LayerHead(reduction, density, calibration, conformal)
        return cls(layers, build(marginals.KINDS, config["marginal"], "marginal"))


def with_kind(part: Density | Marginal) -> dict[str, Any]:
    """The configuration of a density or marginal with its kind, for `build`."""
    return {"kind": type(part).__name__, **part.config()}


def build(kinds: Mapping[str, Any], config: Mapping[str, Any], what: str) -> Any:
    """The density or marginal that a configuration with its kind describes."""
    options = dict(config)
    kind = options.pop("kind")
    if kind not in kinds:
        raise ValueError(f"the file holds a {what} of kind {kind!r}; this version knows {', '.join(kinds)}.")
    return kinds[kind].from_config(options)


def _cat(parts: Sequence[Tensor | None]) -> Tensor | None:
    present = [part for part in parts if part is not None]
    return present[0] if len(present) == 1 else torch.cat(present) if present else None


def _expected_error(posterior: Posterior, nodes: Nodes, prediction: Tensor) -> Tensor | None:
    """Root of E[(y - prediction)² | z]: of numbers (n,), of vectors (n, q); None for classes."""
    if nodes.log_volume is None:
        return None
    mass = posterior.log_posterior.exp()  # (n, m)
    if nodes.points.dim() == 1:
        # A point stands for a cell as wide as its volume: within it, y is spread evenly.
        within = (2 * nodes.log_volume).exp() / 12
        return (mass * ((nodes.points - prediction[:, None]).square() + within)).sum(1).sqrt()
    away = nodes.points - prediction[:, None]  # (n, m, q)
    return torch.einsum("nm,nmq->nq", mass, away.square().to(mass.dtype)).sqrt()
