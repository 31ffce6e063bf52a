"""What is predicted: classes, numbers, and the network's own variance of them."""

import math

import pytest
import torch

from hidden_uncertainty.model.tasks import Classification, MultiLabel, Regression, as_task, from_config


def test_the_class_with_the_largest_score():
    prediction, classes, *_ = Classification().predict(torch.tensor([[0.0, 3.0, 1.0], [5.0, 3.0, 1.0]]))
    assert prediction.tolist() == [1, 0] and classes == 3


@pytest.mark.parametrize("shape", [(4,), (4, 1)])
def test_one_logit_is_two_classes(shape):
    prediction, classes, *_ = Classification().predict(torch.tensor([-1.0, 2.0, 0.5, -3.0]).reshape(shape))
    assert prediction.tolist() == [0, 1, 1, 0] and classes == 2


def test_one_of_several_outputs():
    output = {"logits": torch.eye(3), "loss": torch.tensor(1.0)}
    assert Classification("logits").predict(output)[0].tolist() == [0, 1, 2]


def test_pixels_and_single_numbers_are_refused():
    with pytest.raises(ValueError, match=r"the network gave \(n, 3, 5, 5\)"):
        Classification().predict(torch.randn(2, 3, 5, 5))
    with pytest.raises(ValueError, match="single number"):
        Classification().predict(torch.tensor(1.0))


@pytest.mark.parametrize("shape", [(4,), (4, 1)])
def test_one_number_per_input(shape):
    value = torch.tensor([-1.0, 2.0, 0.5, -3.0])
    prediction = Regression().predict(value.reshape(shape))
    assert torch.equal(prediction.value, value) and prediction.classes is None and prediction.variance is None


def test_several_numbers_in_at_least_single_precision():
    value = (
        Regression("boxes").predict({"boxes": torch.ones(5, 4, dtype=torch.bfloat16), "loss": torch.tensor(0.0)}).value
    )
    assert value.shape == (5, 4) and value.dtype == torch.float32
    assert Regression().predict(torch.ones(5, dtype=torch.float64)).value.dtype == torch.float64


@pytest.mark.parametrize(
    ("task", "output"),
    [
        (Regression(spread="columns"), torch.tensor([[1.0, 4.0], [2.0, 9.0]])),
        (
            Regression(spread="columns", spread_is="log_variance"),
            torch.tensor([[1.0, math.log(4)], [2.0, math.log(9)]]),
        ),
        (Regression(0, spread=1, spread_is="deviation"), (torch.tensor([1.0, 2.0]), torch.tensor([[2.0], [3.0]]))),
        (Regression("mean", spread="var"), {"mean": torch.tensor([[1.0], [2.0]]), "var": torch.tensor([4.0, 9.0])}),
    ],
    ids=["columns", "logarithm", "deviation", "dict"],
)
def test_mean_and_variance(task, output):
    prediction = task.predict(output)
    assert torch.equal(prediction.value, torch.tensor([1.0, 2.0]))
    torch.testing.assert_close(prediction.variance, torch.tensor([4.0, 9.0]))


def test_several_means_and_variances():
    prediction = Regression(spread="columns").predict(torch.arange(8.0).reshape(2, 4))
    assert prediction.value.tolist() == [[0, 1], [4, 5]] and prediction.variance.tolist() == [[2, 3], [6, 7]]


@pytest.mark.parametrize(
    ("task", "output", "message"),
    [
        (Regression(), torch.randn(2, 3, 5, 5), r"gave \(n, 3, 5, 5\)"),
        (
            Regression(spread="columns"),
            torch.randn(2, 3),
            r"\(n, 1\) with a spread \(n, 2\): they must agree",
        ),
        (Regression(0, spread=1), (torch.randn(2, 3), torch.rand(2)), "they must agree"),
        (Regression(spread="columns"), torch.tensor([[1.0, -4.0]]), "variance of -4; none can be negative"),
    ],
    ids=["pixels", "odd columns", "shapes", "negative variance"],
)
def test_outputs_that_are_no_regression(task, output, message):
    with pytest.raises(ValueError, match=message):
        task.predict(output)


def test_options_that_make_no_task():
    with pytest.raises(ValueError, match="spread_is must be one of"):
        Regression(spread_is="sigma")
    with pytest.raises(ValueError, match="say where the prediction itself is: output="):
        Regression(spread=1)
    with pytest.raises(ValueError, match="task must be one of"):
        as_task("ranking")
    with pytest.raises(ValueError, match="say it once"):
        as_task(Regression(0), output=1)


@pytest.mark.parametrize(
    "task",
    [Classification("logits"), Regression(0, spread=1, spread_is="deviation"), MultiLabel(threshold=[0.5, 0.25])],
)
def test_a_task_is_rebuilt_from_its_configuration(task):
    rebuilt = from_config(task.config())
    assert type(rebuilt) is type(task) and rebuilt.config() == task.config()


@pytest.mark.parametrize("task", [Regression(), Regression(spread="columns"), Classification(), MultiLabel()])
def test_what_is_read_shares_no_memory_with_the_output(task):
    output = torch.tensor([[1.0, 4.0], [2.0, 9.0]])
    read = [task.scores(output), *(part for part in task.predict(output) if isinstance(part, torch.Tensor))]
    maps = output[:, :1, None, None].expand(2, 1, 3, 3).clone()
    if isinstance(task, Classification) or getattr(task, "spread", "") is None:
        read.append(task.predict_pixels(maps).value)
    before = [part.clone() for part in read]
    output.zero_()
    maps.zero_()
    assert all(torch.equal(part, old) for part, old in zip(read, before, strict=True))


def test_real_numbers_are_needed():
    for kind in (torch.bool, torch.complex64):
        for read in (Classification().predict, Regression().predict, Classification().scores):
            with pytest.raises(TypeError, match=f"real numbers, but the network gave {kind}"):
                read(torch.ones(4, 3).to(kind))


def test_outputs_that_are_not_finite_are_told_per_input_and_per_pixel():
    inf, nan = math.inf, math.nan
    scores = torch.tensor([[0.0, 1.0], [nan, 1.0], [-inf, 1.0], [-inf, -inf], [inf, 0.0]])
    expected = [False, True, False, True, True]
    for output in (scores, scores[:, :, None, None].expand(5, 2, 2, 3)):
        predict = Classification().predict if output.dim() == 2 else Classification().predict_pixels
        wrong = Classification().unusable(output, predict(output))
        assert wrong.shape == output.shape[:1] + output.shape[2:]
        assert wrong.reshape(5, -1).all(1).tolist() == wrong.reshape(5, -1).any(1).tolist() == expected
    single = torch.tensor([0.0, nan, inf, -inf])
    assert Classification().unusable(single, Classification().predict(single)).tolist() == [False, True, True, True]
    numbers = torch.tensor([[0.0, 1.0], [nan, 1.0], [0.0, inf]])
    for task in (Regression(), Regression(spread="columns")):
        assert task.unusable(numbers, task.predict(numbers)).tolist() == [False, True, True]
        assert task.unusable(numbers[:1], task.predict(numbers[:1])) is None
    huge = torch.full((4, 2), 3e38)  # their sum is not finite, they are
    assert Regression().unusable(huge, Regression().predict(huge)) is None


LOGITS = torch.tensor([[2.0, -1.0, 0.0], [-30.0, 30.0, -1.2]])


@pytest.mark.parametrize("logits", [True, False])
def test_labels_are_predicted_above_their_thresholds(logits):
    output = LOGITS if logits else LOGITS.sigmoid()
    prediction = MultiLabel(logits=logits).predict(output)
    assert prediction.value.tolist() == [[1, 0, 0], [0, 1, 0]] and prediction.value.dtype == torch.int64
    assert MultiLabel(logits=logits, threshold=0.2).predict(output).value.tolist() == [[1, 1, 1], [0, 1, 1]]
    each = MultiLabel("tags", logits=logits, threshold=(0.9, 0.2, 0.2))
    assert each.predict({"tags": output}).value.tolist() == [[0, 1, 1], [0, 1, 1]]
    torch.testing.assert_close(MultiLabel(logits=logits).scores(output)[0], LOGITS[0])
    assert each.describe(prediction) == "multi-label, 3 labels"


def test_probabilities_of_zero_and_one_have_finite_logits_in_their_order():
    p = torch.tensor([[0.0, 1e-40, 1e-30, 0.5, 1 - 2**-24, 1.0]])
    for logits in (MultiLabel(logits=False).scores(p)[0], Classification(logits=False).scores(p.T)[:, 1] * 2):
        assert logits.isfinite().all() and (logits.diff() >= 0).all() and logits[-1] > logits[-2]
        torch.testing.assert_close(logits[2:5].double(), p[0, 2:5].double().logit(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("task", "output", "message"),
    [
        (
            MultiLabel(),
            torch.randn(4, 1),
            r"\(n, labels\), but the network gave \(n, 1\)\. A single label is task='class",
        ),
        (MultiLabel(), torch.randn(4), r"but the network gave \(n\)"),
        (MultiLabel(), torch.randn(4, 3, 5, 5), r"gave \(n, 3, 5, 5\)"),
        (MultiLabel(logits=False), LOGITS, "probabilities from 0 to 1, but the network gave values from -30 to 30"),
        (MultiLabel(threshold=[0.5, 0.5]), LOGITS, "threshold= has 2 numbers, but the network gave 3 labels"),
    ],
    ids=["one column", "no column", "pixels", "logits", "thresholds"],
)
def test_outputs_that_are_no_labels(task, output, message):
    with pytest.raises(ValueError, match=message):
        task.predict(output)


def test_what_else_labels_refuse():
    for threshold in (0.0, 1.0, math.nan, [0.5, 2.0]):
        with pytest.raises(ValueError, match="threshold is a probability between 0 and 1"):
            MultiLabel(threshold=threshold)
    with pytest.raises(ValueError, match="task='multi-label' is for whole inputs, not for pixels: leave pixels= out"):
        MultiLabel().predict_pixels(torch.randn(2, 3, 5, 5))
    assert isinstance(as_task("multi-label"), MultiLabel)
    nan = torch.tensor([[0.0, 1.0], [math.nan, 1.0], [0.0, -math.inf]])
    assert MultiLabel().unusable(nan, MultiLabel().predict(nan)).tolist() == [False, True, True]
    assert MultiLabel().unusable(LOGITS, MultiLabel().predict(LOGITS)) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
def test_labels_of_any_kind_are_conditioned_on(dtype):
    """Zeros and ones in floating point are what binary cross-entropy takes; (n, 1) is what it takes for one logit."""
    label = torch.tensor([[1, 0], [0, 1], [1, 1]])
    assert torch.equal(MultiLabel().condition(torch.zeros(3, 2).long(), label.to(dtype), "label"), label)
    for one in (label[:, 0], label[:, :1]):
        found = Classification().condition(torch.zeros(3).long(), one.to(dtype), "label")
        assert torch.equal(found, label[:, 0])
    for task, wrong in ((Classification(), label), (Classification(), label[:, 0] + 0.5), (MultiLabel(), None)):
        with pytest.raises(ValueError, match="needs whole-numbered labels of the predictions' shape"):
            task.condition(torch.zeros(3).long(), wrong, "label")
