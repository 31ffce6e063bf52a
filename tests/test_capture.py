"""What is read of a network's layers, and that the network is left as it was."""

from __future__ import annotations

import signal

import pytest
import torch
from torch import Tensor, nn

from capture_nets import Net, Odd, images, mlp, unchanged, vectors
from hidden_uncertainty.capture import run, select, watch


def test_the_output_and_layers_are_those_of_the_model_in_evaluation_mode() -> None:
    model = Net()
    with unchanged(model):
        output, kept = run(model, {"drop": torch.clone, "stem.1": torch.clone, "": torch.clone}, (images(),), {})
    model.eval()
    with torch.no_grad():
        normed = model.stem[1](model.stem[0](images()))
        torch.testing.assert_close(kept["stem.1"], normed, rtol=0, atol=0)  # before the in-place ReLU wrote into it
        assert (normed < 0).any()
        torch.testing.assert_close(kept["drop"], normed.relu(), rtol=0, atol=0)
        torch.testing.assert_close(output, model(images()), rtol=0, atol=0)
    assert list(kept) == ["drop", "stem.1", ""]
    assert kept[""].equal(output)
    assert not output.requires_grad
    assert not output.is_inference()


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


def test_keyword_inputs_and_no_taps() -> None:
    model = Net().eval()
    output, kept = run(model, {}, (), {"x": images()})
    assert output.equal(model(images()))
    assert kept == {}


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize("where", ["model", "tap"])
def test_the_model_is_as_before_when_it_or_a_tap_raises(error: type[BaseException], where: str) -> None:
    def fail(output: object = None) -> None:
        raise error

    model = Net()
    if where == "model":
        model.before = fail
    with unchanged(model):
        with pytest.raises(error):
            run(model, {"stem": torch.sum, "head": fail}, (images(),), {})
        model.before = lambda: None
        run(model, {"stem": torch.sum}, (images(),), {})  # the lock is free again


def test_an_interrupt_from_the_keyboard_in_the_middle() -> None:
    model = Net()
    model.before = lambda: signal.raise_signal(signal.SIGINT)
    with unchanged(model), pytest.raises(KeyboardInterrupt):
        run(model, {"stem.0": torch.sum, "head": torch.sum}, (images(),), {})


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


def test_the_users_hooks_stay_and_ours_sees_what_goes_on_to_the_next_layer() -> None:
    model, order = mlp(), []
    model[0].register_forward_hook(lambda *_: order.append("first"))
    model[0].register_forward_hook(lambda module, args, output: output + 1)
    model[0].register_forward_pre_hook(lambda *_: order.append("pre"))
    model[0].register_full_backward_hook(lambda *_: None)
    model[0].register_forward_hook(lambda *_: order.append("last"))
    with unchanged(model):
        _, kept = run(model, {"0": torch.clone}, (vectors(),), {})
    assert order == ["pre", "first", "last"]
    torch.testing.assert_close(kept["0"], nn.functional.linear(vectors(), model[0].weight, model[0].bias) + 1)


def test_layers_that_return_more_than_a_tensor() -> None:
    model, x = Odd(), torch.randn(3, 6, 4)
    names = ["lstm", "attention", "dictionary", "record", ""]
    with unchanged(model):
        _, kept = run(model, {name: lambda out: select(out, None, "it").shape for name in names}, (x,), {})
    assert [tuple(kept[name]) for name in names] == [(3, 6, 5), (3, 6, 4), (3, 6, 4), (3, 6, 4), (3, 6, 4)]
    _, kept = run(model, {"lstm": lambda out: [type(part) for part in out]}, (x,), {})
    assert kept["lstm"] == [Tensor, tuple]  # the tap gets what the layer returned, whole


def test_layers_not_called_or_called_often_are_all_named() -> None:
    model, x = Odd(), torch.randn(3, 6, 4)
    with unchanged(model), pytest.raises(RuntimeError) as caught:
        run(model, dict.fromkeys(["shared", "lstm", "unused", "attention.out_proj"], id), (x,), {})
    text = str(caught.value)
    assert "not called while the model ran: 'unused', 'attention.out_proj'" in text
    assert "'shared' (2 times)" in text
    assert "lstm" not in text
    assert "layers(model, example)" in text
    run(model, {"unused": id}, (x,), {"skip": False})
    with pytest.raises(
        RuntimeError, match=r"'0.shared' \(2 times\).*called once, for instance the one that holds it: '0'."
    ):
        run(nn.Sequential(model), {"0.shared": id}, (x,), {})


class Direct(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner.forward(x)


def test_a_forward_called_directly_does_not_count() -> None:
    with pytest.raises(RuntimeError, match="forward or its weights used directly"):
        run(Direct(), {"inner": torch.sum}, (vectors(),), {})


@pytest.mark.parametrize(
    "name", ["layers.0", "layers.1.linear1", "layers.0.self_attn", "layers.0.norm2", "layers.1", ""]
)
def test_the_transformer_fast_path_steps_aside(name: str) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model, x = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.randn(3, 5, 8)
    with unchanged(model):
        output, kept = run(model, {name: lambda out: select(out, None, name).clone()}, (x,), {})
    assert kept[name].shape[:2] == (3, 5)
    model.eval()
    torch.testing.assert_close(output, model(x))  # with gradients, which keeps it off the fast path


def test_nested_tensors_of_a_padded_transformer_get_a_clear_error() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model, x = nn.TransformerEncoder(layer, 2), torch.randn(3, 5, 8)
    padding = torch.zeros(3, 5, dtype=torch.bool)
    padding[1, 3:] = True
    tap = {"layers.0": lambda out: select(out, None, "layer 'layers.0'").clone()}
    with (
        unchanged(model),
        pytest.warns(UserWarning, match="nested tensors is in prototype"),
        pytest.raises(ValueError, match=r"layer 'layers.0' returned a nested tensor.*enable_nested_tensor=False"),
    ):
        run(model, tap, (x,), {"src_key_padding_mask": padding})
    dense = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    assert run(dense, tap, (x,), {"src_key_padding_mask": padding})[1]["layers.0"].shape == (3, 5, 8)


def test_a_model_in_bfloat16() -> None:
    model = mlp().bfloat16()
    with unchanged(model):
        output, kept = run(model, {"2": lambda z: (z.dtype, z.float())}, (vectors().bfloat16(),), {})
    assert output.dtype is kept["2"][0] is torch.bfloat16
    assert kept["2"][1].dtype is torch.float32


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


def test_tensors_a_model_keeps_can_still_be_trained_with() -> None:
    class Caching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.cache = nn.Linear(4, 4), None

        def forward(self, x: Tensor) -> Tensor:
            if self.cache is None:
                self.cache = x.mean(0)
            return self.linear(x * self.cache)

    model = Caching()
    run(model, {"linear": torch.sum}, (vectors(),), {})
    model(vectors()).sum().backward()
    assert model.linear.weight.grad is not None


def test_lazy_layers_are_not_initialised_behind_the_users_back() -> None:
    model = nn.Sequential(nn.LazyLinear(3), nn.ReLU())
    with pytest.raises(RuntimeError, match=r"LazyLinear that is not initialised.*run the model once"):
        run(model, {"1": torch.sum}, (vectors(),), {})
    assert isinstance(model[0], nn.LazyLinear)
    assert model[0].has_uninitialized_params()
    model(vectors())
    run(model, {"1": torch.sum}, (vectors(),), {})


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:FutureWarning")
def test_torchscript_layers_cannot_be_read_but_may_be_among_the_others() -> None:
    for scripted in (torch.jit.script(mlp()), torch.jit.trace(mlp(), vectors())):
        for name in ("", "0", "2.0"):
            with pytest.raises(RuntimeError, match=f"'{name}' belongs to a TorchScript module.*original nn.Module"):
                run(scripted, {name: torch.sum}, (vectors(),), {})
        with pytest.raises(ValueError, match="'9' is not in the model"):
            run(scripted, {"9": torch.sum}, (vectors(),), {})
    frozen = torch.jit.freeze(torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()))
    model = nn.Sequential(nn.ReLU(), torch.jit.script(nn.BatchNorm1d(4)), frozen)
    statistics = model[1].running_mean.clone()
    _, kept = run(model, {"0": torch.clone}, (vectors(),), {})
    assert kept["0"].equal(vectors().relu())
    assert model[1].training
    assert statistics.equal(model[1].running_mean)


def test_watch_sees_every_call() -> None:
    model, seen = Odd(), []
    with unchanged(model), watch(model, {"shared": lambda out: seen.append(tuple(out.shape))}) as inner:
        assert not inner.training
        inner(torch.randn(3, 6, 4))
    assert seen == [(3, 6, 4)] * 2
