"""Arrays, frames and whole batches give what tensors give, in every place that takes tensors."""

import copy
import json
import math
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import hidden_uncertainty
from hidden_uncertainty import Features, GaussianMixture, LatentDensity, Reduce, layers, metrics, plots
from hidden_uncertainty.arrays import to_tensor
from hidden_uncertainty.baselines import Energy, Mahalanobis, MCDropout, NearestNeighbours, SoftmaxEntropy
from hidden_uncertainty.uncertainty import LayerScores, Uncertainty


def as_arrays(batch):
    return tuple(part.double().numpy() if part.is_floating_point() else part.numpy() for part in batch)


def as_frames(batch):
    x, y = as_arrays(batch)
    return pd.DataFrame(x, index=range(5, 5 + len(x))), pd.Series(y, index=range(5, 5 + len(y)))


def same(a, b):
    for name in ("prediction", "epistemic", "aleatoric", "p_value", "surprising"):
        assert torch.equal(getattr(a, name), getattr(b, name)), name


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("given", [as_arrays, as_frames])
@pytest.mark.parametrize("apart", [{}, {"holdout": 0.3}])
def test_arrays_score_as_tensors_do(trained, data, given, kind, apart):
    model = copy.deepcopy(trained).to(kind)
    tensors = {name: [(x.to(kind), y) for x, y in data[name]] for name in ("train", "unseen", "test")}
    arrays = {name: [given(batch) for batch in data[name]] for name in tensors}
    scored = []
    for loaders in (tensors, arrays):
        detector = LatentDensity(model, "hidden", condition="label")
        if apart:
            with pytest.warns(UserWarning, match="a part of the training data"):
                detector.fit(loaders["train"], **apart)
        else:
            detector.fit(loaders["train"], calibration=loaders["unseen"])
        detector.threshold(0.1)
        scored.append((detector.predict(loaders["test"]), detector(loaders["test"][0][0])))
    (all_of_tensors, one_of_tensors), (all_of_arrays, one_of_arrays) = scored
    same(all_of_tensors, all_of_arrays)
    same(one_of_tensors, one_of_arrays)


NUMBERS = np.array([[0.5, 1.0, -2.0], [1.5, 0.0, 4.0]])
COLUMNS_OF = {"a": NUMBERS[:, 0], "b": NUMBERS[:, 1] > 0, "c": NUMBERS[:, 2].astype(int)}
KINDS = {
    "columns of several kinds": pd.DataFrame(COLUMNS_OF),  # as get_dummies gives them
    "columns that may be missing": pd.DataFrame(COLUMNS_OF).convert_dtypes(),
    "objects": NUMBERS.astype(object),
    "the other order of bytes": NUMBERS.astype(">f8"),
    "columns first in memory": np.asfortranarray(NUMBERS),
}


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_of_all_kinds(kind):
    tensor = to_tensor(KINDS[kind], torch.float32)
    assert tensor.dtype == torch.float32 and tensor.is_contiguous() and np.array_equal(tensor, NUMBERS)
    features = Features.from_arrays(KINDS[kind], [0, 1])
    assert features.z["z"].dtype == torch.float64 and np.array_equal(features.z["z"], NUMBERS)


def test_what_is_missing_is_nan():
    missing = NUMBERS < 0
    for value in (
        np.ma.masked_array(NUMBERS, missing),
        np.ma.masked_array((2 * NUMBERS).astype(int), missing),
        pd.DataFrame(NUMBERS).convert_dtypes().mask(missing),
        pd.DataFrame(COLUMNS_OF).convert_dtypes().mask(missing),
    ):
        assert np.array_equal(to_tensor(value).isnan(), missing), value
    whole = pd.DataFrame({"a": [1, 2], "b": [3, 4]}, dtype="Int64")
    assert to_tensor(whole).dtype == torch.int64  # nothing is missing here


@pytest.mark.parametrize("column", [["u", "v"], pd.Categorical(["u", "v"]), pd.Timestamp("2020-01-01")])
def test_columns_that_are_no_numbers(column):
    with pytest.raises(TypeError, match=r"DataFrame of shape \(2, 4\) holds .*convert it to numbers first"):
        to_tensor(pd.DataFrame(COLUMNS_OF).assign(d=column))


@pytest.mark.parametrize("method", [SoftmaxEntropy, Energy, lambda model: MCDropout(model, samples=3)])
def test_methods_on_outputs_take_arrays(trained, data, method):
    x, _ = data["test"][0]
    assert torch.equal(method(trained)(x).epistemic, method(trained)(x.double().numpy()).epistemic)


def test_a_call_takes_what_a_loader_gives(trained, data):
    detector = LatentDensity(trained, "hidden").fit(data["train"], calibration=data["unseen"])
    detector.threshold(0.1)
    x, y = data["test"][0]
    expected = detector.predict([(x, y)])
    for batch in ((x, y), [x, y], (x,), {"x": x, "labels": y}, {"x": x}, ({"x": x}, y), as_arrays((x, y))):
        same(detector(batch), expected)
    same(detector(x=x), expected)
    with pytest.raises(TypeError, match="takes 2 positional arguments but 3 were given"):
        detector(x, y)  # two inputs


def test_the_layers_of_arrays_are_listed(trained, data):
    x, y = data["test"][0]
    assert str(layers(trained, as_arrays((x, y)), show=False)) == str(layers(trained, (x, y), show=False))


@pytest.mark.parametrize("method", [LatentDensity, Mahalanobis, NearestNeighbours])
def test_layers_as_modules(trained, data, method, tmp_path):
    x, _ = data["test"][0]
    scores = []
    for names in (["body", "hidden"], [trained.body, trained.hidden]):
        detector = method(trained, names).fit(data["train"], calibration=data["unseen"])
        assert detector.layers == ["body", "hidden"]
        scores.append(detector(x).epistemic)
    assert torch.equal(*scores)
    detector.save(tmp_path / "file")
    assert torch.equal(method.load(tmp_path / "file", trained)(x).epistemic, scores[0])


def test_densities_and_weights_by_module(trained, data):
    x, _ = data["test"][0]

    def score(body, hidden):
        each = {body: GaussianMixture(1), hidden: GaussianMixture(2)}
        how = {body: Reduce(max_dim=3), hidden: Reduce()}
        detector = LatentDensity(trained, how, each, combine={hidden: 0.5, body: 2.0})
        return detector.fit(data["train"])(x).epistemic

    assert torch.equal(score("body", "hidden"), score(trained.body, trained.hidden))


RESULT = Uncertainty(
    prediction=torch.tensor([7, 1, 3]),
    epistemic=torch.tensor([1.0, math.inf, 2.5]),
    aleatoric=torch.tensor([0.5, math.nan, 0.25], dtype=torch.bfloat16),
    p_value=torch.tensor([0.9, 0.1, 0.5], dtype=torch.float64),
    probabilities=torch.tensor([[0.25, 0.75], [0.5, 0.5], [1.0, 0.0]]),
    layers={"fc.1": LayerScores(epistemic=torch.tensor([3.0, 4.0, 5.0]))},
    threshold=2.0,
)
COLUMNS = ["prediction", "epistemic", "aleatoric", "p_value", "probabilities.0", "probabilities.1", "surprising"]


def test_results_as_arrays():
    arrays = RESULT.numpy()
    assert arrays["surprising"].tolist() == [False, True, True]
    assert arrays["aleatoric"].dtype == np.float32 and arrays["p_value"].dtype == np.float64
    assert arrays["probabilities"].shape == (3, 2) and arrays["fc.1.epistemic"].tolist() == [3, 4, 5]
    arrays["epistemic"][:] = 0
    assert RESULT.epistemic[0] == 1  # it was a copy
    maps = Uncertainty(prediction=torch.zeros(2, 3, 4), epistemic=torch.zeros(2, 3, 4))
    assert maps.numpy()["epistemic"].shape == (2, 3, 4) and "surprising" not in maps.numpy()
    for rows in (maps.to_pandas, maps.to_json):
        with pytest.raises(ValueError, match=r"these are maps \(2, 3, 4\): u.numpy\(\)"):
            rows()


def test_results_as_frames():
    frame = RESULT.to_pandas()
    assert list(frame) == [*COLUMNS, "fc.1.epistemic"]
    assert frame["prediction"].dtype == np.int64 and frame["surprising"].dtype == bool
    assert frame[frame.surprising]["fc.1.epistemic"].tolist() == [4, 5]
    assert RESULT[frame.surprising].prediction.tolist() == [1, 3]
    assert len(RESULT[:0].to_pandas()) == 0 and RESULT[:0].to_json() == "[]"
    number = Uncertainty(prediction=torch.zeros(2, 1), epistemic=torch.zeros(2))
    assert list(number.to_pandas()) == ["prediction", "epistemic"]


def test_results_as_json():
    records = json.loads(RESULT.to_json(), parse_constant=pytest.fail)  # NaN and Infinity are not JSON
    frame = RESULT.to_pandas()
    assert [list(record) for record in records] == 3 * [list(frame)]
    for record, (_, row) in zip(records, frame.iterrows(), strict=True):
        assert record == {name: value if np.isfinite(value) else None for name, value in row.items()}
    assert records[1]["surprising"] is True and records[1]["epistemic"] is None


def test_without_pandas(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"to_pandas\(\) needs pandas: pip install pandas, or take u.numpy\(\)"):
        RESULT.to_pandas()
    assert len(RESULT.to_json()) > 0


def test_metrics_take_series():
    low, high = pd.Series([1.0, 2.0, 3.0], index=[4, 8, 6]), pd.Series([2.5, 4.0], index=[9, 3])
    assert metrics.auroc(negative=low, positive=high) == metrics.auroc(negative=[1.0, 2.0, 3.0], positive=[2.5, 4.0])


def test_pictures_take_results():
    u = RESULT[[0, 2]]
    far = Uncertainty(prediction=u.prediction, epistemic=u.epistemic + 5)

    def drawn(axes):
        return [line.get_xydata().tolist() for line in axes.lines], [
            patch.get_path().vertices for patch in axes.patches
        ]

    right = [True, False]
    for draw, results, scores in [
        (plots.plot_scores, {"a": u, "b": far}, {"a": u.epistemic, "b": far.epistemic}),
        (plots.plot_scores, {"a": u.layers["fc.1"]}, {"a": u.layers["fc.1"].epistemic}),
        (plots.plot_roc, {"a": (u, far)}, {"a": (u.epistemic, far.epistemic)}),
        (plots.plot_accuracy_rejection, {"a": (u, right)}, {"a": (u.epistemic, right)}),
    ]:
        (lines, patches), (expected, others) = drawn(draw(results)), drawn(draw(scores))
        assert lines == expected
        assert all(np.array_equal(a, b) for a, b in zip(patches, others, strict=True))
        assert lines or patches
    alone = Uncertainty(prediction=u.prediction, epistemic=u.epistemic, threshold=1.5)
    same = plots.plot_scores({"inputs": u.epistemic}, threshold=1.5)
    assert drawn(plots.plot_scores(alone))[0] == drawn(same)[0]


def test_the_package_knows_its_bars():
    assert callable(hidden_uncertainty.progress.silence)


def test_networks_without_parameters_keep_the_precision_of_arrays():
    class Sum(nn.Module):
        def forward(self, x):
            assert x.dtype == torch.float64
            return torch.stack([x.sum(1), -x.sum(1)], 1)

    assert SoftmaxEntropy(Sum())(np.ones((3, 2))).prediction.tolist() == [0, 0, 0]
