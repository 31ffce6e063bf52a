"""Networks that are compiled, wrapped for several devices, or used by several threads at once."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from capture_nets import Net, images, mlp, unchanged, vectors
from hidden_uncertainty import capture
from hidden_uncertainty.capture import find, named, run


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


def test_wrappers_for_several_devices_are_seen_through() -> None:
    plain = mlp()
    model = nn.DataParallel(plain)
    with unchanged(plain):
        for name in ("2.0", "module.2.0"):
            output, kept = run(model, {name: torch.clone}, (vectors(),), {})
            assert kept[name].shape == (3, 6)
            assert output.equal(mlp()(vectors()))
    assert [name for name, _ in named(model)] == [name for name, _ in named(plain)]
    inside = nn.Sequential(nn.DataParallel(plain), nn.ReLU())
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


def test_a_child_that_happens_to_be_called_module_comes_first() -> None:
    inner = nn.ModuleDict({"module": nn.Linear(4, 2)})
    assert find(nn.DataParallel(inner), ["module"])["module"] is inner["module"]
    assert find(nn.DataParallel(inner), ["module.module"])["module.module"] is inner["module"]


@pytest.mark.parametrize("name", ["module.2.0", "_orig_mod.2.0", "module._orig_mod.2.0"])
def test_names_are_understood_once_the_wrapper_is_gone(name: str) -> None:
    """A detector fitted for a wrapped model is loaded for the plain one."""
    plain = mlp()
    assert find(plain, [name])[name] is plain[2][0]


def in_threads(count: int, work: Callable[[int], None]) -> None:
    errors: list[BaseException] = []

    def guarded(k: int) -> None:
        try:
            work(k)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(k,), daemon=True) for k in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads), "deadlock"
    if errors:
        raise errors[0]


def test_eight_threads_on_one_model() -> None:
    model = Net()
    reference = Net().eval()
    expected = {n: reference.stem(images(n)).detach() for n in range(1, 9)}

    def score(k: int) -> None:
        wrapped = nn.DataParallel(model) if k % 2 else model  # two detectors may hold the model differently
        for _ in range(20):
            _, kept = run(wrapped, {"stem": torch.clone, "head": torch.clone}, (images(k + 1),), {})
            assert kept["stem"].equal(expected[k + 1])
            assert kept["head"].shape == (k + 1, 3)

    with unchanged(model):
        in_threads(8, score)


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


def test_the_lock_does_not_keep_the_model_alive() -> None:
    model = mlp()
    run(model, {"0": torch.sum}, (vectors(),), {})
    assert model in capture._locks
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
