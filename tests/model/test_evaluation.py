"""Networks in training mode, compiled, lazy or under autocast run as in evaluation, and are left as they were."""

from __future__ import annotations

import inspect
import logging
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from capture_nets import Average, Net, data_parallel, images, in_threads, mlp, snapshot, unchanged, vectors
from hidden_uncertainty import precision
from hidden_uncertainty.model import _evaluation
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
        return torch.compile(data_parallel(plain), backend=backend), plain
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

    both, first_done, models = threading.Barrier(2), threading.Event(), [mlp().eval(), mlp().eval()]
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


def test_a_model_in_evaluation_mode_is_run_by_several_threads_at_once() -> None:
    model, together = Net().eval(), threading.Barrier(4)
    run(model, {}, (images(),), {})  # the first run of a model with buffers is one at a time
    model.before = lambda: together.wait(10)  # nobody goes on before all are inside

    def score(k: int) -> None:
        _, kept = run(model, {"stem": torch.clone}, (images(k + 1),), {})
        assert kept["stem"].shape[0] == k + 1

    with unchanged(model):
        in_threads(4, score)


def test_threads_that_change_places_all_the_time() -> None:
    model = mlp().eval()
    expected = [model(vectors(k + 1)) for k in range(6)]
    interval = sys.getswitchinterval()

    def score(k: int) -> None:
        for _ in range(100):
            _, kept = run(model, {"0": torch.clone, "2": torch.clone, "": torch.clone}, (vectors(k + 1),), {})
            assert kept[""].equal(expected[k])

    sys.setswitchinterval(1e-6)
    try:
        with unchanged(model):
            in_threads(6, score)
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.parametrize("part", ["backbone", "model"])
def test_models_that_share_modules_take_turns_in_training_mode(part: str) -> None:
    """A second model is looked at while the shared part is switched, and run after that was switched back."""
    backbone = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    first = Gate(nn.Sequential(backbone, nn.ReLU()))
    second = Gate(backbone if part == "backbone" else nn.Sequential(backbone, nn.Linear(4, 2)))
    second.eval()  # while the first has the backbone switched, all of the second looks like evaluation mode
    backbone.train()
    expected = [run(model, {}, (vectors(),), {})[0] for model in (first, second)]
    began, order = threading.Event(), []

    def inside_first() -> None:
        began.set()
        order.append("first")
        assert not entered.wait(0.3)  # the second waits
        order.append("first ends")

    def inside_second() -> None:
        entered.set()
        order.append("second")

    entered = threading.Event()
    first.inside, second.inside = inside_first, inside_second

    def score(k: int) -> None:
        assert k == 0 or began.wait(10)
        assert run((first, second)[k], {}, (vectors(),), {})[0].equal(expected[k])

    with unchanged(first), unchanged(second):
        in_threads(2, score)
    assert order == ["first", "first ends", "second"]


class Gate(nn.Module):
    """A model that does something before its layers run."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.inside: Callable[[], None] = lambda: None

    def forward(self, x: Tensor) -> Tensor:
        self.inside()
        return self.inner(x)


def test_a_switch_that_comes_and_goes_while_a_model_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """The survey saw modules that another thread had switched, and found none switched before and after."""
    model, survey, looks = Net(), _evaluation._survey, []

    def slow(root: nn.Module) -> Any:
        looks.append(root)
        if len(looks) > 1:
            return survey(root)
        for module in root.modules():
            module.training = False
        found = survey(root)
        for module in root.modules():
            module.training = True
        _evaluation._switched = set()  # as a change leaves it
        return found

    run(model, {}, (images(),), {})  # after which its buffers are known to stay
    monkeypatch.setattr(_evaluation, "_survey", slow)
    with unchanged(model):
        output, _ = run(model, {}, (images(),), {})
    assert len(looks) == 2  # it looked again, under the lock
    assert output.equal(model.eval()(images()))


@pytest.mark.parametrize("how", ["in place", "data", "reassigned"])
def test_buffers_that_a_run_changes_are_put_back(how: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), Average(how)).eval()
    average = model[1]
    mean, content = average.mean, average.mean.clone()
    outputs = [run(model, {"0": torch.clone}, (vectors(),), {})[0] for _ in range(3)]
    assert average.mean is mean and mean.equal(content)
    assert outputs[0].equal(outputs[1]) and outputs[0].equal(outputs[2])
    assert _evaluation._moving[average] == {"mean"}
    with torch.no_grad():
        assert model(vectors()).equal(outputs[0])
    assert not average.mean.equal(content)  # in the user's own hands it moves on
    with pytest.raises(ZeroDivisionError):
        run(model, {"1": lambda output: 1 / 0}, (vectors(),), {})
    assert average.mean.equal(0.9 * content + model[0](vectors()).mean())


def test_threads_on_a_model_whose_buffers_move() -> None:
    model = nn.Sequential(nn.Linear(4, 4), Average()).eval()
    expected = [run(model, {}, (vectors(k + 1),), {})[0] for k in range(8)]

    def score(k: int) -> None:
        for _ in range(20):
            assert run(model, {}, (vectors(k + 1),), {})[0].equal(expected[k])

    in_threads(8, score)
    assert model[1].mean.item() == 0


def test_training_mode_is_noted_once_per_model(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="hidden_uncertainty")
    model, other = mlp(), mlp().eval()
    for _ in range(2):
        run(model, {}, (vectors(),), {})
        run(other, {}, (vectors(),), {})
    assert [record.getMessage().partition(".")[0] for record in caplog.records] == ["the model is in training mode"]


def test_an_interrupt_after_any_call_leaves_nothing_but_dead_hooks() -> None:
    """At every point where Python looks for signals: where a function begins, and after a call of C."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), Average(), nn.Dropout())
    model[0].weight.grad = torch.ones(4, 4)
    torch.set_float32_matmul_precision("high")
    tap = precision.precise(lambda z: z @ z.mT)

    def settings() -> tuple[Any, ...]:
        flags = torch.is_grad_enabled(), torch.is_autocast_cache_enabled(), torch.is_autocast_enabled("cpu")
        return *flags, torch.get_float32_matmul_precision(), precision._current(), _evaluation._switched

    def hooks() -> int:
        return sum(len(layer._forward_hooks) + len(layer._forward_hooks_with_kwargs) for layer in model)

    def interrupted(at: int) -> bool:
        seen = 0

        def count(frame: FrameType, event: str, _: Any) -> None:
            nonlocal seen
            if event == "c_return" or (event == "call" and not frame.f_code.co_flags & inspect.CO_GENERATOR):
                seen += 1
                if seen == at:
                    raise KeyboardInterrupt

        sys.setprofile(count)
        try:
            run(model, {"0": tap, "2": torch.sum}, (vectors(),), {})
        except KeyboardInterrupt:
            return True
        finally:
            sys.setprofile(None)
        return False

    try:
        with torch.autocast("cpu", torch.bfloat16):
            run(model, {"0": tap}, (vectors(),), {})
            before, at, left = (snapshot(model), settings()), 1, 0
            while interrupted(at):
                at += 1
                if hooks():
                    left += 1
                    run(model, {"0": tap, "2": torch.sum}, (vectors(),), {})
                assert without_versions(snapshot(model)) == without_versions(before[0])
                assert settings() == before[1]
    finally:
        torch.set_float32_matmul_precision("highest")
    assert at > 200
    assert left < 0.05 * at


def without_versions(state: list[Any]) -> list[Any]:
    """A snapshot that allows for buffers to have been written and put back."""
    return [(*entry[:3], *entry[4:]) if len(entry) == 7 else entry for entry in state]
