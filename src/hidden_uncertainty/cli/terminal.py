"""What commands say and where: notes, warnings and errors as single lines on stderr, and exit codes."""

from __future__ import annotations

import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NoReturn

import typer

EXPECTED = (ImportError, OSError, RuntimeError, TypeError, ValueError)  # their text says enough, without their name

OPTIONS = {"layers(model, example)": "hidden-uncertainty layers", "calibration=": "--unseen"}  # as messages call them
OPTIONS |= {"task='": "'--task ", "task= ": "--task ", "layers=": "--layers"}


def prepare() -> None:
    """Replace characters that the terminal cannot print instead of failing on them; draw to files, never to windows.

    To be called before matplotlib is imported, which fails where MPLBACKEND names a backend that is not there.
    """
    os.environ["MPLBACKEND"] = "agg"
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def expand(path: Path | None) -> Path | None:
    """Replace a leading ~ of an option, which not every shell does; for `typer.Option(callback=expand)`."""
    try:
        return path and path.expanduser()
    except RuntimeError:
        raise typer.BadParameter(f"there is no home directory for {str(path)!r}: write out the path.") from None


@contextmanager
def writing_to(out: Path) -> Iterator[None]:
    """Make a folder, check that files can be written to it, and stop with one line where that fails, now or later."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=out).close()  # before the work, not after it
        yield
    except BrokenPipeError:
        raise  # the reader of the output has gone, which says nothing about the folder
    except OSError as error:
        stop(f"cannot write to {str(out)!r}: {error.strerror or error}. Choose another folder with --out.")


def stop(message: str) -> NoReturn:
    """End the command with one line on stderr and exit code 1."""
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(1)


@contextmanager
def plainly(debug: bool) -> Iterator[None]:
    """Show notes, warnings and errors of a block as one line each; `debug` lets errors through, with their traceback.

    A reader of stdout that has seen enough, such as `head`, ends the command without an error.
    """
    logger, handler = logging.getLogger("hidden_uncertainty"), logging.StreamHandler(sys.stderr)
    handler.format = lambda record: f"note: {_line(record.getMessage())}"  # type: ignore[method-assign]
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_: typer.echo(f"warning: {_line(message)}", err=True)
            yield
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left has nowhere to go
        raise typer.Exit(0) from None
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise
    except Exception as error:
        if debug:
            raise
        text, enough = _line(error), isinstance(error, EXPECTED) and str(error)
        stop(text if enough else f"{type(error).__name__}: {text} (--debug shows where)")
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def _line(message: Any, longest: int = 1000) -> str:
    text = " ".join(str(message).split())
    for argument, option in OPTIONS.items():
        text = text.replace(argument, option)
    return text if len(text) <= longest else f"{text[:longest]}…"
