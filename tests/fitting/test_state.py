"""What is gathered from parts of the data, added up, saved and sent, is fitted as all data at once would be."""

from __future__ import annotations

import gc
import math
import pickle
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from hidden_uncertainty import Detector, GaussianMixture, JointMixture, LatentDensity, Reduce, State, io
from hidden_uncertainty.baselines import DeepEnsemble, Energy, Mahalanobis, NearestNeighbours, RelativeMahalanobis
from hidden_uncertainty.fitting import fit as fit_module
from hidden_uncertainty.fitting import state as module

ONE: dict[str, Callable[[nn.Module], Detector]] = {
    "default": lambda model: LatentDensity(model),
    "full": lambda model: LatentDensity(model, "1", GaussianMixture(1)),
    "pooled": lambda model: LatentDensity(model, ["1", "3"], GaussianMixture(covariance="pooled"), combine="mean"),
    "labels": lambda model: LatentDensity(
        model, "1", GaussianMixture(pooling=3), condition="label", task="classification"
    ),
    "principal": lambda model: LatentDensity(model, "1", GaussianMixture(1), reduce=Reduce(max_dim=4, residual=True)),
    "mahalanobis": lambda model: Mahalanobis(model, "1"),
    "relative": lambda model: RelativeMahalanobis(model, ["1", "3"]),
}


def network(outputs: int = 3) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, outputs)).eval()
    for layer in (model[2], model[4]):  # so that each class is predicted often
        nn.init.orthogonal_(layer.weight)
        nn.init.zeros_(layer.bias)
    return model


def data(n: int = 600, seed: int = 1) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(n, 5, generator=random), torch.randint(3, (n,), generator=random)


def batches(x: Tensor, y: Tensor, size: int = 70) -> list[tuple[Tensor, Tensor]]:
    return list(zip(x.split(size), y.split(size), strict=True))


def by_features(detector: Detector, loader: Any) -> Detector:
    return detector.fit_features(detector.extract(loader))


@pytest.mark.parametrize("name", ONE)
def test_streamed_as_from_features(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS", 128)
    x, y = data()
    kept, streamed = by_features(ONE[name](network()), batches(x, y)), ONE[name](network()).fit(batches(x, y))
    assert streamed._gathered is not None and streamed._gathered.inputs == len(x)
    torch.testing.assert_close(streamed(x).epistemic, kept(x).epistemic, rtol=1e-5, atol=1e-5)
    if kept(x).aleatoric is not None:
        torch.testing.assert_close(streamed(x).aleatoric, kept(x).aleatoric, rtol=1e-4, atol=1e-5)


@given(
    name=st.sampled_from(["default", "full", "pooled", "relative"]),
    cuts=st.lists(st.integers(1, 599), max_size=4, unique=True).map(sorted),
    seed=st.integers(0, 9),
    size=st.integers(7, 200),
)
@settings(max_examples=15, deadline=None)
def test_any_split_in_any_order(name: str, cuts: list[int], seed: int, size: int) -> None:
    x, y = data()
    whole = ONE[name](network()).fit(batches(x, y))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    detector = ONE[name](network())
    parts = torch.tensor_split(order, cuts)
    states = [detector.gather(batches(x[part], y[part], size)) for part in parts]
    detector.fit_state(sum(states))
    torch.testing.assert_close(detector(x).epistemic, whole(x).epistemic, rtol=1e-4, atol=1e-4)


def test_saved_and_sent(tmp_path: Path) -> None:
    x, y = data()
    for name in ("default", "principal", "labels"):
        detector = ONE[name](network())
        first = detector.gather(batches(x[:400], y[:400]))
        first.save(tmp_path / "state.safetensors")
        again = [State.load(tmp_path / "state.safetensors"), pickle.loads(pickle.dumps(first))]
        more = detector.gather(batches(x[400:], y[400:]))
        expected = detector.fit_state(first + more)(x).epistemic
        for other in again:
            assert other.inputs == 400
            assert torch.equal(detector.fit_state(other + more)(x).epistemic, expected)
    detector.save(tmp_path / "detector.safetensors")
    with pytest.raises(ValueError, match="holds no state of this version"):
        State.load(tmp_path / "detector.safetensors")
    with pytest.raises(ValueError, match=r"holds a State, not a detector: use State\.load\.$"):
        Detector.load(tmp_path / "state.safetensors", network())


def test_a_short_representation() -> None:
    x, y = data(1200)
    state, sums = ONE["pooled"](network()).gather(batches(x, y)), {"1": "pooled", "3": "pooled"}
    assert repr(state) == f"State(1,200 inputs, layers=['1', '3'], sums={sums}, given predictions)"
    rows = LatentDensity(network(), "1", GaussianMixture(2), condition="label", task="classification")
    assert repr(rows.gather(batches(x, y))) == "State(1,200 inputs, layers=['1'], sums={}, given labels)"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda header, sums: header.update(inputs=7), "counts do not add up"),
        (lambda header, sums: sums["count"].neg_(), "counts do not add up"),
        (lambda header, sums: sums["scatter"].mul_(math.nan), "not finite"),
        (lambda header, sums: sums.update(total=sums["total"].float()), "not in float64"),
        (lambda header, sums: sums.update(scatter=sums["scatter"][:, :2, :2].clone()), "other shapes"),
        (lambda header, sums: sums.pop("fourth"), "other shapes"),
        (lambda header, sums: header["terms"][0].update(dtype="save"), "unknown type"),
    ],
)
def test_a_crafted_file_is_refused(change: Callable[..., Any], text: str, tmp_path: Path) -> None:
    path, (x, y) = tmp_path / "state.safetensors", data()
    ONE["full"](network()).gather(batches(x, y)).save(path)
    header, tensors = io.read(path)
    sums = {name.removeprefix("0.moments."): part for name, part in tensors.items() if name.startswith("0.moments.")}
    others = {name: part for name, part in tensors.items() if not name.startswith("0.moments.")}
    change(header, sums)
    io.write(path, header, others | {f"0.moments.{name}": part for name, part in sums.items()})
    with pytest.raises(ValueError, match=f"is damaged: .*{text}"):
        State.load(path)


def test_more_data_as_all_at_once() -> None:
    x, y = data()
    whole, parts = ONE["full"](network()).fit(batches(x, y)), ONE["full"](network())
    for some in torch.arange(len(x)).split(150):
        parts.partial_fit(batches(x[some], y[some]), calibration=batches(*data(200, 2)))
    torch.testing.assert_close(parts(x).epistemic, whole(x).epistemic, rtol=1e-6, atol=1e-6)
    assert parts.calibrated == "unseen" and parts.threshold(0.05) < float(parts(3 * x).epistemic.max())
    parts.calibrate(batches(*data(100, 3)))
    parts.partial_fit(batches(*data(50, 4)))
    assert parts._gathered is not None and parts._gathered.inputs == 650


BY_ROWS: dict[str, Callable[[], Detector]] = {
    "mixture": lambda: LatentDensity(network(), "1", GaussianMixture(2)),
    "mixture and sums": lambda: LatentDensity(
        network(), ["1", "3"], {"1": GaussianMixture(1), "3": GaussianMixture(2)}, combine="mean"
    ),
    "neighbours": lambda: NearestNeighbours(network(), "1", k=3),
    "several labels": lambda: LatentDensity(network(), "1", GaussianMixture(covariance="pooled"), task="multi-label"),
    "numbers": lambda: LatentDensity(network(1), "3", JointMixture(2), task="regression"),
}


@pytest.mark.parametrize("name", BY_ROWS)
def test_rows_of_more_data_as_all_at_once(name: str, tmp_path: Path) -> None:
    x, y = data()
    whole, parts = by_features(BY_ROWS[name](), batches(x, y)), BY_ROWS[name]()
    for some in torch.arange(len(x)).split(250):
        parts.partial_fit(x[some].split(70))
    torch.testing.assert_close(parts(x).epistemic, whole(x).epistemic, rtol=1e-4, atol=1e-4)
    assert parts._gathered is not None
    parts._gathered.save(tmp_path / "state.safetensors")
    again = BY_ROWS[name]().fit_state(State.load(tmp_path / "state.safetensors"))
    assert torch.equal(again(x).epistemic, parts(x).epistemic)


def test_beyond_its_rows_a_fit_is_approximate(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fit_module, "ROWS", 1500)
    x, y = data(6000)
    whole = by_features(BY_ROWS["mixture"](), batches(x, y, 500))
    caplog.set_level("INFO", "hidden_uncertainty")
    found = []
    for order in (torch.arange(6000), torch.randperm(6000, generator=torch.Generator().manual_seed(0))):
        parts = BY_ROWS["mixture"]()
        for some in order.split(2000):
            parts.partial_fit(x[some].split(500))
        found.append(parts(x).epistemic)
    assert "fitted to rows, not to sums: to those of 1,500 of 6,000 inputs" in caplog.text
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-4)
    some = torch.randperm(6000, generator=torch.Generator().manual_seed(1))[:1500]
    drawn = by_features(BY_ROWS["mixture"](), batches(x[some], y[some], 500))
    costs = [float((scores - whole(x).epistemic).mean()) for scores in (found[0], drawn(x).epistemic)]
    assert 0 < costs[0] < 1.2 * costs[1]  # no more than an estimate from as many that are drawn at random


def test_a_loaded_detector_needs_its_state(tmp_path: Path) -> None:
    x, y = data()
    detector, model = ONE["principal"](network()), network()
    state = detector.gather(batches(x[:300], y[:300]))
    detector.fit_state(state).save(tmp_path / "part.safetensors")
    loaded = Detector.load(tmp_path / "part.safetensors", model)  # as another machine would, with the same reductions
    with pytest.raises(RuntimeError, match="keep state ="):
        loaded.partial_fit(batches(x[300:], y[300:]))
    more = loaded.gather(batches(x[300:], y[300:]))
    expected = detector.partial_fit(batches(x[300:], y[300:]))(x).epistemic
    assert torch.equal(loaded.fit_state(state + more)(x).epistemic, expected)


def test_memory_does_not_grow_with_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS", 256)
    alive: list[weakref.ref[Tensor]] = []
    most = 0
    model = network()
    model[1].register_forward_hook(lambda *args: alive.append(weakref.ref(args[2])))

    def loader(n: int) -> Iterator[Tensor]:
        nonlocal most
        for seed in range(n):
            yield data(64, seed)[0]
            most = max(most, sum(ref() is not None for ref in alive))

    kept = {}
    for n in (20, 200):
        detector = LatentDensity(model, task="classification").fit(loader(n))
        gc.collect()
        assert detector._gathered is not None and detector._gathered.sample is not None
        sums = sum(t.numel() for part in detector._gathered.moments.values() for t in part.tensors().values())
        kept[n] = sums, min(len(detector._gathered.sample), 1280)
    assert kept[20] == kept[200] and most < 10


def test_shuffled_between_passes_and_cut_short() -> None:
    x, y = data()

    class Shuffled:
        passes = 0

        def __iter__(self) -> Iterator[Any]:
            self.passes += 1
            order = torch.randperm(len(x), generator=torch.Generator().manual_seed(self.passes))
            return iter(batches(x[order], y[order], 50 + self.passes))

    class Short(Shuffled):
        def __iter__(self) -> Iterator[Any]:
            self.passes += 1
            return iter(batches(x, y)[self.passes :])

    expected = ONE["principal"](network()).fit(batches(x, y))(x).epistemic
    torch.testing.assert_close(ONE["principal"](network()).fit(Shuffled())(x).epistemic, expected, rtol=1e-5, atol=1e-4)
    with pytest.raises(ValueError, match=r"gave 530 inputs in one pass and 460 in the next"):
        ONE["principal"](network()).fit(Short())


def test_errors_say_what_to_do() -> None:
    x, y = data()
    loader, model = batches(x, y), network()
    ensemble = DeepEnsemble([network(), network()], task="classification")
    with pytest.raises(
        NotImplementedError, match=r"what DeepEnsemble reads is neither summed .* use fit\(loader\) alone"
    ):
        ensemble.gather(loader)
    numbers = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 1)).eval()
    with pytest.raises(ValueError, match="LatentDensity needs classes"):
        LatentDensity(numbers, "0", GaussianMixture(1), task="regression").gather([x])
    one, two = (ONE["principal"](network()) for _ in range(2))
    states = one.gather(batches(x[:300], y[:300])), two.gather(batches(x[300:], y[300:]))
    with pytest.raises(ValueError, match=r"different reductions of layer '1': fit the reductions once"):
        sum(states)
    with pytest.raises(ValueError, match="Gather it with such a detector"):
        ONE["mahalanobis"](network()).fit_state(states[0])
    with pytest.raises(ValueError, match=r"needs GaussianMixture\(components=2.*\) of layer '1' given the prediction"):
        LatentDensity(network(), "1", GaussianMixture(2)).fit_state(states[0])
    with pytest.raises(ValueError, match=r"needs layers given .* or with this one where it is to find its layers"):
        LatentDensity(network()).fit_state(states[0])
    outputs = Energy(network()).gather(loader)  # which keeps no rows
    with pytest.raises(ValueError, match="Gather it with such a detector"):
        NearestNeighbours(network(), "1").fit_state(outputs)
    with pytest.raises(TypeError, match=r"fit_state takes a State, .* not 'state.safetensors'"):
        one.fit_state("state.safetensors")  # type: ignore[arg-type]
    for other in (None, 5):
        with pytest.raises(TypeError, match="unsupported operand"):
            states[0] + other  # type: ignore[operator]
    model[0].weight.data *= 1e25
    with pytest.raises(ValueError, match=r"z reaches .*, whose square torch.float32 cannot hold"):
        LatentDensity(model, "0", GaussianMixture(1)).fit(loader)
    with pytest.raises(ValueError, match="classes must be 0 or more"):
        ONE["labels"](network()).fit(batches(x, y - 1))


def test_explicit_ledoit_wolf_keeps_features() -> None:
    x, y = data()
    detector = Mahalanobis(network(), "1", shrinkage="ledoit-wolf").fit(batches(x, y))
    assert detector._gathered is None


def test_sharded_weights_are_refused() -> None:
    class FullyShardedDataParallel(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

        def forward(self, x: Tensor) -> Tensor:
            return self.module(x)

    x, _ = data()
    with pytest.raises(NotImplementedError, match=r"sharded \(FSDP\).* into a plain copy of the model"):
        LatentDensity(FullyShardedDataParallel(network())).fit([x])
