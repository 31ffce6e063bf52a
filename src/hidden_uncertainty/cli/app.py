"""The command line, `hidden-uncertainty`. What a command runs is imported when it is called."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated, NoReturn

import typer

app = typer.Typer(
    name="hidden-uncertainty",
    help="Epistemic and aleatoric uncertainty for any trained PyTorch network, from its hidden activations.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)
Quick = Annotated[bool, typer.Option("--quick", help="A rough version that takes a few seconds.")]


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


def _version(wanted: bool) -> None:
    if wanted:
        from ..version import __version__

        typer.echo(f"hidden-uncertainty {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Options that come before a command."""


@app.command()
def demo(
    out: Annotated[
        Path, typer.Option(file_okay=False, callback=expand, help="Folder for demo.png and demo.json.")
    ] = Path("demo-output"),
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of the split, the network and the noise.")] = 0,
    quick: Quick = False,
) -> None:
    """Train a small network on digits and show that it knows what it does not know; under a minute."""
    prepare()
    from ..demo.show import Settings, run

    settings = Settings(seed=seed)
    with writing_to(out):
        run(out, settings.quick() if quick else settings)


@app.command()
def compare(
    out: Annotated[
        Path, typer.Option(file_okay=False, callback=expand, help="Folder for comparison.json and comparison.png.")
    ] = Path("compare-output"),
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Repetitions; --quick runs one.")] = 5,
    quick: Quick = False,
) -> None:
    """Compare all methods on digits: how well each detects and what it costs; about two minutes."""
    prepare()
    from .. import plots
    from ..demo.methods import run

    with writing_to(out):
        found = run(seeds=range(seeds), quick=quick)
        written = found.save(out / "comparison.json"), plots.save(found.plot(), out / "comparison.png")
    typer.echo(found)
    for path in written:
        typer.echo(f"written: {path}")
