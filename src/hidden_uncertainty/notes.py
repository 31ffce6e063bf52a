"""Notes to the user: warnings that point at the user's own line, and a logger named `hidden_uncertainty`."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

import torch
from torch import distributed

logger = logging.getLogger("hidden_uncertainty")

# Frames of these are never the user's: a warning comes through them, and through decorators of torch.
_OURS = tuple(str(Path(file).parent) + os.sep for file in (__file__, torch.__file__))
_about: ContextVar[str] = ContextVar("about", default="")


def note(message: str) -> None:
    """Log something that the user may want to know, once for all processes of a group."""
    if first_process():
        logger.info(message)


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line of the user's code that called the library."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        level, frame = level + 1, frame.f_back
    what = _about.get()
    warnings.warn(f"{what}: {message}" if what else message, category, stacklevel=level)


@contextmanager
def about(what: str) -> Iterator[None]:
    """Begin every warning inside the block with what it is about, such as a layer's name."""
    token = _about.set(what)
    try:
        yield
    finally:
        _about.reset(token)


def first_process() -> bool:
    """Whether this process speaks for its group: torchrun gives every process its RANK."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank() == 0
    return os.environ.get("RANK", "0") == "0"


def deprecated(old: str, new: str) -> None:
    """Say that a name of an earlier version still works, and what replaces it."""
    warn(f"{old} is deprecated: use {new}.", DeprecationWarning)
