"""Products in full precision, and settings of torch that are put back whatever happens."""

from __future__ import annotations

import threading

import pytest
import torch

from hidden_uncertainty import precision as _precision
from hidden_uncertainty.precision import Setting, gradients, precise


def precision() -> tuple[str, list[str]]:
    return torch.get_float32_matmul_precision(), _precision._current()


@pytest.fixture(params=["highest", "high", "medium"])
def before(request):
    torch.set_float32_matmul_precision(request.param)
    yield precision()
    torch.set_float32_matmul_precision("highest")


def test_the_setting_is_put_back(before):
    assert set(precise(precise(_precision._current))()) <= {"ieee", "highest", "none"}
    assert precision() == before
    with pytest.raises(KeyError):
        precise({}.__getitem__)("missing")
    assert precision() == before


def test_threads_that_overlap(before):
    entered, leave, seen = threading.Event(), threading.Event(), []

    @precise
    def stay() -> None:
        entered.set()
        assert leave.wait(20)
        seen.append(_precision._current())

    thread = threading.Thread(target=stay)

    @precise
    def first() -> None:
        thread.start()
        assert entered.wait(20)

    first()
    leave.set()
    thread.join(20)
    assert set(seen[0]) <= {"ieee", "highest", "none"}  # after the first had gone
    assert precision() == before


def test_what_is_full_already_is_left_alone(monkeypatch):
    monkeypatch.setattr(_precision._products, "_write", lambda values: pytest.fail(f"set to {values}"))
    torch.set_float32_matmul_precision("highest")
    precise(precise(lambda: None))()


@pytest.mark.parametrize("broken", ["read", "write", "work"])
def test_a_setting_is_put_back_where_its_own_code_is_interrupted(broken):
    value, raised = ["fast"], []

    def interrupt(where: str) -> None:
        if where == broken and not raised:
            raised.append(where)
            raise KeyboardInterrupt

    def read() -> str:
        interrupt("read")
        return value[0]

    def write(new: str) -> None:
        value[0] = new
        interrupt("write")

    setting = Setting(read, write, lambda now: "exact")
    with pytest.raises(KeyboardInterrupt):
        setting.around(lambda: interrupt("work"))
    assert value == ["fast"]
    assert setting.around(lambda: value[0]) == "exact"
    assert value == ["fast"]


def test_an_interrupt_while_the_setting_is_put_back():
    value, interrupts = ["fast"], iter([False, True, False])

    def write(new: str) -> None:
        if next(interrupts):
            raise KeyboardInterrupt
        value[0] = new

    with pytest.raises(KeyboardInterrupt):
        Setting(lambda: value[0], write, lambda now: "exact").around(lambda: None)
    assert value == ["fast"]


@pytest.mark.parametrize("enabled", [False, True])
@pytest.mark.parametrize("around", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_gradients(enabled, around):
    def states() -> tuple[bool, bool]:
        return torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    with around():
        before = states()
        assert gradients(enabled)(states)() == (enabled, before[1])
        assert gradients(enabled, lasting=True)(states)() == (enabled, False)
        assert gradients(enabled)(gradients(not enabled)(states))()[0] is not enabled
        with pytest.raises(KeyError):
            gradients(enabled)({}.__getitem__)("missing")
        assert states() == before
    assert states() == (True, False)


def test_autocast_is_off_in_precise_functions():
    product = precise(lambda: torch.ones(2, 3) @ torch.ones(3, 2))
    with torch.autocast("cpu", torch.bfloat16):
        assert product().dtype is torch.float32
        assert (torch.ones(2, 3) @ torch.ones(3, 2)).dtype is torch.bfloat16
