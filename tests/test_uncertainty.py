from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hidden_uncertainty.uncertainty import LayerScores, Uncertainty

FIELDS = ("prediction", "epistemic", "aleatoric", "log_aleatoric", "p_value")


def draw(n: int = 6, *, pixels: tuple[int, ...] = (), threshold: float | None = 0.5, seed: int = 0) -> Uncertainty:
    generator = torch.Generator().manual_seed(seed)

    def scores() -> Tensor:
        return torch.rand(n, *pixels, generator=generator)

    layers = {
        "layer1": LayerScores(**{name: scores() for name in (*FIELDS[1:], "residual")}, threshold=0.2),
        "layer2": LayerScores(epistemic=scores()),
    }
    fields = {"prediction": torch.randint(10, (n, *pixels), generator=generator)}
    return Uncertainty(**fields, **{name: scores() for name in FIELDS[1:]}, layers=layers, threshold=threshold)


def all_tensors(u: Uncertainty) -> dict[str, Tensor]:
    tensors = {name: getattr(u, name) for name in FIELDS}
    for layer, scores in u.layers.items():
        tensors |= {f"{layer}.{item.name}": getattr(scores, item.name) for item in dataclasses.fields(scores)}
    return {name: value for name, value in tensors.items() if isinstance(value, Tensor)}


@pytest.mark.parametrize("pixels", [(), (2, 3)])
@pytest.mark.parametrize(
    ("index", "rows"),
    [
        (0, [0]),
        (-1, [5]),
        (np.int64(2), [2]),
        (torch.tensor(3), [3]),
        (slice(1, None, 2), [1, 3, 5]),
        (slice(0, 0), []),
        (torch.tensor([4, 4, -6]), [4, 4, 0]),
        (torch.tensor([True, False, False, True, False, False]), [0, 3]),
        (torch.zeros(6, dtype=torch.bool), []),
        ([5, 0], [5, 0]),
        ([], []),
        ([True, False, False, False, False, True], [0, 5]),
        (np.array([1, 2]), [1, 2]),
    ],
)
def test_every_field_follows_the_index(index: Any, rows: list[int], pixels: tuple[int, ...]) -> None:
    u = draw(pixels=pixels)
    part = u[index]
    assert len(part) == len(rows)
    assert part.threshold == u.threshold
    before, after = all_tensors(u), all_tensors(part)
    assert list(before) == list(after)
    for name, value in before.items():
        assert torch.equal(after[name], torch.stack([value[i] for i in rows]) if rows else value[:0])


@pytest.mark.parametrize("index", [6, -7, [0, 6], torch.tensor([-7])])
def test_index_outside(index: Any) -> None:
    with pytest.raises(IndexError, match="has 6 inputs"):
        draw()[index]


def test_two_indices() -> None:
    with pytest.raises(TypeError, match="one index"):
        draw(pixels=(2, 3))[0, 1]


def test_iterates_over_inputs() -> None:
    u = draw()
    assert [one.prediction.item() for one in u] == u.prediction.tolist()


def test_surprising_is_above_the_threshold() -> None:
    u = Uncertainty(prediction=torch.arange(4), epistemic=torch.tensor([1.0, 2.0, 3.0, math.nan]), threshold=2.0)
    assert u.surprising.tolist() == [False, False, True, True]
    layer = draw()[:3].layers["layer1"]
    assert torch.equal(layer.surprising, layer.epistemic > 0.2)
    assert u[u.surprising].prediction.tolist() == [2, 3]


def test_surprising_is_decided_without_rounding_the_threshold() -> None:
    score = torch.tensor([0.1])  # a little above 0.1
    u = Uncertainty(prediction=score, epistemic=score, threshold=0.1)
    assert u.surprising.item() and not dataclasses.replace(u, threshold=score.item()).surprising.item()
    assert u.to("meta").surprising.shape == (1,)


def test_surprising_without_threshold() -> None:
    with pytest.raises(RuntimeError, match=r"detector\.threshold\(false_alarm=0\.01\)"):
        _ = draw(threshold=None).surprising


@pytest.mark.parametrize("pixels", [(), (2, 3)])
def test_cat_undoes_splitting(pixels: tuple[int, ...]) -> None:
    u = draw(pixels=pixels)
    whole = Uncertainty.cat([u[:2], u[2:2], u[2], u[3:]])
    assert whole.threshold == u.threshold
    before, after = all_tensors(u), all_tensors(whole)
    assert list(before) == list(after)
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_cat_of_what_does_not_fit() -> None:
    u = draw()
    with pytest.raises(ValueError, match="at least one"):
        Uncertainty.cat([])
    with pytest.raises(ValueError, match=r"layers: \['layer1', 'layer2'\] in the first, \['layer1'\] at position 1"):
        Uncertainty.cat([u, dataclasses.replace(u, layers={"layer1": u.layers["layer1"]})])
    with pytest.raises(ValueError, match=r"threshold: 0\.5 in the first, None at position 2"):
        Uncertainty.cat([u, u, dataclasses.replace(u, threshold=None)])
    with pytest.raises(ValueError, match="fields"):
        Uncertainty.cat([dataclasses.replace(u, p_value=None), u])
    bare = {name: dataclasses.replace(scores, residual=None) for name, scores in u.layers.items()}
    with pytest.raises(ValueError, match="layer 'layer1'"):
        Uncertainty.cat([u, dataclasses.replace(u, layers=bare)])


def test_moves_every_tensor() -> None:
    moved = draw().to("meta")
    assert {value.device.type for value in all_tensors(moved).values()} == {"meta"}
    assert {value.device.type for value in all_tensors(draw().cpu()).values()} == {"cpu"}


def test_method_without_aleatoric() -> None:
    u = Uncertainty(prediction=torch.arange(3), epistemic=torch.tensor([1.0, 2.0, 3.0]))
    assert u.aleatoric is None
    assert u.layers == {}
    joined = Uncertainty.cat([u[0], u.cpu()])
    assert joined.prediction.tolist() == [0, 0, 1, 2]
    assert joined.aleatoric is None
    assert "aleatoric" not in repr(joined)


def test_summary() -> None:
    u = draw(1000)
    text = str(u)
    assert text == repr(u)
    assert "1,000 inputs" in text
    assert "layer1, layer2" in text
    assert "tensor(" not in text
    assert len(text) < 500
    mean, low, high = u.epistemic.mean().item(), u.epistemic.min().item(), u.epistemic.max().item()
    header, row = (line.split() for line in text.splitlines()[1:3])
    assert header == ["mean", "min", "max"]
    assert row == ["epistemic", f"{mean:.4g}", f"{low:.4g}", f"{high:.4g}"]
    share = 100 * sum(score > 0.5 for score in u.epistemic.tolist()) / 1000
    assert f"{share:.1f} % above 0.5" in text
    assert "residual" in repr(u.layers["layer1"])


def test_summary_of_one_input() -> None:
    u = Uncertainty(prediction=torch.tensor([7]), epistemic=torch.tensor([12.3456]), threshold=5.0)
    assert repr(u).splitlines() == [
        "Uncertainty of 1 input",
        "  epistemic      12.35",
        "  surprising     True, threshold 5",
    ]


def test_summary_of_nothing() -> None:
    assert "0 inputs" in repr(draw()[:0])


def test_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        draw().threshold = 1.0  # type: ignore[misc]


def test_fields_of_different_lengths() -> None:
    with pytest.raises(ValueError, match=r"prediction \(3,\), epistemic \(2,\)"):
        Uncertainty(prediction=torch.arange(3), epistemic=torch.zeros(2))
    with pytest.raises(ValueError, match="first dimension"):
        Uncertainty(prediction=torch.tensor(3), epistemic=torch.tensor(0.0))
    layers = {"a": LayerScores(epistemic=torch.zeros(2))}
    with pytest.raises(ValueError, match="layer 'a' has scores of 2 inputs; there are 3"):
        Uncertainty(prediction=torch.arange(3), epistemic=torch.zeros(3), layers=layers)
    with pytest.raises(ValueError, match=r"epistemic \(2,\), aleatoric \(1,\)"):
        LayerScores(epistemic=torch.zeros(2), aleatoric=torch.zeros(1))
