"""The confusion matrix of a stream against scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sklearn_metrics

from reproduction.studies.segmentation.stream import Confusion

pixels = st.lists(st.tuples(st.integers(0, 4), st.sampled_from([0, 1, 3, 4, 255])), min_size=1, max_size=50)


@given(pixels.filter(lambda pairs: any(label != 255 for _, label in pairs)))
@settings(max_examples=100, deadline=None)
def test_matrix_iou_and_accuracy_are_those_of_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    prediction, label = (torch.tensor(column) for column in zip(*pairs, strict=True))
    confusion = Confusion(6)
    for part in torch.arange(len(pairs)).tensor_split(3):
        confusion.update(prediction=prediction[part], label=label[part])

    kept = label != 255
    true, found = label[kept].numpy(), prediction[kept].numpy()
    expected = sklearn_metrics.confusion_matrix(true, found, labels=range(6))
    np.testing.assert_array_equal(confusion.matrix, expected)
    assert confusion.accuracy == sklearn_metrics.accuracy_score(true, found)

    present = np.union1d(true, found)
    each = sklearn_metrics.jaccard_score(true, found, labels=present, average=None)
    np.testing.assert_allclose(confusion.iou[present], each, rtol=1e-15)
    assert confusion.iou.isnan().sum() == 6 - len(present)
    assert confusion.mean_iou == pytest.approx(each.mean(), abs=1e-14)


def test_merging_is_counting_together() -> None:
    generator = torch.Generator().manual_seed(0)
    prediction, label = (torch.randint(3, (2, 5, 7), generator=generator) for _ in range(2))
    whole, one, two = Confusion(3), Confusion(3), Confusion(3)
    whole.update(prediction=prediction, label=label)
    one.update(prediction=prediction[0].numpy().astype(np.uint8), label=label[0].to(torch.uint8))
    with torch.inference_mode():
        two.update(prediction=prediction[1, :2].tolist(), label=label[1, :2].int())
    two.update(prediction=prediction[1, 2:], label=label[1, 2:])
    assert torch.equal(one.merge(two).matrix, whole.matrix)
    assert two.matrix.sum() == 35
    with pytest.raises(ValueError, match="3 and 4 classes cannot be merged"):
        one.merge(Confusion(4))


def test_ignored_labels_are_those_asked_for() -> None:
    prediction, label = torch.tensor([0, 1, 1, 9]), torch.tensor([0, -1, 2, 2])
    confusion = Confusion(2, ignore=[-1, 2])
    confusion.update(prediction=prediction, label=label)
    assert confusion.matrix.tolist() == [[1, 0], [0, 0]]
    every = Confusion(3, ignore=None)
    with pytest.raises(ValueError, match=r"1 pixels have a class outside 0 to 2\.$"):
        every.update(prediction=[0], label=[255])
    zero = Confusion(2, ignore=0)
    zero.update(prediction=[0, 1], label=[0, 1])
    assert zero.matrix.tolist() == [[0, 0], [0, 1]]


def test_bad_input_is_refused_and_changes_nothing() -> None:
    confusion = Confusion(2)
    with pytest.raises(ValueError, match="no pixel was counted"):
        _ = confusion.mean_iou
    confusion.update(prediction=[0, 1], label=[255, 255])
    with pytest.raises(ValueError, match="no pixel was counted"):
        _ = confusion.accuracy
    confusion.update(prediction=[0, 1], label=[0, 1])
    for prediction, label in [([2], [0]), ([-1], [0]), ([0], [2]), ([0], [-1])]:
        with pytest.raises(ValueError, match=r"1 pixels have a class outside 0 to 1; ignored labels are \[255\]"):
            confusion.update(prediction=prediction, label=label)
    with pytest.raises(ValueError, match=r"same shape, got \(2, 1\) and \(2,\)"):
        confusion.update(prediction=[[0], [1]], label=[0, 1])
    with pytest.raises(TypeError, match=r"prediction must hold classes as integers, got torch\.float32"):
        confusion.update(prediction=torch.zeros(2), label=[0, 1])
    assert confusion.matrix.tolist() == [[1, 0], [0, 1]]
    with pytest.raises(ValueError, match="classes must be at least 1"):
        Confusion(0)
