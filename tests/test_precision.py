import threading

import pytest
import torch

from hidden_uncertainty import precision as _precision
from hidden_uncertainty.precision import full_precision

CPU = torch.device("cpu")


def precision() -> tuple[str, list[str]]:
    return torch.get_float32_matmul_precision(), _precision._current()


@pytest.mark.parametrize("value", ["highest", "high", "medium"])
def test_full_precision_puts_the_setting_back(value):
    torch.set_float32_matmul_precision(value)
    try:
        before = precision()
        with full_precision(CPU), full_precision(CPU):
            assert set(_precision._current()) <= {"ieee", "highest"}
        assert precision() == before
        with pytest.raises(KeyError), full_precision(CPU):
            raise KeyError
        assert precision() == before
    finally:
        torch.set_float32_matmul_precision("highest")


def test_full_precision_of_threads_that_overlap():
    torch.set_float32_matmul_precision("high")
    entered, leave = threading.Event(), threading.Event()

    def stay() -> None:
        with full_precision(CPU):
            entered.set()
            leave.wait(20)

    try:
        before = precision()
        thread = threading.Thread(target=stay)
        with full_precision(CPU):
            thread.start()
            entered.wait(20)
        assert set(_precision._current()) <= {"ieee", "highest"}  # the other one still needs it
        leave.set()
        thread.join(20)
        assert precision() == before
    finally:
        torch.set_float32_matmul_precision("highest")


def test_what_is_full_already_is_left_alone(monkeypatch):
    monkeypatch.setattr(_precision, "_set_precision", lambda values: pytest.fail(f"set to {values}"))
    torch.set_float32_matmul_precision("highest")
    with full_precision(CPU), full_precision(CPU):
        pass
