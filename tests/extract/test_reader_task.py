"""Tasks that an output and labels leave no doubt about, and those that have to be said."""

import pytest
import torch

from hidden_uncertainty.extract.reader import check_task, infer_task, warn_of_others
from hidden_uncertainty.model.tasks import Classification, MultiLabel, Regression


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
    with pytest.raises(
        ValueError, match=r"does not say what .* logit for two classes, pass task='classification'.*'multi-label'"
    ):
        infer_task(torch.randn(shape), label, None)


@pytest.mark.parametrize(
    ("shape", "label"), [((8,), (8,)), ((8, 1), (8,)), ((8,), (8, 1)), ((8, 3), (8, 3))], ids=lambda shape: str(shape)
)
def test_numbers_with_as_many_floating_labels_are_regression(shape, label):
    assert infer_task(torch.randn(shape), torch.randn(label), None).name == "regression"


def test_an_output_for_every_pixel_is_told_what_to_pass():
    with pytest.raises(ValueError, match=r"pass pixels=Pixels\(\) too"):
        infer_task(torch.randn(2, 3, 8, 8), torch.randint(3, (2, 8, 8)), None)


def test_several_labels_per_input_are_not_taken_for_classes():
    label = torch.tensor([[1, 0, 1], [0, 0, 0]])
    for kind in (torch.int64, torch.float32, torch.bool):
        with pytest.raises(ValueError, match="may have several labels, pass task='multi-label'") as raised:
            infer_task(torch.randn(2, 3), label.to(kind), None)
        assert "task='classification'" not in str(raised.value)
        with pytest.raises(ValueError, match=r"task=MultiLabel\(\.\.\.\)"):
            check_task(Classification(), torch.randn(2, 3), label.to(kind))
        for task in (Regression(), MultiLabel()):
            check_task(task, torch.randn(2, 3), label.to(kind))
    check_task(Classification(), torch.randn(2, 3), torch.eye(3)[:2])  # one class each
    check_task(Classification(), torch.randn(2, 1), torch.zeros(2, 1))


def test_tensors_that_are_not_read_are_told_once(recwarn):
    mean, variance = torch.randn(4, 1), torch.rand(4, 1)
    for task, output in [
        (Regression(), mean),
        (Regression(), (mean, torch.zeros(3, 5))),
        (Regression(0), (mean, variance)),
        (Regression(0, spread=1), (mean, variance)),
        (Classification(), (mean, variance)),
    ]:
        warn_of_others(task, output)
    assert not recwarn
    with pytest.warns(UserWarning, match=r"returned 2 tensors, .* task=Regression\(output=0, spread=1\)"):
        warn_of_others(Regression(), (mean, variance))
