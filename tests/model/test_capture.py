"""What is read of a network's layers, that the network is left as it was, and which layers names and keys choose."""

from __future__ import annotations

import gc
import signal
import threading
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from capture_nets import Net, Odd, data_parallel, images, in_threads, mlp, unchanged, vectors
from hidden_uncertainty.model.capture import device_of, find, lend, named, nearest, run
from hidden_uncertainty.model.outputs import select


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
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored where a shell starts us with &
    try:
        with unchanged(model), pytest.raises(KeyboardInterrupt):
            run(model, {"stem.0": torch.sum, "head": torch.sum}, (images(),), {})
    finally:
        signal.signal(signal.SIGINT, handler)


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


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")  # once per process
def test_nested_tensors_of_a_padded_transformer_get_a_clear_error() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model, x = nn.TransformerEncoder(layer, 2), torch.randn(3, 5, 8)
    padding = torch.zeros(3, 5, dtype=torch.bool)
    padding[1, 3:] = True
    tap = {"layers.0": lambda out: select(out, None, "layer 'layers.0'").clone()}
    with (
        unchanged(model),
        pytest.raises(ValueError, match=r"layer 'layers.0' returned a nested tensor.*enable_nested_tensor=False"),
    ):
        run(model, tap, (x,), {"src_key_padding_mask": padding})
    dense = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    assert run(dense, tap, (x,), {"src_key_padding_mask": padding})[1]["layers.0"].shape == (3, 5, 8)


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


def test_every_call_of_a_layer_is_seen_with_its_inputs() -> None:
    model, x, seen = Odd(), torch.randn(3, 6, 4), []

    def work(inner: nn.Module) -> None:
        assert not inner.training
        inner(x)

    with unchanged(model):
        lend(model, {"shared": lambda output, args, kwargs: seen.append((output, *args, kwargs))}, work)
    assert len(seen) == 2
    assert seen[0][1] is x
    assert seen[1][1] is seen[0][0]


def test_what_a_callback_returns_goes_on_to_the_next_layer() -> None:
    model = mlp()
    with unchanged(model):
        output = lend(model, {"2": lambda output, *_: torch.zeros_like(output)}, lambda inner: inner(vectors()))
    assert output.equal(model[3].bias.expand(3, 2))


def test_wrappers_for_several_devices_are_seen_through() -> None:
    plain = mlp()
    model = data_parallel(plain)
    with unchanged(plain):
        for name in ("2.0", "module.2.0"):
            output, kept = run(model, {name: torch.clone}, (vectors(),), {})
            assert kept[name].shape == (3, 6)
            assert output.equal(mlp()(vectors()))
    assert [name for name, _ in named(model)] == [name for name, _ in named(plain)]
    inside = nn.Sequential(data_parallel(plain), nn.ReLU())
    assert run(inside, {"0.2": torch.clone}, (vectors(),), {})[1]["0.2"].shape == (3, 6)


def test_distributed_data_parallel() -> None:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(Net())
        with unchanged(model):
            for name in ("stem.1", "module.stem.1"):
                output, kept = run(model, {name: torch.clone}, (images(),), {})
                assert kept[name].shape == (2, 4, 6, 6)
        assert output.equal(Net().eval()(images()))
    finally:
        torch.distributed.destroy_process_group()


def test_the_users_own_calls_in_another_thread_are_not_captured() -> None:
    model = Net().eval()
    inside, called = threading.Event(), threading.Event()

    def before() -> None:
        if threading.current_thread().name == "ours":
            inside.set()
            assert called.wait(10)

    model.before = before

    def work(k: int) -> None:
        if k == 0:
            threading.current_thread().name = "ours"
            _, kept = run(model, {"stem": torch.clone, "head": torch.clone}, (images(1),), {})
            assert kept["head"].shape == (1, 3)
        else:
            assert inside.wait(10)
            assert model(images(5)).shape == (5, 3)
            called.set()

    in_threads(2, work)


def test_eight_threads_on_one_model() -> None:
    model = Net()
    reference = Net().eval()
    expected = {n: reference.stem(images(n)).detach() for n in range(1, 9)}

    def score(k: int) -> None:
        wrapped = data_parallel(model) if k % 2 else model  # two detectors may hold the model differently
        for _ in range(20):
            _, kept = run(wrapped, {"stem": torch.clone, "head": torch.clone}, (images(k + 1),), {})
            assert kept["stem"].equal(expected[k + 1])
            assert kept["head"].shape == (k + 1, 3)

    with unchanged(model):
        in_threads(8, score)


def test_nothing_keeps_the_model_alive() -> None:
    model = Net()
    run(model, {"head": torch.sum}, (images(),), {})
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_find_names_the_nearest() -> None:
    class Backbone(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone = nn.ModuleDict({f"layer{k}": nn.Sequential() for k in range(1, 5)})
            self.nothing = None

    model = Backbone()
    assert find(model, ["backbone.layer3", ""]) == {"backbone.layer3": model.backbone["layer3"], "": model}
    with pytest.raises(ValueError, match=r"layer 'layer3' is not in the model; nearest names: 'backbone.layer3'"):
        find(model, ["layer3"])
    with pytest.raises(
        ValueError, match=r"'net.backbone.layer2' .* nearest names: 'backbone.layer2'.*layers\(model, ex"
    ):
        find(model, ["net.backbone.layer2"])
    with pytest.raises(ValueError, match=r"nearest names: 'backbone\.layer"):
        find(model, ["backbone.layr3"])
    for odd in (".", "backbone.", "backbone..layer1", "nothing", "forward", "module.backbon"):
        with pytest.raises(ValueError, match="is not in the model; nearest"):
            find(model, [odd])
    with pytest.raises(TypeError, match=r"must be a torch.nn.Module, not function"):
        find(lambda x: x, ["layer"])  # type: ignore[arg-type]


def test_a_child_that_happens_to_be_called_module_comes_first() -> None:
    inner = nn.ModuleDict({"module": nn.Linear(4, 2)})
    assert find(data_parallel(inner), ["module"])["module"] is inner["module"]
    assert find(data_parallel(inner), ["module.module"])["module.module"] is inner["module"]


@pytest.mark.parametrize("name", ["module.2.0", "_orig_mod.2.0", "module._orig_mod.2.0"])
def test_names_are_understood_once_the_wrapper_is_gone(name: str) -> None:
    """A detector fitted for a wrapped model is loaded for the plain one."""
    plain = mlp()
    assert find(plain, [name])[name] is plain[2][0]


def test_nearest_always_has_something_to_offer() -> None:
    assert nearest("zzz", ["", "a", "b"]) == ["a", "b"]
    assert nearest("fc", ["a.fc", "b.fc", "fd"])[:2] == ["a.fc", "b.fc"]


def test_named_lists_each_layer_once_in_order() -> None:
    model = Odd()
    model.again = model.lstm
    model.gap = nn.Sequential()
    assert [name for name, _ in named(model)] == [name for name, _ in model.named_modules()]


def test_device_of() -> None:
    assert device_of(nn.ReLU()) is None
    assert device_of(nn.Linear(2, 2, device="meta")) == torch.device("meta")
    assert device_of(nn.BatchNorm1d(2, affine=False)) == torch.device("cpu")


def test_what_a_layer_is_given_is_seen_before_it_runs() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))
    x, seen = torch.randn(3, 4), {}

    def see(name: str) -> Any:
        return lambda inputs: seen.update({name: inputs[0].clone()})

    output, kept = run(model, {"1": lambda z: z.clone()}, (x,), {}, before={name: see(name) for name in ("1", "2")})
    linear = model[0](x)
    assert (
        torch.equal(seen["1"], linear) and torch.equal(seen["2"], linear.relu()) and torch.equal(kept["1"], seen["2"])
    )
    assert torch.equal(output, model(x))
    assert not any(layer._forward_pre_hooks or layer._forward_pre_hooks_with_kwargs for layer in model)


def test_inputs_of_a_layer_that_is_called_twice() -> None:
    layer = nn.Linear(4, 4)
    with pytest.raises(RuntimeError, match="called more than once"):
        run(nn.Sequential(layer, layer), {}, (torch.randn(3, 4),), {}, before={"0": lambda inputs: None})
