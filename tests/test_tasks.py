import pytest
import torch

from hidden_uncertainty.tasks import Classification, infer_task


def test_the_class_with_the_largest_score():
    prediction, classes = Classification().predict(torch.tensor([[0.0, 3.0, 1.0], [5.0, 3.0, 1.0]]))
    assert prediction.tolist() == [1, 0] and classes == 3


@pytest.mark.parametrize("shape", [(4,), (4, 1)])
def test_one_logit_is_two_classes(shape):
    prediction, classes = Classification().predict(torch.tensor([-1.0, 2.0, 0.5, -3.0]).reshape(shape))
    assert prediction.tolist() == [0, 1, 1, 0] and classes == 2


def test_one_of_several_outputs():
    output = {"logits": torch.eye(3), "loss": torch.tensor(1.0)}
    assert Classification("logits").predict(output)[0].tolist() == [0, 1, 2]


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
        ((8, 4), torch.randn(8, 4)),
        ((8, 3), torch.arange(8)),
        ((8, 3, 5, 5), None),
    ],
    ids=["mean and variance?", "one column", "a number", "several numbers", "labels beyond the columns", "pixels"],
)
def test_what_has_to_be_said(shape, label):
    with pytest.raises(ValueError, match=r"does not say what the network predicts\. If .* pass task='classification'"):
        infer_task(torch.randn(shape), label, None)


def test_pixels_and_single_numbers_are_refused():
    with pytest.raises(ValueError, match=r"the network gave \(n, 3, 5, 5\)"):
        Classification().predict(torch.randn(2, 3, 5, 5))
    with pytest.raises(ValueError, match="single number"):
        Classification().predict(torch.tensor(1.0))
