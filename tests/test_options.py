"""What may be written for layers and densities, and what is refused at once."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from hidden_uncertainty import GaussianMixture, LatentDensity


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"layers": [0]}, "the name of a layer is text, such as '0', not 0"),
        ({"layers": {"hidden": "channels"}}, r"takes a Reduce\(...\), not 'channels'"),
        ({"density": GaussianMixture}, r"takes a density such as GaussianMixture\(\), .* not <class"),
        ({"density": "mixture"}, r"takes a density such as .* not 'mixture'"),
        ({"density": {"hidden": GaussianMixture}}, "takes a density such as"),
    ],
)
def test_what_cannot_be_meant(trained: nn.Module, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        LatentDensity(trained, **{"layers": "hidden", **arguments})


def test_a_marginal_of_numbers_is_not_for_classes(trained: nn.Module, data: dict) -> None:
    with pytest.raises(ValueError, match="marginal='uniform' is of numbers; classes are counted"):
        LatentDensity(trained, "hidden", marginal="uniform").fit(data["train"])
