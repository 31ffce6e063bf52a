"""Networks in training mode, compiled, lazy or under autocast run as in evaluation, and are left as they were."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from capture_nets import Net, images, in_threads, mlp, unchanged, vectors
from hidden_uncertainty.model.capture import run


def test_modes_mixed_among_submodules_are_restored_one_by_one() -> None:
    model = Net()
    model.eval()
    model.stem[1].train()
    with unchanged(model):
        first, _ = run(model, {"drop": torch.sum}, (images(),), {})
        assert model.stem[1].training
        assert not model.drop.training
    assert first.equal(model.eval()(images()))


def test_eval_and_train_are_not_called() -> None:
    class Adapter(nn.Linear):
        def train(self, mode: bool = True) -> Adapter:
            raise AssertionError("merged the adapter")

    model = nn.Sequential(Adapter(4, 2), nn.ReLU())
    with unchanged(model):
        run(model, {"1": torch.sum}, (vectors(),), {})


def test_a_module_that_refuses_its_mode_leaves_the_others_as_they_were() -> None:
    class Stubborn(nn.Identity):
        @property
        def training(self) -> bool:
            return True

        @training.setter
        def training(self, value: bool) -> None:
            if not value:
                raise RuntimeError("always training")

    model = nn.Sequential(nn.Linear(4, 4), Stubborn(), nn.BatchNorm1d(4))
    with unchanged(model), pytest.raises(RuntimeError, match="always training"):
        run(model, {"0": torch.sum}, (vectors(),), {})


def test_autocast_around_the_call_rules_the_model_but_not_the_tap() -> None:
    model, weight = mlp(), torch.randn(8, 8)

    def tap(z: Tensor) -> tuple[torch.dtype, torch.dtype]:
        return z.dtype, (z.float() @ weight).dtype

    with unchanged(model), torch.autocast("cpu", torch.bfloat16):
        output, kept = run(model, {"0": tap}, (vectors(),), {})
        assert (weight @ weight).dtype is torch.bfloat16
    assert output.dtype is torch.bfloat16
    assert kept["0"] == (torch.bfloat16, torch.float32)


def test_autocast_inside_the_model_does_not_reach_the_tap() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp()

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16), torch.enable_grad():
                return self.inner(x)

    _, kept = run(Mixed(), {"inner.0": lambda z: z.float() @ torch.ones(8, 8)}, (vectors(),), {})
    assert kept["inner.0"].dtype is torch.float32
    assert not kept["inner.0"].requires_grad


def test_training_goes_on_in_the_same_autocast_block() -> None:
    model = mlp()
    with torch.autocast("cpu", torch.bfloat16):
        run(model, {"0": torch.sum}, (vectors(),), {})
        model(vectors()).float().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_lazy_layers_are_not_initialised_behind_the_users_back() -> None:
    model = nn.Sequential(nn.LazyLinear(3), nn.ReLU())
    with pytest.raises(RuntimeError, match=r"LazyLinear that is not initialised.*run the model once"):
        run(model, {"1": torch.sum}, (vectors(),), {})
    assert isinstance(model[0], nn.LazyLinear)
    assert model[0].has_uninitialized_params()
    model(vectors())
    run(model, {"1": torch.sum}, (vectors(),), {})


def compiled(how: str, backend: Callable[..., Any]) -> tuple[nn.Module, nn.Module]:
    """Return a compiled model, and the plain one inside."""
    plain = mlp()
    if how == "wrapped":
        return torch.compile(plain, backend=backend), plain
    if how == "in place":
        plain.compile(backend=backend)
    elif how == "submodule":
        plain[2] = torch.compile(plain[2], backend=backend)
    elif how == "submodule in place":
        plain[2].compile(backend=backend)
    elif how == "forward":
        plain.forward = torch.compile(plain.forward, backend=backend)
    elif how == "several wrappers":
        plain[2] = torch.compile(plain[2], backend=backend)
        return torch.compile(nn.DataParallel(plain), backend=backend), plain
    return plain, plain


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("called", [False, True])
@pytest.mark.parametrize(
    ("how", "names"),
    [
        ("wrapped", ["_orig_mod.2.0"]),
        ("in place", []),
        ("submodule", ["2._orig_mod.0", "2._orig_mod"]),
        ("submodule in place", []),
        ("forward", []),
        ("several wrappers", ["_orig_mod.module.2._orig_mod.0", "module.2.0", "_orig_mod.2"]),
    ],
)
def test_compiled_models(how: str, names: list[str], called: bool) -> None:
    from torch._dynamo import eval_frame

    graphs = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    model, plain = compiled(how, backend)
    if called:  # with and without gradients, so that the graph for either is there
        model(vectors())
        with torch.no_grad():
            model(vectors())
    before, taps = len(graphs), dict.fromkeys(["0", "2.0", "2", "", *names], torch.clone)
    with unchanged(plain):
        output, kept = run(model, taps, (vectors(),), {})
    assert eval_frame._stance.stance == "default"
    assert len(graphs) == before
    reference = mlp()
    for name in taps:
        parts = [part for part in name.split(".") if part not in ("", "_orig_mod", "module")]
        _, expected = run(reference, {".".join(parts): torch.clone}, (vectors(),), {})
        torch.testing.assert_close(kept[name], expected[".".join(parts)])
    torch.testing.assert_close(output, kept[""])
    torch.testing.assert_close(model(vectors()), output)
    assert len(graphs) >= 1
    assert not called or len(graphs) == before  # what had been compiled is used on
    torch._dynamo.reset()


def test_the_compiler_is_left_alone_when_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(stance: str) -> None:
        raise AssertionError("process-wide switch touched")

    monkeypatch.setattr(torch.compiler, "set_stance", forbidden)
    run(mlp(), {"1": torch.sum}, (vectors(),), {})


def test_threads_with_compiled_models_put_the_compiler_back_once_all_are_done() -> None:
    from torch._dynamo import eval_frame

    both, first_done, models = threading.Barrier(2), threading.Event(), [mlp(), mlp()]
    for model in models:
        model.compile(backend="eager")

    def score(k: int) -> None:
        def tap(z: Tensor) -> str:
            both.wait(10)
            if k == 1:
                assert first_done.wait(10)
            return eval_frame._stance.stance

        assert run(models[k], {"1": tap}, (vectors(),), {})[1]["1"] == "force_eager"
        if k == 0:
            first_done.set()

    in_threads(2, score)
    assert eval_frame._stance.stance == "default"
