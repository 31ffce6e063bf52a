"""What commands have in common: output that any terminal can print, folders that are checked first, one-line errors."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import NoReturn

import typer


def prepare() -> None:
    """Replace characters that the terminal cannot print instead of failing on them; draw to files, never to windows.

    To be called before matplotlib is imported, which fails where MPLBACKEND names a backend that is not there.
    """
    os.environ["MPLBACKEND"] = "agg"
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def expand(folder: Path | None) -> Path | None:
    """Replace a leading ~ of an option, which not every shell does; for `typer.Option(callback=expand)`."""
    try:
        return folder and folder.expanduser()
    except RuntimeError:
        raise typer.BadParameter(f"there is no home directory for {str(folder)!r}: write out the path.") from None


@contextmanager
def writing_to(out: Path) -> Iterator[None]:
    """Make a folder, check that files can be written to it, and stop with one line where that fails, now or later.

    Args:
        out: the folder.
    """
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
