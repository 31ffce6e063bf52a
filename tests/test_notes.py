"""Warnings at the user's own line, and notes that are logged."""

from __future__ import annotations

import logging
import warnings

import pytest
import torch

from hidden_uncertainty import GaussianMixture
from hidden_uncertainty.notes import about, deprecated, note, warn


def fit_too_few() -> str:
    z = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        GaussianMixture(5, max_iter=1000).fit(z, torch.arange(40) % 2)  # the line that warnings name
    (found,) = caught
    with open(found.filename) as file:
        return file.read().splitlines()[found.lineno - 1]


@pytest.mark.parametrize("through", [lambda call: call, torch.no_grad(), torch.inference_mode()])
def test_a_warning_names_the_line_of_the_user(through):
    """Through two files of the library, and through a decorator of torch between it and the user."""
    assert "the line that warnings name" in fit_too_few()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        through(warn)("here")
    assert caught[0].filename == __file__


def test_what_a_warning_is_about():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with about("layer 'fc'"):
            warn("inside.")
        warn("outside.", RuntimeWarning)
    assert [str(one.message) for one in caught] == ["layer 'fc': inside.", "outside."]
    assert [one.category for one in caught] == [UserWarning, RuntimeWarning]


def test_old_names_say_what_replaces_them():
    with pytest.warns(DeprecationWarning, match=r"^old\(\) is deprecated: use new\(\)\.$") as caught:
        deprecated("old()", "new()")
    assert caught[0].filename == __file__
    z = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    with pytest.warns(DeprecationWarning, match=r"fit\(progress=\) is deprecated"):
        GaussianMixture(1).fit(z, torch.arange(40) % 2, progress=False)


def test_notes_are_logged_by_the_first_process_alone(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    caplog.set_level(logging.INFO, logger="hidden_uncertainty")
    monkeypatch.setenv("RANK", "1")
    note("of another process")
    monkeypatch.setenv("RANK", "0")
    note("task: 100 % classes")
    assert caplog.record_tuples == [("hidden_uncertainty", logging.INFO, "task: 100 % classes")]
    assert capsys.readouterr() == ("", "")
