"""A comparison as text."""

import pytest

from hidden_uncertainty.comparison import FORWARD, Comparison

ABOUT = {
    "inputs": {"in_distribution": 1000, "a": 5},
    "timed inputs": 512,
    "batch": 128,
    "rounds": 1,
    "threads": 2,
    "device": "cpu",
    "hardware": "a machine",
}


def row(method, metric, value, ood=None):
    return {"method": method, "ood": ood, "metric": metric, "value": value}


@pytest.fixture
def comparison():
    rows = [row(FORWARD, "ms per input", 0.25)]
    rows += [
        row("one", "auroc", 0.9, "a"),
        row("one", "fpr95", 0.25, "a"),
        row("one", "auroc", 0.81234, "a longer name"),
    ]
    rows += [row("one", "ms per input", 0.5), row("one", "times forward", 2.0), row("one", "fit seconds", 1.5)]
    rows += [row("the other", "auroc", 1.0, "a"), row("the other", "ms per input", 12.3456)]
    return Comparison(rows, ABOUT)


def test_text_is_aligned(comparison):
    assert str(comparison) == "\n".join(
        [
            "| method    | AUROC, a | FPR95, a | AUROC, a longer name |",
            "| --------- | -------: | -------: | -------------------: |",
            "| one       |    0.900 |    0.250 |                0.812 |",
            "| the other |    1.000 |          |                      |",
            "",
            "| method       | fit s | ms/input | × forward |",
            "| ------------ | ----: | -------: | --------: |",
            "| forward pass |       |    0.250 |           |",
            "| one          |  1.50 |    0.500 |       2.0 |",
            "| the other    |       |     12.3 |           |",
            "",
            "Inputs: in_distribution 1,000, a 5. Times: median of 1 round over 512 inputs, 128 per batch, 2 threads, "
            "on cpu; a machine.",
        ]
    )


def test_a_value_that_was_not_measured_is_none_and_a_wrong_name_an_error(comparison):
    assert comparison.value("one", "auroc", "a longer name") == 0.81234
    assert comparison.value("the other", "fpr95", "a") is None
    assert comparison.value("one", "accuracy") is None
    with pytest.raises(ValueError, match="method must be one of 'forward pass', 'one', 'the other', not 'two'"):
        comparison.value("two", "auroc", "a")
    with pytest.raises(ValueError, match=r"metric must be one of 'auroc', 'average precision', .* not 'AUROC'"):
        comparison.value("one", "AUROC", "a")
    for ood in ("b", None):
        with pytest.raises(ValueError, match=f"ood must be one of 'a', 'a longer name', not {ood!r}"):
            comparison.value("one", "auroc", ood)


def test_means_have_deviations(comparison):
    other = Comparison([{**row, "std": 0.0707, "n": 2} for row in comparison.rows], ABOUT)
    assert "| one       | 0.900 ± 0.071 | 0.250 ± 0.071 |        0.812 ± 0.071 |" in str(other)
    assert "Means of 2 runs." in str(other) and "±" not in str(comparison)


def test_bars_in_names_make_no_columns():
    lines = str(Comparison([row("p(y|x)", "auroc", 0.5, "a|b")])).splitlines()
    assert lines == [r"| method  | AUROC, a\|b |", "| ------- | ----------: |", r"| p(y\|x) |       0.500 |"]
