"""Odd models."""

import copy

import pytest
import torch
from torch import nn

from hidden_uncertainty import GaussianMixture, LatentDensity
from tried import tried


def scores(model, layer, data):
    """Fit, score by loader and by call; the three must be one story."""
    detector = LatentDensity(model, layer, GaussianMixture(2), task="classification").fit(data["train"])
    u = detector.predict(data["test"])
    x = torch.cat([x for x, _ in data["test"]])
    torch.testing.assert_close(detector(x).epistemic.float(), u.epistemic, rtol=1e-4, atol=1e-3)
    return u


@pytest.fixture
def reference(trained, data):
    return scores(copy.deepcopy(trained).eval(), "hidden", data)


@tried("training mode, with dropout and batch norm", "scored in evaluation mode; every module's mode restored")
def test_training_mode(trained, data, reference, untouched):
    model = copy.deepcopy(trained).train()
    model.body[1].eval()
    untouched(model)
    assert torch.equal(scores(model, "hidden", data).epistemic, reference.epistemic)


@tried("frozen and unfrozen parameters, with gradients", "flags and gradients are kept; scores carry no gradient")
def test_gradients(trained, data, reference, untouched):
    model = copy.deepcopy(trained)
    model.body[0].weight.requires_grad_(False)
    model(data["test"][0][0]).sum().backward()
    untouched(model)
    u = scores(model, "hidden", data)
    assert not u.epistemic.requires_grad


@tried("a shared module called twice", "error with the count, naming the module that holds it")
def test_shared(data, untouched):
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.act, self.out = nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3)

        def forward(self, x):
            return self.out(self.act(self.act(self.first(x))))

    model = Shared()
    untouched(model)
    with pytest.raises(RuntimeError, match=r"called more than once.*'act' \(2 times\)"):
        LatentDensity(model, "act", task="classification").fit(data["train"])


@tried("a module that is called only sometimes", "error in the batch where it is not, with the reasons it may have")
def test_conditional(data, untouched):
    class Sometimes(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.extra, self.out = nn.Linear(2, 8), nn.Linear(8, 8), nn.Linear(8, 3)

        def forward(self, x):
            z = self.first(x)
            return self.out(self.extra(z) if len(x) > 50 else z)

    torch.manual_seed(0)
    model = Sometimes()
    untouched(model)
    detector = LatentDensity(model, "extra", GaussianMixture(1), task="classification").fit(data["train"])
    with pytest.raises(RuntimeError, match="not called while the model ran: 'extra'"):
        detector(data["far"])


@tried("an in-place activation after the layer", "what the layer returned is captured, not what became of it")
def test_in_place(trained, data, untouched):
    outside = copy.deepcopy(trained)
    outside.body[2] = nn.ReLU()
    untouched(trained, outside)
    u = scores(trained, "body.1", data)
    assert torch.equal(u.epistemic, scores(outside, "body.1", data).epistemic)


@tried(
    "compiled before, compiled and called before, compiled in place",
    "scored eagerly, the same to the bit; still compiled after",
)
@pytest.mark.parametrize("called", [False, True])
@pytest.mark.parametrize("how", ["wrapper", "in place", "part"])
def test_compiled(trained, data, reference, untouched, how, called):
    model = copy.deepcopy(trained).eval()
    untouched(model)
    used = model
    if how == "wrapper":
        used = torch.compile(model, backend="eager")
    elif how == "in place":
        model.compile(backend="eager")
    else:
        used = nn.Sequential(torch.compile(model, backend="eager"))
    if called:
        used(data["test"][0][0])
    layer = "0.hidden" if how == "part" else "hidden"
    assert torch.equal(scores(used, layer, data).epistemic, reference.epistemic)
    torch.testing.assert_close(used(data["far"]), model(data["far"]))


@tried("`DataParallel`", "its module is used; names with and without the prefix")
@pytest.mark.skipif(torch.cuda.is_available(), reason="DataParallel would move the model to the GPU")
def test_data_parallel(trained, data, reference, untouched):
    model = nn.DataParallel(copy.deepcopy(trained))
    untouched(model)
    for name in ("hidden", "module.hidden"):
        assert torch.equal(scores(model, name, data).epistemic, reference.epistemic)


@tried("TorchScript modules", "error that asks for the original module; beside it, other layers work")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript(trained, data, reference, untouched):
    scripted = torch.jit.trace(copy.deepcopy(trained).eval(), data["far"])
    untouched(trained)
    with pytest.raises(RuntimeError, match="TorchScript module, whose layers cannot be read"):
        LatentDensity(scripted, "hidden", task="classification").fit(data["train"])
    around = nn.Sequential(nn.Identity(), scripted)
    assert scores(around, "0", data).epistemic.isfinite().all()


@tried("dynamically quantised layers", "scored like any other; close to the original")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_quantised(trained, data, reference):
    if not torch.backends.quantized.supported_engines or torch.backends.quantized.engine == "none":
        pytest.skip("this build of torch has no quantised engine")
    model = torch.ao.quantization.quantize_dynamic(copy.deepcopy(trained).eval(), {nn.Linear}, dtype=torch.qint8)
    u = LatentDensity(model, "hidden", GaussianMixture(2)).fit(data["train"]).predict(data["test"])
    assert float(torch.corrcoef(torch.stack([u.epistemic, reference.epistemic]))[0, 1]) > 0.8


@tried("models in bfloat16 and float16", "densities in float32; close to the original")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half(trained, data, reference, untouched, dtype):
    model = copy.deepcopy(trained).eval().to(dtype)
    untouched(model)
    halves = {name: [(x.to(dtype), y) for x, y in data[name]] for name in ("train", "test")}
    u = scores(model, "hidden", halves)
    assert u.epistemic.dtype == torch.float32
    assert float(torch.corrcoef(torch.stack([u.epistemic, reference.epistemic]))[0, 1]) > 0.9


@tried("hooks of the user's own", "they run, in their order, and stay")
def test_own_hooks(trained, data, untouched):
    model = copy.deepcopy(trained)
    seen = []
    model.hidden.register_forward_pre_hook(lambda module, args: seen.append("before"))
    model.hidden.register_forward_hook(lambda module, args, output: output + 1)
    untouched(model)
    detector = LatentDensity(model, "hidden", GaussianMixture(1)).fit(data["train"])
    z = detector.extract(data["test"]).z["hidden"]
    plain = LatentDensity(trained, "hidden", GaussianMixture(1)).fit(data["train"]).extract(data["test"]).z["hidden"]
    torch.testing.assert_close(z, plain + 1)
    assert len(seen) > 0


@tried("lazily initialised modules", "error that asks to run the model once; nothing is initialised")
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_lazy(data):
    model = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.Linear(8, 3))
    with pytest.raises(RuntimeError, match="LazyLinear that is not initialised"):
        LatentDensity(model, "1", task="classification").fit(data["train"])
    assert model[0].has_uninitialized_params()
    model(data["far"])
    assert LatentDensity(model, "1", GaussianMixture(1), task="classification").fit(data["train"]).head is not None


@tried("a model that raises in the middle", "its error comes through; the next call works")
def test_raising(trained, data, untouched):
    class Picky(nn.Module):
        def __init__(self):
            super().__init__()
            self.model, self.out = trained, nn.Identity()

        def forward(self, x):
            z = self.model(x)
            if bool((x > 30).any()):
                raise ArithmeticError("too large")
            return self.out(z)

    model = Picky()
    untouched(model)
    detector = LatentDensity(model, "model.hidden").fit(data["train"])
    with pytest.raises(ArithmeticError, match="too large"):
        detector(data["far"])
    assert detector.predict(data["test"]).epistemic.isfinite().all()


@tried("a model that keeps tensors for later", "what it keeps can still be trained with")
def test_caching(trained, data, untouched):
    class Keeps(nn.Module):
        def __init__(self):
            super().__init__()
            self.model, self.scale, self.kept = trained, nn.Parameter(torch.ones(())), None

        def forward(self, x):
            if self.kept is None:
                self.kept = torch.ones(3)
            return self.model(x) * self.kept * self.scale

    model = Keeps()
    untouched(trained)
    LatentDensity(model, "model.hidden").fit(data["train"])
    model.eval()(data["far"]).sum().backward()
    assert model.scale.grad is not None
    model.zero_grad()
    model.train()
