"""What users may write for layers and densities, as one mapping each; and which of them a warning is about."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from .density import Density
from .reduce import Reduce


def chosen_layers(layers: str | Sequence[str] | Mapping[str, Reduce], default: Reduce) -> dict[str, Reduce]:
    """How each layer is reduced, by name."""
    if isinstance(layers, str):
        layers = [layers]
    if isinstance(layers, Mapping):
        chosen = dict(layers)
    else:
        chosen = dict.fromkeys(layers, default)
        if len(chosen) != len(layers):
            raise ValueError(f"a layer is named twice in {list(layers)}.")
    for name, reduce in chosen.items():
        if not isinstance(name, str):
            raise TypeError(f"the name of a layer is text, such as '0', not {name!r}.")
        if not isinstance(reduce, Reduce):
            raise TypeError(f"layers={{{name!r}: ...}} takes a Reduce(...), not {reduce!r}.")
    if not chosen:
        raise ValueError("name at least one layer. List them with layers(model, example).")
    return chosen


def chosen_densities(density: Density | Mapping[str, Density], layers: Mapping[str, Reduce]) -> dict[str, Density]:
    """The density of each layer, by name."""
    if isinstance(density, Density):
        return dict.fromkeys(layers, density)
    if not isinstance(density, Mapping) or not all(isinstance(part, Density) for part in density.values()):
        raise TypeError(f"density= takes a density such as GaussianMixture(), or one for each layer, not {density!r}.")
    if set(density) != set(layers):
        raise ValueError(f"density names the layers {list(density)}, layers= names {list(layers)}: name the same ones.")
    return dict(density)


@contextmanager
def layer_in_warnings(name: str) -> Iterator[None]:
    """Say which layer a density warns about, to the caller of `fit`."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        warnings.warn(f"layer {name!r}: {warning.message}", warning.category, stacklevel=6)
