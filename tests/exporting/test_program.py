"""Exported graphs in onnxruntime beside the detectors that they were made of."""

import copy
import importlib.util
import json
import math
import sys
from pathlib import Path

import onnxruntime
import pytest
import torch
from torch import nn

from export_nets import build
from hidden_uncertainty import ConditionalFlow, Density, GaussianMixture, LatentDensity, baselines, export
from hidden_uncertainty.exporting import program as made

CASES = [
    f"{kind} {setting}" for kind in ("convolutions", "texts", "numbers", "pixels") for setting in ("default", "paper")
]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Each case when it is first asked for: the detector, what draws inputs, and the file in a session."""
    known = {}

    def get(case):
        if case not in known:
            kind, setting = case.split()
            detector, draw = build(kind, setting)
            path = tmp_path_factory.mktemp("graphs") / f"{kind}.onnx"
            export(detector, draw(1 if case == "convolutions paper" else 3, 7), path)
            assert [part.name for part in path.parent.iterdir()] == [path.name]  # nothing beside it
            known[case] = detector, draw, onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        return known[case]

    return get


def run(session, batch):
    inputs = batch if isinstance(batch, dict) else {None: batch[0] if isinstance(batch, tuple) else batch}
    names = [each.name for each in session.get_inputs()]
    given = {names[0] if name is None else name: value.numpy() for name, value in inputs.items()}
    outputs = [each.name for each in session.get_outputs()]
    return {name: torch.from_numpy(value) for name, value in zip(outputs, session.run(outputs, given), strict=True)}


def close(ours, theirs, share=1e-4):
    size = ours.abs().clamp(min=float(ours.abs().median()))
    assert bool(((ours - theirs).abs() <= share * size).all())


@pytest.mark.parametrize("case", CASES)
def test_any_number_of_inputs_is_scored_as_by_the_detector(exported, case) -> None:
    detector, draw, session = exported(case)
    assert not any(name.startswith("abc.") for name in Density.kinds)  # classes that tracing makes are none of ours
    for n in (1, 3, 64):
        batch = draw(n, 8)
        u, found = detector(batch), run(session, batch)
        close(u.epistemic, found["epistemic"])
        close(u.aleatoric, found["aleatoric"])
        rank = 1 / (len(detector.head.calibration.scores) + 1)
        assert bool(((u.p_value - found["p_value"]).abs() <= 1.01 * rank).all())
        away = (u.epistemic - u.threshold).abs() > 1e-4 * u.epistemic.abs()
        assert torch.equal(u.surprising[away], found["surprising"][away])
        assert found["p_value"].dtype == torch.float64 and found["epistemic"].shape == u.epistemic.shape
        if u.prediction.is_floating_point():
            close(u.prediction, found["prediction"])
            for ours, name in zip(detector.interval(u, 0.9), ("lower", "upper"), strict=True):
                close(ours, found[name])
        else:
            assert torch.equal(u.prediction, found["prediction"])
        if u.probabilities is not None:
            close(u.probabilities, found["probabilities"])


@pytest.mark.parametrize("case", ["convolutions default", "convolutions paper", "numbers paper", "pixels paper"])
@pytest.mark.parametrize("value", [math.nan, math.inf, 1e18])
@pytest.mark.filterwarnings("ignore:the network gave NaN")
def test_inputs_without_numbers_are_surprising_and_far_ones_finite(exported, case, value) -> None:
    detector, draw, session = exported(case)
    batch = draw(3, 8)
    x = batch[0] if isinstance(batch, tuple) else batch
    x[1] = x[1] * value
    u, found = detector(x), run(session, x)
    assert torch.equal(u.epistemic.isfinite(), found["epistemic"].isfinite())
    assert torch.equal(u.aleatoric.isnan(), found["aleatoric"].isnan())
    strange = u.epistemic.isposinf()
    assert bool(strange[1].all()) == (not math.isfinite(value)) and not strange[[0, 2]].any()
    lowest = 1 / (len(detector.head.calibration.scores) + 1)
    if case != "pixels paper" or strange.any():  # far pixels saturate in this network's tanh
        assert bool(found["surprising"][1].all())
        if case.endswith("paper") or strange.any():  # vectors of length one do not grow with an input
            assert torch.allclose(found["p_value"][1], u.p_value.new_tensor(lowest))
    close(u.epistemic[~strange], found["epistemic"][~strange], 1e-3)  # far away float32 has fewer digits to agree in


def test_ties_count_against_the_alarm(exported) -> None:
    detector, draw, session = exported("convolutions paper")
    x = draw(450, 2)  # what it was calibrated with: each has at least itself beside it
    p = run(session, x)["p_value"]
    assert float(p.min()) >= 2 / 451 and torch.allclose(p, detector(x).p_value, atol=1.01 / 451)
    assert run(session, x)["surprising"].double().mean() <= 0.05


def test_the_file_says_what_it_is(exported) -> None:
    detector, draw, session = exported("texts default")
    assert [(each.name, each.shape) for each in session.get_inputs()] == [
        ("input_ids", ["batch", 9]),
        ("attention_mask", ["batch", 9]),
    ]
    names = ["prediction", "epistemic", "aleatoric", "p_value", "surprising", "probabilities"]
    assert [each.name for each in session.get_outputs()] == names
    known = session.get_modelmeta().custom_metadata_map
    assert json.loads(known["hidden_uncertainty.threshold"]) == detector(draw(2, 3)).threshold
    assert json.loads(known["hidden_uncertainty.layers"]) == detector.layers
    assert json.loads(known["hidden_uncertainty.task"])["name"] == "classification"
    assert known["hidden_uncertainty.version"]


@pytest.mark.parametrize("case", ["numbers default", "pixels default", "texts paper"])
def test_the_program_for_torch_scores_as_the_detector(case) -> None:
    detector, draw = build(*case.split())
    module = export(detector, draw(2, 7), coverage=None).module()
    for n in (1, 5):
        batch = draw(n, 8)
        given = [*batch.values()] if isinstance(batch, dict) else [batch[0] if isinstance(batch, tuple) else batch]
        u, found = detector(batch), module(*given)
        close(u.epistemic, found["epistemic"])
        close(u.aleatoric, found["aleatoric"])
        assert "lower" not in found and torch.equal(u.surprising, found["surprising"])


def state(model):
    tensors = {name: (part.data_ptr(), part._version) for name, part in model.state_dict().items()}
    hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks), m.training) for m in model.modules()]
    return tensors, [p.requires_grad for p in model.parameters()], hooks, torch.is_grad_enabled()


class Gate(nn.Module):
    """A layer that looks at its values, which no graph can."""

    def forward(self, x):
        return x.relu() if bool((x.sum() > 0).item()) else x.tanh()


def small(*more):
    """Layers that are called first and out, with others between."""
    torch.manual_seed(0)
    model = nn.Sequential()
    for name, part in (("first", nn.Linear(2, 8)), *more, ("out", nn.Linear(8, 3))):
        model.add_module(name, part)
    return model


@pytest.fixture
def fit(data):
    def fitted(model):
        one = GaussianMixture(covariance="pooled", min_samples=1)
        return LatentDensity(model, "first", one, task="classification").fit(data["train"], data["unseen"])

    return fitted


def test_the_network_stays_as_it_was(fit, data, tmp_path) -> None:
    model = small(("norm", nn.BatchNorm1d(8))).train()
    detector, before = fit(model), state(model)
    x = data["far"]
    program = export(detector, x)
    assert state(model) == before
    assert not program.module()(x)["epistemic"].requires_grad
    broken = small(("gate", Gate()))
    detector, before = fit(broken), state(broken)
    path = tmp_path / "old.onnx"
    path.write_text("as it was")
    with pytest.raises(RuntimeError, match=r"does not trace layer 'gate' of Sequential.*branch"):
        export(detector, x, path)
    assert state(broken) == before and path.read_text() == "as it was" and len(list(tmp_path.iterdir())) == 1


def test_a_file_that_would_differ_is_not_written(fit, data, tmp_path, monkeypatch) -> None:
    detector = fit(small())
    monkeypatch.setattr(made, "CLOSE", -1.0)
    with pytest.raises(RuntimeError, match=r"differs from the detector.*Nothing was written"):
        export(detector, data["far"], tmp_path / "graph.onnx")
    assert not list(tmp_path.iterdir())


class Named(nn.Module):
    """Inputs called as an output of the graph, as an operation in it, and as anything."""

    def __init__(self):
        super().__init__()
        self.first, self.out = nn.Linear(2, 8), nn.Linear(8, 3)

    def forward(self, prediction, tanh, scale):
        return {"logits": self.out(torch.tanh(self.first(prediction) + tanh) * scale), "other": tanh}


def test_inputs_may_be_called_as_other_parts_of_the_graph(tmp_path) -> None:
    torch.manual_seed(0)
    options = {"task": "classification", "output": "logits", "progress": False}

    def draw(n, seed):
        generator = torch.Generator().manual_seed(seed)
        sizes = {"prediction": (n, 2), "tanh": (n, 8), "scale": (n, 1)}
        return {name: torch.randn(size, generator=generator) for name, size in sizes.items()}

    detector = LatentDensity(Named(), "first", GaussianMixture(covariance="pooled"), **options).fit([draw(300, 1)])
    export(detector, draw(2, 2), tmp_path / "graph.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "graph.onnx", providers=["CPUExecutionProvider"])
    assert [each.name for each in session.get_inputs()] == ["input_prediction", "tanh", "scale"]
    batch = draw(300, 3)
    found = run(session, {"input_prediction" if name == "prediction" else name: batch[name] for name in batch})
    close(detector(batch).epistemic, found["epistemic"])


def test_a_graph_that_onnxruntime_cannot_run_is_not_written(data, tmp_path) -> None:
    loader = [x.bfloat16() for x, _ in data["train"]]
    one = GaussianMixture(covariance="pooled", min_samples=1)
    detector = LatentDensity(small().bfloat16(), "first", one, task="classification").fit(loader)
    with pytest.raises(RuntimeError, match=r"onnxruntime cannot run the graph.*model.float\(\)"):
        export(detector, loader[0], tmp_path / "graph.onnx")
    assert not list(tmp_path.iterdir())


class Counting(nn.Module):
    """A layer that takes its number of inputs as a constant."""

    def forward(self, x):
        return x.reshape(len(x), 8)


def test_what_cannot_be_exported_says_so(trained, data, fit, monkeypatch, tmp_path) -> None:
    x = data["far"]
    with pytest.raises(RuntimeError, match=r"Sequential takes no other number of inputs.*5.*x.shape\[0\]"):
        export(fit(small(("counting", Counting()))), x)
    with pytest.raises(RuntimeError, match="not fitted"):
        export(LatentDensity(trained, "hidden"), x)
    ensemble = baselines.DeepEnsemble([trained, copy.deepcopy(trained)])
    for method in (ensemble, baselines.MCDropout(trained), baselines.NearestNeighbours(trained, "hidden")):
        with pytest.raises(NotImplementedError, match=f"^{type(method).__name__} cannot be one graph"):
            export(method, x)
        with pytest.raises(NotImplementedError, match="cannot be one graph"):
            method.compile()
    flow = LatentDensity(trained, "hidden", ConditionalFlow(max_epochs=1, hidden=(4,)), task="classification")
    with pytest.warns(UserWarning, match="did not converge"):
        flow.fit(data["train"])
    with pytest.raises(NotImplementedError, match="ConditionalFlow of 'hidden' cannot be exported: give density="):
        export(flow, x)
    with pytest.raises(FileNotFoundError, match="folder that exists"):
        export(fit(small()), x, tmp_path / "nowhere" / "graph.onnx")
    monkeypatch.setattr(torch, "__version__", "2.6.0")
    with pytest.raises(RuntimeError, match=r"torch 2.6.0 is too old .* 2.7"):
        export(fit(small()), x, tmp_path / "graph.onnx")
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ImportError, match=r"pip install 'hidden-uncertainty\[onnx\]'"):
        export(fit(small()), x, tmp_path / "graph.onnx")


OTHERS = ["Mahalanobis", "RelativeMahalanobis", "Energy", "GEN", "SoftmaxEntropy", "MaxProbability"]


@pytest.mark.parametrize("method", OTHERS)
def test_other_methods_export(trained, data, method) -> None:
    kind = getattr(baselines, method)
    detector = kind(trained, ["body", "hidden"]) if "Mahal" in method else kind(trained)
    detector.fit(data["train"], calibration=data["unseen"])
    x = torch.cat([data["test"][0][0], data["far"]])
    found = export(detector, x[:2]).module()(x)
    close(detector(x).epistemic, found["epistemic"])
    assert "surprising" not in found  # there is no threshold yet


def test_the_service_takes_what_was_exported(exported) -> None:
    detector, draw, session = exported("texts default")
    spec = importlib.util.spec_from_file_location("serve", Path(__file__).parents[2] / "examples/serve/serve.py")
    sys.modules["serve"] = serve = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(serve)
    model = serve.Model(session._model_path)
    batches = [draw(n, 8) for n in (1, 3)]
    bodies = [json.dumps({name: part.tolist() for name, part in batch.items()}).encode() for batch in batches]
    given = [model.read(body, 4) for body in bodies]
    assert [count for _, count in given] == [1, 3]
    for batch, part in zip(batches, model.run([arrays for arrays, _ in given]), strict=True):
        u, told = detector(batch), [json.loads(line) for line in serve.lines(part).splitlines()]
        assert [line["prediction"] for line in told] == u.prediction.tolist()
        assert [line["surprising"] for line in told] == u.surprising.tolist()
        close(u.epistemic, torch.tensor([line["epistemic"] for line in told]))
        close(u.probabilities, torch.tensor([line["probabilities"] for line in told]))
