"""Tasks that an output and labels leave no doubt about, and those that have to be said."""

import pytest
import torch

from hidden_uncertainty.model.infer import infer_task


@pytest.mark.parametrize(
    ("shape", "label"),
    [((8, 10), None), ((8, 3), torch.arange(8) % 3), ((8, 2), torch.arange(8) % 2)],
    ids=["ten columns", "labels", "two columns with labels"],
)
def test_what_leaves_no_doubt(shape, label):
    assert infer_task(torch.randn(shape), label, None).name == "classification"


@pytest.mark.parametrize(
    ("shape", "label"),
    [
        ((8, 2), None),
        ((8, 1), torch.arange(8) % 2),
        ((8,), None),
        ((8, 4), torch.full((8, 4), 0.25)),
        ((8, 1), torch.tensor([0.0, 1.0] * 4)),
        ((8, 2), torch.randn(8)),
        ((8, 3), torch.arange(8)),
        ((8, 3, 5, 5), None),
    ],
    ids=[
        "two columns",
        "one column",
        "a number",
        "probabilities",
        "zeros and ones",
        "mean and variance",
        "labels beyond the columns",
        "pixels",
    ],
)
def test_what_has_to_be_said(shape, label):
    with pytest.raises(ValueError, match=r"does not say what the network predicts\. If .* pass task='classification'"):
        infer_task(torch.randn(shape), label, None)


@pytest.mark.parametrize(
    ("shape", "label"), [((8,), (8,)), ((8, 1), (8,)), ((8,), (8, 1)), ((8, 3), (8, 3))], ids=lambda shape: str(shape)
)
def test_numbers_with_as_many_floating_labels_are_regression(shape, label):
    assert infer_task(torch.randn(shape), torch.randn(label), None).name == "regression"


def test_an_output_for_every_pixel_is_told_what_to_pass():
    with pytest.raises(ValueError, match=r"pass pixels=Pixels\(\) too"):
        infer_task(torch.randn(2, 3, 8, 8), torch.randint(3, (2, 8, 8)), None)
