"""Terms of a detector, the layers that arguments choose, and how scores are combined."""

import copy
import json

import pytest
import torch
from torch import nn

from hidden_uncertainty import GaussianMixture, Reduce
from hidden_uncertainty.scoring.bayes import DensityMethod
from hidden_uncertainty.scoring.combination import Combination, check_combine
from hidden_uncertainty.scoring.terms import Method, Term, build, chosen_layers

NET = nn.ModuleDict({"conv": nn.Conv2d(1, 2, 3), "fc": nn.Linear(2, 2), "inner": nn.Sequential(nn.Linear(2, 2))})
NAMES = ["conv", "fc", "out"]
SCORES = {name: torch.randn(50, generator=torch.Generator().manual_seed(i)) * 10**i for i, name in enumerate(NAMES)}


@pytest.mark.parametrize(
    ("combine", "leading", "expected"),
    [
        ("last", "out", SCORES["out"]),
        ({"fc": 1.0}, "fc", SCORES["fc"]),
        ({"fc": 0.5}, "fc", 0.5 * SCORES["fc"]),
        ({"fc": 2.0, "conv": -1.0}, "fc", 2 * SCORES["fc"] - SCORES["conv"]),  # the order of the terms counts
    ],
)
def test_one_score_from_several(combine, leading, expected):
    combination = Combination(check_combine(combine, NAMES), NAMES)
    torch.testing.assert_close(combination(SCORES), expected)
    assert combination.leading == leading and not combination.learns
    assert combination.single == (combination(SCORES) is SCORES[leading])


def test_a_mean_is_of_scores_standardised_on_training_data():
    combination = Combination("mean", NAMES)
    assert combination.learns and not combination.single and combination.leading == "out"
    learnt = combination.learn(SCORES)
    parts = [(score - score.mean()) / score.std() for score in SCORES.values()]
    torch.testing.assert_close(learnt(SCORES), torch.stack(parts).mean(0))
    again = Combination.from_config(json.loads(json.dumps(learnt.config())), NAMES)
    assert torch.equal(again(SCORES), learnt(SCORES))
    flat = Combination("mean", NAMES).learn({**SCORES, "fc": torch.ones(50)})  # no deviation to divide by
    torch.testing.assert_close(flat({**SCORES, "fc": torch.full((50,), 4.0)}), (parts[0] + 3 + parts[2]) / 3)
    alone = Combination("mean", ["fc"])
    assert alone.single and not alone.learns and alone(SCORES) is SCORES["fc"]


@pytest.mark.parametrize(
    ("combine", "message"),
    [
        (
            "first",
            r"combine must be 'last', 'mean', 'fisher' or weights of the layers \['conv', 'fc', 'out'\], not 'first'",
        ),
        (None, "not None"),
        ({}, r"combine has weights for \[\]; name some of the layers"),
        ({"fc": 1.0, "head": 1.0}, r"weights for \['fc', 'head'\]"),
        ({"fc": float("nan")}, r"combine's weights are finite numbers, not all zero; got"),
    ],
)
def test_what_is_no_combination(combine, message):
    with pytest.raises(ValueError, match=message):
        check_combine(combine, NAMES)


def test_the_name_of_a_layer_stands_for_it_alone():
    with pytest.warns(DeprecationWarning, match=r"combine='fc', a layer's name, is deprecated: use combine=\{'fc': 1"):
        assert check_combine("fc", NAMES) == {"fc": 1.0}


def test_layers_are_chosen_by_name_or_with_how_each_is_reduced():
    assert chosen_layers(NET, "fc", max_dim=3) == {"fc": Reduce(max_dim=3)}
    assert chosen_layers(NET, ["fc", "conv"], Reduce("channels", max_dim=9), 3)["conv"].max_dim == 9
    each = {"fc": Reduce("channels"), "conv": Reduce()}
    assert chosen_layers(NET, each, "tokens") == each


def test_layers_may_be_modules_of_the_model():
    wanted = {"fc": Reduce(max_dim=3), "conv": Reduce(max_dim=3)}
    assert chosen_layers(NET, NET.fc, max_dim=3) == {"fc": Reduce(max_dim=3)}
    for layers in ([NET.fc, NET.conv], ["fc", NET.conv], (NET.fc, "conv")):
        assert chosen_layers(NET, layers, max_dim=3) == wanted
    assert chosen_layers(NET, {NET.fc: wanted["fc"], NET.conv: wanted["conv"]}) == wanted
    assert list(chosen_layers(NET, NET.inner)) == ["inner"]  # a Sequential is one layer, though it can be iterated
    assert list(chosen_layers(NET, NET.inner[0])) == ["inner.0"]
    assert list(chosen_layers(nn.DataParallel(NET), NET.fc)) == ["fc"]
    with pytest.raises(ValueError, match=r"the layer Linear is not in the model.*this very ModuleDict, not of a copy"):
        chosen_layers(NET, copy.deepcopy(NET).fc)
    with pytest.raises(ValueError, match="named twice"):
        chosen_layers(NET, ["fc", NET.fc])


@pytest.mark.parametrize(
    ("layers", "error", "message"),
    [
        ([], ValueError, "name at least one layer"),
        (["fc", "fc"], ValueError, "named twice"),
        (0, TypeError, "layers takes the name of a layer, such as '0', or several, not 0"),
        ([0], TypeError, "the name of a layer is text, such as '0', not 0"),
        ({"fc": "channels"}, TypeError, r"takes a Reduce\(...\), not 'channels'"),
    ],
)
def test_what_names_no_layers(layers, error, message):
    with pytest.raises(error, match=message):
        chosen_layers(NET, layers)


def test_a_term_is_rebuilt_from_json():
    term = Term(DensityMethod(GaussianMixture(3)), "fc", Reduce("channels", max_dim=7), "deep")
    again = Term.from_config(json.loads(json.dumps(term.config())))
    assert again.config() == term.config() and again.source == term.source and again.name == "deep"
    assert Term(DensityMethod()).name == "outputs"
    with pytest.raises(ValueError, match=r"holds a method of kind 'Guess'; this version knows .*DensityMethod"):
        build(Method.kinds, {"kind": "Guess"}, "method")
