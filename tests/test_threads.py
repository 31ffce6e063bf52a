"""Fits do not wait for threads that have no core."""

import time

import pytest
import torch

from hidden_uncertainty import GaussianMixture, precision


@pytest.fixture
def two():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def used(monkeypatch, seconds, cores=2.0, rows=4):
    """How many threads a fit uses where a small operation takes so long, and so many cores are to be had."""
    seen = []
    monkeypatch.setattr(precision, "_seconds", lambda: seconds)
    monkeypatch.setattr(precision, "_cores", lambda: cores)
    monkeypatch.setattr(GaussianMixture, "_fit", lambda self, z, y: seen.append(torch.get_num_threads()))
    GaussianMixture().fit(torch.zeros(rows, 2), torch.zeros(rows, dtype=torch.long))
    return seen


@pytest.mark.usefixtures("two")
def test_a_fit_takes_one_thread_where_several_wait(monkeypatch):
    assert used(monkeypatch, 0.03) == [1] and torch.get_num_threads() == 2
    assert used(monkeypatch, 1e-5) == [2] and torch.get_num_threads() == 2


@pytest.mark.usefixtures("two")
def test_a_large_fit_takes_one_thread_where_there_is_no_core_for_the_other(monkeypatch):
    assert used(monkeypatch, 1e-5, cores=1.1, rows=1 << 19) == [1]
    assert used(monkeypatch, 1e-5, cores=1.9, rows=1 << 19) == [2]
    assert used(monkeypatch, 1e-5, cores=1.1, rows=4) == [2]  # of small ones this would take longer than the fit


def test_cores_are_those_that_threads_get():
    with_one = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert 0 < precision._cores() < 1.5
    finally:
        torch.set_num_threads(with_one)


@pytest.mark.usefixtures("two")
def test_threads_come_back_after_an_error(monkeypatch):
    monkeypatch.setattr(precision, "_seconds", lambda: 0.03)
    with pytest.raises(ValueError, match="same length"):
        GaussianMixture().fit(torch.zeros(4, 2), torch.zeros(3, dtype=torch.long))
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two")
def test_what_is_measured_is_the_mean_time_of_an_operation(monkeypatch):
    ticks = iter([0.0, 0.04])
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks))
    assert precision._seconds() == 0.04 / precision.TRIES


def test_one_thread_is_not_measured(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(precision, "_seconds", lambda: pytest.fail("measured"))
    with precision.helpful_threads(1 << 30):
        pass
